// ControlSocket: the daemon's side of control.sock, where a connection becomes a session (see
// proto/embcache/v1/control.proto for the conversation).
//
// One thread owns all connections. It takes credentials at accept, answers one Hello with a Welcome
// and the segments' descriptors, or with a Refusal, then watches for the end of the connection and,
// through a pidfd, for the end of the process, and tells the SessionRegistry which of them came.
// Nothing a client does blocks it: sends never wait, and a client that breaks a rule, or does not
// read what it is sent, loses its own connection.
//
// Start and Stop may be called from any thread; the callbacks run on the control thread.

#ifndef EMBCACHE_SERVER_CONTROL_SOCKET_H_
#define EMBCACHE_SERVER_CONTROL_SOCKET_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "embcache/v1/control.pb.h"
#include "server/logging.h"
#include "server/peer.h"
#include "server/segment_board.h"
#include "server/session_registry.h"
#include "server/unique_fd.h"
#include "server/unix_listener.h"
#include "storage/tiered_cache.h"

namespace embcache {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kMaxSessionNameBytes = 64;

struct ControlSocketOptions {
  std::string path;
  SocketAccess access;
  PeerRules peers;
  // Connections that have not said Hello; one more drops the oldest.
  size_t max_pending_hellos = 64;
  absl::Duration hello_timeout = absl::Seconds(5);
  absl::Duration tick_period = absl::Milliseconds(50);
  // UUID of the device whose memory L1 is; empty: none. Its segments are told to those who see it.
  std::string device_uuid;
  // How long sessions may take to give up segments that went. Host memory is then freed without
  // them.
  absl::Duration segments_patience = absl::Seconds(5);
  // Is told how far the sessions follow the segments; may be null. Outlives the socket.
  SegmentBoard* board = nullptr;
  // False: do as if pidfds could not be had (a client in another PID namespace and a kernel before
  // 6.5). The end of a connection then counts as the end of its process.
  bool watch_processes = true;
};

// What every Welcome says.
struct WelcomeInfo {
  Token epoch = {};
  uint64_t segments_version = 0;  // of TieredCache; not newer than `segments`
  std::vector<TieredCache::SegmentInfo> segments;
  v1::Limits limits;
  std::string version;
};

class ControlSocket {
 public:
  // `registry` outlives the socket. `welcome` is called for each new session and every tick_period;
  // `tick` every tick_period, after registry->Tick(). INVALID_ARGUMENT: the path is too long.
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Start(
      ControlSocketOptions options, SessionRegistry* registry,
      absl::AnyInvocable<WelcomeInfo()> welcome, absl::AnyInvocable<void()> tick);
  ~ControlSocket();

  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  // Closes every connection and joins the thread. Sessions stay as they are in the registry.
  // Idempotent, but not to be called from two threads at once.
  void Stop();

 private:
  struct Connection {
    uint64_t id = 0;
    UniqueFd socket;  // empty: the connection has ended and only the process is watched
    UniqueFd pidfd;   // empty: could not be had
    SessionPeer peer;
    bool allowed = true;
    bool welcomed = false;
    bool segment_changes = false;           // the client understands them
    std::shared_ptr<const FastTable> fast;  // null: the client asked for no fast path
    Token token = {};                       // when welcomed
    absl::Duration hello_deadline;          // monotonic, until welcomed
  };

  // Segments that went, until the sessions that were told of them have given them up.
  struct Departure {
    uint64_t change = 0;
    std::vector<TieredCache::SegmentInfo> segments;
    absl::flat_hash_set<uint64_t> waiting;  // ids of connections
    bool blind = false;       // somebody had to be disconnected, and cannot be waited for otherwise
    absl::Duration deadline;  // monotonic
    bool overdue = false;
  };

  ControlSocket(ControlSocketOptions options, UnixListener listener, SessionRegistry* registry,
                absl::AnyInvocable<WelcomeInfo()> welcome, absl::AnyInvocable<void()> tick);
  absl::Status SetUp();

  // The rest runs on the control thread only.
  void Run();
  void Dispatch(uint64_t tag);
  void Tick();
  void AnnounceDraining();
  // Tells those who read the shared index when it is another one.
  void AnnounceFastIndex();
  // control_socket_segments.cc: tells everybody of segments that came or went.
  void AnnounceSegments();
  bool SendSegments(const Connection& connection,
                    const std::vector<TieredCache::SegmentInfo>& added,
                    const std::vector<TieredCache::SegmentInfo>& removed);
  // Segments in memory of a device are told to those who see it.
  bool CanSee(const Connection& connection, const TieredCache::SegmentInfo& segment) const;
  std::vector<TieredCache::SegmentInfo> SeenBy(
      const Connection& connection, std::vector<TieredCache::SegmentInfo> segments) const;
  void SweepDepartures();
  void AcceptAll();
  bool AcceptOne();
  void Receive(Connection* connection);
  // Whether the connection lives on after this packet.
  bool HandlePacket(Connection* connection, absl::string_view packet);
  bool HandleHello(Connection* connection, absl::string_view packet);
  absl::Status CheckHello(const Connection& connection, const v1::Hello& hello) const;
  bool SendWelcome(const Connection& connection);
  void Refuse(Connection* connection, const absl::Status& why);
  // The connection has ended, or is ended by us.
  void Disconnect(Connection* connection);
  void ProcessGone(Connection* connection);
  void Erase(Connection* connection);
  // False when epoll has no room.
  bool Watch(int fd, uint64_t tag);

  const ControlSocketOptions options_;
  UnixListener listener_;
  SessionRegistry* const registry_;
  absl::AnyInvocable<WelcomeInfo()> welcome_;
  absl::AnyInvocable<void()> tick_;
  UniqueFd epoll_;
  UniqueFd timer_;
  UniqueFd stop_event_;
  std::thread thread_;

  // Of the control thread, without a lock.
  bool stopping_ = false;
  bool listener_paused_ = false;
  bool draining_announced_ = false;
  std::shared_ptr<const MemorySegment> fast_index_;  // as the clients know it
  uint64_t segments_version_ = 0;
  std::vector<TieredCache::SegmentInfo> segments_;  // as the clients know them
  uint64_t last_change_ = 0;
  std::vector<Departure> departures_;
  uint64_t next_id_ = 1;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  absl::btree_set<uint64_t> pending_;  // ids not welcomed yet, the oldest first
  std::vector<char> buffer_;           // one packet
  LogEvery refused_log_{absl::Seconds(1)};
  LogEvery accept_log_{absl::Seconds(10)};
  // A client that connects in a loop, or a thousand that start at once.
  LogEvery session_log_{absl::Seconds(10), SystemClock(), 100};
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CONTROL_SOCKET_H_
