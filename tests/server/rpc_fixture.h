// An RpcServer over a real service: real sockets, real clients, and copies that end when the test
// says so.

#ifndef EMBCACHE_TESTS_SERVER_RPC_FIXTURE_H_
#define EMBCACHE_TESTS_SERVER_RPC_FIXTURE_H_

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "gpu/host_memory.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/rpc_server.h"
#include "storage/executor.h"
#include "tests/server/service_calls.h"
#include "tests/unit/manual_copy_engine.h"

namespace embcache {

// Lets a test wait until copies have been asked for.
class AwaitedCopyEngine : public ManualCopyEngine {
 public:
  void Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
            uint64_t from_offset, uint64_t bytes, Done done) override {
    ManualCopyEngine::Copy(to, to_offset, from, from_offset, bytes, std::move(done));
    Count();
  }
  void Upload(const MemorySegment* to, uint64_t to_offset, const char* from, uint64_t bytes,
              Done done) override {
    ManualCopyEngine::Upload(to, to_offset, from, bytes, std::move(done));
    Count();
  }

  // Until `copies` have been asked for, ever.
  void Await(int copies) {
    absl::MutexLock lock(&mu_);
    const auto reached = [this, copies]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return asked_ >= copies; };
    mu_.Await(absl::Condition(&reached));
  }

 private:
  void Count() {
    absl::MutexLock lock(&mu_);
    ++asked_;
  }

  absl::Mutex mu_;
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
};

// A unary call whose answer the test waits for when it wants to.
template <class Response>
struct PendingCall {
  grpc::ClientContext context;
  Response response;
  grpc::Status status;
  absl::Notification done;
};

class RpcServerTest : public testing::Test {
 protected:
  RpcServerTest() {
    char directory[] = "/tmp/embrpcXXXXXX";
    EXPECT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    socket_ = absl::StrCat(directory_, "/s");
    TieredCacheOptions options;
    options.l1.capacity_bytes = uint64_t{1} << 20;
    options.l2.capacity_bytes = uint64_t{1} << 20;
    auto cache = TieredCache::Create(
        options, {SystemClock(), &executor_, &copier_, &memory_, &memory_, /*store=*/nullptr});
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    registry_ = std::make_unique<SessionRegistry>(SessionLimits{}, cache_.get(), SystemClock());
    service_ = std::make_unique<CacheService>(CacheServiceDeps{
        .cache = cache_.get(), .registry = registry_.get(), .clock = SystemClock()});
    admin_ = std::make_unique<AdminService>(
        AdminServiceDeps{.cache = cache_.get(), .registry = registry_.get(), .drain = [] {}});
  }
  ~RpcServerTest() override {
    server_.reset();
    unlink(socket_.c_str());
    rmdir(directory_.c_str());
  }

  void Start(RpcServerOptions options = {}) {
    if (options.tcp_address.empty()) options.unix_socket = socket_;
    if (administrator_) options.peers.admin_uids.push_back(getuid());
    auto server = RpcServer::Start(std::move(options), service_.get(), admin_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const std::string address = server_->tcp_port() == 0
                                    ? "unix:" + socket_
                                    : absl::StrCat("127.0.0.1:", server_->tcp_port());
    channel_ = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    stub_ = v1::Cache::NewStub(channel_);
  }

  Token OpenSession() {
    return *registry_->Open({.name = "test", .writer = true, .pid = 1, .uid = 1});
  }

  grpc::Status Ping(const std::string& token = "") {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("embcache-session", token);
    v1::PingResponse response;
    return stub_->Ping(&context, v1::PingRequest(), &response);
  }

  // Sends a put that stays in its handler until its copy is run.
  std::unique_ptr<PendingCall<v1::PutResponse>> SendPut(const std::string& name,
                                                        size_t bytes = 512) {
    auto call = std::make_unique<PendingCall<v1::PutResponse>>();
    v1::PutRequest request;
    *request.add_items() = ProtoItem(name, bytes);
    stub_->async()->Put(&call->context, &request, &call->response,
                        [pending = call.get()](grpc::Status status) {
                          pending->status = std::move(status);
                          pending->done.Notify();
                        });
    return call;
  }

  // A unary call with raw bytes, for services whose messages are not generated here.
  grpc::Status RawCall(const std::string& method, const std::string& request,
                       std::string* response) {
    grpc::GenericStub stub(channel_);
    grpc::Slice slice(request);
    grpc::ByteBuffer sent(&slice, 1);
    grpc::ByteBuffer received;
    grpc::ClientContext context;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &sent, &received, [&](grpc::Status s) {
      status = std::move(s);
      done.Notify();
    });
    done.WaitForNotification();
    grpc::Slice answer;
    if (status.ok() && received.DumpToSingleSlice(&answer).ok()) {
      response->assign(reinterpret_cast<const char*>(answer.begin()), answer.size());
    }
    return status;
  }

  // The status field of grpc.health.v1.HealthCheckResponse: 1 = SERVING, 2 = NOT_SERVING.
  int Health(const std::string& service) {
    const std::string request =
        service.empty() ? "" : absl::StrCat("\x0a", std::string(1, char(service.size())), service);
    std::string response;
    const grpc::Status status = RawCall("/grpc.health.v1.Health/Check", request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.size() == 2 ? response[1] : -1;
  }

  bool administrator_ = true;  // whether the test's own user is one
  std::string directory_;
  std::string socket_;
  AwaitedCopyEngine copier_;
  ManualExecutor executor_;
  HostMemory memory_;
  std::unique_ptr<TieredCache> cache_;
  std::unique_ptr<SessionRegistry> registry_;
  std::unique_ptr<CacheService> service_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> stub_;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_RPC_FIXTURE_H_
