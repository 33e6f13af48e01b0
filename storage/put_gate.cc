#include "storage/put_gate.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace embcache {

void PutGate::Set(bool puts_under_way, absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  if (!puts_under_way && !quiet_) quiet_since_ = absl::Now();
  quiet_ = !puts_under_way;
  busy_ = puts_under_way;
  patience_ = patience;
}

bool PutGate::Wait() {
  absl::MutexLock lock(&mu_);
  const absl::Time begin = absl::Now();
  for (absl::Time now = begin;; now = absl::Now()) {
    const absl::Duration to_settle = quiet_since_ + settle_ - now;
    if (quiet_ && to_settle <= absl::ZeroDuration()) return true;
    const absl::Duration left = begin + patience_ - now;
    if (left <= absl::ZeroDuration()) return false;
    if (quiet_) {
      mu_.AwaitWithTimeout(absl::Condition(&busy_), std::min(left, to_settle));
    } else {
      mu_.AwaitWithTimeout(absl::Condition(&quiet_), left);
    }
  }
}

}  // namespace embcache
