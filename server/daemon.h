// Daemon: all parts of embcached, wired together. main.cc only parses the configuration, owns one
// of these and waits for signals.
//
//   Start --> serving --Drain--> draining: sessions may use and release what they hold, nothing new
//                     --Stop---> stopped
//
// Drain and drained are thread-safe; Start, Stop and the destructor belong to one thread.

#ifndef EMBCACHE_SERVER_DAEMON_H_
#define EMBCACHE_SERVER_DAEMON_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gpu/gpu_device.h"
#include "gpu/host_copy_engine.h"
#include "gpu/host_memory.h"
#include "server/admin_service.h"
#include "server/cache_service.h"
#include "server/config.h"
#include "server/control_socket.h"
#include "server/heap_trimmer.h"
#include "server/http_endpoint.h"
#include "server/idle_shrinker.h"
#include "server/operator_pages.h"
#include "server/resizer.h"
#include "server/rpc_server.h"
#include "server/segment_board.h"
#include "server/session_registry.h"
#include "server/shared_tier.h"
#include "server/stats_history.h"
#include "server/unique_fd.h"
#include "storage/executor.h"
#include "storage/persistent_store.h"
#include "storage/put_gate.h"
#include "storage/tiered_cache.h"

namespace embcache {

// The two sockets of a socket directory.
std::string RpcSocketPath(const std::string& socket_dir);
std::string ControlSocketPath(const std::string& socket_dir);

class Daemon {
 public:
  // ALREADY_EXISTS: another daemon serves the directory; the message names its pid, and nothing was
  // touched. INVALID_ARGUMENT, FAILED_PRECONDITION, RESOURCE_EXHAUSTED: the configuration, or the
  // memory or disk it asks for, is impossible.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config);
  ~Daemon();

  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // From now on nothing new is admitted and health says NOT_SERVING. Returns at once; idempotent.
  void Drain();
  // Whether no session holds a lease or a reservation any more.
  bool drained() const;

  int tcp_port() const { return tcp_rpc_ == nullptr ? 0 : tcp_rpc_->tcp_port(); }

  // Has `answer` called once, when the control thread has gone round and every poller of the RPC
  // servers has shown that it answers; never, if one of them hangs. Returns at once. A question not
  // answered yet is dropped. Thread-safe, but not to be called once Stop is.
  void AskForSignOfLife(absl::AnyInvocable<void()> answer);

  // Closes the sockets, ends every session and writes what is queued to L3. The error is the SSD's.
  // Does not wait for leases: see drained. Idempotent.
  absl::Status Stop();
  // After Stop: it did not wait for the device, whose driver may keep exit() from ending: _exit().
  bool device_given_up() const { return device_given_up_.load(); }

 private:
  explicit Daemon(const Config& config);

  absl::Status FlushL3();
  absl::Status OpenDirectory();
  absl::Status OpenCache();
  absl::Status OpenShared();
  absl::Status CheckHostMemory() const;
  absl::StatusOr<uint64_t> FreeBytes(TierId tier) const;
  void DeviceLost(TieredCache* cache, const absl::Status& why);
  absl::Status OpenSockets();
  absl::Status OpenHttp();
  RpcServerOptions MakeRpcOptions() const;
  absl::Status OpenTcp();
  WelcomeInfo MakeWelcome() const;
  void Tick();
  void SetServing(bool serving);
  void SetDeviceServing(bool serving);

  const Config config_;
  const Token epoch_;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> serving_ = false;  // Drain may use the servers
  std::atomic<bool> device_given_up_ = false;
  absl::Mutex device_mu_;  // held while the loss of the device is told to them

  SocketAccess access_;
  PeerRules peers_;

  absl::Mutex asked_mu_;
  // What the control thread calls when it has gone round.
  absl::AnyInvocable<void()> asked_ ABSL_GUARDED_BY(asked_mu_);

  // In the order of construction; each uses only what stands above it.
  UniqueFd lock_;
  HostMemory memory_;
  std::unique_ptr<HostCopyEngine> copier_;  // without a device, which has one of its own
  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<ThreadPoolExecutor> io_;
  PutGate put_gate_;
  std::unique_ptr<PersistentStore> store_;
  std::unique_ptr<TieredCache> cache_;
  std::unique_ptr<SharedTier> shared_;  // null: off
  std::unique_ptr<StatsHistory> history_;
  std::unique_ptr<SessionRegistry> registry_;
  SegmentBoard board_;
  std::unique_ptr<Resizer> resizer_;
  std::unique_ptr<IdleShrinker> idle_;  // null without --l1-idle-after
  std::unique_ptr<CacheService> cache_service_;
  std::unique_ptr<AdminService> admin_service_;
  std::thread claim_timer_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<RpcServer> tcp_rpc_;  // null without --tcp-address
  std::unique_ptr<ControlSocket> control_;
  std::unique_ptr<OperatorPages> pages_;
  std::unique_ptr<HttpEndpoint> http_;  // null: off
  HeapTrimmer trimmer_;
};

// What embcached exits with when Start or Stop gave `status`.
int ExitCodeFor(const absl::Status& status);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_DAEMON_H_
