// PutGate: lets background work step aside while clients put.
//
// A put is mostly one large copy by the client, and the writer of L3 moves each byte several times:
// side by side they halve each other's memory bandwidth. The cache says when a put is under way and
// how long that may hold up the writer; the writer asks between pieces of its work and waits.
//
// Thread-safe. Set never blocks.

#ifndef EMBCACHE_STORAGE_PUT_GATE_H_
#define EMBCACHE_STORAGE_PUT_GATE_H_

#include <chrono>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace embcache {

class PutGate {
 public:
  // Puts often follow each other closely: a piece begun between two would run beside the second.
  static constexpr absl::Duration kSettle = absl::Microseconds(300);

  explicit PutGate(absl::Duration settle = kSettle) : settle_(settle) {}

  // `patience`: how long a Wait may take at most.
  void Set(bool puts_under_way, absl::Duration patience);
  // Waits until no put has been under way for the time to settle. False when patience ended first.
  bool Wait();

  absl::Duration patience() const {
    absl::MutexLock lock(&mu_);
    return patience_;
  }

 private:
  // The system's time may be set back.
  using Clock = std::chrono::steady_clock;

  const absl::Duration settle_;
  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  bool quiet_ ABSL_GUARDED_BY(mu_) = true;
  std::optional<Clock::time_point> quiet_since_ ABSL_GUARDED_BY(mu_);  // the end of the last put
  absl::Duration patience_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_PUT_GATE_H_
