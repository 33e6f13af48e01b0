// RpcServer: the gRPC transport in front of the services, and the only place that knows gRPC.
//
// A few threads with a completion queue each also run the handlers (which never block). Beside our
// services it serves grpc.health.v1.Health (for "", "embcache.v1.Cache" and
// "device") and reflection.
//
// Connections are accepted here and handed to gRPC, which would neither say whose they are nor
// survive a failing accept: see AcceptLoop and ConnectionTable.

#ifndef EMBCACHE_SERVER_RPC_SERVER_H_
#define EMBCACHE_SERVER_RPC_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/accept_loop.h"
#include "server/admin_service.h"
#include "server/answer_budget.h"
#include "server/cache_service.h"
#include "server/connection_table.h"
#include "server/peer.h"
#include "server/tls_credentials.h"
#include "server/unix_listener.h"

namespace embcache {

struct RpcServerOptions {
  // One of the two.
  std::string unix_socket;  // path
  std::string tcp_address;  // "host:port"; whoever calls over it may look and change nothing
  SocketAccess access;      // of the unix socket
  PeerRules peers;          // of the unix socket
  TlsFiles tls;             // of TCP, read again when they change; all empty = plaintext
  ConnectionLimits connections;
  AnswerLimits answers;
  AcceptLoopOptions accepting;
  int threads = 2;
  // Calls being handled; more are refused with RESOURCE_EXHAUSTED at once.
  int max_in_flight = 1024;
  // Of one connection; more wait in the client.
  int max_streams_per_connection = 128;
  uint64_t max_message_bytes = uint64_t{64} << 20;  // of one request
  uint64_t memory_bytes = uint64_t{512} << 20;      // what gRPC may take for buffers, about
};

class RpcServer {
 public:
  // Binds and serves; health says NOT_SERVING until SetServing(true). REQUIRES: the caller holds
  // the daemon's lock, for a socket left behind by an earlier run is removed. FAILED_PRECONDITION:
  // the path is something other than a socket, or a file for TLS cannot be read. UNAVAILABLE:
  // cannot bind. The services are not owned and outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(RpcServerOptions options,
                                                          CacheService* cache, AdminService* admin);
  // Shuts down at once if Shutdown was not called.
  ~RpcServer();

  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // What health answers. Calls are served in either case. Thread-safe.
  void SetServing(bool serving);
  // What health answers for the service "device": nothing, until this is called. Thread-safe.
  void SetDeviceServing(bool serving);

  // Has `answer` called, once, when every poller has come round to it; never, if one of them hangs.
  // Returns at once. Thread-safe, but not to be called once Shutdown is.
  void AskPollers(absl::AnyInvocable<void()> answer);

  // Takes no new calls, lets those in flight finish until `deadline`, then ends the connections
  // that are left, and returns when every handler has answered. Call it once, not from a handler.
  void Shutdown(absl::Time deadline);

  int tcp_port() const;  // the one bound; 0 without tcp_address
  size_t connections() const;
  uint64_t unread_bytes() const;  // of counted answers; see AnswerBudget

 private:
  class Impl;

  explicit RpcServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_RPC_SERVER_H_
