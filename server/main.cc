// embcached: the process. It reads the configuration, runs one Daemon, tells the service manager
// how it is, and waits for signals.
//
//   SIGTERM, SIGINT  drain, wait for leases up to --drain-timeout, stop; a second one ends the wait
//   SIGHUP           read the configuration again and take over log-level, nothing else

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/logging.h"
#include "server/service_manager.h"
#include "spdlog/spdlog.h"
#include "storage/clock.h"

namespace embcache {
namespace {

using Strings = std::vector<std::string>;

// How often a drain looks whether it is done.
constexpr absl::Duration kDrainPoll = absl::Milliseconds(20);

// Reads of L3 use buffers of up to some MiB. By default malloc maps and unmaps those one by one and
// the page faults cost more than the read (6 times, at 16 MiB). 32 MiB is the most glibc takes.
// What it keeps so, HeapTrimmer gives back.
void TuneMalloc() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

// Debian's Abseil looks for lock cycles at every lock, which costs about as much as the index. The
// order of our locks is checked by tests under ThreadSanitizer instead.
void SkipDeadlockDetection() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

// Two descriptors a session, more for L3's files: the usual soft limit of 1024 is too little.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Blocked before any thread starts, so that every thread inherits it and only main takes them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void ReloadLogLevel(const Strings& arguments, const Strings& environment) {
  const ConfigOutcome outcome = ParseConfig(arguments, environment);
  if (!outcome.run) {
    spdlog::error("SIGHUP: the configuration is kept, for the new one is bad: {}", outcome.text);
    return;
  }
  std::string previous;
  SetLogLevel(outcome.config.log_level, &previous).IgnoreError();  // it was checked when parsed
  spdlog::info("SIGHUP: log level {}, was {}; other settings need a restart",
               outcome.config.log_level, previous);
}

// Waits until nothing is leased, the time is over, or a signal says to hurry.
void AwaitDrained(const Daemon& daemon, const sigset_t& signals, absl::Duration timeout) {
  const absl::Duration deadline = SystemClock()->MonotonicNow() + timeout;
  while (!daemon.drained()) {
    const absl::Duration left = deadline - SystemClock()->MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      spdlog::warn("drain timeout: ending sessions that still hold leases");
      return;
    }
    const timespec wait = absl::ToTimespec(std::min(left, kDrainPoll));
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (signal == SIGTERM || signal == SIGINT) {
      spdlog::warn("second signal: not waiting for leases");
      return;
    }
  }
}

int Run(const Strings& arguments, const Strings& environment) {
  const ConfigOutcome outcome = ParseConfig(arguments, environment);
  if (!outcome.run) {
    std::fputs(outcome.text.c_str(), outcome.exit_code == 0 ? stdout : stderr);
    return outcome.exit_code;
  }
  const Config& config = outcome.config;
  InitLogging(config.log_format, config.log_level);
  TuneMalloc();
  SkipDeadlockDetection();
  RaiseDescriptorLimit();
  const sigset_t signals = BlockSignals();

  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    spdlog::error("cannot start: {}", std::string(daemon.status().message()));
    return ExitCodeFor(daemon.status());
  }
  std::optional<Watchdog> watchdog;
  if (const absl::Duration timeout = WatchdogTimeout(); timeout > absl::ZeroDuration()) {
    watchdog.emplace(timeout, [daemon = daemon->get()](Watchdog::Answer answer) {
      daemon->AskForSignOfLife(std::move(answer));
    });
  }
  NotifyReady(absl::StrCat("serving ", config.socket_dir));
  int signal = SIGHUP;
  while (signal == SIGHUP) {
    if (sigwait(&signals, &signal) != 0) return kExitInternal;
    if (signal == SIGHUP) ReloadLogLevel(arguments, environment);
  }
  spdlog::info("signal {}: stopping", signal);
  NotifyStopping("waiting for clients to release what they hold");
  (*daemon)->Drain();
  AwaitDrained(**daemon, signals, config.drain_timeout);
  NotifyStatus("writing to L3");
  watchdog.reset();
  const absl::Status stopped = (*daemon)->Stop();
  // The cache has done its work; what L3 lost will be encoded again.
  if (!stopped.ok()) spdlog::error("{}", std::string(stopped.message()));
  spdlog::info("stopped");
  if ((*daemon)->device_given_up()) {
    spdlog::default_logger()->flush();
    _exit(0);
  }
  return 0;
}

}  // namespace
}  // namespace embcache

int main(int argc, char** argv) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  return embcache::Run({argv + std::min(1, argc), argv + argc}, environment);
}
