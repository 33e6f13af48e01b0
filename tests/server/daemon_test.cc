#include "server/daemon.h"

#include <grpcpp/grpcpp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/directory_lock.h"
#include "tests/server/control_client.h"

namespace embcache {
namespace {

using testing::HasSubstr;

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() {
    char name[] = "/tmp/daemon.XXXXXX";
    dir_ = mkdtemp(name);
    config_.socket_dir = dir_ + "/sockets";
    config_.l1_capacity_bytes = uint64_t{1} << 20;
    config_.max_pinned_fraction = 0.25;
  }
  ~DaemonTest() override {
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Start() {
    auto daemon = Daemon::Start(config_);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  std::string rpc_path() const { return RpcSocketPath(config_.socket_dir); }
  std::string control_path() const { return ControlSocketPath(config_.socket_dir); }
  std::shared_ptr<grpc::Channel> Channel() const {
    return grpc::CreateChannel("unix:" + rpc_path(), grpc::InsecureChannelCredentials());
  }

  // A lease on a fresh entry, held by `session`.
  void HoldLease(const Token& session) {
    const auto stub = v1::Cache::NewStub(Channel());
    v1::PutRequest put;
    v1::PutItem& item = *put.add_items();
    item.mutable_key()->set_model("m");
    item.mutable_key()->set_content_hash("0123456789abcdef");
    v1::Tensor& tensor = *item.add_tensors();
    tensor.set_name("x");
    tensor.set_dtype(v1::U8);
    tensor.add_shape(4);
    item.set_inline_("data");
    grpc::ClientContext put_context;
    v1::PutResponse stored;
    ASSERT_TRUE(stub->Put(&put_context, put, &stored).ok());
    ASSERT_EQ(stored.results(0).status().code(), 0) << stored.DebugString();
    v1::GetRequest get;
    *get.add_items()->mutable_key() = item.key();
    grpc::ClientContext get_context;
    get_context.AddMetadata("embcache-session", TokenToHex(session));
    v1::GetResponse found;
    ASSERT_TRUE(stub->Get(&get_context, get, &found).ok());
    ASSERT_EQ(found.results(0).verdict(), v1::GetResult::HIT);
  }

  std::string dir_;
  Config config_;
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(DaemonTest, ServesBothSocketsInAClosedDirectory) {
  Start();
  struct stat found;
  ASSERT_EQ(stat(config_.socket_dir.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0750u);
  for (const std::string& path : {rpc_path(), control_path()}) {
    ASSERT_EQ(lstat(path.c_str(), &found), 0) << path;
    EXPECT_EQ(found.st_mode & 07777, 0660u) << path;
  }
  ControlClient client(control_path());
  const v1::Welcome welcome = client.SayHello();
  EXPECT_EQ(welcome.limits().max_pinned_bytes(), uint64_t{1} << 18);
  EXPECT_EQ(welcome.limits().max_entry_bytes(), uint64_t{1} << 20);
  EXPECT_EQ(welcome.limits().reservation_ttl_ms(), 30'000u);
  grpc::ClientContext context;
  context.AddMetadata("embcache-session", TokenToHex(TokenOf(welcome)));
  v1::PingResponse response;
  EXPECT_TRUE(v1::Cache::NewStub(Channel())->Ping(&context, {}, &response).ok());
}

TEST_F(DaemonTest, SocketsBelongToWhomTheConfigurationNames) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  config_.socket_owner = "daemon";
  config_.socket_group = "12345";
  config_.http_address = "unix";
  Start();
  const passwd* const owner = getpwnam("daemon");
  ASSERT_NE(owner, nullptr);
  for (const std::string& path : {rpc_path(), control_path(), config_.socket_dir + "/http.sock"}) {
    struct stat found;
    ASSERT_EQ(stat(path.c_str(), &found), 0) << path;
    EXPECT_EQ(found.st_uid, owner->pw_uid) << path;
    EXPECT_EQ(found.st_gid, 12345u) << path;
    EXPECT_EQ(found.st_mode & 07777, 0660u) << path;
  }
  // The group must be able to reach them.
  struct stat directory;
  ASSERT_EQ(stat(config_.socket_dir.c_str(), &directory), 0);
  EXPECT_EQ(directory.st_gid, 12345u);
  EXPECT_EQ(directory.st_mode & 07070, 0050u);
}

TEST_F(DaemonTest, AnUnknownOwnerOrGroupOfTheSocketsIsRefusedByName) {
  config_.socket_group = "no-such-group";
  EXPECT_THAT(Daemon::Start(config_).status().ToString(),
              HasSubstr("--socket-group: no group \"no-such-group\""));
  config_.socket_group.clear();
  config_.socket_owner = "no-such-user";
  EXPECT_THAT(Daemon::Start(config_).status().ToString(),
              HasSubstr("--socket-owner: no user \"no-such-user\""));
}

TEST_F(DaemonTest, GivesASignOfLifeWhenAskedWhetherOrNotItDrains) {
  Start();
  for (int round = 0; round < 2; ++round) {
    absl::Notification answered;
    daemon_->AskForSignOfLife([&] { answered.Notify(); });
    answered.WaitForNotification();
    daemon_->Drain();
  }
}

TEST_F(DaemonTest, AStopWithAQuestionOpenNeedsNoAnswer) {
  Start();
  const auto answer = std::make_shared<int>();
  daemon_->AskForSignOfLife([answer] {});
  EXPECT_TRUE(daemon_->Stop().ok());
  daemon_.reset();
  EXPECT_EQ(answer.use_count(), 1);
}

TEST_F(DaemonTest, ASecondDaemonIsRefusedWithThePidOfTheFirstWhichGoesOn) {
  Start();
  const auto second = Daemon::Start(config_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ExitCodeFor(second.status()), kExitLocked);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("pid ", getpid())));
  ControlClient client(control_path());
  client.SayHello();
  grpc::ClientContext context;
  v1::PingResponse response;
  EXPECT_TRUE(v1::Cache::NewStub(Channel())->Ping(&context, {}, &response).ok());
}

TEST_F(DaemonTest, AfterAStopTheNextOneStartsWithANewEpoch) {
  Start();
  std::string epoch;
  {
    ControlClient client(control_path());
    epoch = client.SayHello().epoch();
  }
  EXPECT_TRUE(daemon_->Stop().ok());
  EXPECT_TRUE(daemon_->Stop().ok());
  EXPECT_NE(access(control_path().c_str(), F_OK), 0);
  EXPECT_NE(access(rpc_path().c_str(), F_OK), 0);
  Start();
  ControlClient client(control_path());
  EXPECT_NE(client.SayHello().epoch(), epoch);
}

TEST_F(DaemonTest, DrainRefusesNewSessionsAndIsOverWhenTheLastLeaseEnds) {
  Start();
  ControlClient client(control_path());
  HoldLease(TokenOf(client.SayHello()));
  EXPECT_FALSE(daemon_->drained());
  daemon_->Drain();
  EXPECT_FALSE(daemon_->drained());
  ControlClient late(control_path());
  ASSERT_TRUE(late.Send(HelloPacket()));
  const auto answer = late.Receive();
  ASSERT_TRUE(answer.has_value() && answer->has_refusal());
  ASSERT_TRUE(client.Send(GoodbyePacket()));
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_TRUE(daemon_->drained());
}

TEST_F(DaemonTest, AdminDrainDrainsTheWholeDaemon) {
  Start();
  ControlClient client(control_path());
  client.SayHello();
  grpc::ClientContext context;
  v1::DrainResponse response;
  ASSERT_TRUE(v1::Admin::NewStub(Channel())->Drain(&context, {}, &response).ok());
  const auto news = client.Receive();
  ASSERT_TRUE(news.has_value());
  EXPECT_TRUE(news->has_draining());
}

TEST_F(DaemonTest, StopEndsSessionsThatStillHoldLeases) {
  Start();
  ControlClient client(control_path());
  HoldLease(TokenOf(client.SayHello()));
  EXPECT_TRUE(daemon_->Stop().ok());
  EXPECT_TRUE(client.AwaitEnd());
}

TEST_F(DaemonTest, EntriesSurviveARestartOnTheSsd) {
  config_.l3_dir = dir_ + "/deep/er/l3";
  config_.l3_capacity_bytes = uint64_t{64} << 20;
  Start();
  {
    ControlClient client(control_path());
    HoldLease(TokenOf(client.SayHello()));
  }
  EXPECT_TRUE(daemon_->Stop().ok());
  struct stat found;
  ASSERT_EQ(stat(config_.l3_dir.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700u);
  Start();
  v1::GetRequest get;
  get.set_inline_limit(16);
  v1::Key& key = *get.add_items()->mutable_key();
  key.set_model("m");
  key.set_content_hash("0123456789abcdef");
  grpc::ClientContext context;
  v1::GetResponse response;
  ASSERT_TRUE(v1::Cache::NewStub(Channel())->Get(&context, get, &response).ok());
  ASSERT_EQ(response.results(0).verdict(), v1::GetResult::HIT);
  EXPECT_EQ(response.results(0).inline_(), "data");
  EXPECT_EQ(response.results(0).source(), v1::L3);
}

TEST_F(DaemonTest, AnSsdThatCannotBeUsedAtTheStartIsNoReasonNotToServe) {
  config_.l3_dir = dir_ + "/l3";
  config_.l3_capacity_bytes = uint64_t{64} << 20;
  ASSERT_EQ(mknod(config_.l3_dir.c_str(), S_IFREG | 0600, 0), 0);
  Start();
  ControlClient client(control_path());
  HoldLease(TokenOf(client.SayHello()));
  grpc::ClientContext context;
  v1::StatsResponse stats;
  ASSERT_TRUE(v1::Cache::NewStub(Channel())->Stats(&context, {}, &stats).ok());
  EXPECT_TRUE(stats.l3().enabled());
  EXPECT_FALSE(stats.l3().writable());
  EXPECT_GE(stats.l3().io_errors(), 1);
}

TEST_F(DaemonTest, AnSsdOfAnotherVersionOrInUseIsAnError) {
  config_.l3_dir = dir_ + "/l3";
  config_.l3_capacity_bytes = uint64_t{64} << 20;
  ASSERT_TRUE(MakeDirectory(config_.l3_dir, 0700).ok());
  std::ofstream(config_.l3_dir + "/FORMAT") << "embcache-l3 99\n";
  EXPECT_EQ(Daemon::Start(config_).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(config_.l3_dir + "/FORMAT");
  Start();
  config_.socket_dir += "2";
  EXPECT_EQ(Daemon::Start(config_).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(DaemonTest, MoreMemoryThanThereIsIsRefusedBeforeAnyIsTaken) {
  config_.l1_capacity_bytes = uint64_t{32} << 40;
  const auto daemon = Daemon::Start(config_);
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ExitCodeFor(daemon.status()), kExitConfig);
  EXPECT_THAT(std::string(daemon.status().message()), HasSubstr("35184372088832"));
}

TEST_F(DaemonTest, ABadConfigurationIsRefusedBeforeAnythingIsMade) {
  config_.rpc_threads = 0;
  const auto daemon = Daemon::Start(config_);
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExitCodeFor(daemon.status()), kExitConfig);
  EXPECT_FALSE(std::filesystem::exists(config_.socket_dir));
}

TEST_F(DaemonTest, ExitCodesTellWhoCanHelp) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::InternalError("")), kExitInternal);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), kExitInternal);
  EXPECT_EQ(ExitCodeFor(absl::FailedPreconditionError("")), kExitConfig);
}

TEST_F(DaemonTest, AFileInPlaceOfTheDirectoryIsAnError) {
  const std::string file = dir_ + "/file";
  ASSERT_EQ(mknod(file.c_str(), S_IFREG | 0600, 0), 0);
  EXPECT_FALSE(MakeDirectory(file, 0750).ok());
  EXPECT_FALSE(MakeDirectory(file + "/below", 0750).ok());
}

}  // namespace
}  // namespace embcache
