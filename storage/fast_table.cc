#include "storage/fast_table.h"

#include <cstring>

#include "storage/check.h"

namespace embcache {
namespace {

// More touches than that between two looks, a fraction of a second apart, are no touches.
constexpr uint64_t kMostTouches = uint64_t{1} << 24;

// Looks that the mean of what is pinned goes back, and how far it may be above the quota.
constexpr double kLooks = 32;
constexpr double kMargin = 1.5;

}  // namespace

absl::StatusOr<std::shared_ptr<FastTable>> FastTable::Create(MemoryResource* memory,
                                                             uint64_t max_pinned_bytes) {
  const uint64_t granularity = memory->granularity();
  const uint64_t bytes =
      (sizeof(embcache_fast_table) + granularity - 1) / granularity * granularity;
  absl::StatusOr<std::unique_ptr<MemorySegment>> segment = memory->Allocate("embcache-pins", bytes);
  if (!segment.ok()) return segment.status();
  return std::shared_ptr<FastTable>(new FastTable(*std::move(segment), max_pinned_bytes));
}

FastTable::FastTable(std::unique_ptr<MemorySegment> memory, uint64_t max_pinned_bytes)
    : memory_(std::move(memory)),
      table_(reinterpret_cast<const embcache_fast_table*>(memory_->host_data())),
      max_pinned_bytes_(max_pinned_bytes) {
  std::memset(memory_->host_data(), 0, memory_->bytes());
}

bool FastTable::Holds(uint64_t publication) const {
  bool found = false;
  VisitPins([&](uint64_t pinned) {
    found = pinned == publication;
    return !found;
  });
  return found;
}

uint64_t FastTable::CountPins() const {
  uint64_t count = 0;
  VisitPins([&](uint64_t) {
    ++count;
    return true;
  });
  return count;
}

void FastTable::Weigh() {
  if (max_pinned_bytes_ == 0) return;
  mean_pinned_ += (static_cast<double>(pinned_bytes()) - mean_pinned_) / kLooks;
  honoured_ = mean_pinned_ <= kMargin * static_cast<double>(max_pinned_bytes_);
}

uint64_t FastTable::Drain(uint64_t* budget, absl::FunctionRef<void(uint64_t)> touch) {
  uint64_t unrecorded = 0;
  const uint32_t lanes = Clamped(table_->lanes_used, EMBCACHE_FAST_LANES);
  for (uint32_t i = 0; i < lanes; ++i) {
    const embcache_fast_lane& lane = table_->lanes[i];
    const uint64_t count = __atomic_load_n(&lane.touch_count, __ATOMIC_ACQUIRE);
    const uint64_t fresh = count - std::exchange(drained_[i], count);
    if (fresh > kMostTouches) continue;
    const uint64_t kept = std::min({fresh, uint64_t{EMBCACHE_FAST_LANE_TOUCHES}, *budget});
    *budget -= kept;
    unrecorded += fresh - kept;
    for (uint64_t k = count - kept; k != count; ++k) {
      touch(__atomic_load_n(&lane.touches[k % EMBCACHE_FAST_LANE_TOUCHES], __ATOMIC_RELAXED));
    }
  }
  return unrecorded;
}

}  // namespace embcache
