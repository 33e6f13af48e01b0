#include "server/rpc_server.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "google/protobuf/arena.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "server/health_service.h"

namespace embcache {
namespace {

using AsyncCache = v1::Cache::AsyncService;
using AsyncAdmin = v1::Admin::AsyncService;
using AsyncHealth = grpc::health::v1::Health::AsyncService;

constexpr char kSessionMetadata[] = "embcache-session";
// Calls of one method that can arrive between two visits of a poller without waiting for a call
// object to be made.
constexpr int kArmedPerMethod = 32;  // and queue
constexpr size_t kArenaBlockBytes = 1536;

// The codes are the same numbers by design of both libraries.
grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::StatusOr<CallContext> MakeCallContext(const grpc::ServerContext& rpc) {
  CallContext context;
  context.deadline = absl::FromChrono(rpc.deadline());
  const auto sent = rpc.client_metadata().find(kSessionMetadata);
  if (sent == rpc.client_metadata().end()) return context;
  context.session = TokenFromHex(absl::string_view(sent->second.data(), sent->second.size()));
  if (!context.session.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata ", kSessionMetadata, ": must be 32 hexadecimal digits"));
  }
  return context;
}

// What all calls of a server share.
struct CallGate {
  const int max_in_flight;
  const uint64_t max_message_bytes;
  std::atomic<int> in_flight = 0;  // handlers that have not answered
  std::atomic<int> calls = 0;      // call objects, armed or running
  absl::Notification no_calls;     // possible only once the server takes no new ones

  bool Enter() {
    if (in_flight.fetch_add(1, std::memory_order_relaxed) < max_in_flight) return true;
    Leave();
    return false;
  }
  void Leave() { in_flight.fetch_sub(1, std::memory_order_relaxed); }
  void CallMade() { calls.fetch_add(1, std::memory_order_relaxed); }
  void CallGone() {
    if (calls.fetch_sub(1, std::memory_order_acq_rel) == 1) no_calls.Notify();
  }
};

// What the completion queue hands back.
class Tag {
 public:
  virtual ~Tag() = default;
  virtual void Proceed(bool ok) = 0;
};

class MethodBase {
 public:
  virtual ~MethodBase() = default;
  virtual void Arm() = 0;
};

// One rpc: how to ask gRPC for a call of it, and which handler answers it. Outlives its calls.
template <class Base, class Async, class Service, class Request, class Response>
class Method final : public MethodBase {
 public:
  using Writer = grpc::ServerAsyncResponseWriter<Response>;
  using Ask = void (Base::*)(grpc::ServerContext*, Request*, Writer*, grpc::CompletionQueue*,
                             grpc::ServerCompletionQueue*, void*);
  using Handler = void (Service::*)(const CallContext&, const Request&, Response*, Done);

  Method(CallGate* gate, grpc::ServerCompletionQueue* queue, Async* async, Ask ask,
         Service* service, Handler handler)
      : gate_(gate),
        queue_(queue),
        async_(async),
        ask_(ask),
        service_(service),
        handler_(handler) {}

  // Health must answer under any load: a supervisor would restart a daemon that is merely busy.
  static constexpr bool kBounded = !std::is_same_v<Service, HealthService>;

  void Arm() override { new Call(this); }

 private:
  // Waits for a request, runs the handler, sends the answer, and deletes itself when that is done.
  class Call final : public Tag, private LongWait {
   public:
    explicit Call(Method* method)
        : method_(method),
          writer_(&rpc_),
          arena_(block_, sizeof(block_)),
          request_(google::protobuf::Arena::CreateMessage<Request>(&arena_)),
          response_(google::protobuf::Arena::CreateMessage<Response>(&arena_)) {
      method_->gate_->CallMade();
      (method_->async_->*method_->ask_)(&rpc_, request_, &writer_, method_->queue_, method_->queue_,
                                        this);
    }

    void Proceed(bool ok) override {
      if (!answered_ && ok) {
        method_->Arm();
        return Run();
      }
      // Either the server is shutting down and this call never began, or the answer has left (ok),
      // or it could not, for the caller has gone away.
      if (answered_ && !ok && answered_ok_) TakeBack();
      CallGate* const gate = method_->gate_;
      delete this;
      gate->CallGone();
    }

   private:
    void Run() {
      CallGate* const gate = method_->gate_;
      if (kBounded && !gate->Enter()) {
        return Send(absl::ResourceExhaustedError(
            absl::StrCat("too many calls at a time; the daemon handles ", gate->max_in_flight)));
      }
      absl::StatusOr<CallContext> context = MakeCallContext(rpc_);
      absl::Status status = context.status();
      // gRPC's own check of sizes is not there in a minimal stack.
      const uint64_t bytes = status.ok() ? request_->ByteSizeLong() : 0;
      if (bytes > gate->max_message_bytes) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("request: ", bytes, " bytes; must be at most ", gate->max_message_bytes));
      }
      if (!status.ok()) {
        return Answer(status);
      }
      context_ = *context;
      if (kBounded) context_.long_wait = this;
      (method_->service_->*method_->handler_)(context_, *request_, response_,
                                              [this](absl::Status status) { Answer(status); });
    }

    void Answer(const absl::Status& status) {
      if (kBounded && !waits_long_.load(std::memory_order_relaxed)) method_->gate_->Leave();
      Send(status);
    }

    void Begin() override {
      if (!waits_long_.exchange(true, std::memory_order_relaxed)) method_->gate_->Leave();
    }

    // `this` may be gone when it returns.
    void Send(const absl::Status& status) {
      answered_ = true;
      answered_ok_ = status.ok();
      if (status.ok()) {
        writer_.Finish(*response_, grpc::Status::OK, this);
      } else {
        writer_.FinishWithError(ToGrpcStatus(status), this);
      }
    }

    void TakeBack() {
      if constexpr (requires(Service & service) { service.Undelivered(context_, *response_); }) {
        method_->service_->Undelivered(context_, *response_);
      }
    }

    Method* const method_;
    grpc::ServerContext rpc_;
    Writer writer_;
    // Most calls fit the block: their messages then cost no allocation but that of long strings.
    char block_[kArenaBlockBytes];
    google::protobuf::Arena arena_;
    Request* const request_;
    Response* const response_;
    CallContext context_;
    std::atomic<bool> waits_long_ = false;  // and so has left the gate
    bool answered_ = false;
    bool answered_ok_ = false;
  };

  CallGate* const gate_;
  grpc::ServerCompletionQueue* const queue_;
  Async* const async_;
  const Ask ask_;
  Service* const service_;
  const Handler handler_;
};

// A socket left behind by an earlier run goes; anything else at `path` is not ours to touch.
absl::Status ClearSocketPath(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, ": ", path.size(),
                                                   " bytes; must be less than ",
                                                   sizeof(sockaddr_un::sun_path)));
  }
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " exists and is not a socket"));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
  }
  return absl::OkStatus();
}

}  // namespace

class RpcServer::Impl {
 public:
  Impl(const RpcServerOptions& options, CacheService* cache, AdminService* admin)
      : options_(options), cache_(cache), admin_(admin) {}
  ~Impl() { Shutdown(absl::InfinitePast()); }

  absl::Status Start();
  void SetServing(bool serving) { health_.SetServing(serving); }
  void Shutdown(absl::Time deadline);
  int tcp_port() const { return tcp_port_; }

 private:
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
    methods_.push_back(std::make_unique<Method<Base, Async, Service, Request, Response>>(
        gate_.get(), queue, async, ask, service, handler));
  }

  const RpcServerOptions options_;
  CacheService* const cache_;
  AdminService* const admin_;
  HealthService health_;
  AsyncCache async_cache_;
  AsyncAdmin async_admin_;
  AsyncHealth async_health_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<CallGate> gate_;
  std::vector<std::unique_ptr<MethodBase>> methods_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
  int tcp_port_ = 0;
  bool stopped_ = false;
};

absl::Status RpcServer::Impl::Start() {
  // A setting of the process that takes effect in the builders made from now on.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  if (options_.unix_socket.empty() && options_.tcp_address.empty()) {
    return absl::InvalidArgumentError("no address to listen on");
  }
  grpc::ServerBuilder builder;
  SetArguments(&builder);
  if (!options_.unix_socket.empty()) {
    absl::Status clear = ClearSocketPath(options_.unix_socket);
    if (!clear.ok()) return clear;
    builder.AddListeningPort(absl::StrCat("unix:", options_.unix_socket),
                             grpc::InsecureServerCredentials());
  }
  if (!options_.tcp_address.empty()) {
    builder.AddListeningPort(options_.tcp_address, grpc::InsecureServerCredentials(), &tcp_port_);
  }
  builder.RegisterService(&async_cache_);
  builder.RegisterService(&async_admin_);
  builder.RegisterService(&async_health_);
  // A queue for each thread: threads that share one wake each other for every event, which costs a
  // single caller a quarter of its call. gRPC spreads the connections over the queues.
  for (int i = 0; i < options_.threads; ++i) queues_.push_back(builder.AddCompletionQueue());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options_.unix_socket, " ",
                                               options_.tcp_address, " (gRPC has logged why)"));
  }
  // gRPC binds with what the umask leaves; nobody is served before this, for nothing polls yet.
  if (!options_.unix_socket.empty() && chmod(options_.unix_socket.c_str(), options_.mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot chmod ", options_.unix_socket));
  }
  gate_.reset(new CallGate{options_.max_in_flight, options_.max_message_bytes});
  for (const auto& queue : queues_) RegisterMethods(queue.get());
  for (const auto& method : methods_) {
    for (int i = 0; i < kArmedPerMethod; ++i) method->Arm();
  }
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this, i] { Poll(i); });
  return absl::OkStatus();
}

void RpcServer::Impl::SetArguments(grpc::ServerBuilder* builder) const {
  // Measured on unix sockets: the minimal stack (without filters that we do not use) and no probing
  // of the bandwidth save a tenth of a call. Deadlines then have to be asked for by name.
  builder->AddChannelArgument(GRPC_ARG_MINIMAL_STACK, 1);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Without it two daemons could share a port, each getting half of the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
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
  AsyncAdmin* const admin = &async_admin_;
  Register(queue, admin, &AsyncAdmin::RequestFlush, admin_, &AdminService::Flush);
  Register(queue, admin, &AsyncAdmin::RequestClear, admin_, &AdminService::Clear);
  Register(queue, admin, &AsyncAdmin::RequestDrain, admin_, &AdminService::Drain);
  Register(queue, admin, &AsyncAdmin::RequestSetLogLevel, admin_, &AdminService::SetLogLevel);
  Register(queue, admin, &AsyncAdmin::RequestVerifyL3, admin_, &AdminService::VerifyL3);
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

void RpcServer::Impl::Shutdown(absl::Time deadline) {
  if (std::exchange(stopped_, true)) return;
  if (server_ != nullptr) {
    SetServing(false);
    server_->Shutdown(absl::ToChronoTime(deadline));
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

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            CacheService* cache,
                                                            AdminService* admin) {
  auto impl = std::make_unique<Impl>(options, cache, admin);
  absl::Status started = impl->Start();
  if (!started.ok()) return started;
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RpcServer::~RpcServer() = default;
void RpcServer::SetServing(bool serving) { impl_->SetServing(serving); }
void RpcServer::Shutdown(absl::Time deadline) { impl_->Shutdown(deadline); }
int RpcServer::tcp_port() const { return impl_->tcp_port(); }

}  // namespace embcache
