#include "storage/segment_arena.h"

#include <iterator>

#include "storage/check.h"

namespace embcache {

SegmentArena::SegmentArena(uint64_t capacity)
    : capacity_(capacity / kAlignment * kAlignment), free_bytes_(capacity_) {
  if (capacity_ == 0) return;
  ranges_.emplace(0, Range{capacity_, 1});
  free_by_size_.emplace(capacity_, 0);
}

std::optional<uint64_t> SegmentArena::TightestFit(uint64_t bytes) const {
  if (bytes > capacity_) return std::nullopt;  // also keeps RoundUp from wrapping around
  const auto fit = free_by_size_.lower_bound({RoundUp(bytes), 0});
  if (fit == free_by_size_.end()) return std::nullopt;
  return fit->first;
}

std::optional<uint64_t> SegmentArena::Allocate(uint64_t bytes) {
  EMB_CHECK(bytes > 0);
  if (bytes > capacity_) return std::nullopt;
  const uint64_t size = RoundUp(bytes);
  const auto fit = free_by_size_.lower_bound({size, 0});
  if (fit == free_by_size_.end()) return std::nullopt;
  const auto [found, offset] = *fit;
  free_by_size_.erase(fit);
  ranges_.find(offset)->second = Range{size, 0};
  if (found > size) {
    ranges_.emplace(offset + size, Range{found - size, 1});
    free_by_size_.emplace(found - size, offset + size);
  }
  free_bytes_ -= size;
  return offset;
}

void SegmentArena::Free(uint64_t offset, uint64_t bytes) {
  EMB_CHECK(bytes > 0 && bytes <= capacity_);
  const uint64_t size = RoundUp(bytes);
  Ranges::iterator it = ranges_.find(offset);
  EMB_CHECK(it != ranges_.end());
  EMB_CHECK(!it->second.free);
  EMB_CHECK(it->second.bytes == size);
  free_bytes_ += size;

  uint64_t start = offset;
  uint64_t merged = size;
  const Ranges::iterator after = std::next(it);
  if (after != ranges_.end() && after->second.free) {
    EraseFree(after->first, after->second.bytes);
    merged += after->second.bytes;
    ranges_.erase(after);
    it = ranges_.find(offset);  // erasing moves the others
  }
  if (it != ranges_.begin() && std::prev(it)->second.free) {
    const Ranges::iterator before = std::prev(it);
    EraseFree(before->first, before->second.bytes);
    start = before->first;
    merged += before->second.bytes;
    ranges_.erase(it);
  }
  ranges_.find(start)->second = Range{merged, 1};
  free_by_size_.emplace(merged, start);
}

void SegmentArena::EraseFree(uint64_t offset, uint64_t bytes) {
  EMB_CHECK(free_by_size_.erase({bytes, offset}) == 1);
}

uint64_t SegmentArena::largest_free() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

void SegmentArena::CheckInvariants() const {
  uint64_t end = 0;
  uint64_t free_bytes = 0;
  size_t free_ranges = 0;
  bool after_free = false;
  for (const auto& [offset, range] : ranges_) {
    EMB_CHECK(offset == end);
    EMB_CHECK(range.bytes > 0 && range.bytes % kAlignment == 0);
    EMB_CHECK(!(range.free && after_free));
    if (range.free) {
      EMB_CHECK(free_by_size_.contains({range.bytes, offset}));
      free_bytes += range.bytes;
      ++free_ranges;
    }
    after_free = range.free;
    end = offset + range.bytes;
  }
  EMB_CHECK(end == capacity_);
  EMB_CHECK(free_ranges == free_by_size_.size());
  EMB_CHECK(free_bytes == free_bytes_);
}

}  // namespace embcache
