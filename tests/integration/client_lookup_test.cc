// Client::Lookup, and what schedulers do with it: leases that are handed on and outlive them.

#include <signal.h>

#include <memory>
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

using testing_support::Hear;
using testing_support::RunThisTest;
using testing_support::Say;

// Another process. Told the socket directory.
TEST(OtherProcess, DISABLED_Schedules) {
  ClientOptions options;
  options.socket_dir = Hear();
  options.name = "scheduler";
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<Key> keys = {MakeKey(1), MakeKey(2)};
  const auto found = (*client)->Lookup(keys);
  ASSERT_TRUE(found.ok() && (*found)[0].lease && (*found)[1].lease) << found.status();
  const auto token = (*client)->Share({&*(*found)[0].lease, &*(*found)[1].lease});
  ASSERT_TRUE(token.ok()) << token.status();
  Say(absl::BytesToHexString(*token));
  Hear();  // until killed
}

class LookupTest : public ClientTest {
 protected:
  std::vector<Found> MustLookup(Client& client, const std::vector<Key>& keys) {
    auto found = client.Lookup(keys);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *std::move(found) : std::vector<Found>(keys.size());
  }
};

TEST_F(LookupTest, WhatIsInMemoryIsLeasedWithItsTensorsAndMetadata) {
  const std::vector<uint8_t> bytes = Filled(7);
  ASSERT_TRUE(client_
                  ->Put(MakeKey(1), OneTensor(), {Bytes(bytes)},
                        {.metadata = {{"grid", "1,2"}}, .encode_cost_us = 99})
                  .ok());
  auto reader = MustConnect(Role::kReader);
  std::vector<Found> found = MustLookup(*reader, {MakeKey(404), MakeKey(1)});
  EXPECT_FALSE(found[0].tier.has_value() || found[0].lease.has_value());
  EXPECT_EQ(found[1].tier, Tier::kL1);
  ASSERT_TRUE(found[1].lease.has_value());
  EXPECT_EQ(found[1].lease->key(), MakeKey(1));
  EXPECT_EQ(found[1].lease->tensors()[0].name, "main");
  EXPECT_EQ(found[1].lease->metadata().at("grid"), "1,2");
  EXPECT_EQ(found[1].lease->encode_cost_us(), 99u);
  ASSERT_TRUE(client_->Delete(MakeKey(1)).ok());
  EXPECT_TRUE(AllAre(found[1].lease->data(0), 7)) << "a promise, once given";
  found.clear();
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(LookupTest, ItCountsNeitherHitsNorMisses) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  MustLookup(*client_, {MakeKey(1), MakeKey(2)});
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["gets"] == 0; }));
}

TEST_F(LookupTest, OneBadKeyFailsAlone) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const std::vector<Found> found = MustLookup(*client_, {{"", "too short", ""}, MakeKey(1)});
  EXPECT_TRUE(absl::IsInvalidArgument(found[0].status)) << found[0].status;
  EXPECT_TRUE(found[1].lease.has_value());
}

TEST_F(LookupTest, MoreKeysThanABatchAreAskedInSeveral) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1999), 1).ok());
  std::vector<Key> keys;
  for (int i = 0; i < 2000; ++i) keys.push_back(MakeKey(i));
  const std::vector<Found> found = MustLookup(*client_, keys);
  ASSERT_EQ(found.size(), keys.size());
  EXPECT_FALSE(found[0].tier.has_value());
  EXPECT_TRUE(found[1999].lease.has_value());
}

TEST_F(LookupTest, EveryWorkerKeepsWhatADeadSchedulerHandedOn) {
  constexpr int kWorkers = 4;
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 11).ok());
  ASSERT_TRUE(PutFilled(*client_, MakeKey(2), 22).ok());
  auto scheduler = RunThisTest("OtherProcess", "Schedules");
  scheduler->WriteLine(daemon_.socket_dir());
  const std::string token = absl::HexStringToBytes(scheduler->ReadLine());
  std::vector<std::unique_ptr<Client>> workers;
  std::vector<std::vector<Lease>> leases;
  const auto adopt = [&] {
    workers.push_back(MustConnect(Role::kReader));
    auto adopted = workers.back()->Adopt(token);
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    leases.push_back(*std::move(adopted));
  };
  for (int i = 0; i < kWorkers; ++i) adopt();
  scheduler->Signal(SIGKILL);
  EXPECT_EQ(scheduler->Wait(), -SIGKILL);
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) { return stats["leases"] == 8; }))
      << "the scheduler's own are gone";
  adopt();  // the token goes on, too
  for (int key : {1, 2}) ASSERT_TRUE(client_->Delete(MakeKey(key)).ok());
  for (int i = 10; i < 40; ++i) ASSERT_TRUE(PutFilled(*client_, MakeKey(i), 99).ok());
  for (const std::vector<Lease>& of_worker : leases) {
    ASSERT_EQ(of_worker.size(), 2u);
    EXPECT_TRUE(of_worker[0].valid() && of_worker[1].valid());
    EXPECT_TRUE(AllAre(of_worker[0].data(0), 11));
    EXPECT_TRUE(AllAre(of_worker[1].data(0), 22));
  }
}

TEST_F(ClientWithDiskTest, LookupNamesWhatIsOnTheDiskAndDoesNotFetchIt) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 42).ok());
  std::ostringstream out, err;
  const std::string directory = "--socket-dir=" + daemon_.socket_dir();
  const std::vector<const char*> flush = {"embcachectl", "flush", directory.c_str()};
  ASSERT_EQ(cli::Main(static_cast<int>(flush.size()), flush.data(), out, err), 0) << err.str();
  EXPECT_EQ(daemon_.Kill(), -SIGKILL);
  const absl::Status restart = daemon_.Start();
  ASSERT_TRUE(restart.ok()) << restart;
  auto client = MustConnect();
  for (int i = 0; i < 2; ++i) {
    const std::vector<Key> keys = {MakeKey(1)};
    const auto found = client->Lookup(keys);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ((*found)[0].tier, Tier::kL3);
    EXPECT_FALSE((*found)[0].lease.has_value());
  }
}

}  // namespace
}  // namespace embcache::client
