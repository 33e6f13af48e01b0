// ConnectionTable: the connections that have been handed to gRPC, by the number of their
// descriptor: whose they are, and how many there may be.
//
// gRPC owns the descriptors and does not say when it closes one. That costs nothing: a number that
// names another socket, or none, is a connection that has ended, and a call that is being handled
// keeps its connection's descriptor open, so that its peer ("fd:12") is found here rightly.
//
// Thread-safe.

#ifndef EMBCACHE_SERVER_CONNECTION_TABLE_H_
#define EMBCACHE_SERVER_CONNECTION_TABLE_H_

#include <sys/types.h>

#include <cstddef>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/peer.h"

namespace embcache {

struct ConnectionLimits {
  size_t total = 4096;
  size_t per_uid = 2048;
};

class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // Adds an open socket. PERMISSION_DENIED: the peer is not allowed. RESOURCE_EXHAUSTED: there are
  // as many connections as may be, in total or of the peer's user.
  absl::Status Add(int socket, const Peer& peer);
  // The peer of a call that is being handled, by gRPC's name for it. nullopt: not in the table.
  std::optional<Peer> Find(absl::string_view grpc_peer) const;
  // Ends the connection, as if the client had gone. Nothing happens when it has ended.
  void Cut(absl::string_view grpc_peer) const;
  void CutAll() const;
  // Open connections.
  size_t Count();

 private:
  struct Connection {
    ino_t inode = 0;
    Peer peer;
  };

  static void CutSocket(int socket, ino_t inode);
  // Forgets what has ended.
  void SweepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(int socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoomLocked(uid_t uid) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ConnectionLimits limits_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<int, Connection> connections_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uid_t, size_t> of_uid_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CONNECTION_TABLE_H_
