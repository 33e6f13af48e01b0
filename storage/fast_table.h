// FastTable: the daemon's view of one session's pin table (storage/fast_layout.h). The client
// writes it as it likes, so every number in it is checked before use, and nothing here follows one:
// a table of rubbish costs a bounded look.
//
// Reading pins is thread-safe; Drain, Weigh and honoured are for one thread at a time.

#ifndef EMBCACHE_STORAGE_FAST_TABLE_H_
#define EMBCACHE_STORAGE_FAST_TABLE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/fast_layout.h"
#include "storage/memory_resource.h"

namespace embcache {

class FastTable {
 public:
  // `max_pinned_bytes`: what the session may pin this way; 0 = no bound.
  static absl::StatusOr<std::shared_ptr<FastTable>> Create(MemoryResource* memory,
                                                           uint64_t max_pinned_bytes);

  const MemorySegment& memory() const { return *memory_; }
  uint64_t max_pinned_bytes() const { return max_pinned_bytes_; }

  // Calls `visit` with every publication that the table names, until it returns false. What was
  // pinned before a fence of the caller's that follows its unlinking is seen.
  template <typename Visit>
  void VisitPins(Visit visit) const {
    const uint32_t lanes = Clamped(table_->lanes_used, EMBCACHE_FAST_LANES);
    for (uint32_t i = 0; i < lanes; ++i) {
      const embcache_fast_lane& lane = table_->lanes[i];
      const uint32_t pins = Clamped(lane.pins_used, EMBCACHE_FAST_LANE_PINS);
      for (uint32_t k = 0; k < pins; ++k) {
        const uint64_t publication = __atomic_load_n(&lane.pins[k], __ATOMIC_ACQUIRE);
        if (publication != 0 && !visit(publication)) return;
      }
    }
  }
  bool Holds(uint64_t publication) const;
  uint64_t CountPins() const;

  // Calls `touch` with the publications touched since the last time, as far as they are still
  // known, and answers how many touches went unrecorded.
  // Looks at `budget` of them at most and takes what it has looked at off it.
  uint64_t Drain(uint64_t* budget, absl::FunctionRef<void(uint64_t publication)> touch);

  // As FastPath last found it: the entries that are pinned through this table and exist.
  uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
  void set_pinned_bytes(uint64_t bytes) { pinned_bytes_.store(bytes, std::memory_order_relaxed); }
  // For each tick: weighs what is pinned now against what was.
  void Weigh();
  // A client that goes on pinning more than it may has its pins ignored. A look at the table is not
  // one instant, so one that finds too much proves nothing: a client that ends one pin and takes
  // another meanwhile shows both. The mean of many looks cannot be above what was really pinned,
  // but for chance; hence the mean, and a margin.
  bool honoured() const { return honoured_; }

 private:
  FastTable(std::unique_ptr<MemorySegment> memory, uint64_t max_pinned_bytes);

  static uint32_t Clamped(const uint32_t& number, uint32_t most) {
    return std::min(__atomic_load_n(&number, __ATOMIC_ACQUIRE), most);
  }

  const std::unique_ptr<MemorySegment> memory_;
  const embcache_fast_table* const table_;
  const uint64_t max_pinned_bytes_;
  std::atomic<uint64_t> pinned_bytes_ = 0;
  double mean_pinned_ = 0;  // of the last looks, one a tick
  bool honoured_ = true;
  std::array<uint64_t, EMBCACHE_FAST_LANES> drained_ = {};  // touches seen, by lane
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_FAST_TABLE_H_
