// SharedTier: entries that other nodes have encoded, by way of a Redis that all of them use.
//
// It stands beside the cache, not in it. A get that finds nothing here asks it before it is told
// so; what Redis has, and is what was asked for, is put into the cache like anybody's entry, and
// the get looks again. What clients put is written to Redis in the background, what they remove is
// removed there. All of it is best effort, and off the path of everything else:
//
//   Ask --nobody asks for the key yet--> flight --a thread reads it--> Reserve, write, Commit
//        --somebody does--> joins          |                               | all who wait look
//        again
//                                          '-- time-out, removal, put -----'
//   Stored, Removing, CloseModel --> queue --one thread, in this order--> Redis
//
// * Who waits is told within `timeout`, by a thread that does nothing else; a value that comes when
//   nobody waits for it any more is dropped, for whoever waited may be encoding it.
// * A put, a removal or a new epoch overtakes a flight of the key: its value is not committed. That
//   holds because each is announced here before (Removing, CloseModel) or is in the cache before
//   (Stored) anybody hears of it, and the cache refuses under its own lock.
// * A put that is not written to Redis, for whatever reason, is a removal there: what it replaced
//   must not come back. While a write or a removal of a key waits or is under way, the key is not
//   asked for. Removals wait as long as Redis fails.
// * A model whose epoch was advanced here is closed: not asked for, not written, and marked in
//   Redis for all nodes of the namespace. Neither is one that has had an epoch before this daemon
//   began.
// * When Redis fails repeatedly it is left alone for a while (shared_circuit.h).
//
// Thread-safe. Callbacks run without locks, on its threads or inside calls.

#ifndef EMBCACHE_SERVER_SHARED_TIER_H_
#define EMBCACHE_SERVER_SHARED_TIER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/shared_circuit.h"
#include "server/shared_store.h"
#include "server/unique_fd.h"
#include "storage/cache_key.h"
#include "storage/clock.h"
#include "storage/entry.h"
#include "storage/tiered_cache.h"

namespace embcache {

struct SharedTierOptions {
  SharedStoreOptions store;
  absl::Duration timeout = absl::Milliseconds(200);
  int threads = 4;
  // Writes waiting: the newest is a removal instead when either bound is reached.
  uint64_t queue_entries = 4096;
  uint64_t queue_bytes = uint64_t{1} << 30;
  // Models that have had an epoch before: which weights this namespace means is not known.
  std::vector<std::string> not_shared;
};

struct SharedTierStats {
  // Keys asked for, by how that ended.
  uint64_t hits = 0;
  uint64_t absent = 0;
  uint64_t damaged = 0;
  uint64_t failed = 0;     // by Redis
  uint64_t late = 0;       // after everybody who waited had been told otherwise
  uint64_t not_kept = 0;   // overtaken by a put or removal, or no room here
  uint64_t not_asked = 0;  // since Redis is left alone, or too many were being asked for

  uint64_t writes = 0;
  uint64_t write_failures = 0;
  uint64_t dropped_writes = 0;  // queue full, too large, or gone before their turn
  uint64_t removals = 0;
  uint64_t lost_removals = 0;  // refused by Redis, or too many waiting
  uint64_t read_bytes = 0;     // of hits
  uint64_t written_bytes = 0;
  uint64_t queued_writes = 0;
  uint64_t queued_bytes = 0;
  uint64_t queued_removals = 0;
  uint64_t closed_models = 0;
  bool left_alone = false;  // Redis has failed
};

class SharedTier {
 public:
  using Callback = absl::AnyInvocable<void()>;

  static constexpr size_t kMaxFlights = 4096;
  static constexpr size_t kMaxWaiters = 65536;
  static constexpr size_t kMaxRemovals = 65536;
  static constexpr size_t kMaxClosedModels = 65536;

  // Not owned: both outlive it. Begins at once; Redis may come later.
  SharedTier(const SharedTierOptions& options, TieredCache* cache, const Clock* clock);
  ~SharedTier();

  SharedTier(const SharedTier&) = delete;
  SharedTier& operator=(const SharedTier&) = delete;

  // For a key that the cache has not. True: `done` is called once, within the time-out, and the
  // cache may have the key then. False: Redis is not asked, and `done` is dropped.
  bool Ask(const CacheKey& key, Callback done);

  // A client's entry has been committed: `generation` is of it.
  void Stored(const EntryInfo& info, uint64_t generation);
  // To be called before `key` is removed from the cache by a client, or when it was for a mismatch.
  void Removing(const CacheKey& key);
  // To be called before the model's epoch is advanced.
  void CloseModel(absl::string_view model);

  SharedTierStats GetStats() const;

  // Answers all who wait and ends the threads; what is queued is lost. Idempotent.
  void Stop();

 private:
  struct Flight {
    Flight(const CacheKey& of, absl::Duration until) : key(of), deadline(until) {}
    const CacheKey key;
    const absl::Duration deadline;  // monotonic
    const std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
    std::vector<Callback> waiters;
  };
  using Waiters = std::vector<Callback>;

  struct Job {
    CacheKey key;
    uint64_t generation = 0;  // of the entry to write; 0: remove
    uint64_t bytes = 0;
    bool again = false;  // a removal that has failed
  };
  // The jobs of a key.
  struct Pending {
    size_t jobs = 0;
    bool removal_last = false;  // the last of them is a removal and has not begun
    bool settled = false;       // one that came after the one in failed_ was done
  };
  struct Work {
    std::optional<size_t> mark;  // which of to_close_
    Job job;                     // else
  };

  absl::Duration Now() const { return clock_->MonotonicNow(); }
  bool IsClosedLocked(absl::string_view model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Waiters TakeWaitersLocked(Flight* flight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelLocked(Flight* flight, Waiters* owed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // What an operation on Redis tells about it and about the model. One that does not count leaves
  // alone no server that has not been left alone already.
  void Learn(const absl::Status& status, absl::string_view model, bool counts);

  void RunTimer();
  // Who has waited for too long; nobody: it is being stopped.
  Waiters NextLate();

  void RunReads();
  std::shared_ptr<Flight> NextFlight();
  // Which counter the flight's end belongs to.
  uint64_t SharedTierStats::*Fly(Flight* flight, SharedStore* store);
  uint64_t SharedTierStats::*Keep(Flight* flight, const CheckedSharedValue& value);

  void RunWrites();
  std::optional<Work> NextWork();
  std::optional<Work> PickLocked(absl::Duration now, absl::Duration* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<size_t> MarkLocked(absl::Duration now, absl::Duration* next) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteEntry(const Job& job, SharedStore* store);
  void Marked(size_t index, const absl::Status& status);
  void JobDone(const Job& job, const absl::Status& status);
  void WriteDoneLocked(const Job& job, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemovalDoneLocked(const Job& job, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void QueueRemovalLocked(const CacheKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetJobLocked(const CacheKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SharedTierOptions options_;
  TieredCache* const cache_;
  const Clock* const clock_;
  const UniqueFd stop_fd_;  // an eventfd, readable from Stop on

  mutable absl::Mutex mu_;
  absl::CondVar unread_due_;
  absl::CondVar timer_due_;
  absl::CondVar work_due_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  SharedCircuit circuit_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<CacheKey, std::shared_ptr<Flight>> flights_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Flight>> unread_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<absl::Duration, Flight*>> deadlines_ ABSL_GUARDED_BY(mu_);
  size_t waiters_ ABSL_GUARDED_BY(mu_) = 0;

  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  // Removals to be tried again, at most one of a key; older than all in jobs_.
  std::deque<Job> failed_ ABSL_GUARDED_BY(mu_);
  absl::Duration again_at_ ABSL_GUARDED_BY(mu_);  // not before
  absl::Duration read_wanted_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  absl::flat_hash_map<CacheKey, Pending> pending_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, bool> closed_ ABSL_GUARDED_BY(mu_);  // true: by this daemon
  bool all_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::string> to_close_ ABSL_GUARDED_BY(mu_);  // all that this daemon has closed
  // Those before marked_ have been marked in Redis; those before marked_again_ in this round, too.
  size_t marked_ ABSL_GUARDED_BY(mu_) = 0;
  size_t marked_again_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration mark_at_ ABSL_GUARDED_BY(mu_);        // the next first mark, not before
  absl::Duration mark_again_at_ ABSL_GUARDED_BY(mu_);  // the next other one, not before
  bool mark_next_ ABSL_GUARDED_BY(mu_) = true;         // marks and jobs take turns
  absl::Duration refusal_told_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  SharedTierStats stats_ ABSL_GUARDED_BY(mu_);  // the counters, and the queue's

  absl::Mutex stop_mu_;  // held while the threads are joined
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(stop_mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SHARED_TIER_H_
