#include "server/rpc_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "grpc/grpc.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/alarm.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_posix.h"
#include "server/call_gate.h"
#include "server/health_service.h"
#include "server/logging.h"
#include "server/rpc_tag.h"
#include "server/tcp_listener.h"
#include "server/unary_method.h"
#include "server/watch_method.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

using AsyncCache = v1::Cache::AsyncService;
using AsyncAdmin = v1::Admin::AsyncService;
using AsyncHealth = grpc::health::v1::Health::AsyncService;

// Calls of one method that can arrive between two visits of a poller without waiting for a call
// object to be made.
constexpr int kArmedPerMethod = 32;  // and queue
// For a client over TCP to finish its handshake; and to answer a ping, without which a machine that
// vanished would keep its connection.
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kKeepaliveMs = 60'000;
// After a stop's deadline, before the connections that are left are ended.
constexpr absl::Duration kCutDelay = absl::Milliseconds(100);

// A question to every poller.
struct Question {
  std::atomic<int> unanswered;
  absl::AnyInvocable<void()> answer;
};

// Its copy for one of them: an event without a call.
class QuestionTag final : public Tag {
 public:
  QuestionTag(std::shared_ptr<Question> question, grpc::CompletionQueue* queue)
      : question_(std::move(question)) {
    alarm_.Set(queue, gpr_inf_past(GPR_CLOCK_REALTIME), this);
  }
  void Proceed(bool) override {
    if (question_->unanswered.fetch_sub(1, std::memory_order_acq_rel) == 1) question_->answer();
    delete this;
  }

 private:
  const std::shared_ptr<Question> question_;
  grpc::Alarm alarm_;
};

}  // namespace

class RpcServer::Impl {
 public:
  Impl(RpcServerOptions options, CacheService* cache, AdminService* admin)
      : options_(std::move(options)),
        over_network_(options_.unix_socket.empty()),
        cache_(cache),
        admin_(admin),
        connections_(over_network_
                         ? ConnectionLimits{options_.connections.total, options_.connections.total}
                         : options_.connections) {}
  ~Impl() { Shutdown(absl::InfinitePast()); }

  absl::Status Start();
  void SetServing(bool serving) { health_.SetServing(serving); }
  void SetDeviceServing(bool serving) {
    health_.SetDevice(serving ? HealthService::Device::kServing : HealthService::Device::kLost);
  }
  void AskPollers(absl::AnyInvocable<void()> answer);
  void Shutdown(absl::Time deadline);
  int tcp_port() const { return tcp_port_; }
  size_t connections() { return connections_.Count(); }
  uint64_t unread_bytes() const { return gate_->answers.unread(); }

 private:
  absl::Status Bind();
  absl::Status StartGrpc();
  absl::Status StartAccepting();
  void Accepted(UniqueFd connection);
  void SetArguments(grpc::ServerBuilder* builder) const;
  void RegisterMethods(grpc::ServerCompletionQueue* queue);
  void Poll(int thread);
  void StopQueues();

  // Overloads for the members of both services; `Base` is the part of Async that declares `ask`.
  template <class Base, class Request, class Response, class Async, class Service>
  void Register(grpc::ServerCompletionQueue* queue, Async* async,
                void (Base::*ask)(grpc::ServerContext*, Request*,
                                  grpc::ServerAsyncResponseWriter<Response>*,
                                  grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
                Service* service,
                void (Service::*handler)(const CallContext&, const Request&, Response*, Done)) {
    methods_.push_back(std::make_unique<UnaryMethod<Base, Async, Service, Request, Response>>(
        gate_.get(), queue, async, ask, service, handler));
  }

  RpcServerOptions options_;
  const bool over_network_;
  CacheService* const cache_;
  AdminService* const admin_;
  HealthService health_;
  AsyncCache async_cache_;
  AsyncAdmin async_admin_;
  AsyncHealth async_health_;
  ConnectionTable connections_;
  std::optional<UnixListener> unix_;
  std::optional<TcpListener> tcp_;
  int tcp_port_ = 0;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<CallGate> gate_;
  std::vector<std::unique_ptr<MethodBase>> methods_;
  std::shared_ptr<grpc::ServerCredentials>
      credentials_;  // of TCP; asked by the server's handshakes
  std::unique_ptr<grpc::Server> server_;
  // How connections over TCP, which may be encrypted, come to gRPC.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::vector<std::thread> threads_;
  std::unique_ptr<AcceptLoop> accepting_;
  LogEvery refused_log_{absl::Seconds(1)};
  bool stopped_ = false;
};

absl::Status RpcServer::Impl::Start() {
  absl::Status status = Bind();
  if (status.ok()) status = StartGrpc();
  if (status.ok()) status = StartAccepting();
  return status;
}

absl::Status RpcServer::Impl::Bind() {
  if (options_.unix_socket.empty() == options_.tcp_address.empty()) {
    return absl::InvalidArgumentError("give one address to listen on");
  }
  if (over_network_) {
    absl::StatusOr<TcpListener> bound = TcpListener::Bind(options_.tcp_address);
    if (!bound.ok()) return bound.status();
    tcp_.emplace(*std::move(bound));
    tcp_port_ = tcp_->port();
  } else {
    absl::StatusOr<UnixListener> bound =
        UnixListener::Bind(options_.unix_socket, SOCK_STREAM, options_.access);
    if (!bound.ok()) return bound.status();
    unix_.emplace(*std::move(bound));
  }
  return absl::OkStatus();
}

absl::Status RpcServer::Impl::StartGrpc() {
  // A setting of the process that takes effect in the builders made from now on.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // For good: the end of gRPC's last object would otherwise wait for a thread that may be looking
  // for ten seconds at a connection whose client did not read.
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  static_cast<void>(kept);
  grpc::ServerBuilder builder;
  SetArguments(&builder);
  if (over_network_) {
    absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> credentials =
        grpc::InsecureServerCredentials();
    if (!options_.tls.certificate.empty()) credentials = MakeTlsCredentials(options_.tls);
    if (!credentials.ok()) return credentials.status();
    credentials_ = *std::move(credentials);
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials_);
  }
  builder.RegisterService(&async_cache_);
  builder.RegisterService(&async_admin_);
  builder.RegisterService(&async_health_);
  // A queue for each thread: threads that share one wake each other for every event, which costs a
  // single caller a quarter of its call. gRPC spreads the connections over the queues.
  for (int i = 0; i < options_.threads; ++i) queues_.push_back(builder.AddCompletionQueue());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC cannot start (it has logged why)");
  gate_.reset(new CallGate{
      options_.max_in_flight, options_.max_message_bytes, over_network_, &connections_,
      AnswerBudget(options_.answers, [this](absl::string_view peer) { connections_.Cut(peer); })});
  for (const auto& queue : queues_) RegisterMethods(queue.get());
  gate_->many_calls = static_cast<int>(methods_.size()) * kArmedPerMethod + options_.max_in_flight;
  for (const auto& method : methods_) {
    for (int i = 0; i < kArmedPerMethod; ++i) method->Arm();
  }
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this, i] { Poll(i); });
  return absl::OkStatus();
}

absl::Status RpcServer::Impl::StartAccepting() {
  options_.accepting.thread_name = over_network_ ? "accept-tcp" : "accept";
  absl::StatusOr<std::unique_ptr<AcceptLoop>> loop =
      AcceptLoop::Start(std::move(options_.accepting), over_network_ ? tcp_->fd() : unix_->fd(),
                        [this](UniqueFd connection) { Accepted(std::move(connection)); });
  if (!loop.ok()) return loop.status();
  accepting_ = *std::move(loop);
  return absl::OkStatus();
}

void RpcServer::Impl::Accepted(UniqueFd connection) {
  std::optional<Peer> peer;
  if (over_network_) {
    peer = Peer{.allowed = true};
  } else {
    peer = ReadPeer(connection.get(), options_.peers);
  }
  if (!peer.has_value()) return;
  if (absl::Status added = connections_.Add(connection.get(), *peer); !added.ok()) {
    if (const auto skipped = refused_log_.Next()) {
      spdlog::warn("rpc: refused a connection of pid {} uid {}: {} ({} such lines skipped)",
                   peer->pid, peer->uid, std::string(added.message()), *skipped);
    }
    return;
  }
  if (acceptor_ == nullptr)
    return grpc::AddInsecureChannelFromFd(server_.get(), connection.Release());
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters handed;
  handed.listener_fd = tcp_->fd();
  handed.fd = connection.Release();
  acceptor_->HandleNewConnection(&handed);
}

void RpcServer::Impl::SetArguments(grpc::ServerBuilder* builder) const {
  // Measured on unix sockets: the minimal stack (without filters that we do not use) and no probing
  // of the bandwidth save a tenth of a call. Deadlines then have to be asked for by name.
  builder->AddChannelArgument(GRPC_ARG_MINIMAL_STACK, 1);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  if (over_network_) {
    builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  }
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.max_streams_per_connection);
  builder->SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  grpc::ResourceQuota quota("embcached");
  quota.Resize(options_.memory_bytes);
  builder->SetResourceQuota(quota);
}

void RpcServer::Impl::RegisterMethods(grpc::ServerCompletionQueue* queue) {
  AsyncCache* const cache = &async_cache_;
  Register(queue, cache, &AsyncCache::RequestSegments, cache_, &CacheService::Segments);
  Register(queue, cache, &AsyncCache::RequestGet, cache_, &CacheService::Get);
  Register(queue, cache, &AsyncCache::RequestPut, cache_, &CacheService::Put);
  Register(queue, cache, &AsyncCache::RequestReserve, cache_, &CacheService::Reserve);
  Register(queue, cache, &AsyncCache::RequestCommit, cache_, &CacheService::Commit);
  Register(queue, cache, &AsyncCache::RequestAbort, cache_, &CacheService::Abort);
  Register(queue, cache, &AsyncCache::RequestRelease, cache_, &CacheService::Release);
  Register(queue, cache, &AsyncCache::RequestShare, cache_, &CacheService::Share);
  Register(queue, cache, &AsyncCache::RequestAdopt, cache_, &CacheService::Adopt);
  Register(queue, cache, &AsyncCache::RequestAbandon, cache_, &CacheService::Abandon);
  Register(queue, cache, &AsyncCache::RequestContains, cache_, &CacheService::Contains);
  Register(queue, cache, &AsyncCache::RequestDelete, cache_, &CacheService::Delete);
  Register(queue, cache, &AsyncCache::RequestPop, cache_, &CacheService::Pop);
  Register(queue, cache, &AsyncCache::RequestAdvanceEpoch, cache_, &CacheService::AdvanceEpoch);
  Register(queue, cache, &AsyncCache::RequestList, cache_, &CacheService::List);
  Register(queue, cache, &AsyncCache::RequestStats, cache_, &CacheService::Stats);
  Register(queue, cache, &AsyncCache::RequestPing, cache_, &CacheService::Ping);
  methods_.push_back(MakeWatchMethod(gate_.get(), queue, cache, cache_));
  AsyncAdmin* const admin = &async_admin_;
  Register(queue, admin, &AsyncAdmin::RequestFlush, admin_, &AdminService::Flush);
  Register(queue, admin, &AsyncAdmin::RequestClear, admin_, &AdminService::Clear);
  Register(queue, admin, &AsyncAdmin::RequestDrain, admin_, &AdminService::Drain);
  Register(queue, admin, &AsyncAdmin::RequestSetLogLevel, admin_, &AdminService::SetLogLevel);
  Register(queue, admin, &AsyncAdmin::RequestVerifyL3, admin_, &AdminService::VerifyL3);
  Register(queue, admin, &AsyncAdmin::RequestResize, admin_, &AdminService::Resize);
  Register(queue, admin, &AsyncAdmin::RequestSessions, admin_, &AdminService::Sessions);
  Register(queue, &async_health_, &AsyncHealth::RequestCheck, &health_, &HealthService::Check);
}

void RpcServer::Impl::Poll(int thread) {
  pthread_setname_np(pthread_self(), absl::StrCat("rpc-", thread).c_str());
  void* tag = nullptr;
  bool ok = false;
  grpc::ServerCompletionQueue* const queue = queues_[static_cast<size_t>(thread)].get();
  while (queue->Next(&tag, &ok)) static_cast<Tag*>(tag)->Proceed(ok);
}

void RpcServer::Impl::AskPollers(absl::AnyInvocable<void()> answer) {
  const auto question = std::make_shared<Question>();
  question->unanswered = static_cast<int>(queues_.size());
  question->answer = std::move(answer);
  for (const auto& queue : queues_) new QuestionTag(question, queue.get());
}

void RpcServer::Impl::Shutdown(absl::Time deadline) {
  if (std::exchange(stopped_, true)) return;
  SetServing(false);
  cache_->EndWatches();  // they would never end by themselves
  accepting_.reset();
  // Whoever comes from now on, or waits to be accepted, learns at once that nobody serves.
  unix_.reset();
  tcp_.reset();
  if (server_ != nullptr) {
    // gRPC would wait for answers to be read for as long as a client likes.
    absl::Notification stopped;
    std::thread cutter([this, deadline, &stopped] {
      pthread_setname_np(pthread_self(), "rpc-cut");
      if (!stopped.WaitForNotificationWithDeadline(deadline + kCutDelay)) connections_.CutAll();
    });
    server_->Shutdown(absl::ToChronoTime(deadline));
    stopped.Notify();
    cutter.join();
    // Calls that gRPC has cancelled still run here until their handlers answer: the queues must
    // not be shut down before, for they then still use them.
    if (gate_ != nullptr) gate_->no_calls.WaitForNotification();
  }
  StopQueues();
}

void RpcServer::Impl::StopQueues() {
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  for (const auto& queue : queues_) {
    void* tag = nullptr;
    bool ok = false;
    while (queue->Next(&tag, &ok)) {
    }
  }
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcServerOptions options,
                                                            CacheService* cache,
                                                            AdminService* admin) {
  auto impl = std::make_unique<Impl>(std::move(options), cache, admin);
  absl::Status started = impl->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RpcServer::~RpcServer() = default;
void RpcServer::SetServing(bool serving) { impl_->SetServing(serving); }
void RpcServer::SetDeviceServing(bool serving) { impl_->SetDeviceServing(serving); }
void RpcServer::AskPollers(absl::AnyInvocable<void()> answer) {
  impl_->AskPollers(std::move(answer));
}
void RpcServer::Shutdown(absl::Time deadline) { impl_->Shutdown(deadline); }
int RpcServer::tcp_port() const { return impl_->tcp_port(); }
size_t RpcServer::connections() const { return impl_->connections(); }
uint64_t RpcServer::unread_bytes() const { return impl_->unread_bytes(); }

}  // namespace embcache
