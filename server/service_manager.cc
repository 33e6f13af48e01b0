#include "server/service_manager.h"

#include <pthread.h>
#include <systemd/sd-daemon.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "storage/check.h"

namespace embcache {
namespace {

void Notify(const std::string& message) {
  const int sent = sd_notify(/*unset_environment=*/0, message.c_str());
  if (sent < 0) spdlog::warn("cannot notify the service manager: {}", std::strerror(-sent));
}

}  // namespace

void NotifyReady(absl::string_view status) { Notify(absl::StrCat("READY=1\nSTATUS=", status)); }

void NotifyStopping(absl::string_view status) {
  Notify(absl::StrCat("STOPPING=1\nSTATUS=", status));
}

void NotifyStatus(absl::string_view status) { Notify(absl::StrCat("STATUS=", status)); }

absl::Duration WatchdogTimeout() {
  uint64_t microseconds = 0;
  const int watched = sd_watchdog_enabled(/*unset_environment=*/0, &microseconds);
  if (watched < 0) {
    spdlog::warn("the service manager's WATCHDOG_USEC is no number: no sign of life is given");
  }
  return watched > 0 ? absl::Microseconds(microseconds) : absl::ZeroDuration();
}

Watchdog::Watchdog(absl::Duration timeout, absl::AnyInvocable<void(Answer)> ask)
    : period_(timeout / 2), ask_(std::move(ask)) {
  EMB_CHECK(timeout > absl::ZeroDuration());
  thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&state_->mu);
    state_->stopping = true;
  }
  thread_.join();
}

void Watchdog::Run() {
  pthread_setname_np(pthread_self(), "watchdog");
  do {
    {
      absl::MutexLock lock(&state_->mu);
      state_->answered = false;
    }
    ask_([state = state_] {
      absl::MutexLock lock(&state->mu);
      state->answered = true;
    });
    if (!AwaitAnswer()) return;
    Notify("WATCHDOG=1");
  } while (!WaitToStop(period_));
}

bool Watchdog::WaitToStop(absl::Duration time) {
  absl::MutexLock lock(&state_->mu);
  return state_->mu.AwaitWithTimeout(absl::Condition(&state_->stopping), time);
}

bool Watchdog::AwaitAnswer() {
  State* const state = state_.get();
  absl::MutexLock lock(&state->mu);
  const auto over = [state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state->mu) {
    return state->answered || state->stopping;
  };
  bool warned = false;
  while (!state->mu.AwaitWithTimeout(absl::Condition(&over), period_)) {
    // Logged without the lock, once: the service manager acts on what follows.
    state->mu.Unlock();
    if (!std::exchange(warned, true)) {
      spdlog::error("a thread that serves does not answer: no sign of life for the watchdog");
    }
    state->mu.Lock();
  }
  return !state->stopping;
}

}  // namespace embcache
