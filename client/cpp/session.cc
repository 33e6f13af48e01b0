#include "client/cpp/session.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/releaser.h"

namespace embcache::client::internal {
namespace {

namespace v1 = embcache::v1;

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kMaxPacketBytes = 64 << 10;
constexpr size_t kMaxDescriptorsPerPacket = 64;
constexpr size_t kMaxNameBytes = 64;

absl::Status Unavailable(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

struct Received {
  v1::ServerPacket message;
  std::vector<UniqueFd> descriptors;
};

// Takes the descriptors out of a received message header.
std::vector<UniqueFd> TakeDescriptors(msghdr* header) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

absl::StatusOr<Received> ReceivePacket(int fd, int flags) {
  std::vector<char> buffer(kMaxPacketBytes);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptorsPerPacket * sizeof(int))];
  iovec io = {buffer.data(), buffer.size()};
  msghdr header = {};
  header.msg_iov = &io;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t size;
  do {
    size = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | flags);
    // ECONNRESET only says that the daemon closed without reading all we sent, and is said once;
    // its Refusal comes next.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return absl::DeadlineExceededError("control.sock: the daemon does not answer");
  }
  if (size < 0) return Unavailable("control.sock: recvmsg", errno);
  Received packet;
  packet.descriptors = TakeDescriptors(&header);
  if (size == 0) return absl::UnavailableError("control.sock: closed by the daemon");
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return absl::ResourceExhaustedError(
        "control.sock: descriptors were lost; is this process out of file descriptors?");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0 ||
      !packet.message.ParseFromArray(buffer.data(), static_cast<int>(size))) {
    return absl::InternalError("control.sock: a packet that is not embcache's");
  }
  return packet;
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& directory) {
  grpc::ChannelArguments arguments;
  // What a call to a neighbour process does not need costs a third of its time.
  arguments.SetInt("grpc.minimal_stack", 1);
  arguments.SetInt("grpc.enable_deadline_checking", 1);
  arguments.SetInt("grpc.http2.bdp_probe", 0);
  // A channel's own connection, without the back-off of an earlier one to a daemon now gone.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Despite its name, how long one attempt may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10000);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", directory, "/embcached.sock"),
                                   grpc::InsecureChannelCredentials(), arguments);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const SessionOptions& options,
                                                       absl::string_view acknowledges,
                                                       std::shared_ptr<Releaser> releaser) {
  std::shared_ptr<Session> session(new Session(options));
  session->releaser_ = std::move(releaser);
  session->pid_ = getpid();
  session->wake_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!session->wake_event_.ok()) return Unavailable("eventfd", errno);
  absl::Status status = session->ConnectControl();
  if (!status.ok()) return status;
  v1::ClientPacket packet;
  v1::Hello* hello = packet.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_name(options.name.substr(0, kMaxNameBytes));
  hello->set_role(options.writer ? v1::Hello::WRITER : v1::Hello::READER);
  hello->set_acknowledges(std::string(acknowledges));
  if (options.device_memory) {
    absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
    if (!driver.ok()) return driver.status();
    for (const std::string& uuid : (*driver)->device_uuids()) hello->add_device_uuids(uuid);
  }
  hello->set_segment_changes(true);
  if (options.fast_path) hello->set_fast_path_version(embcache_fast_version());
  status = session->Send(packet, 0);
  if (!status.ok()) return status;
  std::vector<UniqueFd> descriptors;
  status = session->ReceiveWelcome(&descriptors);
  if (!status.ok()) return status;
  const auto used = session->MapSegments(session->welcome_.segments(), descriptors);
  if (!used.ok()) return used.status();
  session->OpenFastPath(absl::MakeSpan(descriptors).subspan(*used));
  status = session->OpenStub();
  if (!status.ok()) return status;
  return session;
}

Session::~Session() {
  // In a fork the mappings and the socket are the parent's business as well.
  if (in_own_process() && !token_hex_.empty()) {
    v1::ClientPacket packet;
    packet.mutable_goodbye();
    Send(packet, MSG_DONTWAIT).IgnoreError();  // there may be no daemon any more
  }
}

void Session::MarkLost() {
  connected_.store(false);
  std::vector<std::shared_ptr<CudaSegment>> unused;  // closes when the lock is free again
  absl::MutexLock lock(&segments_mutex_);
  for (auto& [id, mapping] : mappings_) unused.push_back(std::move(mapping.device));
}

bool Session::has_device() const {
  absl::MutexLock lock(&segments_mutex_);
  return absl::c_any_of(mappings_, [](const auto& one) { return one.second.device != nullptr; });
}

bool Session::in_own_process() const { return getpid() == pid_; }

bool Session::TakeHold(uint64_t bytes) {
  holds_.fetch_add(1);
  if (fast_ != nullptr && bytes > 0) {
    embcache_fast_charge(fast_.get(), static_cast<int64_t>(bytes));
  }
  if (connected()) return true;
  DropHold(bytes);
  return false;
}

void Session::DropHold(uint64_t bytes) {
  if (fast_ != nullptr && bytes > 0) {
    embcache_fast_charge(fast_.get(), -static_cast<int64_t>(bytes));
  }
  holds_.fetch_sub(1);
}

absl::Status Session::ConnectControl() {
  const std::string path = absl::StrCat(options_.directory, "/control.sock");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket_dir: the path ", path, " has ",
                                                   path.size(), " bytes; must be fewer than ",
                                                   sizeof(address.sun_path)));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  control_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!control_.ok()) return Unavailable("socket", errno);
  const timeval timeout = absl::ToTimeval(options_.timeout);
  setsockopt(control_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(control_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  int result;
  do {
    result = connect(control_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } while (result < 0 && errno == EINTR);
  if (result < 0) return Unavailable(absl::StrCat("no daemon at ", path), errno);
  return absl::OkStatus();
}

absl::Status Session::Send(const v1::ClientPacket& packet, int flags) {
  const std::string bytes = packet.SerializeAsString();
  ssize_t sent;
  do {
    sent = send(control_.get(), bytes.data(), bytes.size(), flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Unavailable("control.sock: send", errno);
  return absl::OkStatus();
}

absl::Status Session::ReceiveWelcome(std::vector<UniqueFd>* descriptors) {
  bool more = true;
  while (more) {
    absl::StatusOr<Received> packet = ReceivePacket(control_.get(), 0);
    if (!packet.ok()) return packet.status();
    if (packet->message.has_refusal()) {
      const v1::Refusal& refusal = packet->message.refusal();
      return absl::Status(static_cast<absl::StatusCode>(refusal.code()), refusal.message());
    }
    if (!packet->message.has_welcome()) {
      return absl::InternalError("control.sock: expected Welcome or Refusal");
    }
    const v1::Welcome& part = packet->message.welcome();
    more = part.more();
    welcome_.MergeFrom(part);
    for (UniqueFd& fd : packet->descriptors) descriptors->push_back(std::move(fd));
  }
  if (welcome_.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the daemon (version ", welcome_.version(), ") speaks protocol ",
                     welcome_.protocol_version(), "; this client speaks ", kProtocolVersion));
  }
  if (welcome_.token().size() != 16) return absl::InternalError("Welcome: token: not 16 bytes");
  token_hex_ = absl::BytesToHexString(welcome_.token());
  return absl::OkStatus();
}

absl::StatusOr<size_t> Session::MapSegments(
    const google::protobuf::RepeatedPtrField<v1::WelcomeSegment>& segments,
    absl::Span<const UniqueFd> descriptors) {
  size_t next = 0;
  for (const v1::WelcomeSegment& announced : segments) {
    const v1::Segment& segment = announced.segment();
    Mapping mapping{.generation = segment.generation(), .bytes = segment.bytes()};
    if (!announced.passed_by_descriptor()) {
      mapping.device = CudaSegment::Share(welcome_.epoch(), segment);
    } else if (next < descriptors.size()) {
      auto host = MapSegment(segment, descriptors[next++].get());
      if (!host.ok()) return host.status();
      mapping.host = *std::move(host);
    } else {
      return absl::InternalError(
          absl::StrCat("control.sock: ", descriptors.size(), " descriptors; too few for segments"));
    }
    absl::MutexLock lock(&segments_mutex_);
    mappings_[segment.id()] = std::move(mapping);
  }
  return next;
}

// Whatever is wrong with it, the session does without.
void Session::OpenFastPath(absl::Span<const UniqueFd> descriptors) {
  if (!welcome_.has_fast_path() || descriptors.size() != 2) return;
  const v1::FastPath& fast = welcome_.fast_path();
  if (fast.layout_version() != embcache_fast_version()) return;
  fast_.reset(embcache_fast_open(descriptors[0].get(), fast.index_bytes(), descriptors[1].get(),
                                 fast.pin_table_bytes(), limits().max_pinned_bytes()));
}

Session::Packet Session::HandlePacket() {
  absl::MutexLock lock(&control_mutex_);
  absl::StatusOr<Received> packet = ReceivePacket(control_.get(), MSG_DONTWAIT);
  if (!packet.ok()) {
    return absl::IsDeadlineExceeded(packet.status()) ? Packet::kNone : Packet::kOver;
  }
  const v1::ServerPacket& message = packet->message;
  if (message.has_draining()) draining_.store(true);
  if (message.has_fast_index_moved() && packet->descriptors.size() == 1 && fast_ != nullptr) {
    embcache_fast_replace_index(fast_.get(), packet->descriptors[0].get(),
                                message.fast_index_moved().index_bytes());
  }
  if (message.has_segments_changed()) {
    ChangeSegments(message.segments_changed(), packet->descriptors);
  }
  return Packet::kHandled;
}

void Session::ChangeSegments(const v1::SegmentsChanged& changed,
                             absl::Span<const UniqueFd> descriptors) {
  // What cannot be mapped stays unknown, and calls that name it fail.
  MapSegments(changed.added(), descriptors).status().IgnoreError();
  if (changed.removed().empty()) return;
  std::vector<Mapping> unused;  // unmaps when the lock is free again
  Removed removed{.change = changed.change()};
  {
    absl::MutexLock lock(&segments_mutex_);
    for (const uint32_t id : changed.removed()) {
      const auto it = mappings_.find(id);
      if (it == mappings_.end()) continue;
      removed.segments.emplace_back(it->second.host);
      removed.segments.emplace_back(it->second.device);
      unused.push_back(std::move(it->second));
      mappings_.erase(it);
    }
  }
  removed_.push_back(std::move(removed));
}

bool Session::TellUnmapped() {
  absl::MutexLock lock(&control_mutex_);
  std::erase_if(removed_, [&](const Removed& removed) {
    if (std::any_of(removed.segments.begin(), removed.segments.end(),
                    [](const auto& segment) { return !segment.expired(); })) {
      return false;
    }
    v1::ClientPacket packet;
    packet.mutable_segments_seen()->set_change(removed.change);
    return Send(packet, MSG_DONTWAIT).ok();
  });
  return !removed_.empty();
}

absl::StatusOr<std::shared_ptr<const HostSegment>> Session::MapSegment(const v1::Segment& segment,
                                                                       int fd) const {
  struct stat file = {};
  if (fstat(fd, &file) != 0 || static_cast<uint64_t>(file.st_size) < segment.bytes()) {
    return absl::InternalError(absl::StrCat("segment ", segment.id(), ": ", segment.bytes(),
                                            " bytes announced, ", file.st_size, " there"));
  }
  const int protection = options_.writer ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = mmap(nullptr, segment.bytes(), protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("segment ", segment.id(), ": mmap of ",
                                                     segment.bytes(), " bytes: ", strerror(errno)));
  }
  madvise(base, segment.bytes(), MADV_DONTDUMP);  // core files stay small
  return std::make_shared<const HostSegment>(static_cast<uint8_t*>(base), segment.bytes());
}

absl::Status Session::OpenStub() {
  stub_ = v1::Cache::NewStub(OpenChannel(options_.directory));
  // Proves that both sockets are the same daemon's.
  grpc::ClientContext context;
  Prepare(&context);
  v1::PingResponse response;
  return FromGrpc(stub_->Ping(&context, v1::PingRequest(), &response));
}

embcache::v1::Cache::Stub& Session::waiting_stub() {
  absl::call_once(waiting_once_,
                  [this] { waiting_stub_ = v1::Cache::NewStub(OpenChannel(options_.directory)); });
  return *waiting_stub_;
}

void Session::Doubt() {
  in_doubt_.store(true);
  eventfd_write(wake_event_.get(), 1);
}

void Session::Prepare(grpc::ClientContext* context, absl::Duration wait) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + wait + options_.timeout));
  context->AddMetadata("embcache-session", token_hex_);
}

absl::StatusOr<Resolved> Session::Resolve(uint32_t segment, uint64_t generation, uint64_t offset,
                                          uint64_t bytes) {
  absl::StatusOr<Resolved> place = FindPlace(segment, generation, offset, bytes);
  while (absl::IsInternal(place.status()) && HandlePacket() == Packet::kHandled) {
    place = FindPlace(segment, generation, offset, bytes);
    eventfd_write(wake_event_.get(), 1);  // the packet may have left something to be told
  }
  // Once more: the thread that watches the socket may have handled the last packet.
  if (absl::IsInternal(place.status())) place = FindPlace(segment, generation, offset, bytes);
  return place;
}

absl::StatusOr<Resolved> Session::FindPlace(uint32_t segment, uint64_t generation, uint64_t offset,
                                            uint64_t bytes) const {
  absl::ReaderMutexLock lock(&segments_mutex_);
  const auto it = mappings_.find(segment);
  if (it == mappings_.end() || it->second.generation != generation) {
    return absl::InternalError(absl::StrCat("location: segment ", segment, " generation ",
                                            generation, " is not one of this session's"));
  }
  const Mapping& mapping = it->second;
  if (offset > mapping.bytes || bytes > mapping.bytes - offset) {
    return absl::InternalError(absl::StrCat("location: ", bytes, " bytes at ", offset,
                                            " lie outside segment ", segment, " of ",
                                            mapping.bytes));
  }
  if (mapping.host != nullptr) {
    return Resolved{.base = mapping.host->base() + offset, .host = mapping.host};
  }
  if (mapping.device == nullptr) {
    return absl::UnavailableError("the connection to the daemon was lost during the call");
  }
  return Resolved{.device = mapping.device, .device_offset = offset};
}

}  // namespace embcache::client::internal
