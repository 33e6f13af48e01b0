// SharedCircuit: whether it is worth asking a server that has failed. After three failures in a row
// it is left alone for a second, then one question is let through; each that fails doubles the
// pause, up to half a minute, and one that succeeds ends it.
//
// Not thread-safe: for use under its owner's lock.

#ifndef EMBCACHE_SERVER_SHARED_CIRCUIT_H_
#define EMBCACHE_SERVER_SHARED_CIRCUIT_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace embcache {

class SharedCircuit {
 public:
  static constexpr uint32_t kFailures = 3;
  static constexpr absl::Duration kFirstPause = absl::Seconds(1);
  static constexpr absl::Duration kLongestPause = absl::Seconds(30);

  // `patience`: when an answer to a question let through is given up, and the next is let through.
  explicit SharedCircuit(absl::Duration patience) : patience_(patience) {}

  bool open() const { return pause_ > absl::ZeroDuration(); }
  // When the next question may be let through; REQUIRES: open().
  absl::Duration retry_at() const { return retry_at_; }

  // Whether to ask at `now` (monotonic). If it is open and this is true, that is the one question.
  bool Allow(absl::Duration now) {
    if (!open()) return true;
    if (now < retry_at_) return false;
    retry_at_ = now + patience_;
    asked_ = true;
    return true;
  }

  // Whether this has closed it.
  bool Succeeded() {
    const bool was_open = open();
    failures_ = 0;
    pause_ = absl::ZeroDuration();
    asked_ = false;
    return was_open;
  }

  // Whether this has opened it, where it was closed.
  bool Failed(absl::Duration now) {
    if (!open()) {
      if (++failures_ < kFailures) return false;
      pause_ = kFirstPause;
      retry_at_ = now + pause_;
      return true;
    }
    if (!asked_) return false;  // began before it was opened
    asked_ = false;
    pause_ = std::min(2 * pause_, kLongestPause);
    retry_at_ = now + pause_;
    return false;
  }

 private:
  const absl::Duration patience_;
  uint32_t failures_ = 0;  // in a row
  absl::Duration pause_;   // 0: closed
  absl::Duration retry_at_;
  bool asked_ = false;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SHARED_CIRCUIT_H_
