// The C++ client across processes and their deaths: other clients', and the daemon's.

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/context.h"
#include "client/cpp/client.h"
#include "gtest/gtest.h"
#include "tests/integration/child_process.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using testing_support::ChildProcess;
using testing_support::Hear;
using testing_support::RunThisTest;
using testing_support::Say;

// --- The other process. Started by tests below with "socket dir" as the first line.
// ---------------

std::unique_ptr<Client> ConnectAsTold(Role role) {
  ClientOptions options;
  options.socket_dir = Hear();
  options.name = "other process";
  options.role = role;
  auto client = Client::Connect(options);
  if (!client.ok()) Say(client.status().ToString());
  return client.ok() ? *std::move(client) : nullptr;
}

TEST(OtherProcess, DISABLED_HoldsALease) {
  auto client = ConnectAsTold(Role::kReader);
  ASSERT_NE(client, nullptr);
  const Lease lease = MustGet(*client, MakeKey(1));
  Say(absl::StrCat("holding ", lease.data(0)[0]));
  Hear();  // until killed
}

TEST(OtherProcess, DISABLED_WritesIntoALease) {
  auto client = ConnectAsTold(Role::kReader);
  ASSERT_NE(client, nullptr);
  const Lease lease = MustGet(*client, MakeKey(1));
  const_cast<uint8_t&>(lease.data(0)[0]) = 99;
  Say("written");
}

TEST(OtherProcess, DISABLED_HoldsAReservation) {
  auto client = ConnectAsTold(Role::kWriter);
  ASSERT_NE(client, nullptr);
  auto reservation = client->Reserve(MakeKey(1), OneTensor());
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  std::memset(reservation->tensor(0).data(), 77, kBytes / 2);
  Say("reserved");
  Hear();  // until killed
}

TEST(OtherProcess, DISABLED_Adopts) {
  auto client = ConnectAsTold(Role::kReader);
  ASSERT_NE(client, nullptr);
  auto leases = client->Adopt(absl::HexStringToBytes(Hear()));
  ASSERT_TRUE(leases.ok()) << leases.status();
  std::string values;
  for (const Lease& lease : *leases) absl::StrAppend(&values, " ", lease.data(0)[0]);
  Say(absl::StrCat("adopted", values));
  Hear();  // until told to end
}

// --- Tests ---------------------------------------------------------------------------------------

using ClientProcessTest = ClientTest;

TEST_F(ClientProcessTest, AnotherProcessReadsTheSameBytes) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 42).ok());
  auto other = RunThisTest("OtherProcess", "HoldsALease");
  other->WriteLine(daemon_.socket_dir());
  EXPECT_EQ(other->ReadLine(), "holding 42");
}

TEST_F(ClientProcessTest, AReaderCannotWriteIntoTheCache) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 42).ok());
  auto reader = MustConnect(Role::kReader);
  const Lease lease = MustGet(*reader, MakeKey(1));
  // Not even by changing the mapping: the descriptor was read-only.
  const uintptr_t page = reinterpret_cast<uintptr_t>(lease.data(0).data()) & ~uintptr_t{4095};
  EXPECT_EQ(mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(reader->Reserve(MakeKey(2), OneTensor()).status().code(),
            absl::StatusCode::kPermissionDenied);
  auto other = RunThisTest("OtherProcess", "WritesIntoALease");
  other->WriteLine(daemon_.socket_dir());
  EXPECT_EQ(other->ReadLine(), "");
  EXPECT_EQ(other->Wait(), -SIGSEGV);
  EXPECT_TRUE(AllAre(lease.data(0), 42));
}

TEST_F(ClientProcessTest, AKilledReaderHoldsNothing) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  auto other = RunThisTest("OtherProcess", "HoldsALease");
  other->WriteLine(daemon_.socket_dir());
  ASSERT_EQ(other->ReadLine(), "holding 1");
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return PinnedBytes(stats) > 0; }));
  other->Signal(SIGKILL);
  EXPECT_EQ(other->Wait(), -SIGKILL);
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(ClientProcessTest, AWriterKilledInTheMiddleLeavesNothing) {
  auto other = RunThisTest("OtherProcess", "HoldsAReservation");
  other->WriteLine(daemon_.socket_dir());
  ASSERT_EQ(other->ReadLine(), "reserved");
  other->Signal(SIGKILL);
  EXPECT_EQ(other->Wait(), -SIGKILL);
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) {
    return stats["reservations"] == 0 && PinnedBytes(stats) == 0;
  }));
  EXPECT_FALSE(client_->Get(MakeKey(1)).value().has_value());
  EXPECT_TRUE(PutFilled(*client_, MakeKey(1), 3).ok());
}

TEST_F(ClientProcessTest, SharedLeasesAreAdoptedByAnotherProcess) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 11).ok());
  ASSERT_TRUE(PutFilled(*client_, MakeKey(2), 22).ok());
  const Lease first = MustGet(*client_, MakeKey(1)), second = MustGet(*client_, MakeKey(2));
  const auto token = client_->Share({&first, &second});
  ASSERT_TRUE(token.ok()) << token.status();
  auto other = RunThisTest("OtherProcess", "Adopts");
  other->WriteLine(daemon_.socket_dir());
  other->WriteLine(absl::BytesToHexString(*token));
  EXPECT_EQ(other->ReadLine(), "adopted 11 22");
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["leases"] == 4; }));
  other->WriteLine("end");
  EXPECT_EQ(other->Wait(), 0);
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["leases"] == 2; }));
}

TEST_F(ClientProcessTest, ASecondDaemonOnTheSameSocketsIsRefused) {
  ChildProcess second(daemon_.command(), daemon_.directory() + "/second.log", false);
  EXPECT_EQ(second.Wait(), 75);
  EXPECT_TRUE(client_->Ping().ok());
  EXPECT_TRUE(MustConnect()->Ping().ok());
}

TEST_F(ClientProcessTest, AForkOfTheClientIsToldSo) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = client_->Ping().code() == absl::StatusCode::kFailedPrecondition;
    client_.reset();  // must neither hang nor end the parent's session
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client_->Ping().ok());
}

int BreakControlConnections() {
  int broken = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_un peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sun_family != AF_UNIX || size <= sizeof(sa_family_t)) continue;
    if (std::string(peer.sun_path).find("control.sock") == std::string::npos) continue;
    shutdown(fd, SHUT_RDWR);
    ++broken;
  }
  return broken;
}

TEST_F(ClientProcessTest, ALostConnectionKeepsItsPinsUntilTheLeaseEnds) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  {
    const Lease lease = MustGet(*client_, MakeKey(1));
    ASSERT_EQ(BreakControlConnections(), 1);
    ASSERT_TRUE(Becomes([&] { return !lease.valid() && client_->Ping().ok(); }));
    ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 2).ok());
    // More than the daemon's quarantine would have taken.
    for (uint8_t i = 0; i < 200; ++i) ASSERT_TRUE(PutFilled(*client_, MakeKey(100 + i), 3).ok());
    EXPECT_TRUE(AllAre(lease.data(0), 1));
    EXPECT_GT(PinnedBytes(json::parse(client_->StatsJson().value())), 0u);
  }
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["sessions"] == 1; }));
}

TEST_F(ClientProcessTest, CallsFailAtOnceWhileTheDaemonIsGoneAndWorkWhenItIsBack) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const std::string epoch = client_->epoch();
  daemon_.Kill();
  ASSERT_TRUE(Becomes([&] { return client_->epoch().empty(); }));
  const absl::Time start = absl::Now();
  EXPECT_EQ(client_->Get(MakeKey(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  const absl::Status restart = daemon_.Start();
  ASSERT_TRUE(restart.ok()) << restart;
  EXPECT_TRUE(Becomes([&] { return client_->Ping().ok(); }));
  EXPECT_NE(client_->epoch(), epoch);
  EXPECT_TRUE(PutFilled(*client_, MakeKey(1), 2).ok());
}

TEST_F(ClientProcessTest, AReservationOfADeadDaemonCannotBeCommitted) {
  auto reservation = client_->Reserve(MakeKey(1), OneTensor());
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  daemon_.Kill();
  ASSERT_TRUE(Becomes([&] { return !reservation->valid(); }));
  std::memset(reservation->tensor(0).data(), 1, reservation->tensor(0).size());
  EXPECT_EQ(reservation->Commit().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClientProcessTest, ADrainingDaemonSaysSo) {
  daemon_.Signal(SIGTERM);
  EXPECT_TRUE(Becomes([&] { return client_->draining() || client_->epoch().empty(); }));
  EXPECT_EQ(daemon_.Wait(), 0);
}

TEST_F(ClientWithDiskTest, AfterKillAndRestartEntriesComeFromDisk) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 42).ok());
  const Lease old = MustGet(*client_, MakeKey(1));
  std::ostringstream out, err;
  const std::string directory = "--socket-dir=" + daemon_.socket_dir();
  const std::vector<const char*> flush = {"embcachectl", "flush", directory.c_str()};
  ASSERT_EQ(cli::Main(static_cast<int>(flush.size()), flush.data(), out, err), 0) << err.str();
  EXPECT_EQ(daemon_.Kill(), -SIGKILL);
  ASSERT_TRUE(Becomes([&] { return !old.valid(); }));

  const absl::Status restart = daemon_.Start();
  ASSERT_TRUE(restart.ok()) << restart;
  ASSERT_TRUE(Becomes([&] { return client_->Ping().ok(); }));
  const Lease lease = MustGet(*client_, MakeKey(1));
  EXPECT_EQ(lease.source(), Tier::kL3);
  EXPECT_TRUE(AllAre(lease.data(0), 42));
  EXPECT_TRUE(lease.valid());
  // The old one is what it was, and is not taken for one of the new daemon's.
  EXPECT_FALSE(old.valid());
  EXPECT_TRUE(AllAre(old.data(0), 42));
  EXPECT_FALSE(client_->Share({&old}).ok());
}

}  // namespace
}  // namespace embcache::client
