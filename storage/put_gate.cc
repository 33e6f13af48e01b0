#include "storage/put_gate.h"

#include <algorithm>

namespace embcache {

void PutGate::Set(bool puts_under_way, absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  if (!puts_under_way && !quiet_) quiet_since_ = Clock::now();
  // A wait is told of all that may end it, so that none depends on its time-out alone.
  const bool news = quiet_ == puts_under_way || patience < patience_;
  quiet_ = !puts_under_way;
  patience_ = patience;
  if (news) changed_.SignalAll();
}

bool PutGate::Wait() {
  absl::MutexLock lock(&mu_);
  const Clock::time_point begin = Clock::now();
  for (Clock::time_point now = begin;; now = Clock::now()) {
    const absl::Duration to_settle = quiet_since_.has_value()
                                         ? settle_ - absl::FromChrono(now - *quiet_since_)
                                         : absl::ZeroDuration();
    if (quiet_ && to_settle <= absl::ZeroDuration()) return true;
    const absl::Duration left = patience_ - absl::FromChrono(now - begin);
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mu_, quiet_ ? std::min(left, to_settle) : left);
  }
}

}  // namespace embcache
