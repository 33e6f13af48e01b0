// Releaser: gives leases back in batches, on one background thread. Internal to the client.
//
// A lease's end costs its owner a push into a queue; the thread sends up to 64 ids at a time, at
// the latest 10 ms after the first, and sooner when they pin much of the session's quota. The queue
// is bounded: whoever finds it full sends what is in it.
// Thread-safe.

#ifndef EMBCACHE_CLIENT_CPP_RELEASER_H_
#define EMBCACHE_CLIENT_CPP_RELEASER_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace embcache::client::internal {

class Session;

class Releaser {
 public:
  Releaser();
  ~Releaser();

  // Ids of a lost session are dropped: the daemon keeps or ends those by its own rules.
  void Add(std::shared_ptr<Session> session, uint64_t lease, uint64_t bytes);
  // Waits until what was added before has been sent. False when there was nothing.
  bool Flush();
  // Sends what is queued and ends the thread. What is added later is dropped.
  void Stop();

 private:
  struct Item {
    std::shared_ptr<Session> session;
    uint64_t lease;
    uint64_t bytes;
  };

  void Run();
  // Waits for a batch; empty means that the thread shall end.
  std::vector<Item> NextBatch();
  // Returns those that are to be tried again.
  std::vector<Item> Send(std::vector<Item> items);
  static std::vector<Item> Call(std::vector<Item> items);
  void PutBack(std::vector<Item> items);
  std::vector<Item> TakeQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SomethingToDo() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool BatchIsFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NothingBeingSent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<Item> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t queue_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool urgent_ ABSL_GUARDED_BY(mutex_) = false;  // the queue pins much of the session's quota
  int sending_ ABSL_GUARDED_BY(mutex_) = 0;      // batches taken off the queue and not answered yet
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_RELEASER_H_
