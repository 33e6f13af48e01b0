// FastPath: hits without a call. It publishes entries in the shared index, knows the pin tables of
// the sessions, and answers the one question on which memory may be used again: does a reader still
// hold this?
//
//   Publish --> found by readers --Retire--> not found; nobody held it: forgotten
//                                            somebody does: in limbo --Reclaim--> forgotten
//
// A publication is one stay of one entry in one place; its number is never used again. Internal to
// TieredCache and guarded by its lock.

#ifndef EMBCACHE_STORAGE_FAST_PATH_H_
#define EMBCACHE_STORAGE_FAST_PATH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/fast_index.h"
#include "storage/fast_table.h"

namespace embcache {

struct CacheEntry;

class FastPath {
 public:
  // An index starts at this size and grows by kGrowth, so that memory is taken as it is needed.
  static constexpr uint64_t kFirstEntries = 4096;
  static constexpr uint64_t kGrowth = 4;
  // Touches looked at in a tick, and as many until the next: a few milliseconds under the lock.
  static constexpr uint64_t kMaxTouches = 65536;

  // `max_entries` > 0: the most that are published at a time.
  static absl::StatusOr<std::unique_ptr<FastPath>> Create(MemoryResource* memory,
                                                          uint64_t max_entries);
  ~FastPath() { Stop(); }

  // --- Publications ---
  // Its number, or 0: there is no room.
  uint64_t Publish(const FastEntry& entry, CacheEntry* owner);
  // Nobody finds it any more. True: a reader holds it, and Reclaim will tell when none does.
  bool Retire(uint64_t publication);
  // Who is told when limbo ends. REQUIRES: `publication` is in limbo.
  void SetOwner(uint64_t publication, CacheEntry* owner);
  // Looks at all pins anew and forgets what nobody holds any more; answers with the owners.
  std::vector<CacheEntry*> Reclaim();
  // Now, by a look at every table.
  uint32_t CountPins(uint64_t publication) const;
  // As the last Reclaim found it. Good enough to choose a victim by, not to free anything.
  bool IsPinned(uint64_t publication) const { return pinned_.contains(publication); }
  void VisitPinned(absl::FunctionRef<void(CacheEntry* owner)> visit) const;

  // --- Sessions ---
  void AddTable(std::shared_ptr<FastTable> table) { tables_.push_back(std::move(table)); }
  // Its pins count for nothing from now on.
  void RemoveTable(const FastTable* table);
  // Calls `touch` for the hits since the last time: with the entry that was hit (which may be in
  // limbo by now), or nullptr when it is not known any more which one that was.
  // Looks at a bounded number of them in a tick and as many between two ticks. The rest waits for
  // the tick (kSome), or is counted as of no known entry.
  enum class Drain { kSome, kAll, kTick };
  void DrainTouches(Drain how, absl::FunctionRef<void(CacheEntry* owner, uint64_t hits)> touch);
  // In each tick: which tables go on being honoured.
  void WeighTables() {
    for (const std::shared_ptr<FastTable>& table : tables_) table->Weigh();
  }

  // --- The index ---
  void SetModelEpoch(uint32_t model, uint64_t epoch) { index_->SetModelEpoch(model, epoch); }
  const std::shared_ptr<const MemorySegment>& memory() const { return index_->memory(); }
  // Entries that the next index should have room for; 0: this one is large enough, or the largest.
  uint64_t WantedEntries() const;
  // There was no memory for it: what finds no room is served by calls.
  void GiveUpGrowing() { full_ = false; }
  // Replaces the index. All that was published keeps its number, for that is what pins name, but
  // can be found again only after Republish. What is in limbo stays there.
  void Replace(std::unique_ptr<FastIndex> index);
  // REQUIRES: `publication` is of an earlier index, and `entry` what it was published with.
  void Republish(uint64_t publication, const FastEntry& entry);
  // Readers ask the daemon from now on.
  void Stop() {
    stopped_ = true;
    index_->SetState(EMBCACHE_FAST_STOPPED);
  }

 private:
  struct Publication {
    CacheEntry* owner = nullptr;
    FastHash hash;
    FastIndex::Blob blob;
    uint64_t payload_bytes = 0;
    uint64_t index = 0;  // the serial number of the blob's: what a replaced one had is not freed
    bool retired = false;
  };
  using Publications = absl::flat_hash_map<uint64_t, Publication>;

  FastPath(std::unique_ptr<FastIndex> index, uint64_t max_entries)
      : index_(std::move(index)), max_entries_(max_entries) {}

  bool IsHeld(uint64_t publication) const;
  void Forget(Publications::iterator publication);

  std::unique_ptr<FastIndex> index_;
  const uint64_t max_entries_;
  uint64_t index_serial_ = 1;
  bool stopped_ = false;
  bool full_ = false;  // something found no room in index_
  uint64_t next_publication_ = 1;
  Publications publications_;
  std::vector<uint64_t> limbo_;  // the retired ones
  std::vector<std::shared_ptr<FastTable>> tables_;
  absl::flat_hash_set<uint64_t> pinned_;  // as of the last Reclaim
  uint64_t touches_left_ = kMaxTouches;   // that may be looked at before the next tick
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_FAST_PATH_H_
