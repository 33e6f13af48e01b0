// What the daemon process promises against clients that mean harm or do not care: see
// docs/security.md.

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/integration/client_fixture.h"
#include "tests/server/control_client.h"
#include "tests/server/unread_client.h"

namespace embcache::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

namespace v1 = embcache::v1;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

v1::GetRequest InlineGet(const Key& key, uint64_t bytes) {
  v1::GetRequest request;
  request.set_inline_limit(bytes);
  v1::Key* asked = request.add_items()->mutable_key();
  asked->set_model(key.model);
  asked->set_content_hash(key.content_hash);
  asked->set_variant(key.variant);
  return request;
}

std::shared_ptr<grpc::Channel> ChannelTo(const DaemonProcess& daemon) {
  return grpc::CreateChannel("unix:" + daemon.socket_dir() + "/embcached.sock",
                             grpc::InsecureChannelCredentials());
}

// --- Stopping -----------------------------------------------------------------------------------

class StopTest : public ClientWithDiskTest {};

TEST_F(StopTest, ClientsThatNeverReadTheirAnswersDoNotKeepItFromStoppingAndNothingIsLost) {
  constexpr int kEntries = 100;
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(PutFilled(*client_, MakeKey(i), static_cast<uint8_t>(i)).ok());
  }
  const std::string socket = daemon_.socket_dir() + "/embcached.sock";
  UnreadClient narrow(socket);
  UnreadClient wide(socket, /*wide=*/true);
  for (int i = 0; i < kEntries; ++i) {
    for (UnreadClient* slow : {&narrow, &wide}) {
      slow->Call("embcache.v1.Cache/Get", InlineGet(MakeKey(i), kBytes).SerializeAsString());
    }
  }
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["gets"] >= 100; }));
  client_.reset();
  const absl::Time begin = absl::Now();
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  // By itself, that is, and not by the guard that ends the process when all else fails.
  EXPECT_THAT(daemon_.Log(), HasSubstr("\"stopped\""));

  ASSERT_TRUE(daemon_.Start().ok());
  client_ = MustConnect();
  for (int i = 0; i < kEntries; ++i) {
    const Lease lease = MustGet(*client_, MakeKey(i));
    EXPECT_TRUE(AllAre(lease.data(0), static_cast<uint8_t>(i)));
  }
}

// --- Memory -------------------------------------------------------------------------------------

class MemoryPlaceTest : public ClientTest {
 protected:
  MemoryPlaceTest() : ClientTest({"--l2-capacity=16MiB"}) {}

  static std::set<std::string> SharedMemoryNames() {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
      names.insert(file.path().filename());
    }
    return names;
  }

  // What a process shares with others by mapping.
  static std::vector<std::string> SharedMappings(pid_t pid) {
    std::vector<std::string> paths;
    std::istringstream maps(ReadFile(absl::StrCat("/proc/", pid, "/maps")));
    std::string line;
    while (std::getline(maps, line)) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (words[1].back() == 's') paths.push_back(line.substr(line.find(words[4]) + 1));
    }
    return paths;
  }

  const std::set<std::string> before_ = SharedMemoryNames();
};

TEST_F(MemoryPlaceTest, NothingOfItHasAName) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  std::vector<std::string> added;
  for (const std::string& name : SharedMemoryNames()) {
    if (before_.count(name) == 0 && absl::StrContains(name, "emb") &&
        !absl::StrContains(name, "fake-cuda")) {
      added.push_back(name);
    }
  }
  EXPECT_THAT(added, ::testing::IsEmpty());
  for (const pid_t pid : {daemon_.pid(), getpid()}) {
    int memfds = 0;
    for (const std::string& path : SharedMappings(pid)) {
      if (absl::StrContains(path, "/memfd:")) {
        ++memfds;
        EXPECT_THAT(path, HasSubstr("(deleted)"));
      } else {
        EXPECT_THAT(path, Not(HasSubstr("/dev/shm")));
        EXPECT_THAT(path, Not(HasSubstr("embcache")));
      }
    }
    EXPECT_EQ(memfds, 4) << pid;  // L1, L2, the shared index, the pin table
  }
  int memfds = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", daemon_.pid(), "/fd"))) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(file, error);
    EXPECT_THAT(target, Not(HasSubstr("/dev/shm")));
    if (absl::StartsWith(target, "/memfd:")) ++memfds;
  }
  EXPECT_GE(memfds, 2);
}

// --- Secrets ------------------------------------------------------------------------------------

class SecretsTest : public ClientTest {
 protected:
  SecretsTest() : ClientTest({"--log-level=trace", "--l3-dir={dir}/l3", "--l3-capacity=64MiB"}) {}

  // The forms in which 16 bytes could be written.
  void ExpectNotLogged(const std::string& secret) {
    const std::string log = daemon_.Log();
    std::string octets;
    for (const char byte : secret) absl::StrAppend(&octets, int{static_cast<uint8_t>(byte)}, ", ");
    const std::string hex = absl::BytesToHexString(absl::string_view(secret));
    for (const std::string& form :
         {secret, hex, absl::AsciiStrToUpper(hex), absl::Base64Escape(secret),
          std::string(absl::CEscape(secret)), std::string(absl::CHexEscape(secret)), octets}) {
      EXPECT_EQ(log.find(form), std::string::npos) << form;
    }
  }
};

TEST_F(SecretsTest, NoTokenIsLoggedWhateverHappensToItsSession) {
  std::vector<std::string> secrets;
  const auto stub = v1::Cache::NewStub(ChannelTo(daemon_));
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  for (const bool polite : {true, false, false}) {
    ControlClient control(daemon_.socket_dir() + "/control.sock");
    const v1::Welcome welcome = control.SayHello();
    secrets.push_back(welcome.token());
    secrets.push_back(welcome.epoch());
    const auto call = [&](auto method, const auto& request, auto* response) {
      grpc::ClientContext context;
      context.AddMetadata("embcache-session",
                          absl::BytesToHexString(absl::string_view(welcome.token())));
      return (stub.get()->*method)(&context, request, response);
    };
    v1::GetResponse got;
    EXPECT_TRUE(call(&v1::Cache::Stub::Get, InlineGet(MakeKey(1), 0), &got).ok());
    v1::ShareRequest share;
    share.add_leases(got.results(0).lease());
    v1::ShareResponse shared;
    EXPECT_TRUE(call(&v1::Cache::Stub::Share, share, &shared).ok());
    secrets.push_back(shared.token());
    v1::AdoptRequest adopt;
    adopt.set_token(shared.token());
    v1::AdoptResponse adopted;
    EXPECT_TRUE(call(&v1::Cache::Stub::Adopt, adopt, &adopted).ok());
    v1::CommitRequest nonsense;
    nonsense.add_reservations(77);
    v1::CommitResponse committed;
    EXPECT_TRUE(call(&v1::Cache::Stub::Commit, nonsense, &committed).ok());
    // The end: a Goodbye, a packet that means nothing, or none.
    if (polite) {
      control.Send(GoodbyePacket());
      control.AwaitEnd();
      v1::PingResponse pinged;
      EXPECT_EQ(call(&v1::Cache::Stub::Ping, v1::PingRequest(), &pinged).error_code(),
                grpc::StatusCode::NOT_FOUND);
    } else {
      control.SendBytes("nonsense" + welcome.token());
      control.AwaitEnd();
    }
  }
  client_.reset();
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0);
  EXPECT_THAT(daemon_.Log(), HasSubstr("lost its connection"));  // there is something to search
  for (const std::string& secret : secrets) ExpectNotLogged(secret);
}

// --- TCP ----------------------------------------------------------------------------------------

class TcpTest : public ClientTest {
 protected:
  TcpTest() : ClientTest({"--tcp-address=127.0.0.1:0", "--insecure-tcp", "--log-format=text"}) {}

  std::shared_ptr<grpc::Channel> OverTcp() {
    const std::string log = daemon_.Log();
    const size_t at = log.find("port ");
    EXPECT_NE(at, std::string::npos) << log;
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", std::atoi(log.c_str() + at + 5)),
                               grpc::InsecureChannelCredentials());
  }
};

// What the kubelet's gRPC probe asks.
TEST_F(TcpTest, TheHealthProbeOfKubernetesIsAnswered) {
  const auto stub = grpc::health::v1::Health::NewStub(OverTcp());
  for (const char* service : {"", "embcache.v1.Cache"}) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  }
}

TEST_F(TcpTest, ValuesCanBeReadAndNotChanged) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  const auto stub = v1::Cache::NewStub(OverTcp());
  {
    grpc::ClientContext context;
    v1::GetResponse got;
    ASSERT_TRUE(stub->Get(&context, InlineGet(MakeKey(1), kBytes), &got).ok());
    EXPECT_EQ(got.results(0).inline_(), std::string(kBytes, 7));
    EXPECT_FALSE(got.results(0).has_location());
  }
  grpc::ClientContext context;
  v1::DeleteRequest request;
  *request.add_keys() = InlineGet(MakeKey(1), 0).items(0).key();
  v1::DeleteResponse deleted;
  EXPECT_EQ(stub->Delete(&context, request, &deleted).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE((*client_->Get(MakeKey(1))).has_value());
}

// --- PID namespaces -----------------------------------------------------------------------------

// As in two containers: the daemon sees the client's pid as 0.
class OtherPidNamespaceTest : public ::testing::Test {
 protected:
  static bool Possible() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    int pidfd = -1;
    socklen_t size = sizeof(pidfd);
    const bool named = getsockopt(ends[0], SOL_SOCKET, 77 /* SO_PEERPIDFD */, &pidfd, &size) == 0;
    for (const int fd : {ends[0], ends[1], pidfd}) {
      if (fd >= 0) close(fd);
    }
    return named && std::system("unshare --pid --fork true 2>/dev/null") == 0;
  }
};

TEST_F(OtherPidNamespaceTest, AProcessThatLivesKeepsWhatItHoldsWhenItsConnectionIsLost) {
  if (!Possible()) GTEST_SKIP() << "needs Linux 6.5 and the right to make a PID namespace";
  DaemonProcess daemon({}, {"/usr/bin/unshare", "--pid", "--fork", "--kill-child"});
  ASSERT_TRUE(daemon.Start().ok());
  ControlClient control(daemon.socket_dir() + "/control.sock");
  const v1::Welcome welcome = control.SayHello();
  const auto cache = v1::Cache::NewStub(ChannelTo(daemon));
  {
    grpc::ClientContext context;
    context.AddMetadata("embcache-session",
                        absl::BytesToHexString(absl::string_view(welcome.token())));
    v1::ReserveRequest request;
    v1::PutItem* item = request.add_items();
    *item->mutable_key() = InlineGet(MakeKey(1), 0).items(0).key();
    item->add_tensors()->set_dtype(v1::U8);
    item->mutable_tensors(0)->set_name("t");
    item->mutable_tensors(0)->add_shape(1000);
    v1::ReserveResponse reserved;
    ASSERT_TRUE(cache->Reserve(&context, request, &reserved).ok());
    ASSERT_NE(reserved.results(0).reservation(), 0u);
  }
  control.Close();
  const auto admin = v1::Admin::NewStub(ChannelTo(daemon));
  v1::SessionsResponse sessions;
  EXPECT_TRUE(Becomes([&] {
    grpc::ClientContext context;
    return admin->Sessions(&context, v1::SessionsRequest(), &sessions).ok() &&
           sessions.sessions_size() == 1 && sessions.sessions(0).state() != "CONNECTED";
  }));
  // Without the descriptor of our process it would have been taken for dead.
  EXPECT_EQ(sessions.sessions(0).state(), "LOST");
  EXPECT_EQ(sessions.sessions(0).pid(), 0u);
  EXPECT_EQ(sessions.sessions(0).reservations(), 1u);
}

}  // namespace
}  // namespace embcache::client
