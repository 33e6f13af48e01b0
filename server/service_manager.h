// What embcached tells the service manager that started it (systemd, or another that speaks
// sd_notify(3)), and the sign of life that is expected of it.
//
// Without NOTIFY_SOCKET in the environment nobody listens, and the functions do nothing.

#ifndef EMBCACHE_SERVER_SERVICE_MANAGER_H_
#define EMBCACHE_SERVER_SERVICE_MANAGER_H_

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace embcache {

// `status` is the line that `systemctl status` shows; it has no line break. Thread-safe.
void NotifyReady(absl::string_view status);
void NotifyStopping(absl::string_view status);
void NotifyStatus(absl::string_view status);

// How soon after its last sign of life the service manager takes this process for hung
// (WATCHDOG_USEC); zero: it does not watch.
absl::Duration WatchdogTimeout();

// Asks, and gives the sign of life when the answer has come; so a process that does not answer
// itself gives none. Questions do not pile up: the next is asked only after the last was answered.
class Watchdog {
 public:
  using Answer = absl::AnyInvocable<void()>;

  // `ask` is called on the watchdog's thread every half of `timeout`, returns at once and sees to
  // it that the answer is called (on any thread, even after the watchdog's end) or destroyed. What
  // it uses outlives the watchdog. REQUIRES: timeout > 0.
  Watchdog(absl::Duration timeout, absl::AnyInvocable<void(Answer)> ask);
  // Also with a question open.
  ~Watchdog();

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // Outlives the watchdog in answers that have not come yet.
  struct State {
    absl::Mutex mu;
    bool stopping ABSL_GUARDED_BY(mu) = false;
    bool answered ABSL_GUARDED_BY(mu) = false;
  };

  void Run();
  // True when the watchdog is to end.
  bool WaitToStop(absl::Duration time);
  // False when the watchdog is to end.
  bool AwaitAnswer();

  const absl::Duration period_;
  absl::AnyInvocable<void(Answer)> ask_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SERVICE_MANAGER_H_
