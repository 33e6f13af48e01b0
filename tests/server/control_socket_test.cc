#include "server/control_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/cache_fixture.h"
#include "tests/server/control_client.h"

namespace embcache {
namespace {

using testing::HasSubstr;

// Memory that is not passed by descriptor.
class FakeDeviceSegment : public MemorySegment {
 public:
  uint64_t bytes() const override { return 4096; }
  char* host_data() const override { return nullptr; }
  int writable_fd() const override { return -1; }
  int read_only_fd() const override { return -1; }
  std::string cuda_ipc_handle() const override { return "handle"; }
};

class ControlSocketTest : public CacheFixture {
 protected:
  ControlSocketTest() {
    char name[] = "/tmp/control.XXXXXX";
    dir_ = mkdtemp(name);
    options_.path = dir_ + "/control.sock";
    options_.tick_period = absl::Milliseconds(1);
    epoch_ = RandomToken();
  }

  ~ControlSocketTest() override {
    control_.reset();
    registry_.reset();
    unlink(options_.path.c_str());
    rmdir(dir_.c_str());
  }

  void Start() {
    registry_ = std::make_unique<SessionRegistry>(limits_, cache_.get(), &clock_);
    auto control = ControlSocket::Start(
        options_, registry_.get(), [this] { return MakeWelcome(); },
        [this] {
          absl::MutexLock lock(&mu_);
          ++ticks_;
        });
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = *std::move(control);
  }

  // Waits until `condition` holds at the end of a tick.
  bool Await(std::function<bool()> condition) {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&condition, &std::function<bool()>::operator()),
                                absl::Seconds(20));
  }
  bool AwaitSessions(size_t count) {
    return Await([this, count] { return registry_->GetStats().sessions == count; });
  }
  bool AwaitOnlyState(const std::string& state) {
    return Await([this, state] {
      const auto sessions = registry_->Sessions();
      return sessions.size() == 1 && sessions[0].state == state;
    });
  }

  void ExpectRefused(const std::string& packet, absl::StatusCode code, const std::string& message) {
    ControlClient client(options_.path);
    ASSERT_TRUE(client.SendBytes(packet));
    const auto answer = client.Receive();
    ASSERT_TRUE(answer.has_value() && answer->has_refusal());
    EXPECT_EQ(answer->refusal().code(), static_cast<int>(code));
    EXPECT_THAT(answer->refusal().message(), HasSubstr(message));
    EXPECT_TRUE(client.AwaitEnd());
  }
  void ExpectRefused(const v1::ClientPacket& packet, absl::StatusCode code,
                     const std::string& message) {
    ExpectRefused(packet.SerializeAsString(), code, message);
  }

  void HoldLease(const Token& session, const std::string& name) {
    EXPECT_TRUE(registry_->AddLease(session, Pin(name)).ok());
  }

  std::string dir_;
  ControlSocketOptions options_;
  SessionLimits limits_;
  Token epoch_;
  // Reported beside the cache's own.
  void SetDeviceSegments(int count) {
    device_segments_ = count;
    ++device_changes_;
  }
  std::atomic<int> device_segments_{0};
  std::atomic<uint64_t> device_changes_{0};
  std::unique_ptr<SessionRegistry> registry_;
  std::unique_ptr<ControlSocket> control_;

 private:
  WelcomeInfo MakeWelcome() {
    WelcomeInfo info;
    info.epoch = epoch_;
    info.segments_version = cache_->segments_version() + device_changes_;
    info.segments = cache_->Segments();
    for (int i = 0; i < device_segments_; ++i) {
      info.segments.push_back({1000 + static_cast<uint32_t>(i), 1, TierId::kL1, device_, "GPU-1"});
    }
    info.limits.set_max_batch(7);
    info.version = "1.2.3";
    return info;
  }

  const std::shared_ptr<const MemorySegment> device_ = std::make_shared<FakeDeviceSegment>();
  absl::Mutex mu_;
  uint64_t ticks_ ABSL_GUARDED_BY(mu_) = 0;
};

// --- Welcome ------------------------------------------------------------------------------------

TEST_F(ControlSocketTest, AWelcomeOpensASessionAndSaysWhatItNeeds) {
  Start();
  ControlClient client(options_.path);
  const v1::Welcome welcome = client.SayHello();
  EXPECT_EQ(welcome.protocol_version(), 1u);
  EXPECT_EQ(welcome.epoch(), std::string(epoch_.begin(), epoch_.end()));
  EXPECT_EQ(welcome.limits().max_batch(), 7u);
  EXPECT_EQ(welcome.version(), "1.2.3");
  EXPECT_FALSE(welcome.more());
  EXPECT_TRUE(registry_->Check(TokenOf(welcome), /*need_writer=*/true).ok());
  const auto sessions = registry_->Sessions();
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0].peer.name, "test");
  EXPECT_EQ(sessions[0].peer.pid, getpid());
  EXPECT_EQ(sessions[0].peer.uid, getuid());
}

TEST_F(ControlSocketTest, WritersGetDescriptorsThroughWhichTheyShareTheMemory) {
  Start();
  ControlClient client(options_.path);
  const v1::Welcome welcome = client.SayHello();
  const auto segments = cache_->Segments();
  ASSERT_EQ(welcome.segments_size(), static_cast<int>(segments.size()));
  ASSERT_EQ(client.descriptors().size(), segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const v1::WelcomeSegment& described = welcome.segments(static_cast<int>(i));
    EXPECT_TRUE(described.passed_by_descriptor());
    EXPECT_EQ(described.segment().id(), segments[i].id);
    EXPECT_EQ(described.segment().generation(), segments[i].generation);
    EXPECT_EQ(described.segment().tier(), v1::L1);
    const uint64_t bytes = described.segment().bytes();
    EXPECT_EQ(bytes, segments[i].memory->bytes());
    void* const map =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.descriptors()[i].get(), 0);
    ASSERT_NE(map, MAP_FAILED);
    static_cast<char*>(map)[bytes - 1] = static_cast<char>(42 + i);
    EXPECT_EQ(segments[i].memory->host_data()[bytes - 1], static_cast<char>(42 + i));
    munmap(map, bytes);
  }
}

TEST_F(ControlSocketTest, ReadersGetDescriptorsThroughWhichTheyCannotWrite) {
  Start();
  ControlClient client(options_.path);
  const v1::Welcome welcome = client.SayHello(HelloPacket(v1::Hello::READER));
  EXPECT_EQ(registry_->Check(TokenOf(welcome), /*need_writer=*/true).code(),
            absl::StatusCode::kPermissionDenied);
  ASSERT_FALSE(client.descriptors().empty());
  for (const UniqueFd& fd : client.descriptors()) {
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    void* const map = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(map, MAP_FAILED);
    munmap(map, 4096);
  }
}

TEST_F(ControlSocketTest, ManySegmentsComeInSeveralPackets) {
  SetDeviceSegments(150);
  Start();
  ControlClient client(options_.path);
  ASSERT_TRUE(client.Send(HelloPacket()));
  int segments = 0;
  int by_descriptor = 0;
  int packets = 0;
  bool more = true;
  while (more) {
    const auto packet = client.Receive();
    ASSERT_TRUE(packet.has_value() && packet->has_welcome());
    more = packet->welcome().more();
    ++packets;
    for (const v1::WelcomeSegment& segment : packet->welcome().segments()) {
      ++segments;
      by_descriptor += segment.passed_by_descriptor() ? 1 : 0;
      EXPECT_NE(segment.passed_by_descriptor(), segment.segment().cuda_ipc_handle() == "handle");
    }
  }
  EXPECT_EQ(packets, 3);
  EXPECT_EQ(segments, 152);
  EXPECT_EQ(by_descriptor, 2);
  EXPECT_EQ(client.descriptors().size(), 2u);
}

// --- Refusals -----------------------------------------------------------------------------------

TEST_F(ControlSocketTest, WhoAsksForTheFastPathGetsTheIndexToReadAndATableToWrite) {
  Start();
  ControlClient client(options_.path);
  v1::ClientPacket hello = HelloPacket(v1::Hello::READER);
  hello.mutable_hello()->set_fast_path_version(EMBCACHE_FAST_VERSION);
  const v1::Welcome welcome = client.SayHello(hello);
  ASSERT_TRUE(welcome.has_fast_path());
  EXPECT_EQ(welcome.fast_path().layout_version(), uint32_t{EMBCACHE_FAST_VERSION});
  const auto& descriptors = client.descriptors();
  ASSERT_GE(descriptors.size(), 2u);
  const auto map = [](const UniqueFd& fd, uint64_t bytes, int protection) {
    return mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  };
  const UniqueFd& index = descriptors[descriptors.size() - 2];
  const uint64_t index_bytes = welcome.fast_path().index_bytes();
  EXPECT_EQ(map(index, index_bytes, PROT_READ | PROT_WRITE), MAP_FAILED);
  void* mapped = map(index, index_bytes, PROT_READ);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(static_cast<const embcache_fast_header*>(mapped)->magic, EMBCACHE_FAST_MAGIC);
  munmap(mapped, index_bytes);
  const UniqueFd& table = descriptors.back();
  const uint64_t table_bytes = welcome.fast_path().pin_table_bytes();
  mapped = map(table, table_bytes, PROT_READ | PROT_WRITE);
  ASSERT_NE(mapped, MAP_FAILED);
  munmap(mapped, table_bytes);
  for (const UniqueFd* fd : {&index, &table}) {
    EXPECT_NE(ftruncate(fd->get(), 0), 0);
    EXPECT_NE(ftruncate(fd->get(), 1 << 30), 0);
  }
}

TEST_F(ControlSocketTest, WhoDoesNotAskForTheFastPathIsNotTroubledWithIt) {
  Start();
  ControlClient client(options_.path);
  const v1::Welcome welcome = client.SayHello();
  EXPECT_FALSE(welcome.has_fast_path());
  EXPECT_EQ(client.descriptors().size(), static_cast<size_t>(welcome.segments_size()));
}

TEST_F(ControlSocketTest, RefusesAnotherProtocolVersion) {
  Start();
  v1::ClientPacket packet = HelloPacket();
  packet.mutable_hello()->set_protocol_version(2);
  ExpectRefused(packet, absl::StatusCode::kFailedPrecondition, "this daemon speaks 1");
}

TEST_F(ControlSocketTest, RefusesALongName) {
  Start();
  v1::ClientPacket packet = HelloPacket();
  packet.mutable_hello()->set_name(std::string(64, 'x'));
  ControlClient fits(options_.path);
  fits.SayHello(packet);
  packet.mutable_hello()->set_name(std::string(65, 'x'));
  ExpectRefused(packet, absl::StatusCode::kInvalidArgument, "name: 65 bytes, at most 64");
}

TEST_F(ControlSocketTest, RefusesAnUnknownRoleAndAHalfToken) {
  Start();
  v1::ClientPacket packet = HelloPacket(static_cast<v1::Hello::Role>(9));
  ExpectRefused(packet, absl::StatusCode::kInvalidArgument, "role: 9");
  packet = HelloPacket();
  packet.mutable_hello()->set_acknowledges("12345678");
  ExpectRefused(packet, absl::StatusCode::kInvalidArgument, "acknowledges: 8 bytes");
}

TEST_F(ControlSocketTest, RefusesWhatIsNoHello) {
  Start();
  ExpectRefused(std::string("\xff\xff\xff\xff"), absl::StatusCode::kInvalidArgument, "a Hello");
  ExpectRefused(GoodbyePacket(), absl::StatusCode::kInvalidArgument, "a Hello");
  ExpectRefused(std::string(100'000, '\0'), absl::StatusCode::kInvalidArgument, "over 65536");
}

TEST_F(ControlSocketTest, RefusesSessionsOverTheLimit) {
  limits_.max_sessions = 1;
  Start();
  ControlClient first(options_.path);
  first.SayHello();
  ExpectRefused(HelloPacket(), absl::StatusCode::kResourceExhausted, "too many sessions");
}

TEST_F(ControlSocketTest, RefusesNewSessionsWhileDrainingAndTellsTheOldOnes) {
  Start();
  ControlClient old(options_.path);
  old.SayHello();
  registry_->Drain();
  ExpectRefused(HelloPacket(), absl::StatusCode::kUnavailable, "draining");
  const auto news = old.Receive();
  ASSERT_TRUE(news.has_value());
  EXPECT_TRUE(news->has_draining());
  EXPECT_EQ(registry_->GetStats().sessions, 1u);
}

TEST_F(ControlSocketTest, RefusesUsersWhoAreNotOnTheAllowList) {
  options_.peers.allowed_uids = {getuid() + 1};
  Start();
  ExpectRefused(HelloPacket(), absl::StatusCode::kPermissionDenied, absl::StrCat("uid ", getuid()));
}

TEST_F(ControlSocketTest, AdmitsAllowedUsersAndMembersOfAllowedGroups) {
  options_.peers.allowed_uids = {getuid() + 1};
  options_.peers.allowed_gids = {getgid()};
  Start();
  ControlClient client(options_.path);
  client.SayHello();
}

// --- Clients that misbehave ---------------------------------------------------------------------

TEST_F(ControlSocketTest, AConnectionWithoutAHelloTimesOut) {
  options_.hello_timeout = absl::Milliseconds(20);
  Start();
  ControlClient client(options_.path);
  const auto answer = client.Receive();
  ASSERT_TRUE(answer.has_value() && answer->has_refusal());
  EXPECT_EQ(answer->refusal().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(client.AwaitEnd());
}

TEST_F(ControlSocketTest, SilentConnectionsDoNotKeepOthersOut) {
  options_.max_pending_hellos = 2;
  Start();
  ControlClient oldest(options_.path);
  ControlClient second(options_.path);
  ControlClient third(options_.path);
  third.SayHello();
  EXPECT_TRUE(oldest.AwaitEnd());
  second.SayHello();
}

TEST_F(ControlSocketTest, APacketThatMeansNothingCostsTheSenderItsConnection) {
  Start();
  ControlClient good(options_.path);
  const Token kept = TokenOf(good.SayHello());
  for (const std::string& packet :
       {HelloPacket().SerializeAsString(), std::string("\xff\xff"), std::string(100'000, 'x')}) {
    ControlClient bad(options_.path);
    bad.SayHello();
    bad.SendBytes(packet);
    EXPECT_TRUE(bad.AwaitEnd());
  }
  EXPECT_TRUE(AwaitSessions(1));
  EXPECT_TRUE(registry_->Check(kept, false).ok());
}

TEST_F(ControlSocketTest, AClientThatDoesNotReadItsWelcomeIsDropped) {
  SetDeviceSegments(50'000);
  Start();
  ControlClient stuck(options_.path);
  ASSERT_TRUE(stuck.Send(HelloPacket()));
  EXPECT_TRUE(stuck.AwaitEnd());
  SetDeviceSegments(0);
  ControlClient other(options_.path);
  other.SayHello();
  EXPECT_EQ(registry_->GetStats().sessions, 1u);
}

TEST_F(ControlSocketTest, DescriptorsSentToTheDaemonAreNotKept) {
  Start();
  ControlClient client(options_.path);
  std::string bytes = HelloPacket().SerializeAsString();
  iovec data = {bytes.data(), bytes.size()};
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
  CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
  CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &ends[1], sizeof(int));
  ASSERT_GT(sendmsg(client.fd(), &message, 0), 0);
  close(ends[1]);
  ASSERT_TRUE(client.Receive().has_value());
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "somebody still holds the pipe's other end";
  close(ends[0]);
}

// --- The end of a session -----------------------------------------------------------------------

TEST_F(ControlSocketTest, GoodbyeFreesEverythingAtOnce) {
  Start();
  ControlClient client(options_.path);
  HoldLease(TokenOf(client.SayHello()), "a");
  ASSERT_TRUE(client.Send(GoodbyePacket()));
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_EQ(registry_->GetStats().sessions, 0u);
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(ControlSocketTest, AGoodbyeIsHeardAlsoFromAClientThatLeftSomethingUnread) {
  Start();
  ControlClient client(options_.path);
  HoldLease(TokenOf(client.SayHello()), "a");
  registry_->Drain();
  pollfd readable = {client.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 20'000), 1);
  ASSERT_TRUE(client.Send(GoodbyePacket()));
  client.Close();
  EXPECT_TRUE(AwaitSessions(0));
}

TEST_F(ControlSocketTest, ALiveProcessThatLosesItsConnectionKeepsItsPinsUntilItAcknowledges) {
  Start();
  ControlClient client(options_.path);
  const v1::Welcome welcome = client.SayHello();
  HoldLease(TokenOf(welcome), "a");
  client.Close();
  EXPECT_TRUE(AwaitOnlyState("LOST"));
  clock_.Advance(absl::Hours(1));
  ControlClient again(options_.path);
  v1::ClientPacket hello = HelloPacket();
  hello.mutable_hello()->set_acknowledges(welcome.token());
  again.SayHello(hello);
  EXPECT_FALSE(registry_->Exists(TokenOf(welcome)));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(ControlSocketTest, AConnectionThatHeldNothingLeavesNothing) {
  Start();
  ControlClient client(options_.path);
  client.SayHello();
  client.Close();
  EXPECT_TRUE(AwaitSessions(0));
}

TEST_F(ControlSocketTest, WithoutAPidfdTheEndOfTheConnectionIsTheEndOfTheProcess) {
  options_.watch_processes = false;
  Start();
  ControlClient client(options_.path);
  HoldLease(TokenOf(client.SayHello()), "a");
  client.Close();
  EXPECT_TRUE(AwaitOnlyState("QUARANTINED"));
  clock_.Advance(limits_.quarantine);
  EXPECT_TRUE(AwaitSessions(0));
}

// A child process with a session. It passes its Welcome on to us, closes its connection when told
// to, and then waits to be killed.
class Child {
 public:
  explicit Child(const std::string& path) {
    const std::string hello = HelloPacket().SerializeAsString();
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) Run(path, hello, ends[1]);
    close(ends[1]);
    channel_ = UniqueFd(ends[0]);
    char answer[4096];
    const ssize_t size = read(channel_.get(), answer, sizeof(answer));
    v1::ServerPacket packet;
    EXPECT_TRUE(size > 0 && packet.ParseFromArray(answer, static_cast<int>(size)));
    token_ = TokenOf(packet.welcome());
  }
  ~Child() { Kill(); }

  void CloseConnection() { EXPECT_EQ(write(channel_.get(), "c", 1), 1); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const Token& token() const { return token_; }

 private:
  // Only what is safe after a fork from a process with threads.
  [[noreturn]] static void Run(const std::string& path, const std::string& hello, int parent) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    char bytes[4096];
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
    if (send(fd, hello.data(), hello.size(), 0) < 0) _exit(1);
    const ssize_t size = recv(fd, bytes, sizeof(bytes), 0);
    if (size <= 0 || write(parent, bytes, static_cast<size_t>(size)) != size) _exit(1);
    if (read(parent, bytes, sizeof(bytes)) > 0) close(fd);
    while (true) pause();
  }

  pid_t pid_ = 0;
  UniqueFd channel_;
  Token token_ = {};
};

TEST_F(ControlSocketTest, TheEndOfAKilledProcessIsNoticedAndItsPinsGoAfterTheQuarantine) {
  Start();
  Child child(options_.path);
  HoldLease(child.token(), "a");
  child.Kill();
  EXPECT_TRUE(AwaitOnlyState("QUARANTINED"));
  EXPECT_GT(pinned_bytes(), 0u);
  clock_.Advance(limits_.quarantine);
  EXPECT_TRUE(AwaitSessions(0));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(ControlSocketTest, AProcessThatClosedItsConnectionIsStillWatched) {
  Start();
  Child child(options_.path);
  HoldLease(child.token(), "a");
  child.CloseConnection();
  EXPECT_TRUE(AwaitOnlyState("LOST"));
  child.Kill();
  EXPECT_TRUE(AwaitOnlyState("QUARANTINED"));
}

TEST_F(ControlSocketTest, StopClosesConnectionsAndRemovesTheSocket) {
  Start();
  ControlClient client(options_.path);
  client.SayHello();
  control_->Stop();
  EXPECT_TRUE(client.AwaitEnd());
  control_.reset();
  EXPECT_NE(access(options_.path.c_str(), F_OK), 0);
}

// --- The socket's file --------------------------------------------------------------------------

TEST_F(ControlSocketTest, TheSocketHasTheModeAskedForWhateverTheUmask) {
  options_.access.mode = 0660;
  const mode_t before = umask(077);
  Start();
  umask(before);
  struct stat found;
  ASSERT_EQ(lstat(options_.path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0660u);
}

TEST_F(ControlSocketTest, ASocketLeftBehindIsReplacedButNothingElseIs) {
  const int left_behind = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, options_.path.data(), options_.path.size());
  ASSERT_EQ(bind(left_behind, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(left_behind);
  Start();
  ControlClient client(options_.path);
  client.SayHello();
  control_.reset();

  std::ofstream(options_.path) << "precious";
  const auto refused = UnixListener::Bind(options_.path, SOCK_SEQPACKET, {.mode = 0600});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(access(options_.path.c_str(), F_OK), 0);
}

TEST_F(ControlSocketTest, OnlyWhatWasBoundIsUnlinked) {
  Start();
  ASSERT_EQ(unlink(options_.path.c_str()), 0);
  std::ofstream(options_.path) << "somebody else's";
  control_.reset();
  EXPECT_EQ(access(options_.path.c_str(), F_OK), 0);
}

TEST(SocketPathTest, PathsOver107BytesAreRefused) {
  EXPECT_TRUE(CheckSocketPath(std::string(107, 'p')).ok());
  const absl::Status refused = CheckSocketPath(std::string(108, 'p'));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("108 bytes, at most 107"));
  EXPECT_EQ(UnixListener::Bind(std::string(108, 'p'), SOCK_SEQPACKET, {.mode = 0600}).status(),
            refused);
}

}  // namespace
}  // namespace embcache
