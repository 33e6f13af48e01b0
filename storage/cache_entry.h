// CacheEntry: the index's record of one entry. Internal to TieredCache; guarded by its lock.

#ifndef EMBCACHE_STORAGE_CACHE_ENTRY_H_
#define EMBCACHE_STORAGE_CACHE_ENTRY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "storage/entry.h"
#include "storage/eviction_policy.h"
#include "storage/memory_tier.h"
#include "storage/model_table.h"
#include "storage/read_handle.h"

namespace embcache {

// A lookup that waits for an entry's copy or load.
struct LookupWaiter {
  std::vector<TensorExpectation> expect;
  LookupCallback done;
  LookupCount count = LookupCount::kAll;
  Place place = Place::kAny;
};

enum class EntryState : uint8_t {
  kReserved,     // belongs to a reservation, in no index
  kLoading,      // L3 -> `tier`: has a range only once there was room; waiters wait
  kResident,     // whole, in `tier`
  kDemoting,     // whole in L1, on its way to L2; a lookup calls the move off, unless it is one
                 // that wants the entry there: those wait
  kPromoting,    // whole in L2, on its way to L1; waiters wait
  kRelocating,   // whole, on its way out of a segment that goes, within its tier; waiters wait
  kWritingBack,  // whole, leaving memory as soon as its bytes are staged for L3; a lookup calls it
                 // off
};

struct CacheEntry {
  PolicyHook hook;  // first, so that a hook is an entry; linked while in `tier` and reachable
  std::shared_ptr<const EntryInfo> info;  // of a loading entry: only key and payload bytes
  ModelUse model;
  uint64_t generation = 0;
  uint64_t model_epoch = 0;
  uint64_t publication = 0;  // in the shared index, or in its limbo; 0 = neither
  uint64_t load_bytes = 0;   // kLoading: what `tier` is asked for; not less than the payload
  MemoryRange range;         // in `tier`; bytes 0 = none yet
  // While a copy is under way: in the other tier, or in the same when relocating. bytes 0 = none.
  MemoryRange target;
  TierId tier = TierId::kL1;
  EntryState state = EntryState::kReserved;
  bool doomed = false;      // unreachable by key
  bool called_off = false;  // kDemoting, kPromoting, kRelocating, kWritingBack: stay after all
  bool for_host = false;    // kDemoting: on behalf of a lookup and not to make room
  bool saved = false;       // L3 has this generation
  bool admitted = false;    // may be written to L3
  bool queued = false;      // waits in the persist queue
  bool told_gone = false;   // kLoading: watchers have been told that the store lost it
  uint32_t pins = 0;        // ReadHandles
  uint32_t io_pins = 0;     // copies out of (or into) `range` that end by themselves
  std::vector<LookupWaiter> waiters;

  uint64_t payload_bytes() const { return info->payload_bytes(); }

  static CacheEntry* FromHook(PolicyHook* hook) { return reinterpret_cast<CacheEntry*>(hook); }
};

// What TieredCache owes the outside after it has released its lock: callbacks, copies, disk work.
class AfterUnlock {
 public:
  void Add(absl::AnyInvocable<void()> action) { actions_.push_back(std::move(action)); }
  void Run() {
    for (auto& action : actions_) action();
    actions_.clear();
  }

 private:
  std::vector<absl::AnyInvocable<void()>> actions_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_CACHE_ENTRY_H_
