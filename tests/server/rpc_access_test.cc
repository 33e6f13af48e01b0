// Who may call what: by the connection's user, by session, and over TCP.

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/rpc_fixture.h"

namespace embcache {
namespace {

using testing::HasSubstr;

enum class Needs { kNothing, kLocal, kSession, kWriter, kAdmin };

// Every unary call of both services.
const std::map<std::string, Needs>& Methods() {
  static const auto& methods = *new std::map<std::string, Needs>{
      {"embcache.v1.Cache.Segments", Needs::kNothing},
      {"embcache.v1.Cache.Get", Needs::kNothing},
      {"embcache.v1.Cache.Put", Needs::kWriter},
      {"embcache.v1.Cache.Reserve", Needs::kSession},
      {"embcache.v1.Cache.Commit", Needs::kSession},
      {"embcache.v1.Cache.Abort", Needs::kSession},
      {"embcache.v1.Cache.Release", Needs::kSession},
      {"embcache.v1.Cache.Adopt", Needs::kSession},
      {"embcache.v1.Cache.Contains", Needs::kNothing},
      {"embcache.v1.Cache.Delete", Needs::kWriter},
      {"embcache.v1.Cache.Pop", Needs::kSession},
      {"embcache.v1.Cache.AdvanceEpoch", Needs::kWriter},
      {"embcache.v1.Cache.List", Needs::kNothing},
      {"embcache.v1.Cache.Stats", Needs::kNothing},
      {"embcache.v1.Cache.Ping", Needs::kNothing},
      {"embcache.v1.Admin.Flush", Needs::kAdmin},
      {"embcache.v1.Admin.Clear", Needs::kAdmin},
      {"embcache.v1.Admin.Drain", Needs::kAdmin},
      {"embcache.v1.Admin.SetLogLevel", Needs::kAdmin},
      {"embcache.v1.Admin.VerifyL3", Needs::kAdmin},
      {"embcache.v1.Admin.Resize", Needs::kAdmin},
      {"embcache.v1.Admin.Sessions", Needs::kLocal},
  };
  return methods;
}

class RpcAccessTest : public RpcServerTest {
 protected:
  // The answer to an empty request, which is as good as any to find out who is let in.
  grpc::StatusCode Try(const std::string& method) {
    const std::string path = absl::StrCat(
        "/", absl::StrReplaceAll(method, {{"Cache.", "Cache/"}, {"Admin.", "Admin/"}}));
    std::string response;
    return RawCall(path, "", &response).error_code();
  }

  void StartTcp() {
    RpcServerOptions options;
    options.tcp_address = "127.0.0.1:0";
    Start(std::move(options));
  }
};

// A call that is added has to be given its place in the table above.
TEST_F(RpcAccessTest, EveryCallIsClassified) {
  const std::vector<std::string> elsewhere = {"Share", "Abandon"};
  for (const auto* service :
       {google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("embcache.v1.Cache"),
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            "embcache.v1.Admin")}) {
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (method.server_streaming() ||
          std::count(elsewhere.begin(), elsewhere.end(), method.name()) > 0) {
        continue;
      }
      EXPECT_EQ(Methods().count(method.full_name()), 1u) << method.full_name();
    }
  }
}

TEST_F(RpcAccessTest, WithoutASessionAUserMayLookAndChangeNothing) {
  administrator_ = false;
  Start();
  for (const auto& [method, needs] : Methods()) {
    const grpc::StatusCode code = Try(method);
    switch (needs) {
      case Needs::kNothing:
      case Needs::kLocal:
        EXPECT_EQ(code, grpc::StatusCode::OK) << method;
        break;
      case Needs::kSession:
      case Needs::kWriter:
        EXPECT_EQ(code, grpc::StatusCode::UNAUTHENTICATED) << method;
        break;
      case Needs::kAdmin:
        EXPECT_EQ(code, grpc::StatusCode::PERMISSION_DENIED) << method;
        break;
    }
  }
}

TEST_F(RpcAccessTest, AnAdministratorNeedsNoSession) {
  Start();
  for (const auto& [method, needs] : Methods()) {
    const grpc::StatusCode code = Try(method);
    EXPECT_NE(code, grpc::StatusCode::PERMISSION_DENIED) << method;
    EXPECT_EQ(code == grpc::StatusCode::UNAUTHENTICATED, needs == Needs::kSession) << method;
  }
}

TEST_F(RpcAccessTest, OverTcpNothingCanBeChanged) {
  StartTcp();
  for (const auto& [method, needs] : Methods()) {
    const grpc::StatusCode code = Try(method);
    if (needs == Needs::kNothing) {
      EXPECT_EQ(code, grpc::StatusCode::OK) << method;
    } else {
      EXPECT_THAT(code, testing::AnyOf(grpc::StatusCode::PERMISSION_DENIED,
                                       grpc::StatusCode::UNAUTHENTICATED))
          << method;
    }
  }
  EXPECT_EQ(Ping(TokenToHex(OpenSession())).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(RpcAccessTest, TheSessionOfAWriterMayWriteAndThatOfAReaderMayNot) {
  administrator_ = false;
  Start();
  const Token writer = OpenSession();
  const Token reader =
      *registry_->Open({.name = "reader", .writer = false, .pid = 1, .uid = getuid()});
  const auto remove = [this](const Token& token) {
    grpc::ClientContext context;
    context.AddMetadata("embcache-session", TokenToHex(token));
    v1::DeleteResponse response;
    return stub_->Delete(&context, v1::DeleteRequest(), &response).error_code();
  };
  EXPECT_EQ(remove(writer), grpc::StatusCode::OK);
  EXPECT_EQ(remove(reader), grpc::StatusCode::PERMISSION_DENIED);
}

// Also that of an administrator: the role is what it asked to be held to.
TEST_F(RpcAccessTest, AnAdministratorsReaderSessionMayNotWrite) {
  Start();
  const Token reader =
      *registry_->Open({.name = "reader", .writer = false, .pid = 1, .uid = getuid()});
  grpc::ClientContext context;
  context.AddMetadata("embcache-session", TokenToHex(reader));
  v1::AdvanceEpochRequest request;
  request.set_model("m");
  v1::AdvanceEpochResponse response;
  EXPECT_EQ(stub_->AdvanceEpoch(&context, request, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(RpcAccessTest, AGetThatCouldRemoveAnEntryIsNotForEverybody) {
  administrator_ = false;
  Start();
  v1::GetRequest request;
  *request.add_items()->mutable_key() = ProtoKey("a");
  request.mutable_items(0)->add_expect()->set_bytes(1);
  v1::GetResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Get(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("items[0].expect"));
}

TEST_F(RpcAccessTest, WhoIsNotOnTheAllowListGetsNoConnection) {
  administrator_ = false;
  RpcServerOptions options;
  options.peers.allowed_uids = {getuid() + 1};
  Start(std::move(options));
  EXPECT_EQ(Ping().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(RpcAccessTest, AnAdministratorIsAllowedWithoutBeingListed) {
  RpcServerOptions options;
  options.peers.allowed_uids = {getuid() + 1};
  Start(std::move(options));
  EXPECT_TRUE(Ping().ok());
}

std::shared_ptr<grpc::Channel> OwnConnection(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

grpc::Status PingOver(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  v1::PingResponse response;
  return v1::Cache::NewStub(channel)->Ping(&context, v1::PingRequest(), &response);
}

TEST_F(RpcAccessTest, ConnectionsBeyondTheBoundAreRefusedAndTheOthersGoOn) {
  RpcServerOptions options;
  options.connections = {.total = 8, .per_uid = 2};
  Start(std::move(options));
  const auto first = OwnConnection(socket_);
  auto second = OwnConnection(socket_);
  EXPECT_TRUE(PingOver(first).ok());
  EXPECT_TRUE(PingOver(second).ok());
  EXPECT_EQ(PingOver(OwnConnection(socket_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(PingOver(first).ok());
  EXPECT_TRUE(PingOver(second).ok());
  EXPECT_EQ(server_->connections(), 2u);
}

// What identifies the caller is the number of its connection's descriptor: it must not pass to
// another connection as long as the call is there.
TEST_F(RpcAccessTest, ACallKeepsItsConnectionsDescriptorAlsoWhenItsClientIsGone) {
  Start();
  auto channel = OwnConnection(socket_);
  PendingCall<v1::PutResponse> put;
  v1::PutRequest request;
  *request.add_items() = ProtoItem("a");
  auto stub = v1::Cache::NewStub(channel);
  stub->async()->Put(&put.context, &request, &put.response, [&put](grpc::Status status) {
    put.status = std::move(status);
    put.done.Notify();
  });
  copier_.Await(1);
  put.context.TryCancel();
  put.done.WaitForNotification();
  stub.reset();
  channel.reset();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(poll(nullptr, 0, 10), 0);  // time for the server to see the connection's end
    ASSERT_EQ(server_->connections(), 1u);
  }
  copier_.RunAll();
  server_->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(server_->connections(), 0u);
}

// As when something else of the process has taken the last descriptor for a moment: gRPC's own
// listener would be closed for good.
TEST_F(RpcAccessTest, ALackOfDescriptorsDoesNotEndTheService) {
  Start();
  EXPECT_TRUE(PingOver(OwnConnection(socket_)).ok());
  while (server_->connections() > 0) std::this_thread::yield();  // it would give one back
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<UniqueFd> hoard;
  while (true) {
    UniqueFd taken(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!taken) break;
    hoard.push_back(std::move(taken));
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  socket_.copy(address.sun_path, socket_.size());
  EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  pollfd waiting = {client, POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 50), 0);  // lets the server try
  hoard.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(client);
  EXPECT_TRUE(PingOver(OwnConnection(socket_)).ok());
}

}  // namespace
}  // namespace embcache
