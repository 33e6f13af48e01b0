// The shared tier when Redis is slow, dead or refuses: it costs misses, and nothing else.

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/shared_circuit.h"
#include "tests/server/shared_tier_fixture.h"
#include "tests/unit/manual_copy_engine.h"

namespace embcache {
namespace {

class SharedTierFailureTest : public SharedTierFixture {
 protected:
  void StopRedis() { redis_ = nullptr; }
  void StartRedis() { redis_ = std::make_unique<FakeRedis>(socket_); }
};

TEST_F(SharedTierFailureTest, AGetWaitsForARedisThatHangsNoLongerThanTheTimeout) {
  options_.timeout = absl::Milliseconds(50);
  Begin();
  redis_->OnCommand([](const Command&) { return Answer{.hang = true}; });
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(StartGet("b", OpenSession(), v1::ON_MISS_CLAIM)->result().verdict(), Result::CLAIMED);
  Await([](const SharedTierStats& stats) { return stats.failed + stats.late == 2; });
}

TEST_F(SharedTierFailureTest, GetsBehindOthersThatHangWaitNoLongerEither) {
  options_.timeout = absl::Milliseconds(50);
  options_.threads = 1;
  Begin();
  redis_->OnCommand([](const Command&) { return Answer{.hang = true}; });
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(StartGet(std::to_string(i)));
  for (const auto& call : calls) EXPECT_EQ(call->result().verdict(), Result::MISS);
}

TEST_F(SharedTierFailureTest, WhoWaitsIsToldInTimeAlsoWhenTheReaderIsStuckAndTheValueIsDropped) {
  ManualCopyEngine copier;  // copies nothing until told to
  TieredCacheOptions cache_options;
  cache_options.l1.capacity_bytes = uint64_t{1} << 20;
  auto cache = TieredCache::Create(cache_options, {.clock = &clock_,
                                                   .executor = &executor_,
                                                   .copier = &copier,
                                                   .l1_memory = &memory_,
                                                   .l2_memory = &memory_});
  ASSERT_TRUE(cache.ok()) << cache.status();
  options_.timeout = absl::Seconds(2);
  SharedTier tier(options_, cache->get(), SystemClock());
  KeepInRedis("a");
  absl::Notification told;
  ASSERT_TRUE(tier.Ask(SharedKey("a"), [&] { told.Notify(); }));
  told.WaitForNotification();
  if (copier.pending() > 0) {  // unless this machine is too slow to come so far in time
    EXPECT_FALSE(tier.Ask(SharedKey("a"), [] {})) << "a flight that nobody ends is not joined";
  }
  while (tier.GetStats().late + tier.GetStats().failed == 0) {
    copier.RunAll();
    std::this_thread::yield();
  }
  EXPECT_FALSE((*cache)->Contains(SharedKey("a")).has_value());
}

TEST_F(SharedTierFailureTest, AServerThatFailsIsLeftAloneAndTriedAgain) {
  StopRedis();
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(Get(name).verdict(), Result::MISS);
  Await([](const SharedTierStats& stats) { return stats.failed == 3; });
  EXPECT_TRUE(shared_->GetStats().left_alone);
  EXPECT_EQ(Get("d").verdict(), Result::MISS);
  StartRedis();
  KeepInRedis("e");
  while (Get("e").verdict() != Result::HIT) std::this_thread::yield();
  EXPECT_FALSE(shared_->GetStats().left_alone);
  EXPECT_GT(shared_->GetStats().not_asked, 0u);
}

TEST_F(SharedTierFailureTest, AServerThatRefusesReadsIsLeftAloneToo) {
  redis_->OnCommand([](const Command&) { return Answer{"-NOAUTH Authentication required.\r\n"}; });
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(Get(name).verdict(), Result::MISS);
  Await([](const SharedTierStats& stats) { return stats.failed == 3; });
  EXPECT_TRUE(shared_->GetStats().left_alone);
}

TEST_F(SharedTierFailureTest, ARemovalWaitsForTheServerAndItsKeyIsNotAskedForMeanwhile) {
  KeepInRedis("a");
  absl::Notification go_on;
  redis_->OnCommand([&](const Command& command) -> std::optional<Answer> {
    if (command[0] != "UNLINK") return std::nullopt;
    if (!go_on.HasBeenNotified()) return Answer{.close = true};
    return std::nullopt;
  });
  Delete("a");
  redis_->AwaitCount("UNLINK", 2);  // it has failed, and is there
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(redis_->Count("GETRANGE"), 0u);
  EXPECT_EQ(shared_->GetStats().queued_removals, 1u);
  go_on.Notify();
  Await([](const SharedTierStats& stats) { return stats.removals == 1; });
  EXPECT_FALSE(InRedis("a"));
}

TEST_F(SharedTierFailureTest, AClosedModelIsMarkedWhenTheServerIsBack) {
  StopRedis();
  AdvanceEpoch();
  StartRedis();
  while (redis_->data().count(ClosedName("model")) == 0) std::this_thread::yield();
}

TEST_F(SharedTierFailureTest, AStopDoesNotWaitForAServerThatHangs) {
  redis_->OnCommand([](const Command&) { return Answer{.hang = true}; });
  const auto call = StartGet("a");
  Put(ProtoItem("b"));
  redis_->AwaitCount("GETRANGE", 1);
  redis_->AwaitCount("SET", 1);
  shared_->Stop();
  EXPECT_EQ(call->result().verdict(), Result::MISS);
  EXPECT_EQ(Get("a").verdict(), Result::MISS) << "and nothing is asked any more";
  shared_->Removing(SharedKey("a"));
  shared_->CloseModel("model");
}

TEST(SharedCircuitTest, OpensAfterThreeFailuresInARowAndLetsOneQuestionThroughAtATime) {
  SharedCircuit circuit(absl::Milliseconds(200));
  absl::Duration now = absl::Seconds(100);
  EXPECT_FALSE(circuit.Failed(now));
  EXPECT_FALSE(circuit.Failed(now));
  EXPECT_FALSE(circuit.Succeeded());
  EXPECT_FALSE(circuit.Failed(now));
  EXPECT_FALSE(circuit.Failed(now));
  EXPECT_TRUE(circuit.Allow(now));
  EXPECT_TRUE(circuit.Failed(now));
  EXPECT_FALSE(circuit.Allow(now));
  EXPECT_FALSE(circuit.Failed(now)) << "what was under way does not count again";
  now += absl::Seconds(1);
  EXPECT_TRUE(circuit.Allow(now));
  EXPECT_FALSE(circuit.Allow(now)) << "one";
  EXPECT_TRUE(circuit.Allow(now + absl::Milliseconds(200))) << "whose answer never came";
  EXPECT_FALSE(circuit.Failed(now));
  EXPECT_FALSE(circuit.Allow(now + absl::Milliseconds(1999)));
  now += absl::Seconds(2);
  EXPECT_TRUE(circuit.Allow(now));
  EXPECT_TRUE(circuit.Succeeded());
  EXPECT_TRUE(circuit.Allow(now));
  EXPECT_TRUE(circuit.Allow(now));
}

TEST(SharedCircuitTest, ThePauseGrowsToHalfAMinute) {
  SharedCircuit circuit(absl::Milliseconds(200));
  absl::Duration now = absl::Seconds(100);
  for (int i = 0; i < 3; ++i) circuit.Failed(now);
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    EXPECT_EQ(circuit.retry_at(), now + absl::Seconds(seconds));
    now = circuit.retry_at();
    ASSERT_TRUE(circuit.Allow(now));
    circuit.Failed(now);
  }
}

}  // namespace
}  // namespace embcache
