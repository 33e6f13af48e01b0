// TieredCache: the cache itself. An index from key to entry over two exclusive memory tiers (L1,
// L2) and an optional persistent store (L3).
//
//   Reserve -> (write the bytes) -> Commit          Lookup -> ReadHandle
//
// An entry lives in at most one memory tier. Room in L1 is made by demoting the least recently used
// entry to L2, room in L2 by dropping it; a hit in L2 promotes, a hit in L3 loads. Whatever has to
// wait for a copy or a disk answers through its callback, later, from another thread; nothing is
// ever copied, read or called back under the lock.
//
// Thread-safe. Callbacks run without locks, possibly inside the call that takes them.
//
// States of an entry (cache_entry.h has the fields):
//
//   (none) --L3 hit--> LOADING --read, checked--> RESIDENT --evicted/deleted/replaced--> (none)
//   (none) --Commit--> RESIDENT                   RESIDENT(L1) <--copy--> RESIDENT(L2) by way of
//                                                 DEMOTING / PROMOTING
//                                                 RESIDENT --RELOCATING--> RESIDENT, same tier
//   Any of them can be *doomed*: unreachable by key, its memory freed when its last pin ends.

#ifndef EMBCACHE_STORAGE_TIERED_CACHE_H_
#define EMBCACHE_STORAGE_TIERED_CACHE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/cache_entry.h"
#include "storage/cache_stats.h"
#include "storage/cache_work.h"
#include "storage/clock.h"
#include "storage/copy_engine.h"
#include "storage/entry.h"
#include "storage/event_log.h"
#include "storage/eviction_policy.h"
#include "storage/executor.h"
#include "storage/fast_path.h"
#include "storage/ghost_set.h"
#include "storage/memory_resource.h"
#include "storage/memory_tier.h"
#include "storage/model_table.h"
#include "storage/persist_queue.h"
#include "storage/persistent_store.h"
#include "storage/put_gate.h"
#include "storage/read_handle.h"
#include "storage/tiered_cache_types.h"

namespace embcache {

class TieredCache {
 public:
  using LookupCallback = embcache::LookupCallback;
  using ReserveCallback = absl::AnyInvocable<void(absl::StatusOr<ReservedPlace>)>;
  using StatusCallback = absl::AnyInvocable<void(absl::Status)>;

  // RESOURCE_EXHAUSTED when the memory cannot be had, INVALID_ARGUMENT for impossible options.
  static absl::StatusOr<std::unique_ptr<TieredCache>> Create(const TieredCacheOptions& options,
                                                             const TieredCacheDeps& deps);
  // REQUIRES: no ReadHandle is left. Waits for copies and disk work in flight; what is queued for
  // L3 and not flushed before is lost.
  ~TieredCache();

  TieredCache(const TieredCache&) = delete;
  TieredCache& operator=(const TieredCache&) = delete;

  // Finds `key`, brings it to the fastest tier it can have, pins it there. Counts one hit or one
  // miss. Errors: RESOURCE_EXHAUSTED (too many waiters), counted as a miss too.
  void Lookup(const CacheKey& key, std::vector<TensorExpectation> expect, LookupCallback done,
              LookupCount count = LookupCount::kAll);
  // The same for a caller who cannot use all memory, where L1 is device memory. For kHost an entry
  // in L1 is brought to L2, and one that comes from L2 or L3 goes no further than L2.
  // FAILED_PRECONDITION: it is pinned in the other memory, or there is none where it is wanted.
  void Lookup(const CacheKey& key, std::vector<TensorExpectation> expect, Place place,
              LookupCallback done, LookupCount count = LookupCount::kAll);
  // Counts the miss that lookups with kHits ended in.
  void CountMiss(const CacheKey& key, MissReason reason);

  // Pins `key` where it is, if it is in memory. Counts nothing, touches nothing.
  ReadHandle PinInPlace(const CacheKey& key);

  // The fastest tier that has `key`. Counts nothing, touches nothing.
  std::optional<TierId> Contains(const CacheKey& key) const;

  // Makes a writable range for a new value of request.key. An old value goes on being served until
  // Commit, unless room is so short that it has to go first. RESOURCE_EXHAUSTED: larger than every
  // tier (the old value is then removed at once: it must not go on being served), or all that could
  // be evicted is pinned.
  void Reserve(ReserveRequest request, ReserveCallback done);

  // Copies `bytes` into the payload of a reservation.
  void WriteReserved(ReservationId id, uint64_t offset, absl::string_view bytes,
                     StatusCallback done);
  // The same by a copy of the caller's own: `write` gets the place of the payload's byte `offset`,
  // and calls `Done` when nothing writes there any more.
  using Writer =
      absl::AnyInvocable<void(const MemorySegment* to, uint64_t to_offset, CopyEngine::Done)>;
  void FillReserved(ReservationId id, uint64_t offset, uint64_t bytes, Writer write,
                    StatusCallback done);
  // Copies all of a pinned entry to ordinary memory. The pin outlives the copy.
  void ReadPinned(const ReadHandle& handle, char* to, StatusCallback done);

  // Makes the entry visible and replaces an older one. The returned handle pins it. In every
  // failure the reservation ends. NOT_FOUND: no such reservation. FAILED_PRECONDITION: it expired,
  // or the model's epoch was advanced since Reserve. ABORTED: see ReserveRequest::cancelled.
  absl::StatusOr<ReadHandle> Commit(ReservationId id);

  // Ends a reservation. REQUIRES: nobody writes into its range any more. NOT_FOUND as above.
  absl::Status Abort(ReservationId id);

  // Removes `key` from every tier. The answer (did it exist?) comes when the removal is durable.
  void Delete(const CacheKey& key, absl::AnyInvocable<void(absl::StatusOr<bool>)> done);

  // Takes the entry out: finds and pins it like Lookup, but counts no hit and no miss, and gives it
  // (or a miss) to `take`. If that returns true the key is removed like Delete; `done` is called
  // when the removal is durable, or at once with OK.
  void Pop(const CacheKey& key, absl::AnyInvocable<bool(LookupResult)> take, StatusCallback done,
           Place place = Place::kAny);

  // Makes every entry of `model` unreachable and every reservation of it uncommittable, at once;
  // answers with the new epoch when that is durable. RESOURCE_EXHAUSTED: too many models have one,
  // and nothing has happened. UNAVAILABLE: L3 has not recorded it; all but that has happened and
  // stays so until a restart.
  void AdvanceEpoch(absl::string_view model,
                    absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done);
  // Every model that is known from gets, puts or epochs, or has anything in L3.
  std::vector<std::string> Models() const;
  // UNAVAILABLE: what L3 holds cannot be reached yet, and no list has it. OK without L3.
  absl::Status L3Reachable() const;

  ListPage List(const ListQuery& query) const;

  // The newest event's number, and whether those after number `after` are still known.
  uint64_t last_event() const;
  bool RemembersEventsAfter(uint64_t after) const;
  struct EventPage {
    std::vector<CacheEvent> events;
    uint64_t lost = 0;  // events between `after` and these
  };
  // What happened after event `after`, at most `limit` events. When that is nothing, the listener
  // is called once at the next event.
  EventPage Events(uint64_t after, size_t limit);
  // Without locks, from any thread, also after it has been replaced if a call was under way.
  void OnEvent(std::shared_ptr<absl::AnyInvocable<void()>> listener);

  // Answers when all that was committed before is on disk. FAILED_PRECONDITION without L3.
  void Flush(StatusCallback done);

  struct StoreCheck {
    uint64_t records = 0;  // that were right
    uint64_t bytes = 0;    // of them
    uint64_t damaged = 0;  // and are removed now
    uint64_t failed = 0;   // could not be read
  };
  using CheckCallback = absl::AnyInvocable<void(absl::StatusOr<StoreCheck>)>;
  // Reads all that is in L3 in the background, one record after the other. FAILED_PRECONDITION
  // without L3 or while another check runs.
  void CheckStore(CheckCallback done);

  // Gives up reservations past their time and drops entries past theirs. Call it every 100 ms or
  // so.
  void Tick();

  CacheStats GetStats(bool per_model);
  const CacheWork& work() const { return work_; }

  struct SegmentInfo {
    uint32_t id = 0;
    uint64_t generation = 0;
    TierId tier = TierId::kL1;
    std::shared_ptr<const MemorySegment> memory;
    std::string device_uuid;
  };
  // In no particular order.
  std::vector<SegmentInfo> Segments() const;
  // Another one whenever what Segments() says has changed.
  uint64_t segments_version() const;

  // --- Resizing (server/resizer.h puts the steps together). One tier at a time, by one caller ---
  // Takes segments out of use until those left have at most `capacity_bytes`. From now on what is
  // in them leaves for the other segments, and what does not fit there is evicted; pins are waited
  // for. A segment is gone, and no longer among Segments(), as soon as nothing is in it.
  void StartShrink(TierId tier, uint64_t capacity_bytes);
  // Whether all of them are gone; waits until `deadline` at most.
  bool AwaitShrunk(TierId tier, absl::Time deadline) const;
  struct Shrunk {
    std::vector<std::shared_ptr<const MemorySegment>> gone;  // freed by the last who has one
    uint64_t pinned_bytes = 0;  // what kept the others, which are used again
    uint64_t pinned_entries = 0;
  };
  Shrunk EndShrink(TierId tier);
  // Ends AwaitShrunk.
  void StopResizing();
  // Allocates and adds segments for the tier to have `capacity_bytes`, as near as whole segments of
  // a size worth having come. Nothing is put into them before OpenSegments. On failure there is
  // none of them.
  absl::Status AddSegments(TierId tier, uint64_t capacity_bytes);
  void OpenSegments(TierId tier);
  uint64_t capacity_bytes(TierId tier) const;
  // A tier's capacity is 0 or at least so much.
  uint64_t granularity(TierId tier) const;
  // The most that a segment of the tier has which comes from now on; 0: it never had one.
  uint64_t segment_bytes(TierId tier) const;
  // Another number whenever somebody has put or got something, also without a call (as of the last
  // Tick), with success or without.
  uint64_t uses() const;
  // Whether L1 is memory of a device, that is, whether Place makes a difference.
  bool l1_on_device() const { return l1_on_device_; }
  // The tier's memory cannot be used any more (its device is lost): its entries are gone, its
  // reservations cannot be committed, and no place in it is handed out again.
  void LoseTier(TierId tier);
  bool TierUsable(TierId tier) const;

  // --- Hits without a call (fast_path.h) ---
  // The shared index, or nullptr: there is none. It is another one when it has grown, which happens
  // in Tick only.
  std::shared_ptr<const MemorySegment> FastIndexMemory() const;
  // A pin table for a session that may pin `max_pinned_bytes` (0 = no bound), whose pins count
  // until it is closed. FAILED_PRECONDITION: no fast path.
  absl::StatusOr<std::shared_ptr<const FastTable>> OpenFastTable(uint64_t max_pinned_bytes);
  void CloseFastTable(const FastTable& table);
  // Brings the tables' pinned_bytes() up to date.
  void MeasureFastPins();
  // From now on readers find nothing without a call. What they have pinned stays.
  void StopFastPath();

  // Bytes of the largest entry that fits a tier.
  uint64_t max_entry_bytes() const;

  // For tests: aborts the process if an invariant of design section 4 (I2, I3, accounting) is
  // broken.
  void CheckInvariants() const;

 private:
  friend class ReadHandle;

  // Keys are compared by their encoding; the set finds an entry by the encoding alone.
  struct EntryHash {
    using is_transparent = void;
    size_t operator()(absl::string_view key) const { return absl::HashOf(key); }
    size_t operator()(const std::unique_ptr<CacheEntry>& entry) const {
      return absl::HashOf(entry->info->key.encoded());
    }
  };
  struct EntryEqual {
    using is_transparent = void;
    static absl::string_view Key(absl::string_view key) { return key; }
    static absl::string_view Key(const std::unique_ptr<CacheEntry>& entry) {
      return entry->info->key.encoded();
    }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Key(a) == Key(b);
    }
  };
  struct EntryOrder {
    using is_transparent = void;
    static absl::string_view Key(absl::string_view key) { return key; }
    static absl::string_view Key(const CacheEntry* entry) { return entry->info->key.encoded(); }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Key(a) < Key(b);
    }
  };
  using Index = absl::flat_hash_set<std::unique_ptr<CacheEntry>, EntryHash, EntryEqual>;

  struct Reservation {
    std::unique_ptr<CacheEntry> entry;
    std::shared_ptr<EntryInfo> info;                     // entry->info, still writable
    absl::Duration ttl;                                  // of the entry to be
    std::shared_ptr<const std::atomic<bool>> cancelled;  // as in ReserveRequest
    absl::Duration deadline;                             // monotonic
    bool expired = false;
    bool aborted = false;  // freed when the copy into it has ended
  };

  // A copy for the store, made in pieces.
  struct Staging {
    const MemorySegment* segment;
    uint64_t offset;
    uint64_t bytes;
    std::shared_ptr<std::atomic<bool>> cancelled;
    std::unique_ptr<char[]> payload = nullptr;
    uint64_t staged = 0;
  };

  // Somebody who needs a range. `granted` is called with the lock held.
  using Granted = absl::AnyInvocable<void(absl::StatusOr<MemoryRange>, AfterUnlock&)>;
  struct RoomRequest {
    uint64_t bytes = 0;
    std::string replaces;  // encoded key whose old value may go first
    Granted granted;
  };

  // A memory tier with what the cache knows about it.
  struct Tier {
    explicit Tier(MemoryTier memory_tier) : memory(std::move(memory_tier)) {}

    MemoryTier memory;
    uint64_t max_entries = 0;
    uint64_t segment_bytes = 0;  // of the segments that come later, at most; 0 = no matter
    std::unique_ptr<EvictionPolicy> policy;
    // Every allocated range and whose it is, by place: for finding the neighbours of a range.
    absl::btree_map<std::pair<uint32_t, uint64_t>, CacheEntry*> by_place;
    std::deque<RoomRequest> waiting;  // served in order
    bool pumping = false;
    bool pump_again = false;
    // Entries on their way out that need nothing more than a copy to end.
    uint64_t leaving = 0;
    uint64_t leaving_bytes = 0;
    uint64_t io_pinned = 0;   // entries with io_pins
    uint32_t relocating = 0;  // entries, also those that wait for room
    // How far the closing segments have been looked through since the last tick.
    std::optional<std::pair<uint32_t, uint64_t>> drained_up_to;
    TierStats stats;  // the counters, and pinned_bytes, reserved_bytes, entries
  };

  // A model that has not been used for so long may lose its place, and its entries theirs in
  // memory.
  static constexpr absl::Duration kModelRest = absl::Minutes(1);

  TieredCache(const TieredCacheOptions& options, const TieredCacheDeps& deps, MemoryTier l1,
              MemoryTier l2, std::unique_ptr<FastPath> fast);

  Tier& TierOf(TierId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return tiers_[static_cast<int>(id)];
  }
  const Tier& TierOf(TierId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return tiers_[static_cast<int>(id)];
  }

  // tiered_cache.cc: the index, pins, removals and ticks.
  CacheEntry* FindLocked(absl::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsLiveLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<StoredPlace> FindStoredLocked(const CacheKey& key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void InsertLocked(std::unique_ptr<CacheEntry> entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // In `tier` and reachable from now on, or not any more. Unlink says whether a reader that asked
  // nobody still holds the range; then it must go to limbo instead of being freed.
  void LinkLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool UnlinkLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the entry unreachable; frees it now or when its pins and copies have ended.
  void DoomLocked(CacheEntry* entry, RemoveReason reason, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeIfUnusedLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // From every tier. True if there was something. `removed`, if given, is called when the removal
  // is durable; otherwise that happens in the background.
  // By value: the caller's may be the entry's own, which goes.
  bool RemoveKeyLocked(CacheKey key, RemoveReason reason, StatusCallback removed,
                       AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ReadHandle PinLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnpinLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unpin(CacheEntry* entry);
  Location LocationLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  CacheStats GetStatsLocked(bool per_model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TickLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // tiered_cache_lookup.cc: finding entries, and waiting for those on their way.
  void CountHitLocked(const CacheEntry& entry, TierId source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountMissLocked(CacheModel* model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers now, or keeps `waiter` and answers later (nullopt).
  std::optional<absl::StatusOr<LookupResult>> LookupLocked(const CacheKey& key,
                                                           LookupWaiter& waiter, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LookupResult HitLocked(CacheEntry* entry, TierId source, const LookupWaiter& waiter,
                         AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerWaitersLocked(CacheEntry* entry, TierId source, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailWaitersLocked(CacheEntry* entry, absl::StatusOr<MissReason> why, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The entry went away while they waited: they look again.
  void RetryWaitersLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookupWith(const CacheKey& key, LookupWaiter waiter) ABSL_LOCKS_EXCLUDED(mu_);

  // tiered_cache_models.cc: models and their epochs.
  // The model whose counters a lookup of `key` moves.
  CacheModel* LookupModelLocked(const CacheKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SweepModelLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes places in the table of models.
  void TickModelsLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // tiered_cache_place.cc: lookups that care which memory it is, and the loss of a tier.
  std::optional<absl::StatusOr<LookupResult>> LookupForHostLocked(CacheEntry* entry,
                                                                  LookupWaiter& waiter,
                                                                  AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<absl::StatusOr<LookupResult>> LookupForDeviceLocked(CacheEntry* entry,
                                                                    LookupWaiter& waiter,
                                                                    AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<absl::StatusOr<LookupResult>> AddWaiterLocked(CacheEntry* entry,
                                                              LookupWaiter& waiter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The error, for a lookup that cannot be served where the entry is.
  absl::Status RefusePlaceLocked(const CacheEntry& entry, LookupWaiter& waiter,
                                 absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsWhereWantedLocked(const CacheEntry& entry, Place place) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerElsewhereLocked(CacheEntry* entry, TierId source, LookupWaiter waiter,
                             AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // tiered_cache_events.cc: what watchers are told.
  CacheEvent& TellLocked(CacheEvent::Kind kind, absl::string_view key, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellStoredLocked(const EntryInfo& info, TierId tier, uint64_t generation, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellMovedLocked(const CacheKey& key, uint64_t generation, TierId from, TierId to,
                       AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellRemovedLocked(const CacheKey& key, uint64_t generation, RemoveReason reason,
                         AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsOfCurrentEpochLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Dooms an entry that leaves memory: it may still be in L3.
  void DoomAndTellLocked(CacheEntry* entry, RemoveReason reason, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells what the store has dropped by itself.
  void TellLost() ABSL_LOCKS_EXCLUDED(mu_);
  void TellLostLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // tiered_cache_put.cc: reservations.
  void ReserveLocked(ReserveRequest request, ModelUse model, TierId tier, ReserveCallback done,
                     AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ReadHandle> CommitLocked(ReservationId id, Reservation& reservation,
                                          AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropReservationLocked(ReservationId id, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // tiered_cache_room.cc: making room, and moving entries between the memory tiers.
  void RequestRoomLocked(TierId tier, RoomRequest request, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PumpLocked(TierId tier, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  enum class Room { kMade, kComing, kImpossible };
  Room MakeRoomLocked(TierId tier, const RoomRequest& request, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<CacheEntry*> FindRunLocked(TierId tier, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<MemoryRange> AllocateLocked(TierId tier, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OwnRangeLocked(TierId tier, const MemoryRange& range, CacheEntry* owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeRangeLocked(TierId tier, MemoryRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DemoteLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DemotionRoomLocked(CacheEntry* entry, absl::StatusOr<MemoryRange> room, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishDemotion(CacheEntry* entry, const absl::Status& copied);
  void LeaveMemoryLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWriteBack(CacheEntry* entry, std::unique_ptr<char[]> payload,
                       const absl::Status& copied);
  void StartPromotionLocked(CacheEntry* entry, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RequestPromotionRoomLocked(CacheEntry* entry, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PromotionRoomLocked(CacheEntry* entry, absl::StatusOr<MemoryRange> room, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishPromotion(CacheEntry* entry, const absl::Status& copied);
  void StartLeavingLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StopLeavingLocked(TierId tier, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CopyLater(CacheEntry* entry, TierId to,
                 void (TieredCache::*finish)(CacheEntry*, const absl::Status&), AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void IoPinLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void IoUnpinLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const MemorySegment* MemoryOfLocked(TierId tier, const MemoryRange& range) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // tiered_cache_resize.cc: segments come and go.
  void RetireIfEmptiedLocked(TierId tier, uint32_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends away what can leave the closing segments, a bounded number of entries at a time.
  void DrainClosingLocked(TierId tier, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictSurplusLocked(TierId tier, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same for one entry, if it is in such a segment.
  void LeaveClosingLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsMovableLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartRelocationLocked(CacheEntry* entry, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RelocationRoomLocked(CacheEntry* entry, absl::StatusOr<MemoryRange> room, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishRelocation(CacheEntry* entry, const absl::Status& copied);

  // tiered_cache_fast.cc: the shared index. All do nothing when there is none.
  FastEntry FastEntryLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RetireLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Pins a doomed entry that was retired, until no reader holds it.
  void EnterLimboLocked(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees the range that an entry has left by a move; `held` is what UnlinkLocked said.
  void VacateLocked(CacheEntry* entry, bool held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True if something came back from limbo.
  bool ReclaimLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsFastPinnedLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return fast_ != nullptr && entry.publication != 0 && fast_->IsPinned(entry.publication);
  }
  bool IsEvictableLocked(const CacheEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts the hits that took no call, and makes what was hit the most recently used.
  void DrainTouchesLocked(FastPath::Drain how = FastPath::Drain::kSome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountFastHitsLocked(CacheEntry* entry, uint64_t hits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FastTickLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GrowFastIndex() ABSL_LOCKS_EXCLUDED(mu_);

  // tiered_cache_disk.cc: loads from L3, writes to it, durable removals.
  void StartLoadLocked(const CacheKey& key, CacheModel* model, const StoredPlace& place,
                       LookupWaiter waiter, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RequestLoadRoomLocked(CacheEntry* entry, TierId tier, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReadLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishLoad(CacheEntry* entry, absl::StatusOr<StoredRecord> record);
  void LoadAgainLocked(CacheEntry* entry, uint64_t bytes, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishLoadLocked(CacheEntry* entry, absl::StatusOr<StoredRecord> record, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A request for the entry, which may be the one that admits it to L3.
  void RequestedLocked(CacheEntry* entry, AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void QueueForDiskLocked(CacheEntry* entry, bool replaces_stored, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration PatienceLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetGateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KickPersistLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StagePiece(std::shared_ptr<Staging> staging);
  void FinishStaging(std::unique_ptr<char[]> payload, const absl::Status& copied);
  void PutStagedLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PutCurrent();
  void FinishPersist(const absl::Status& put);
  void FinishPersistLocked(const absl::Status& put, AfterUnlock& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerFlushesLocked(AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs `work` on the executor and counts it as in flight; calls `refused` if it has no room.
  void RunOnDiskLocked(absl::AnyInvocable<void()> work, absl::AnyInvocable<void()> refused,
                       AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveStoredLocked(const CacheKey& key, uint64_t generation, StatusCallback done,
                          AfterUnlock& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OperationEndedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<StoreCheck> RunCheck() ABSL_LOCKS_EXCLUDED(mu_);

  const TieredCacheOptions options_;
  const TieredCacheDeps deps_;
  const bool l1_on_device_;
  CacheWork work_;

  mutable absl::Mutex mu_;
  ModelTable models_ ABSL_GUARDED_BY(mu_);  // before all that uses models
  std::array<Tier, kMemoryTiers> tiers_ ABSL_GUARDED_BY(mu_);
  Index index_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<CacheEntry*, EntryOrder> ordered_ ABSL_GUARDED_BY(mu_);  // what index_ has
  absl::flat_hash_map<CacheEntry*, std::unique_ptr<CacheEntry>> doomed_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<absl::Time, CacheEntry*>> expiries_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ReservationId, Reservation> reservations_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<std::string, std::string>> sweeps_ ABSL_GUARDED_BY(mu_);  // model, after key
  uint32_t next_segment_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t segments_version_ ABSL_GUARDED_BY(mu_) = 1;
  // Emptied since StartShrink.
  std::vector<std::shared_ptr<const MemorySegment>> retired_ ABSL_GUARDED_BY(mu_);
  bool resizing_stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_generation_ ABSL_GUARDED_BY(mu_) = 1;
  ReservationId next_reservation_ ABSL_GUARDED_BY(mu_) = 1;
  CacheStats totals_ ABSL_GUARDED_BY(mu_);  // the counters only
  PersistQueue queue_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FastPath> fast_ ABSL_GUARDED_BY(mu_) ABSL_PT_GUARDED_BY(mu_);
  // Hit without a call, and for Tick to do what a hit by a call would have done: promote, admit.
  absl::flat_hash_set<CacheKey> fast_requested_ ABSL_GUARDED_BY(mu_);
  GhostSet put_before_ ABSL_GUARDED_BY(mu_){TieredCacheOptions::kGhostKeys};
  std::optional<PersistItem> persisting_ ABSL_GUARDED_BY(mu_);  // the one being written
  std::vector<std::pair<uint64_t, StatusCallback>> flushes_ ABSL_GUARDED_BY(mu_);
  uint64_t operations_ ABSL_GUARDED_BY(mu_) = 0;  // copies and disk work in flight
  EventLog events_ ABSL_GUARDED_BY(mu_){TieredCacheOptions::kRememberedEvents};
  std::shared_ptr<absl::AnyInvocable<void()>> event_listener_ ABSL_GUARDED_BY(mu_);
  bool event_awaited_ ABSL_GUARDED_BY(mu_) = false;             // by the listener
  absl::flat_hash_set<CacheKey> damaged_ ABSL_GUARDED_BY(mu_);  // found so, not told yet
  bool checking_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_TIERED_CACHE_H_
