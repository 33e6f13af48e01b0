#include "storage/clock.h"

#include <chrono>

#include "absl/time/clock.h"
#include "storage/check.h"

namespace embcache {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  absl::Duration MonotonicNow() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

Clock* SystemClock() {
  static RealClock* const clock = new RealClock;
  return clock;
}

absl::Time SimulatedClock::Now() const {
  absl::MutexLock lock(&mu_);
  return wall_;
}

absl::Duration SimulatedClock::MonotonicNow() const {
  absl::MutexLock lock(&mu_);
  return monotonic_;
}

void SimulatedClock::Advance(absl::Duration by) {
  EMB_CHECK(by >= absl::ZeroDuration());
  absl::MutexLock lock(&mu_);
  wall_ += by;
  monotonic_ += by;
}

void SimulatedClock::JumpWall(absl::Duration by) {
  absl::MutexLock lock(&mu_);
  wall_ += by;
}

}  // namespace embcache
