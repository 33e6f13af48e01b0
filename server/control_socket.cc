#include "server/control_socket.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gpu/gpu_device.h"
#include "server/control_packets.h"
#include "spdlog/spdlog.h"
#include "storage/check.h"

namespace embcache {
namespace {

// So that one busy connection does not keep the thread from the others.
constexpr int kPacketsPerTurn = 16;
constexpr int kAcceptsPerTurn = 64;
constexpr int kEventsPerTurn = 64;

// What an epoll event is about: one of these, or a connection's id with a bit for socket or pidfd.
constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kTimerTag = 1;
constexpr uint64_t kStopTag = 2;
constexpr uint64_t kFirstId = 2;
uint64_t SocketTag(uint64_t id) { return id << 1; }
uint64_t PidfdTag(uint64_t id) { return (id << 1) | 1; }

void LogSession(LogEvery* limiter, const SessionPeer& peer, const char* what) {
  const auto skipped = limiter->Next();
  if (!skipped.has_value()) return;
  spdlog::info("session of {} {}{}", Describe(peer), what,
               *skipped == 0 ? "" : absl::StrCat(" (", *skipped, " such lines skipped)"));
}

absl::Status ErrnoStatus(absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("control socket: ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlSocket>> ControlSocket::Start(
    ControlSocketOptions options, SessionRegistry* registry,
    absl::AnyInvocable<WelcomeInfo()> welcome, absl::AnyInvocable<void()> tick) {
  absl::StatusOr<UnixListener> listener =
      UnixListener::Bind(options.path, SOCK_SEQPACKET, options.access);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<ControlSocket> control(new ControlSocket(
      std::move(options), *std::move(listener), registry, std::move(welcome), std::move(tick)));
  if (absl::Status ready = control->SetUp(); !ready.ok()) return ready;
  control->thread_ = std::thread([loop = control.get()] { loop->Run(); });
  return control;
}

ControlSocket::ControlSocket(ControlSocketOptions options, UnixListener listener,
                             SessionRegistry* registry, absl::AnyInvocable<WelcomeInfo()> welcome,
                             absl::AnyInvocable<void()> tick)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      registry_(registry),
      welcome_(std::move(welcome)),
      tick_(std::move(tick)),
      fast_index_(registry->FastIndexMemory()),
      next_id_(kFirstId),
      buffer_(kMaxPacketBytes) {}

ControlSocket::~ControlSocket() { Stop(); }

absl::Status ControlSocket::SetUp() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return ErrnoStatus("epoll_create1");
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return ErrnoStatus("timerfd_create");
  stop_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_) return ErrnoStatus("eventfd");
  const timespec period = absl::ToTimespec(options_.tick_period);
  const itimerspec every = {period, period};
  if (timerfd_settime(timer_.get(), 0, &every, nullptr) != 0) return ErrnoStatus("timerfd_settime");
  if (!Watch(listener_.fd(), kListenerTag) || !Watch(timer_.get(), kTimerTag) ||
      !Watch(stop_event_.get(), kStopTag)) {
    return ErrnoStatus("epoll_ctl");
  }
  return absl::OkStatus();
}

void ControlSocket::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  EMB_CHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

// --- The control thread -------------------------------------------------------------------------

void ControlSocket::Run() {
  pthread_setname_np(pthread_self(), "control");
  epoll_event events[kEventsPerTurn];
  while (!stopping_) {
    const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, -1);
    EMB_CHECK(ready >= 0 || errno == EINTR);
    for (int i = 0; i < ready; ++i) Dispatch(events[i].data.u64);
  }
  connections_.clear();
}

void ControlSocket::Dispatch(uint64_t tag) {
  switch (tag) {
    case kListenerTag:
      AcceptAll();
      return;
    case kTimerTag: {
      uint64_t expirations;
      if (read(timer_.get(), &expirations, sizeof(expirations)) > 0) Tick();
      return;
    }
    case kStopTag:
      stopping_ = true;
      return;
  }
  const auto it = connections_.find(tag >> 1);
  if (it == connections_.end()) return;  // ended by an earlier event of this turn
  Connection* const connection = it->second.get();
  if ((tag & 1) != 0) {
    ProcessGone(connection);
  } else if (connection->socket) {
    Receive(connection);
  }
}

void ControlSocket::Tick() {
  const absl::Duration now = SystemClock()->MonotonicNow();
  // All wait equally long, so the oldest times out first.
  while (!pending_.empty()) {
    Connection* const oldest = connections_.at(*pending_.begin()).get();
    if (oldest->hello_deadline > now) break;
    Refuse(oldest, absl::DeadlineExceededError(absl::StrCat(
                       "no Hello within ", absl::FormatDuration(options_.hello_timeout))));
  }
  registry_->Tick();
  tick_();
  AnnounceFastIndex();
  AnnounceSegments();
  if (registry_->draining() && !draining_announced_) AnnounceDraining();
  // A process that lost its connection need not be watched once its session has ended otherwise.
  absl::erase_if(connections_, [&](const auto& connection) {
    return !connection.second->socket && !registry_->Exists(connection.second->token);
  });
  if (listener_paused_ && Watch(listener_.fd(), kListenerTag)) listener_paused_ = false;
}

void ControlSocket::AnnounceDraining() {
  draining_announced_ = true;
  v1::ServerPacket packet;
  packet.mutable_draining();
  std::vector<Connection*> stuck;
  for (const auto& [id, connection] : connections_) {
    if (!connection->welcomed || !connection->socket) continue;
    if (!SendPacket(connection->socket.get(), packet)) stuck.push_back(connection.get());
  }
  for (Connection* connection : stuck) Disconnect(connection);
}

void ControlSocket::AnnounceFastIndex() {
  const std::shared_ptr<const MemorySegment> index = registry_->FastIndexMemory();
  if (index == fast_index_) return;
  fast_index_ = index;
  v1::ServerPacket packet;
  packet.mutable_fast_index_moved()->set_index_bytes(index->bytes());
  std::vector<Connection*> stuck;
  for (const auto& [id, connection] : connections_) {
    if (connection->fast == nullptr || !connection->socket) continue;
    const int fd = index->read_only_fd();
    if (!SendPacket(connection->socket.get(), packet, {&fd, 1})) stuck.push_back(connection.get());
  }
  for (Connection* connection : stuck) Disconnect(connection);
}

// --- New connections ----------------------------------------------------------------------------

void ControlSocket::AcceptAll() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (!AcceptOne()) return;
  }
}

bool ControlSocket::AcceptOne() {
  auto connection = std::make_unique<Connection>();
  connection->socket =
      UniqueFd(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection->socket) {
    if (errno == EAGAIN) return false;
    if (errno == ECONNABORTED || errno == EINTR) return true;
    // Out of descriptors or memory: the waiting connection would wake us again at once, so look
    // away until the next tick.
    if (const auto skipped = accept_log_.Next()) {
      spdlog::error("control socket: accept: {} ({} such lines skipped)", std::strerror(errno),
                    *skipped);
    }
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd(), nullptr);
    listener_paused_ = true;
    return false;
  }
  const int socket = connection->socket.get();
  const std::optional<Peer> peer = ReadPeer(socket, options_.peers);
  if (!peer.has_value()) return true;
  connection->peer.pid = peer->pid;
  connection->peer.uid = peer->uid;
  connection->allowed = peer->allowed;
  if (options_.watch_processes) connection->pidfd = OpenPeerPidfd(socket, peer->pid);
  connection->hello_deadline = SystemClock()->MonotonicNow() + options_.hello_timeout;
  // The oldest may have said Hello already, only unread; then it is no longer pending.
  if (pending_.size() >= options_.max_pending_hellos) {
    Receive(connections_.at(*pending_.begin()).get());
  }
  if (pending_.size() >= options_.max_pending_hellos) {
    Refuse(connections_.at(*pending_.begin()).get(),
           absl::ResourceExhaustedError("too many connections that have not said Hello"));
  }
  connection->id = next_id_++;
  if (!Watch(socket, SocketTag(connection->id))) return true;
  pending_.insert(connection->id);
  connections_.emplace(connection->id, std::move(connection));
  return true;
}

void ControlSocket::Receive(Connection* connection) {
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    iovec data = {buffer_.data(), buffer_.size()};
    msghdr message = {};  // without room for control data: descriptors sent to us are closed
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    const ssize_t received = recvmsg(connection->socket.get(), &message, MSG_DONTWAIT);
    if (received < 0) {
      if (errno == EAGAIN) return;
      // ECONNRESET only says that the peer closed with something of ours unread; what it sent
      // before, perhaps a Goodbye, comes next.
      if (errno == EINTR || errno == ECONNRESET) continue;
      return Disconnect(connection);
    }
    if (received == 0) return Disconnect(connection);
    if ((message.msg_flags & MSG_TRUNC) != 0) {
      if (connection->welcomed) return Disconnect(connection);
      return Refuse(connection, absl::InvalidArgumentError(
                                    absl::StrCat("packet: over ", kMaxPacketBytes, " bytes")));
    }
    if (!HandlePacket(connection, {buffer_.data(), static_cast<size_t>(received)})) return;
  }
}

bool ControlSocket::HandlePacket(Connection* connection, absl::string_view packet) {
  if (!connection->welcomed) return HandleHello(connection, packet);
  v1::ClientPacket parsed;
  const bool sound = parsed.ParseFromArray(packet.data(), static_cast<int>(packet.size()));
  if (sound && parsed.has_segments_seen()) {
    for (Departure& departure : departures_) {
      if (departure.change == parsed.segments_seen().change()) {
        departure.waiting.erase(connection->id);
      }
    }
    SweepDepartures();
    return true;
  }
  if (sound && parsed.has_goodbye()) {
    LogSession(&session_log_, connection->peer, "said goodbye");
    registry_->Close(connection->token);
    Erase(connection);
    return false;
  }
  spdlog::warn("session of {} sent a packet that means nothing: dropped",
               Describe(connection->peer));
  Disconnect(connection);
  return false;
}

absl::Status ControlSocket::CheckHello(const Connection& connection, const v1::Hello& hello) const {
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "protocol_version: ", hello.protocol_version(), ", this daemon speaks ", kProtocolVersion));
  }
  if (hello.name().size() > kMaxSessionNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: ", hello.name().size(), " bytes, at most ", kMaxSessionNameBytes));
  }
  if (!v1::Hello::Role_IsValid(hello.role())) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: ", static_cast<int>(hello.role()), " is unknown"));
  }
  if (!hello.acknowledges().empty() && hello.acknowledges().size() != Token().size()) {
    return absl::InvalidArgumentError(absl::StrCat("acknowledges: ", hello.acknowledges().size(),
                                                   " bytes, must be ", Token().size()));
  }
  return absl::OkStatus();
}

bool ControlSocket::HandleHello(Connection* connection, absl::string_view packet) {
  const auto refuse = [&](const absl::Status& why) {
    Refuse(connection, why);
    return false;
  };
  if (!connection->allowed) {
    return refuse(absl::PermissionDeniedError(
        absl::StrCat("uid ", connection->peer.uid, " is not on the allow-list")));
  }
  v1::ClientPacket parsed;
  if (!parsed.ParseFromArray(packet.data(), static_cast<int>(packet.size())) ||
      !parsed.has_hello()) {
    return refuse(absl::InvalidArgumentError("the first packet must be a Hello"));
  }
  const v1::Hello& hello = parsed.hello();
  if (absl::Status ok = CheckHello(*connection, hello); !ok.ok()) return refuse(ok);
  connection->peer.name = hello.name();
  connection->peer.writer = hello.role() == v1::Hello::WRITER;
  connection->peer.sees_device =
      std::any_of(hello.device_uuids().begin(), hello.device_uuids().end(),
                  [&](const auto& uuid) { return SameDeviceUuid(uuid, options_.device_uuid); });
  connection->segment_changes = hello.segment_changes();
  if (!hello.acknowledges().empty()) {
    Token old;
    std::copy(hello.acknowledges().begin(), hello.acknowledges().end(), old.begin());
    registry_->Acknowledge(old, connection->peer.uid);
  }
  AnnounceSegments();  // so that the Welcome has the latest
  absl::StatusOr<Token> token = registry_->Open(connection->peer);
  if (!token.ok()) return refuse(token.status());
  connection->token = *token;
  connection->welcomed = true;
  pending_.erase(connection->id);
  // Not watched means not known: then the end of the connection counts as the end of the process.
  if (connection->pidfd && !Watch(connection->pidfd.get(), PidfdTag(connection->id))) {
    connection->pidfd.Reset();
  }
  // Without it, for whatever reason, the client calls.
  if (hello.fast_path_version() >= EMBCACHE_FAST_VERSION) {
    connection->fast = registry_->OpenFastTable(*token).value_or(nullptr);
  }
  if (!SendWelcome(*connection)) {
    spdlog::warn("session of {} does not read: dropped", Describe(connection->peer));
    registry_->Close(connection->token);
    Erase(connection);
    return false;
  }
  LogSession(&session_log_, connection->peer,
             connection->peer.sees_device   ? "opened, sees the device"
             : hello.device_uuids().empty() ? "opened"
             : options_.device_uuid.empty() ? "opened, sees a device, which is not used here"
                                            : "opened, sees another device than the one used here");
  return true;
}

bool ControlSocket::SendWelcome(const Connection& connection) {
  WelcomeInfo info = welcome_();
  const std::vector<TieredCache::SegmentInfo> segments = SeenBy(connection, segments_);
  size_t next = 0;
  const size_t most = kDescriptorsPerPacket - (connection.fast != nullptr ? 2 : 0);
  do {
    v1::ServerPacket packet;
    v1::Welcome& welcome = *packet.mutable_welcome();
    welcome.set_protocol_version(kProtocolVersion);
    welcome.set_token(connection.token.data(), connection.token.size());
    welcome.set_epoch(info.epoch.data(), info.epoch.size());
    *welcome.mutable_limits() = info.limits;
    welcome.set_version(info.version);
    std::vector<int> descriptors;
    next = DescribeSegments(segments, next, most, connection.peer.writer,
                            welcome.mutable_segments(), &descriptors);
    welcome.set_more(next < segments.size());
    if (!welcome.more() && connection.fast != nullptr) {
      v1::FastPath& fast = *welcome.mutable_fast_path();
      fast.set_layout_version(EMBCACHE_FAST_VERSION);
      fast.set_index_bytes(fast_index_->bytes());
      fast.set_pin_table_bytes(connection.fast->memory().bytes());
      descriptors.push_back(fast_index_->read_only_fd());
      descriptors.push_back(connection.fast->memory().writable_fd());
    }
    if (!SendPacket(connection.socket.get(), packet, descriptors)) return false;
  } while (next < segments.size());
  return true;
}

// --- The end of a connection --------------------------------------------------------------------

void ControlSocket::Refuse(Connection* connection, const absl::Status& why) {
  if (const auto skipped = refused_log_.Next()) {
    spdlog::warn("control socket: refused pid {} uid {}: {} ({} such lines skipped)",
                 connection->peer.pid, connection->peer.uid, std::string(why.message()), *skipped);
  }
  v1::ServerPacket packet;
  packet.mutable_refusal()->set_code(static_cast<int>(why.code()));
  packet.mutable_refusal()->set_message(std::string(why.message()));
  SendPacket(connection->socket.get(), packet);
  Erase(connection);
}

void ControlSocket::Disconnect(Connection* connection) {
  if (!connection->welcomed) return Erase(connection);
  LogSession(&session_log_, connection->peer, "lost its connection");
  if (!connection->pidfd) return ProcessGone(connection);
  registry_->ConnectionLost(connection->token);
  connection->socket.Reset();
  if (!registry_->Exists(connection->token)) Erase(connection);
}

void ControlSocket::ProcessGone(Connection* connection) {
  registry_->ProcessGone(connection->token);
  Erase(connection);
}

void ControlSocket::Erase(Connection* connection) {
  pending_.erase(connection->id);
  connections_.erase(connection->id);
}

bool ControlSocket::Watch(int fd, uint64_t tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace embcache
