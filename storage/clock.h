// Clock: the port through which the cache learns the time.
//
// Two clocks, since wall time jumps: Now() is for what people and disks keep (creation times,
// TTLs); MonotonicNow() is for every interval and time-out. Thread-safe.

#ifndef EMBCACHE_STORAGE_CLOCK_H_
#define EMBCACHE_STORAGE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace embcache {

class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() const = 0;
  // Since an arbitrary fixed point; never goes back.
  virtual absl::Duration MonotonicNow() const = 0;
};

// The machine's clocks. Lives for ever; not owned by the caller.
Clock* SystemClock();

// A clock that moves only when told to.
class SimulatedClock : public Clock {
 public:
  absl::Time Now() const override;
  absl::Duration MonotonicNow() const override;

  // REQUIRES: by >= 0.
  void Advance(absl::Duration by);
  // Wall time alone, as when an administrator sets the date.
  void JumpWall(absl::Duration by);

 private:
  mutable absl::Mutex mu_;
  absl::Time wall_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1'700'000'000);
  absl::Duration monotonic_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_CLOCK_H_
