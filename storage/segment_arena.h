// SegmentArena: hands out 256-byte-aligned ranges of one segment. Pure bookkeeping of offsets, in
// host memory, since the segment itself may be VRAM that the CPU cannot read.
//
// Best fit with coalescing: the smallest free range that is large enough, the lowest offset among
// equals; a freed range melts into its free neighbours at once. Allocate and Free are O(log n) in
// the number of ranges.
//
// With entries of 0.3 to 60 MB churning through 4 GiB, 90.6% is in use when an allocation first
// finds no room (random or least recently used victims; 95.3% when the oldest leave). First, next
// and worst fit, and placing small and large entries apart, measured up to 9% lower and nowhere
// higher.
//
// Invariant: allocated and free ranges tile [0, capacity) without gap or overlap, and no two free
// ranges touch.
//
// Not thread-safe.

#ifndef EMBCACHE_STORAGE_SEGMENT_ARENA_H_
#define EMBCACHE_STORAGE_SEGMENT_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace embcache {

class SegmentArena {
 public:
  static constexpr uint64_t kAlignment = 256;

  static constexpr uint64_t RoundUp(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // `capacity` is rounded down to kAlignment.
  explicit SegmentArena(uint64_t capacity);

  // Offset of a range of RoundUp(bytes); nullopt when no free range is large enough.
  // REQUIRES: bytes > 0.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // Returns the range of RoundUp(bytes) at `offset`. Aborts unless it is allocated exactly so.
  void Free(uint64_t offset, uint64_t bytes);

  uint64_t capacity() const { return capacity_; }
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_free() const;
  size_t free_ranges() const { return free_by_size_.size(); }
  // Bytes of the free range that Allocate(bytes) would cut from; nullopt when there is none.
  std::optional<uint64_t> TightestFit(uint64_t bytes) const;

  // Aborts if the invariant above does not hold.
  void CheckInvariants() const;

 private:
  struct Range {
    uint64_t bytes : 63;
    uint64_t free : 1;
  };
  // Every range, allocated or free, by offset: 16 bytes each.
  using Ranges = absl::btree_map<uint64_t, Range>;
  using BySize = std::pair<uint64_t, uint64_t>;  // (bytes, offset)

  // Takes a free range out of free_by_size_.
  void EraseFree(uint64_t offset, uint64_t bytes);

  uint64_t capacity_;
  uint64_t free_bytes_ = 0;
  Ranges ranges_;
  absl::btree_set<BySize> free_by_size_;  // the free ones of ranges_
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_SEGMENT_ARENA_H_
