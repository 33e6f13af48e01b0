// The C++ client against a real daemon.

#include "client/cpp/client.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

TEST_F(ClientTest, GivesBackWhatWasPut) {
  std::vector<TensorSpec> tensors(3);
  tensors[0] = {"main", DType::kBF16, {3, 5}, false, 0, 0};
  tensors[1] = {"deepstack", DType::kInvalid, {}, true, 0, 0};
  tensors[2] = {"scale", DType::kF64, {}, false, 0, 0};
  const std::vector<uint8_t> main = Filled(1, 30), scale = Filled(2, 8);
  PutOptions options;
  options.metadata = {{"grid", "1,3,5"}, {"raw", std::string("\0\xff", 2)}};
  options.encode_cost_us = 4321;
  const absl::Status put =
      client_->Put(MakeKey(1), tensors, {Bytes(main), Bytes(), Bytes(scale)}, options);
  ASSERT_TRUE(put.ok()) << put;

  const Lease lease = MustGet(*MustConnect(Role::kReader), MakeKey(1));
  EXPECT_EQ(lease.key(), MakeKey(1));
  ASSERT_EQ(lease.tensors().size(), 3u);
  EXPECT_EQ(lease.tensors()[0].dtype, DType::kBF16);
  EXPECT_EQ(lease.tensors()[0].shape, (std::vector<int64_t>{3, 5}));
  EXPECT_TRUE(lease.tensors()[1].absent);
  EXPECT_TRUE(AllAre(lease.data(0), 1));
  EXPECT_EQ(lease.data(0).size(), 30u);
  EXPECT_TRUE(lease.data(1).empty());
  EXPECT_TRUE(AllAre(lease.Find("scale"), 2));
  EXPECT_TRUE(lease.Find("none").empty());
  EXPECT_EQ(lease.metadata(), options.metadata);
  EXPECT_EQ(lease.encode_cost_us(), 4321u);
  EXPECT_EQ(lease.source(), Tier::kL1);
}

TEST_F(ClientTest, AMissIsNoError) {
  auto lease = client_->Get(MakeKey(404));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_FALSE(lease->has_value());
}

TEST_F(ClientTest, AnExpectationThatIsNotMetIsAMiss) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  GetOptions options;
  options.expect.emplace_back().rows = 17;
  auto lease = client_->Get(MakeKey(1), options);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_FALSE(lease->has_value());
  EXPECT_FALSE(client_->Contains(MakeKey(1)).value().has_value());
}

TEST_F(ClientTest, OneBadKeyOfManyFailsAlone) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const std::vector<Key> keys = {MakeKey(1), {"", "hash", ""}, MakeKey(2)};
  auto results = client_->GetMany(keys);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), 3u);
  EXPECT_TRUE((*results)[0].lease.has_value());
  EXPECT_EQ((*results)[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE((*results)[2].status.ok());
  EXPECT_EQ((*results)[2].reason, MissReason::kAbsent);
}

TEST_F(ClientTest, MoreKeysThanABatchAreAskedInSeveral) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(2999), 1).ok());
  std::vector<Key> keys;
  for (int i = 0; i < 3000; ++i) keys.push_back(MakeKey(i));
  auto results = client_->GetMany(keys);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), 3000u);
  EXPECT_TRUE(results->back().lease.has_value());
}

TEST_F(ClientTest, AReplacedEntryKeepsItsOldBytesUnderALease) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const Lease old = MustGet(*client_, MakeKey(1));
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 2).ok());
  EXPECT_TRUE(AllAre(old.data(0), 1));
  const Lease now = MustGet(*client_, MakeKey(1));
  EXPECT_TRUE(AllAre(now.data(0), 2));
  EXPECT_GT(now.generation(), old.generation());
}

TEST_F(ClientTest, ADeletedEntryKeepsItsBytesUnderALease) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const Lease lease = MustGet(*client_, MakeKey(1));
  EXPECT_TRUE(client_->Delete(MakeKey(1)).value());
  EXPECT_FALSE(client_->Delete(MakeKey(1)).value());
  EXPECT_FALSE(client_->Get(MakeKey(1)).value().has_value());
  EXPECT_TRUE(AllAre(lease.data(0), 1));
}

TEST_F(ClientTest, APoppedEntryBelongsToTheCaller) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 9).ok());
  auto popped = client_->Pop(MakeKey(1));
  ASSERT_TRUE(popped.ok() && popped->has_value()) << popped.status();
  EXPECT_TRUE(AllAre((*popped)->data(0), 9));
  EXPECT_FALSE(client_->Pop(MakeKey(1)).value().has_value());
}

TEST_F(ClientTest, AnAdvancedEpochEndsOnlyItsModel) {
  Key other = MakeKey(1);
  other.model = "other";
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  ASSERT_TRUE(PutFilled(*client_, other, 1).ok());
  ASSERT_TRUE(client_->AdvanceEpoch("model").ok());
  EXPECT_FALSE(client_->Get(MakeKey(1)).value().has_value());
  EXPECT_TRUE(client_->Get(other).value().has_value());
}

TEST_F(ClientTest, ListsWhatIsThere) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(PutFilled(*client_, MakeKey(i), 1).ok());
  ListOptions options;
  options.page_size = 2;
  size_t listed = 0;
  do {
    const auto page = client_->List(options);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const ListedEntry& entry : page->entries) {
      EXPECT_EQ(entry.key.model, "model");
      ++listed;
    }
    options.page_token = page->next_page_token;
  } while (!options.page_token.empty());
  EXPECT_EQ(listed, 5u);
}

TEST_F(ClientTest, AReservationIsInvisibleUntilItsCommit) {
  auto reservation = client_->Reserve(MakeKey(1), OneTensor());
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  std::memset(reservation->tensor(0).data(), 5, reservation->tensor(0).size());
  EXPECT_FALSE(client_->Get(MakeKey(1)).value().has_value());
  auto lease = reservation->Commit(/*keep_lease=*/true);
  ASSERT_TRUE(lease.ok() && lease->has_value()) << lease.status();
  EXPECT_TRUE(AllAre((*lease)->data(0), 5));
  EXPECT_EQ(reservation->Commit().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(AllAre(MustGet(*client_, MakeKey(1)).data(0), 5));
}

TEST_F(ClientTest, AReservationThatIsDroppedLeavesNothing) {
  { ASSERT_TRUE(client_->Reserve(MakeKey(1), OneTensor()).ok()); }
  EXPECT_FALSE(client_->Contains(MakeKey(1)).value().has_value());
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) {
    return stats["reservations"] == 0 && PinnedBytes(stats) == 0;
  }));
}

TEST_F(ClientTest, WrongSizesAreRefusedAndNamed) {
  const std::vector<uint8_t> few = Filled(1, 10);
  const absl::Status status = client_->Put(MakeKey(1), OneTensor(), {Bytes(few)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("bytes"));
  EXPECT_EQ(client_->Put(MakeKey(1), OneTensor(), {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, LeasesAreGivenBackInTheBackground) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  {
    std::vector<Lease> leases;
    for (int i = 0; i < 500; ++i) leases.push_back(MustGet(*client_, MakeKey(1)));
    EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["leases"] == 500; }));
  }
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(ClientTest, LeasesOnTheirWayBackDoNotUseUpTheQuota) {
  constexpr size_t kLarge = 8 << 20;  // a session may pin 32 MiB
  const std::vector<uint8_t> bytes = Filled(1, kLarge);
  ASSERT_TRUE(client_->Put(MakeKey(1), OneTensor(kLarge), {Bytes(bytes)}).ok());
  for (int i = 0; i < 300; ++i) {
    auto lease = client_->Get(MakeKey(1));
    ASSERT_TRUE(lease.ok() && lease->has_value()) << i << ": " << lease.status();
  }
}

TEST_F(ClientTest, AClientThatLeavesHoldsNothing) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  auto leaving = MustConnect(Role::kReader);
  { const Lease lease = MustGet(*leaving, MakeKey(1)); }
  leaving.reset();
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(ClientTest, ALeaseThatOutlivesItsClientStaysReadable) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  auto leaving = MustConnect(Role::kReader);
  {
    const Lease lease = MustGet(*leaving, MakeKey(1));
    EXPECT_TRUE(lease.valid());
    leaving.reset();
    EXPECT_FALSE(lease.valid());
    ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 2).ok());
    EXPECT_TRUE(AllAre(lease.data(0), 1));
  }
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(ClientTest, AnUnknownShareTokenIsNotFound) {
  EXPECT_EQ(client_->Adopt(std::string(16, 'x')).status().code(), absl::StatusCode::kNotFound);
}

// One client's part in the next test: OK when all went well.
absl::Status WorkAsOneOfMany(const DaemonProcess& daemon, int number) {
  auto client = daemon.Connect(Role::kWriter);
  if (!client.ok()) return client.status();
  const uint8_t value = static_cast<uint8_t>(number);
  for (int i = 0; i < 5; ++i) {
    const absl::Status put = PutFilled(**client, MakeKey(number), value);
    if (!put.ok()) return put;
    auto lease = (*client)->Get(MakeKey(number));
    if (!lease.ok()) return lease.status();
    if (!lease->has_value()) return absl::NotFoundError("a miss");
    if (!AllAre((*lease)->data(0), value)) return absl::DataLossError("another's bytes");
  }
  return absl::OkStatus();
}

TEST_F(ClientTest, TwoHundredClientsWorkAtOnce) {
  std::vector<absl::Status> statuses(200);
  std::vector<std::thread> threads;
  for (int t = 0; t < 200; ++t) {
    threads.emplace_back([&, t] { statuses[t] = WorkAsOneOfMany(daemon_, t); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(ClientTest, ManyThreadsShareOneClient) {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t, &good] {
      for (int i = 0; i < 50; ++i) {
        if (!PutFilled(*client_, MakeKey(t), static_cast<uint8_t>(i)).ok()) return;
        auto lease = client_->Get(MakeKey(t));
        if (!lease.ok() || !lease->has_value()) return;
        if (!AllAre((*lease)->data(0), static_cast<uint8_t>(i))) return;
      }
      ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 8);
}

// Breaks this process's control connections, as a bug in the daemon might.
TEST(ClientWithoutDaemonTest, ConnectingFailsAtOnceAndNamesTheSocket) {
  ClientOptions options;
  options.socket_dir = "/nonexistent/embcache";
  const absl::Status status = Client::Connect(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("/nonexistent/embcache"));
}

TEST(ClientWithoutDaemonTest, APathTooLongForASocketIsNamed) {
  ClientOptions options;
  options.socket_dir = "/" + std::string(200, 'x');
  EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace embcache::client
