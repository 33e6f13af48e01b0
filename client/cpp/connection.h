// Connection: keeps a client connected. It owns the current Session and the thread that watches the
// control socket, reconnects, and acknowledges lost sessions once nothing of theirs is in use. A
// session that may hold what nobody knows of is replaced by a new one, and ended once nothing of it
// is in use.
// Internal to the client. Thread-safe.

#ifndef EMBCACHE_CLIENT_CPP_CONNECTION_H_
#define EMBCACHE_CLIENT_CPP_CONNECTION_H_

#include <sys/types.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/releaser.h"
#include "client/cpp/session.h"
#include "client/cpp/unique_fd.h"

namespace embcache::client::internal {

class Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const SessionOptions& options,
                                                          bool reconnect);
  // Sends the queued releases, ends both threads. Not to be called in a fork; see in_own_process().
  ~Connection();

  // UNAVAILABLE at once while there is none; FAILED_PRECONDITION in a fork.
  absl::StatusOr<std::shared_ptr<Session>> session() const;
  bool in_own_process() const;
  bool draining() const;

 private:
  Connection(SessionOptions options, bool reconnect);
  void Watch();
  enum class Watched { kStopped, kLost, kInDoubt };
  // Until the client ends, the control socket does, or the session is in doubt.
  Watched WatchSession(Session* session);
  // A new session in place of `current`; `current` itself when there is none to be had.
  std::shared_ptr<Session> Replace(std::shared_ptr<Session> current);
  // Ends replaced sessions that nothing uses any more.
  void EndReplaced();
  // Until there is a session again; null when the client ends.
  std::shared_ptr<Session> Reconnect();
  // Tells the daemon of `current` about lost sessions of the same daemon that nothing uses any
  // more.
  void AcknowledgeLost(const Session& current);
  void SetSession(std::shared_ptr<Session> session);
  // True when the client ends.
  bool WaitForStop(absl::Duration at_most);

  const SessionOptions options_;
  const bool reconnect_;
  const pid_t pid_;
  const std::shared_ptr<Releaser> releaser_;
  UniqueFd stop_event_;                             // readable once the client ends
  std::vector<std::shared_ptr<Session>> lost_;      // of the watching thread alone
  std::vector<std::shared_ptr<Session>> replaced_;  // likewise

  mutable absl::Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);  // null: not connected
  std::thread thread_;
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_CONNECTION_H_
