#include "storage/memory_tier.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace embcache {
namespace {

constexpr uint64_t kMaxSegments = 4096;

struct SegmentPlan {
  uint64_t count = 0;
  uint64_t bytes = 0;  // of each
};

// Counts in whole granules, so that the sum never exceeds the capacity asked for.
absl::StatusOr<SegmentPlan> PlanSegments(TierId id, const MemoryTierOptions& options,
                                         uint64_t granularity) {
  if (options.capacity_bytes < granularity) {
    return absl::InvalidArgumentError(absl::StrCat(TierName(id),
                                                   " capacity_bytes: ", options.capacity_bytes,
                                                   "; must be 0 or at least ", granularity));
  }
  if (options.segment_bytes < granularity) {
    return absl::InvalidArgumentError(absl::StrCat(TierName(id),
                                                   " segment_bytes: ", options.segment_bytes,
                                                   "; must be at least ", granularity));
  }
  const uint64_t granules = options.capacity_bytes / granularity;
  const uint64_t largest = options.segment_bytes / granularity;
  const uint64_t count = granules / largest + (granules % largest != 0 ? 1 : 0);
  if (count > kMaxSegments) {
    return absl::InvalidArgumentError(absl::StrCat(
        TierName(id), " segment_bytes: ", options.segment_bytes, " cuts ", options.capacity_bytes,
        " bytes of capacity_bytes into ", count, " segments; must be at most ", kMaxSegments));
  }
  return SegmentPlan{count, granules / count * granularity};
}

}  // namespace

absl::StatusOr<MemoryTier> MemoryTier::Create(TierId id, const MemoryTierOptions& options,
                                              MemoryResource* resource) {
  MemoryTier tier(id);
  if (options.capacity_bytes == 0) return tier;
  const uint64_t granularity = resource->granularity();
  EMB_CHECK(granularity > 0 && granularity % SegmentArena::kAlignment == 0);
  const absl::StatusOr<SegmentPlan> plan = PlanSegments(id, options, granularity);
  if (!plan.ok()) return plan.status();
  tier.device_uuid_ = resource->device_uuid();
  tier.segments_.reserve(plan->count);
  for (uint64_t i = 0; i < plan->count; ++i) {
    absl::StatusOr<std::unique_ptr<MemorySegment>> memory =
        resource->Allocate(absl::StrCat("embcache-", TierName(id), "-", i), plan->bytes);
    if (!memory.ok()) {
      return absl::Status(
          memory.status().code(),
          absl::StrCat(TierName(id), " capacity_bytes ", options.capacity_bytes, ": segment ",
                       i + 1, " of ", plan->count, ": ", memory.status().message()));
    }
    tier.segments_.push_back(Segment{*std::move(memory), SegmentArena(plan->bytes)});
  }
  tier.capacity_bytes_ = plan->count * plan->bytes;
  return tier;
}

uint64_t MemoryTier::max_entry_bytes() const {
  return enabled() ? segments_.front().arena.capacity() : 0;  // all are equal
}

double MemoryTier::Fragmentation() const {
  if (free_bytes() == 0) return 0;
  uint64_t largest = 0;
  for (const Segment& segment : segments_) {
    largest = std::max(largest, segment.arena.largest_free());
  }
  return 1 - static_cast<double>(largest) / static_cast<double>(free_bytes());
}

std::optional<MemoryRange> MemoryTier::Allocate(uint64_t bytes) {
  EMB_CHECK(bytes > 0);
  if (!enabled()) return std::nullopt;
  // Best fit over all segments as if they were one.
  std::optional<uint32_t> tightest;
  uint64_t tightest_bytes = 0;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
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
