// EventStream: what one caller of Watch is told, message by message; EventHub: who is told.
//
// A stream has no buffer but its position in the cache's log: it reads on when its caller has taken
// the message before. A caller that is too slow finds a gap, and then a new snapshot.
//
// A snapshot is told page by page, without holding up the cache. What changes meanwhile is told by
// the events that follow its beginning, each of which says all about its key that a watcher has to
// know: so a watcher that applies pages and events in their order ends up with what is there.

#ifndef EMBCACHE_SERVER_EVENT_STREAM_H_
#define EMBCACHE_SERVER_EVENT_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "embcache/v1/embcache.pb.h"
#include "server/session_registry.h"
#include "storage/clock.h"
#include "storage/tiered_cache.h"

namespace embcache {

// Used by one thread at a time. `cache` and `clock` outlive it.
class EventStream {
 public:
  EventStream(TieredCache* cache, const Clock* clock, const Token& epoch,
              const v1::WatchRequest& request);

  // Fills in the next message. False: there is nothing to tell now; the cache's event listener is
  // called when there is.
  bool Next(v1::WatchResponse* response);

 private:
  enum class State { kBegin, kPages, kEvents };

  void Begin(v1::WatchResponse* response);
  void TellPage(v1::WatchResponse* response);
  // False when there were none at all.
  bool TellEvents(v1::WatchResponse* response);
  void TellEvent(const CacheEvent& event, v1::WatchResponse* response) const;
  v1::Event* AddSnapshotEvent(v1::WatchResponse* response) const;
  void FillSnapshot(bool end, v1::EventSnapshot* snapshot) const;

  TieredCache* const cache_;
  const Clock* const clock_;
  const Token epoch_;
  const std::string model_;  // empty: all
  const bool snapshots_;
  State state_ = State::kBegin;
  uint64_t position_ = 0;   // number of the last event told, or contained in the snapshot
  std::string page_after_;  // encoded key
};

// A call of Watch. Both may be called from any thread and must not block.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void Wake() = 0;  // there is something to tell
  virtual void End() = 0;   // the daemon stops
};

// Wakes the watchers when something has happened, from a thread of its own, so that whoever makes
// it happen does not pay for them. Thread-safe.
class EventHub {
 public:
  // `cache` outlives the hub.
  EventHub(TieredCache* cache, size_t max_watchers);
  ~EventHub();
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  // RESOURCE_EXHAUSTED: too many. UNAVAILABLE: after EndAll. One that is gone needs no removal.
  absl::Status Add(std::weak_ptr<Watcher> watcher);
  void EndAll();

 private:
  // Outlives the hub where the cache is just calling.
  struct Signal {
    absl::Mutex mu;
    bool happened ABSL_GUARDED_BY(mu) = false;
    bool stop ABSL_GUARDED_BY(mu) = false;
  };

  void Run();
  std::vector<std::shared_ptr<Watcher>> Living() ABSL_LOCKS_EXCLUDED(mu_);

  TieredCache* const cache_;
  const size_t max_watchers_;
  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();

  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::weak_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_EVENT_STREAM_H_
