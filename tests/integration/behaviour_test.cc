// The behaviour that users of other embedding caches rely on, through the API of a real daemon.
// One unit is 1 MiB.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "tests/integration/daemon_process.h"

namespace embcache {
namespace {

using client::Key;
using client::Tier;
using Json = nlohmann::json;

constexpr int64_t kUnit = 1 << 20;

class BehaviourTest : public ::testing::Test {
 protected:
  void Start(int l1_units, int l2_units, const std::string& l3 = "--l3-write=off") {
    daemon_ = std::make_unique<testing_support::DaemonProcess>(
        std::vector<std::string>{absl::StrCat("--l1-capacity=", l1_units, "MiB"),
                                 absl::StrCat("--l2-capacity=", l2_units, "MiB"), l3,
                                 "--l3-dir={dir}/l3", "--max-pinned-fraction=1"});
    Connect();
  }
  void Connect() {
    ASSERT_TRUE(daemon_->Start().ok());
    auto client = daemon_->Connect();
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  void KillAndRestart() {
    daemon_->Kill();
    client_.reset();
    Connect();
  }

  static Key KeyOf(const std::string& name, const std::string& model = "m") {
    return {model, name + std::string(8, '.'), ""};
  }

  absl::StatusOr<client::Reservation> Reserve(const Key& key, std::vector<int64_t> shape) {
    return client_->Reserve(
        key, {{.name = "main", .dtype = client::DType::kU8, .shape = std::move(shape)}});
  }
  absl::Status Put(const Key& key, int64_t units, uint8_t fill = 1) {
    auto reservation = Reserve(key, {units * kUnit});
    if (!reservation.ok()) return reservation.status();
    std::memset(reservation->tensor(0).data(), fill, reservation->tensor(0).size());
    return reservation->Commit().status();
  }
  absl::Status Put(const std::string& name, int64_t units) { return Put(KeyOf(name), units); }

  // The tier in which a get finds the key; kUnknown is a miss. The lease ends at once.
  Tier Get(const Key& key) {
    auto lease = client_->Get(key);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() && lease->has_value() ? (*lease)->source() : Tier::kUnknown;
  }
  Tier Get(const std::string& name) { return Get(KeyOf(name)); }
  Tier Where(const std::string& name) {
    auto tier = client_->Contains(KeyOf(name));
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier->value_or(Tier::kUnknown);
  }

  Json Stats() {
    auto text = client_->StatsJson();
    EXPECT_TRUE(text.ok()) << text.status();
    return Json::parse(*text);
  }
  // 64-bit numbers are strings in the JSON of Protobuf; fields that are 0 may be left out.
  static uint64_t Number(const Json& json, const std::string& field) {
    if (!json.contains(field)) return 0;
    return json[field].is_string() ? std::stoull(json[field].get<std::string>())
                                   : json[field].get<uint64_t>();
  }
  uint64_t Count(const std::string& field) { return Number(Stats(), field); }
  uint64_t OfTier(const std::string& tier, const std::string& field) {
    const Json stats = Stats();
    for (const Json& row : stats["tiers"]) {
      if (row["tier"] == tier) return Number(row, field);
    }
    return 0;
  }

  std::unique_ptr<testing_support::DaemonProcess> daemon_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(BehaviourTest, AnL1EvictionDemotesAndAnL2HitPromotes) {
  Start(150, 1000);
  // A hit without a call is served in place, and promoted a moment later.
  auto calling = daemon_->Connect(client::Role::kWriter, "test", /*fast_path=*/false);
  ASSERT_TRUE(calling.ok()) << calling.status();
  client_ = *std::move(calling);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("b", 100).ok());
  EXPECT_EQ(Where("a"), Tier::kL2);
  EXPECT_EQ(Where("b"), Tier::kL1);
  EXPECT_EQ(Count("demotions"), 1u);

  EXPECT_EQ(Get("a"), Tier::kL2);
  EXPECT_EQ(Where("a"), Tier::kL1);
  EXPECT_EQ(Where("b"), Tier::kL2);
  EXPECT_EQ(Count("promotions"), 1u);
  EXPECT_EQ(Count("demotions"), 2u);
  EXPECT_EQ(OfTier("L1", "hits"), 0u);
  EXPECT_EQ(OfTier("L2", "hits"), 1u);
  EXPECT_EQ(Count("misses"), 0u);
}

TEST_F(BehaviourTest, WithoutL2AnEvictionIsALoss) {
  Start(150, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("b", 100).ok());
  EXPECT_EQ(Where("a"), Tier::kUnknown);
  EXPECT_EQ(Count("demotions"), 0u);
  EXPECT_EQ(Get("a"), Tier::kUnknown);
  EXPECT_EQ(Count("misses"), 1u);
}

TEST_F(BehaviourTest, TheOrderOfEvictionIsExactLru) {
  Start(250, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("b", 100).ok());
  EXPECT_EQ(Get("a"), Tier::kL1);
  ASSERT_TRUE(Put("c", 100).ok());
  EXPECT_EQ(Where("a"), Tier::kL1);
  EXPECT_EQ(Where("b"), Tier::kUnknown);
  EXPECT_EQ(Where("c"), Tier::kL1);
  EXPECT_EQ(OfTier("L1", "used_bytes"), uint64_t{200 * kUnit});
}

TEST_F(BehaviourTest, AnEntryTooLargeForTheTierEvictsNobody) {
  Start(50, 0);
  ASSERT_TRUE(Put("a", 10).ok());
  EXPECT_EQ(Put("big", 100).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Where("big"), Tier::kUnknown);
  EXPECT_EQ(Where("a"), Tier::kL1);
}

TEST_F(BehaviourTest, ReplacingWithALargerValueIsNoEviction) {
  Start(150, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("a", 120).ok());
  EXPECT_EQ(OfTier("L1", "evictions_capacity"), 0u);
  EXPECT_EQ(OfTier("L1", "entries"), 1u);
}

TEST_F(BehaviourTest, ContainsPopAndDeleteAreNoGets) {
  Start(50, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());
  EXPECT_EQ(Where("a"), Tier::kL1);
  EXPECT_EQ(Where("none"), Tier::kUnknown);
  EXPECT_TRUE((*client_->Pop(KeyOf("a"))).has_value());
  EXPECT_FALSE((*client_->Pop(KeyOf("a"))).has_value());
  EXPECT_TRUE(*client_->Delete(KeyOf("b")));
  EXPECT_FALSE(*client_->Delete(KeyOf("b")));
  EXPECT_EQ(Count("gets") + Count("hits") + Count("misses"), 0u);
}

TEST_F(BehaviourTest, AnEntryLargerThanL1IsServedFromL2AgainAndAgain) {
  Start(100, 1000);
  ASSERT_TRUE(Put("big", 200).ok());
  EXPECT_EQ(Where("big"), Tier::kL2);
  EXPECT_EQ(Get("big"), Tier::kL2);
  EXPECT_EQ(Where("big"), Tier::kL2);
  EXPECT_EQ(Get("big"), Tier::kL2);
}

TEST_F(BehaviourTest, WithoutL1EverythingLivesInL2) {
  Start(0, 50);
  ASSERT_TRUE(Put("a", 10).ok());
  EXPECT_EQ(Where("a"), Tier::kL2);
  EXPECT_EQ(Get("a"), Tier::kL2);
  EXPECT_EQ(Put("big", 60).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(BehaviourTest, AFailedReplacementDoesNotLeaveTheOldValue) {
  Start(100, 0);
  ASSERT_TRUE(Put("a", 50).ok());
  EXPECT_FALSE(Put("a", 200).ok());
  EXPECT_EQ(Get("a"), Tier::kUnknown);
}

TEST_F(BehaviourTest, TheSameBytesInTwoShapesStayTwoEntries) {
  Start(50, 0);
  for (const auto& [name, shape] : {std::pair{"wide", std::vector<int64_t>{30, 150}},
                                    std::pair{"tall", std::vector<int64_t>{150, 30}}}) {
    auto reservation = Reserve(KeyOf(name), shape);
    ASSERT_TRUE(reservation.ok()) << reservation.status();
    std::memset(reservation->tensor(0).data(), 7, reservation->tensor(0).size());
    ASSERT_TRUE(reservation->Commit().ok());
  }
  EXPECT_EQ((*client_->Get(KeyOf("wide")))->tensors()[0].shape, (std::vector<int64_t>{30, 150}));
  EXPECT_EQ((*client_->Get(KeyOf("tall")))->tensors()[0].shape, (std::vector<int64_t>{150, 30}));
}

TEST_F(BehaviourTest, AnEpochAdvancedBetweenReserveAndCommitRefusesTheCommit) {
  Start(50, 0, "--l3-write=through");
  ASSERT_TRUE(Put(KeyOf("old", "M"), 1).ok());
  ASSERT_TRUE(Put(KeyOf("other", "N"), 1).ok());
  auto reservation = Reserve(KeyOf("new", "M"), {kUnit});
  ASSERT_TRUE(reservation.ok());
  EXPECT_EQ(*client_->AdvanceEpoch("M"), 1u);
  EXPECT_EQ(reservation->Commit().status().code(), absl::StatusCode::kFailedPrecondition);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Get(KeyOf("old", "M")), Tier::kUnknown);
    EXPECT_EQ(Get(KeyOf("new", "M")), Tier::kUnknown);
    if (i == 0) KillAndRestart();
  }
}

TEST_F(BehaviourTest, AnEpochHoldsAfterACleanRestartAndOtherModelsKeepTheirEntries) {
  Start(50, 0, "--l3-write=through");
  ASSERT_TRUE(Put(KeyOf("old", "M"), 1).ok());
  ASSERT_TRUE(Put(KeyOf("other", "N"), 1).ok());
  client_.reset();
  daemon_->Signal(SIGTERM);
  ASSERT_EQ(daemon_->Wait(), 0);
  Connect();
  EXPECT_EQ(*client_->AdvanceEpoch("M"), 1u);
  KillAndRestart();
  EXPECT_EQ(Get(KeyOf("old", "M")), Tier::kUnknown);
  EXPECT_EQ(Get(KeyOf("other", "N")), Tier::kL3);
  ASSERT_TRUE(Put(KeyOf("old", "M"), 1).ok());
  EXPECT_EQ(Get(KeyOf("old", "M")), Tier::kL1);
}

}  // namespace
}  // namespace embcache
