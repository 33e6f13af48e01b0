#include "server/accept_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "spdlog/spdlog.h"
#include "storage/check.h"
#include "storage/clock.h"

namespace embcache {
namespace {

constexpr int kTurnedAwayAtATime = 128;
// Then it is looked whether the loop is to end.
constexpr int kAcceptedAtATime = 64;

int AcceptConnection(int listener) {
  return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Start(
    AcceptLoopOptions options, int listener, absl::AnyInvocable<void(UniqueFd)> accepted) {
  if (!options.accept) options.accept = AcceptConnection;
  std::unique_ptr<AcceptLoop> loop(
      new AcceptLoop(std::move(options), listener, std::move(accepted)));
  if (!loop->stop_event_ || !loop->spare_) {
    return absl::ErrnoToStatus(errno, "accepting connections");
  }
  loop->thread_ = std::thread([started = loop.get()] { started->Run(); });
  return loop;
}

AcceptLoop::AcceptLoop(AcceptLoopOptions options, int listener,
                       absl::AnyInvocable<void(UniqueFd)> accepted)
    : options_(std::move(options)),
      listener_(listener),
      accepted_(std::move(accepted)),
      stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spare_(OpenSpare()),
      wait_(options_.first_wait) {}

AcceptLoop::~AcceptLoop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  EMB_CHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void AcceptLoop::Run() {
  pthread_setname_np(pthread_self(), options_.thread_name.c_str());
  while (Wait(absl::InfiniteDuration())) {
    const absl::Duration pause = AcceptAll();
    if (pause > absl::ZeroDuration() && !Wait(pause)) return;
  }
}

absl::Duration AcceptLoop::AcceptAll() {
  for (int i = 0; i < kAcceptedAtATime; ++i) {
    UniqueFd connection(options_.accept(listener_));
    if (connection) {
      wait_ = options_.first_wait;
      failing_since_ = absl::InfiniteDuration();
      if (!spare_) spare_ = OpenSpare();
      accepted_(std::move(connection));
      continue;
    }
    if (errno == EAGAIN) return absl::ZeroDuration();
    // What became of one connection before we got to it says nothing of the next.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    return Failed(errno);
  }
  return absl::ZeroDuration();
}

absl::Duration AcceptLoop::Failed(int error) {
  if (const auto skipped = log_.Next()) {
    spdlog::error("{}: accept: {} ({} such lines skipped)", options_.thread_name,
                  std::strerror(error), *skipped);
  }
  const absl::Duration now = SystemClock()->MonotonicNow();
  failing_since_ = std::min(failing_since_, now);
  if (now - failing_since_ >= options_.patience) TurnAway();
  return std::exchange(wait_, std::min(wait_ * 2, options_.longest_wait));
}

void AcceptLoop::TurnAway() {
  spare_.Reset();
  for (int i = 0; i < kTurnedAwayAtATime; ++i) {
    if (!UniqueFd(AcceptConnection(listener_))) break;
  }
  spare_ = OpenSpare();
}

bool AcceptLoop::Wait(absl::Duration at_most) {
  const bool until_connection = at_most == absl::InfiniteDuration();
  pollfd events[2] = {{stop_event_.get(), POLLIN, 0}, {listener_, POLLIN, 0}};
  const int timeout =
      until_connection ? -1 : static_cast<int>(absl::ToInt64Milliseconds(at_most)) + 1;
  const int ready = poll(events, until_connection ? 2 : 1, timeout);
  EMB_CHECK(ready >= 0 || errno == EINTR);
  return events[0].revents == 0;
}

}  // namespace embcache
