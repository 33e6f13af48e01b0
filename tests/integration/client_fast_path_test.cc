// Hits without a call, by the C++ client and a real daemon.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/child_process.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using testing_support::Hear;
using testing_support::RunThisTest;
using testing_support::Say;

json Stats(Client& client) {
  const auto text = client.StatsJson({.per_model = true});
  EXPECT_TRUE(text.ok()) << text.status();
  return json::parse(text.value_or("{}"));
}

uint64_t FastHits(Client& client) { return Stats(client)["fast_hits"]; }

using FastClientTest = ClientTest;

TEST_F(FastClientTest, AHitTakesNoCallAndIsCountedExactly) {
  PutOptions options;
  options.metadata = {{"grid", "1 2 3"}};
  options.encode_cost_us = 5;
  const std::vector<uint8_t> bytes = Filled(7);
  ASSERT_TRUE(client_->Put(MakeKey(1), OneTensor(), {Bytes(bytes)}, options).ok());
  for (int i = 0; i < 100; ++i) {
    const Lease lease = MustGet(*client_, MakeKey(1));
    EXPECT_TRUE(AllAre(lease.Find("main"), 7));
    EXPECT_EQ(lease.metadata(), options.metadata);
    EXPECT_EQ(lease.encode_cost_us(), 5u);
    EXPECT_EQ(lease.source(), Tier::kL1);
    EXPECT_EQ(lease.tensors()[0].shape, std::vector<int64_t>{static_cast<int64_t>(kBytes)});
    EXPECT_TRUE(lease.valid());
  }
  const json stats = Stats(*client_);
  EXPECT_EQ(stats["fast_hits"], 100);
  EXPECT_EQ(stats["hits"], 100);
  EXPECT_EQ(stats["gets"], 100);
  EXPECT_EQ(stats["saved_us"], 500);
  EXPECT_EQ(stats["models"].back()["hits"], 100);
}

TEST_F(FastClientTest, AHeldHitIsALeaseLikeAnyOther) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  {
    const Lease lease = MustGet(*client_, MakeKey(1));
    EXPECT_EQ(FastHits(*client_), 1u);
    EXPECT_EQ(Stats(*client_)["leases"], 1);
    EXPECT_GE(PinnedBytes(Stats(*client_)), kBytes);
    EXPECT_EQ(client_->List()->entries[0].pins, 1u);
  }
  EXPECT_TRUE(NothingPinned(Stats(*client_)));
}

TEST_F(FastClientTest, WhatDoesNotMeetTheExpectationIsAMissOnce) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  GetOptions meets;
  meets.expect = {{.tensor = "main", .dtype = DType::kU8, .bytes = kBytes}};
  EXPECT_TRUE(client_->Get(MakeKey(1), meets)->has_value());
  GetOptions differs;
  differs.expect = {{.rows = 3}};
  EXPECT_FALSE(client_->Get(MakeKey(1), differs)->has_value());
  const json stats = Stats(*client_);
  EXPECT_EQ(stats["gets"], 2);
  EXPECT_EQ(stats["hits"], 1);
  EXPECT_EQ(stats["mismatches"], 1);
  EXPECT_FALSE(client_->Contains(MakeKey(1))->has_value());
}

TEST_F(FastClientTest, ABatchTakesCallsOnlyForWhatIsNotThere) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  ASSERT_TRUE(PutFilled(*client_, MakeKey(3), 3).ok());
  auto results = client_->GetMany({{MakeKey(1), MakeKey(2), MakeKey(3)}});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_TRUE(AllAre((*results)[0].lease->data(0), 1));
  EXPECT_EQ((*results)[1].reason, MissReason::kAbsent);
  EXPECT_TRUE(AllAre((*results)[2].lease->data(0), 3));
  EXPECT_EQ(FastHits(*client_), 2u);
  EXPECT_EQ(Stats(*client_)["gets"], 3);
}

TEST_F(FastClientTest, AHitIsShared) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  auto other = MustConnect(Role::kReader);
  std::vector<Lease> adopted;
  {
    const Lease lease = MustGet(*client_, MakeKey(1));
    ASSERT_EQ(FastHits(*client_), 1u);
    const Lease* leases[] = {&lease};
    const auto token = client_->Share(leases);
    ASSERT_TRUE(token.ok()) << token.status();
    adopted = *other->Adopt(*token);
  }
  ASSERT_TRUE(client_->Delete(MakeKey(1)).value());
  EXPECT_TRUE(AllAre(adopted[0].data(0), 7));
}

TEST_F(FastClientTest, AHitOfAnEntryReplacedSinceIsNotShared) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  const Lease lease = MustGet(*client_, MakeKey(1));
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 8).ok());
  const Lease* leases[] = {&lease};
  EXPECT_EQ(client_->Share(leases).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(AllAre(lease.data(0), 7));
}

TEST_F(FastClientTest, AClientMayDoWithout) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  ClientOptions options;
  options.socket_dir = daemon_.socket_dir();
  options.fast_path = false;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(AllAre(MustGet(**client, MakeKey(1)).data(0), 7));
  EXPECT_EQ(FastHits(**client), 0u);
}

// One session's part in the next test: gets in turn. OK when all was right.
absl::Status HitInTurn(const DaemonProcess& daemon, int first, int keys) {
  auto client = daemon.Connect(Role::kReader);
  if (!client.ok()) return client.status();
  for (int i = first; i < first + 200; ++i) {
    auto lease = (*client)->Get(MakeKey(i % keys));
    if (!lease.ok()) return lease.status();
    if (lease->has_value() && !AllAre((*lease)->data(0), static_cast<uint8_t>(i % keys))) {
      return absl::DataLossError("another's bytes");
    }
  }
  return absl::OkStatus();
}

TEST_F(FastClientTest, SixtyFourSessionsHitAtOnceWhileEntriesComeAndGo) {
  constexpr int kSessions = 64;
  constexpr int kKeys = 8;
  for (int k = 0; k < kKeys; ++k) {
    ASSERT_TRUE(PutFilled(*client_, MakeKey(k), static_cast<uint8_t>(k)).ok());
  }
  std::vector<absl::Status> statuses(kSessions);
  std::vector<std::thread> threads;
  for (int s = 0; s < kSessions; ++s) {
    threads.emplace_back([&, s] { statuses[s] = HitInTurn(daemon_, s, kKeys); });
  }
  // What was deleted or replaced is used again soon.
  for (int i = 0; i < 100; ++i) {
    const int k = i % kKeys;
    if (i % 3 == 0) {
      EXPECT_TRUE(client_->Delete(MakeKey(k)).ok());
    }
    EXPECT_TRUE(PutFilled(*client_, MakeKey(k), static_cast<uint8_t>(k)).ok());
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  const json stats = Stats(*client_);
  EXPECT_GT(stats["fast_hits"], 0);
  EXPECT_EQ(stats["gets"], stats["hits"].get<uint64_t>() + stats["misses"].get<uint64_t>());
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(FastClientTest, AForkTakesNoPinOfItsParent) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  Lease lease = MustGet(*client_, MakeKey(1));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = !client_->Get(MakeKey(1)).ok();
    { Lease gone = std::move(lease); }
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Stats(*client_)["leases"], 1);
  EXPECT_TRUE(AllAre(lease.data(0), 7));
}

TEST_F(FastClientTest, WhenTheDaemonIsKilledHitsStayAndGetsDoNotHang) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  const Lease lease = MustGet(*client_, MakeKey(1));
  daemon_.Kill();
  EXPECT_TRUE(Becomes([&] { return !client_->Get(MakeKey(1)).ok(); }));
  EXPECT_FALSE(lease.valid());
  EXPECT_TRUE(AllAre(lease.data(0), 7));
}

// --- Another process ---

TEST(OtherProcess, DISABLED_HoldsAHit) {
  ClientOptions options;
  options.socket_dir = Hear();
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const Lease lease = MustGet(**client, MakeKey(1));
  Say(absl::StrCat("holding ", lease.data(0)[0]));
  Hear();  // until killed
}

TEST_F(FastClientTest, TheHitsOfAKilledClientAreGivenBack) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 42).ok());
  auto other = RunThisTest("OtherProcess", "HoldsAHit");
  other->WriteLine(daemon_.socket_dir());
  ASSERT_EQ(other->ReadLine(), "holding 42");
  EXPECT_EQ(FastHits(*client_), 1u);
  EXPECT_EQ(Stats(*client_)["leases"], 1);
  other->Signal(SIGKILL);
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

// --- Other daemons ---

class WithoutFastPathTest : public ClientTest {
 protected:
  WithoutFastPathTest() : ClientTest({"--fast-path=off"}) {}
};

TEST_F(WithoutFastPathTest, EveryHitIsACall) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  EXPECT_TRUE(AllAre(MustGet(*client_, MakeKey(1)).data(0), 7));
  EXPECT_EQ(FastHits(*client_), 0u);
}

class LeaseTtlTest : public ClientTest {
 protected:
  LeaseTtlTest() : ClientTest({"--lease-ttl=1h"}) {}
};

TEST_F(LeaseTtlTest, ABoundOnTheLifeOfLeasesHoldsForEveryHit) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  EXPECT_TRUE(AllAre(MustGet(*client_, MakeKey(1)).data(0), 7));
  EXPECT_EQ(FastHits(*client_), 0u);
}

class GrowingIndexTest : public ClientTest {
 protected:
  GrowingIndexTest() : ClientTest({"--fast-index-entries=20000"}) {}
};

TEST_F(GrowingIndexTest, TheIndexGrowsUnderItsReaders) {
  constexpr int kEntries = 5000;  // the first index has room for 4096
  const std::vector<uint8_t> small = Filled(7, 256);
  ASSERT_TRUE(client_->Put(MakeKey(0), OneTensor(256), {Bytes(small)}).ok());
  const Lease held = MustGet(*client_, MakeKey(0));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    auto client = daemon_.Connect(Role::kReader);
    while (client.ok() && !stop) {
      auto lease = (*client)->Get(MakeKey(0));
      if (!lease.ok() || !lease->has_value() || !AllAre((*lease)->data(0), 7)) ++wrong;
    }
  });
  for (int i = 1; i < kEntries; ++i) {
    ASSERT_TRUE(client_->Put(MakeKey(i), OneTensor(256), {Bytes(small)}).ok());
  }
  EXPECT_TRUE(Becomes([&] {
    const uint64_t before = FastHits(*client_);
    const uint64_t hits = Stats(*client_)["hits"];
    for (int i = kEntries - 16; i < kEntries; ++i) MustGet(*client_, MakeKey(i));
    const json after = Stats(*client_);
    return after["fast_hits"].get<uint64_t>() >= before + 16 && after["hits"] >= hits + 16;
  }));
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(AllAre(held.data(0), 7));
  EXPECT_EQ(held.metadata().size(), 0u);
}

}  // namespace
}  // namespace embcache::client
