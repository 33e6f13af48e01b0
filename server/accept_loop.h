// AcceptLoop: a thread that accepts connections from one listening socket and hands each to its
// owner. No error ends it: gRPC's own listener closes for good when the process is out of
// descriptors for an instant.
//
// While connections cannot be accepted it waits, longer each time; when that lasts, it turns those
// that wait away, with a descriptor kept for that, so that their clients learn it at once.

#ifndef EMBCACHE_SERVER_ACCEPT_LOOP_H_
#define EMBCACHE_SERVER_ACCEPT_LOOP_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/logging.h"
#include "server/unique_fd.h"

namespace embcache {

struct AcceptLoopOptions {
  std::string thread_name;
  absl::Duration first_wait = absl::Milliseconds(10);
  absl::Duration longest_wait = absl::Seconds(1);
  // How long accepting must have failed before those that wait are turned away.
  absl::Duration patience = absl::Seconds(2);
  // accept4, but for tests.
  absl::AnyInvocable<int(int listener)> accept;
};

class AcceptLoop {
 public:
  // `listener` does not block and outlives the loop; `accepted` runs on the loop's thread, with a
  // descriptor that does not block.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Start(
      AcceptLoopOptions options, int listener, absl::AnyInvocable<void(UniqueFd)> accepted);
  // Ends the thread: `accepted` is not called after.
  ~AcceptLoop();

  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

 private:
  AcceptLoop(AcceptLoopOptions options, int listener, absl::AnyInvocable<void(UniqueFd)> accepted);

  void Run();
  // Until there is nothing to accept (zero), or accepting fails: how long to wait then.
  absl::Duration AcceptAll();
  absl::Duration Failed(int error);
  void TurnAway();
  // False when the loop is to end. An infinite `at_most` waits for a connection, too.
  bool Wait(absl::Duration at_most);

  AcceptLoopOptions options_;
  const int listener_;
  absl::AnyInvocable<void(UniqueFd)> accepted_;
  UniqueFd stop_event_;
  std::thread thread_;

  // Of the thread alone.
  UniqueFd spare_;
  absl::Duration wait_;
  absl::Duration failing_since_ = absl::InfiniteDuration();  // monotonic
  LogEvery log_{absl::Seconds(10)};
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_ACCEPT_LOOP_H_
