// PutGate: lets background work step aside while clients put.
//
// A put is mostly one large copy by the client, and the writer of L3 moves each byte several times:
// side by side they halve each other's memory bandwidth. The cache says when a put is under way;
// the writer asks between pieces of its work and waits, a little.
//
// Thread-safe. Set never blocks.

#ifndef EMBCACHE_STORAGE_PUT_GATE_H_
#define EMBCACHE_STORAGE_PUT_GATE_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace embcache {

class PutGate {
 public:
  // A slow put must not stop the writer: a MiB each time is still 500 MB a second.
  static constexpr absl::Duration kPatience = absl::Milliseconds(2);

  void Set(bool puts_under_way) {
    absl::MutexLock lock(&mu_);
    quiet_ = !puts_under_way;
  }
  // Waits until no put is under way, kPatience at most. Returns whether none is.
  bool Wait() {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&quiet_), kPatience);
  }

 private:
  absl::Mutex mu_;
  bool quiet_ ABSL_GUARDED_BY(mu_) = true;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_PUT_GATE_H_
