#include "storage/memory_tier.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace embcache {
namespace {

constexpr uint64_t kMaxSegments = 4096;
constexpr uint64_t kLeastDefaultSegment = uint64_t{256} << 20;
constexpr uint64_t kMostDefaultSegment = uint64_t{16} << 30;

struct SegmentPlan {
  uint64_t count = 0;
  uint64_t bytes = 0;  // of each
};

// Counts in whole granules, so that the sum never exceeds the capacity asked for.
absl::StatusOr<SegmentPlan> PlanSegments(TierId id, const MemoryTierOptions& options,
                                         uint64_t granularity, uint64_t others) {
  if (options.capacity_bytes < granularity) {
    return absl::InvalidArgumentError(absl::StrCat(TierName(id),
                                                   " capacity_bytes: ", options.capacity_bytes,
                                                   "; must be 0 or at least ", granularity));
  }
  const uint64_t segment_bytes = options.segment_bytes > 0
                                     ? options.segment_bytes
                                     : DefaultSegmentBytes(options.capacity_bytes);
  if (segment_bytes < granularity) {
    return absl::InvalidArgumentError(absl::StrCat(TierName(id), " segment_bytes: ", segment_bytes,
                                                   "; must be at least ", granularity));
  }
  const uint64_t granules = options.capacity_bytes / granularity;
  const uint64_t largest = segment_bytes / granularity;
  const uint64_t count = granules / largest + (granules % largest != 0 ? 1 : 0);
  if (count + others > kMaxSegments) {
    return absl::InvalidArgumentError(absl::StrCat(
        TierName(id), " segment_bytes: ", segment_bytes, " cuts ", options.capacity_bytes,
        " bytes of capacity_bytes into ", count, " segments",
        others == 0 ? "" : absl::StrCat(" beside ", others), "; must be at most ", kMaxSegments));
  }
  return SegmentPlan{count, granules / count * granularity};
}

}  // namespace

absl::Status CheckSegments(TierId id, const MemoryTierOptions& options, uint64_t granularity) {
  return PlanSegments(id, options, granularity, /*others=*/0).status();
}

uint64_t DefaultSegmentBytes(uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / 8, kLeastDefaultSegment, kMostDefaultSegment);
}

absl::StatusOr<MemorySegments> AllocateSegments(TierId id, const MemoryTierOptions& options,
                                                MemoryResource* resource, uint64_t others) {
  const uint64_t granularity = resource->granularity();
  EMB_CHECK(granularity > 0 && granularity % SegmentArena::kAlignment == 0);
  const absl::StatusOr<SegmentPlan> plan = PlanSegments(id, options, granularity, others);
  if (!plan.ok()) return plan.status();
  MemorySegments segments;
  segments.reserve(plan->count);
  for (uint64_t i = 0; i < plan->count; ++i) {
    absl::StatusOr<std::unique_ptr<MemorySegment>> memory =
        resource->Allocate(absl::StrCat("embcache-", TierName(id), "-", others + i), plan->bytes);
    if (!memory.ok()) {
      return absl::Status(
          memory.status().code(),
          absl::StrCat(TierName(id), " capacity_bytes ", options.capacity_bytes, ": segment ",
                       i + 1, " of ", plan->count, ": ", memory.status().message()));
    }
    segments.push_back(*std::move(memory));
  }
  return segments;
}

absl::StatusOr<MemoryTier> MemoryTier::Create(TierId id, const MemoryTierOptions& options,
                                              MemoryResource* resource, uint32_t first_segment_id) {
  MemoryTier tier(id);
  if (resource != nullptr) tier.device_uuid_ = resource->device_uuid();
  if (options.capacity_bytes == 0) return tier;
  absl::StatusOr<MemorySegments> segments = AllocateSegments(id, options, resource);
  if (!segments.ok()) return segments.status();
  for (std::unique_ptr<MemorySegment>& memory : *segments) {
    tier.Add(first_segment_id++, std::move(memory));
  }
  tier.Open();
  return tier;
}

// --- Resizing -----------------------------------------------------------------------------------

void MemoryTier::Add(uint32_t id, std::unique_ptr<MemorySegment> memory) {
  Segment added{.id = id, .memory = std::move(memory), .state = Segment::State::kComing};
  added.arena = SegmentArena(added.memory->bytes());
  const auto unused = std::find_if(segments_.begin(), segments_.end(), [](const Segment& segment) {
    return segment.memory == nullptr;
  });
  if (unused == segments_.end()) {
    segments_.push_back(std::move(added));
  } else {
    *unused = std::move(added);
  }
}

void MemoryTier::Open() {
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].memory == nullptr || segments_[i].state != Segment::State::kComing) continue;
    capacity_bytes_ += segments_[i].arena.capacity();
    SetState(i, Segment::State::kOpen);
  }
}

void MemoryTier::SetState(uint32_t index, Segment::State state) {
  segments_[index].state = state;
  open_bytes_ = 0;
  max_entry_bytes_ = 0;
  for (const Segment& segment : segments_) {
    if (!segment.open()) continue;
    open_bytes_ += segment.arena.capacity();
    max_entry_bytes_ = std::max(max_entry_bytes_, segment.arena.capacity());
  }
}

std::vector<uint32_t> MemoryTier::ChooseClosing(uint64_t open_bytes) const {
  std::vector<uint32_t> by_age;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].open()) by_age.push_back(i);
  }
  std::sort(by_age.begin(), by_age.end(),
            [this](uint32_t a, uint32_t b) { return segments_[a].id > segments_[b].id; });
  std::vector<uint32_t> chosen;
  uint64_t left = open_bytes_;
  std::optional<uint32_t> smallest;  // of those too large to go without leaving too little
  for (const uint32_t i : by_age) {
    const uint64_t bytes = segments_[i].arena.capacity();
    if (left <= open_bytes) return chosen;
    if (left - bytes >= open_bytes) {
      chosen.push_back(i);
      left -= bytes;
    } else if (!smallest.has_value() || bytes < segments_[*smallest].arena.capacity()) {
      smallest = i;
    }
  }
  if (left > open_bytes && smallest.has_value()) chosen.push_back(*smallest);
  return chosen;
}

void MemoryTier::Close(uint32_t index) {
  EMB_CHECK(segments_[index].open());
  SetState(index, Segment::State::kClosing);
}

void MemoryTier::Reopen(uint32_t index) {
  EMB_CHECK(IsClosing(index));
  SetState(index, Segment::State::kOpen);
}

std::shared_ptr<MemorySegment> MemoryTier::Remove(uint32_t index) {
  EMB_CHECK(IsEmptied(index));
  capacity_bytes_ -= segments_[index].arena.capacity();
  return std::exchange(segments_[index], Segment()).memory;
}

// --- Ranges -------------------------------------------------------------------------------------

uint64_t MemoryTier::segment_count() const {
  return static_cast<uint64_t>(
      std::count_if(segments_.begin(), segments_.end(),
                    [](const Segment& segment) { return segment.memory != nullptr; }));
}

uint64_t MemoryTier::free_bytes() const {
  uint64_t free = 0;
  for (const Segment& segment : segments_) {
    if (segment.open()) free += segment.arena.free_bytes();
  }
  return free;
}

uint64_t MemoryTier::max_entry_bytes() const { return lost_ ? 0 : max_entry_bytes_; }

double MemoryTier::Fragmentation() const {
  uint64_t largest = 0;  // of each segment, added up
  for (const Segment& segment : segments_) {
    if (segment.open()) largest += segment.arena.largest_free();
  }
  const uint64_t free = free_bytes();
  return free == 0 ? 0 : 1 - static_cast<double>(largest) / static_cast<double>(free);
}

std::optional<MemoryRange> MemoryTier::Allocate(uint64_t bytes) {
  EMB_CHECK(bytes > 0);
  if (!enabled()) return std::nullopt;
  // Best fit over all segments as if they were one.
  std::optional<uint32_t> tightest;
  uint64_t tightest_bytes = 0;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i].open()) continue;
    const std::optional<uint64_t> fit = segments_[i].arena.TightestFit(bytes);
    if (!fit.has_value() || (tightest.has_value() && *fit >= tightest_bytes)) continue;
    tightest = i;
    tightest_bytes = *fit;
  }
  if (!tightest.has_value()) return std::nullopt;
  const std::optional<uint64_t> offset = segments_[*tightest].arena.Allocate(bytes);
  EMB_CHECK(offset.has_value());
  const MemoryRange range{*tightest, *offset, SegmentArena::RoundUp(bytes)};
  used_bytes_ += range.bytes;
  return range;
}

void MemoryTier::Free(const MemoryRange& range) {
  EMB_CHECK(range.segment < segments_.size());
  EMB_CHECK(range.bytes % SegmentArena::kAlignment == 0);
  segments_[range.segment].arena.Free(range.offset, range.bytes);
  used_bytes_ -= range.bytes;
}

}  // namespace embcache
