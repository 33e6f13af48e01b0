// The shared tier as gets, puts and removals meet it: what other nodes have is a hit, what this
// node does overtakes what Redis says, and what is wrong there is a miss.

#include "server/shared_tier.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/shared_tier_fixture.h"

namespace embcache {
namespace {

class SharedTierTest : public SharedTierFixture {};

// --- Reading ------------------------------------------------------------------------------------

TEST_F(SharedTierTest, WhatAnotherNodePutIsAHitWithTheSameBytes) {
  KeepInRedis("a");
  const Result result = Get("a");
  ASSERT_EQ(result.verdict(), Result::HIT);
  std::string wanted(SharedInfo(SharedKey("a")).payload_bytes(), '\0');
  wanted.replace(0, 100, 100, 'r');
  wanted.replace(256, 24, 24, 'r');
  EXPECT_EQ(result.inline_(), wanted);
  EXPECT_EQ(result.entry().metadata().at("grid"), "1,2,3");
  EXPECT_EQ(result.entry().encode_cost_us(), 1234u);
  EXPECT_EQ(Get("a").verdict(), Result::HIT);
  EXPECT_EQ(redis_->Count("GETRANGE"), 1u) << "the second is in the cache";
  Await([](const SharedTierStats& stats) { return stats.hits == 1; });
  cache_->CheckInvariants();
}

TEST_F(SharedTierTest, WhatIsReadIsNotWrittenAgain) {
  KeepInRedis("a");
  ASSERT_EQ(Get("a").verdict(), Result::HIT);
  Put(ProtoItem("b"));
  redis_->AwaitCount("SET", 1);  // the writes are in order
  EXPECT_EQ(shared_->GetStats().queued_writes + shared_->GetStats().writes, 1u);
}

TEST_F(SharedTierTest, WhatNobodyHasIsOneMiss) {
  const Result result = Get("a");
  EXPECT_EQ(result.verdict(), Result::MISS);
  EXPECT_EQ(result.reason(), Result::ABSENT);
  KeepInRedis("b");
  Get("b");
  const CacheStats stats = cache_->GetStats(false);
  EXPECT_EQ(stats.gets, 2u);
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.misses, 1u);
}

TEST_F(SharedTierTest, ManyWhoAskAtOnceAreOneQuestion) {
  KeepInRedis("a");
  const auto release = HoldReads();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(StartGet("a"));
  for (const auto& call : calls) EXPECT_FALSE(call->done.HasBeenNotified());
  release();
  for (const auto& call : calls) EXPECT_EQ(call->result().verdict(), Result::HIT);
  EXPECT_EQ(redis_->Count("GETRANGE"), 1u);
}

TEST_F(SharedTierTest, ItIsAskedBeforeAClaimIsGiven) {
  KeepInRedis("a");
  const CallContext writer = OpenSession();
  EXPECT_EQ(StartGet("a", writer, v1::ON_MISS_CLAIM)->result().verdict(), Result::HIT);
  EXPECT_EQ(StartGet("b", writer, v1::ON_MISS_CLAIM)->result().verdict(), Result::CLAIMED);
  EXPECT_EQ(redis_->Count("GETRANGE"), 2u);
}

TEST_F(SharedTierTest, WhatIsBeingEncodedHereIsNotAskedFor) {
  ASSERT_EQ(StartGet("a", OpenSession(), v1::ON_MISS_CLAIM)->result().verdict(), Result::CLAIMED);
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(redis_->Count("GETRANGE"), 1u);
}

TEST_F(SharedTierTest, WhoWaitsForAKeyHearsOfOneThatComesFromThere) {
  v1::GetRequest request;
  *request.add_items()->mutable_key() = ProtoKey("a");
  request.set_on_miss(v1::ON_MISS_WAIT);
  request.set_wait_ms(3'600'000);
  v1::GetResponse response;
  absl::Notification done;
  service_->Get(OpenSession(), request, &response, [&](const absl::Status&) { done.Notify(); });
  redis_->AwaitCount("GETRANGE", 1);
  Await([](const SharedTierStats& stats) { return stats.absent == 1; });
  KeepInRedis("a");
  EXPECT_EQ(Get("a").verdict(), Result::HIT);
  done.WaitForNotification();
  EXPECT_EQ(response.results(0).verdict(), Result::HIT);
}

TEST_F(SharedTierTest, WhoLooksOnOverANetworkDoesNotMakeItAsk) {
  KeepInRedis("a");
  EXPECT_EQ(Get("a", CallContext{.caller = Caller::kNetwork}).verdict(), Result::MISS);
  EXPECT_TRUE(redis_->commands().empty());
}

TEST_F(SharedTierTest, AHitHereIsNotAQuestion) {
  Put(ProtoItem("a"));
  EXPECT_EQ(Get("a").verdict(), Result::HIT);
  EXPECT_EQ(redis_->Count("GETRANGE"), 0u);
}

TEST_F(SharedTierTest, ADamagedValueIsAMissAndRemovedThere) {
  const CacheKey key = SharedKey("a");
  std::string value = SharedValueOf(SharedInfo(key), 'r');
  value.back() = static_cast<char>(value.back() ^ 1);
  redis_->Set(SharedName(key), value);
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(shared_->GetStats().damaged, 1u);
  EXPECT_FALSE(InRedis("a"));
}

TEST_F(SharedTierTest, AValueThatIsNotAsExpectedIsRemovedThereToo) {
  KeepInRedis("a");
  const auto call = StartGet("a", OpenSession(), v1::ON_MISS_RETURN, /*rows=*/7);
  EXPECT_EQ(call->result().verdict(), Result::MISS);
  EXPECT_EQ(call->result().reason(), Result::MISMATCH);
  Await([](const SharedTierStats& stats) { return stats.removals == 1; });
  EXPECT_FALSE(InRedis("a"));
}

TEST_F(SharedTierTest, AValueTooLargeForTheCacheIsAMissAndLeavesEverythingAsItIs) {
  const CacheKey key = SharedKey("a");
  EntryInfo info = SharedInfo(key);
  info.layout =
      *LayOutTensors({TensorSpec{.name = "t",
                                 .dtype = DType::kU8,
                                 .shape = {static_cast<int64_t>(cache_->max_entry_bytes()) + 1}}});
  redis_->Set(SharedName(key), SharedValueOf(info, 'r'));
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(shared_->GetStats().not_kept, 1u);
  EXPECT_TRUE(InRedis("a"));
  EXPECT_EQ(cache_->GetStats(false).rejected_puts, 0u);
}

// --- Who overtakes ------------------------------------------------------------------------------

TEST_F(SharedTierTest, ADeleteOvertakesTheAnswer) {
  KeepInRedis("a");
  const auto release = HoldReads();
  const auto call = StartGet("a");
  redis_->AwaitCount("GETRANGE", 1);
  Delete("a");
  EXPECT_EQ(call->result().verdict(), Result::MISS);
  release();
  Await([](const SharedTierStats& stats) {
    return stats.not_kept + stats.absent == 1 && stats.removals == 1;
  });
  EXPECT_FALSE(InCache("a"));
  EXPECT_FALSE(InRedis("a"));
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
}

TEST_F(SharedTierTest, APutOvertakesTheAnswer) {
  KeepInRedis("a");
  const auto release = HoldReads();
  const auto call = StartGet("a");
  redis_->AwaitCount("GETRANGE", 1);
  Put(ProtoItem("a", 512, 'p'));
  EXPECT_EQ(call->result().inline_(), std::string(512, 'p')) << "who waited is told at once";
  release();
  Await([](const SharedTierStats& stats) { return stats.not_kept == 1; });
  EXPECT_EQ(Get("a").inline_(), std::string(512, 'p'));
}

TEST_F(SharedTierTest, AnEpochOvertakesTheAnswer) {
  KeepInRedis("a");
  const auto release = HoldReads();
  const auto call = StartGet("a");
  redis_->AwaitCount("GETRANGE", 1);
  AdvanceEpoch();
  EXPECT_EQ(call->result().verdict(), Result::MISS);
  release();
  Await([](const SharedTierStats& stats) { return stats.not_kept == 1; });
  EXPECT_FALSE(InCache("a"));
}

TEST_F(SharedTierTest, WhatComesTooLateIsNotKept) {
  options_.timeout = absl::Milliseconds(20);
  Begin();
  KeepInRedis("a");
  const auto release = HoldReads();
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  release();
  Await([](const SharedTierStats& stats) { return stats.failed + stats.late == 1; });
  EXPECT_FALSE(InCache("a"));
}

// --- Writing ------------------------------------------------------------------------------------

TEST_F(SharedTierTest, WhatIsPutHereIsThereForOthers) {
  v1::PutItem item = ProtoItem("a", 700, 'p');
  (*item.mutable_metadata())["grid"] = "4,5,6";
  Put(item);
  const CallContext writer = OpenSession();
  v1::ReserveRequest reserve;
  *reserve.add_items() = ProtoItem("b");
  reserve.mutable_items(0)->clear_inline_();
  v1::CommitRequest commit;
  commit.add_reservations(CallHandler(service_.get(), &CacheService::Reserve, reserve, writer)
                              .response.results(0)
                              .reservation());
  CallHandler(service_.get(), &CacheService::Commit, commit, writer);
  Await([](const SharedTierStats& stats) { return stats.writes == 2; });
  EXPECT_TRUE(InRedis("b"));
  const std::string value = redis_->data()[SharedName(SharedKey("a"))];
  auto checked = CheckSharedValue(SharedKey("a"), value);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(std::string(checked->payload), std::string(700, 'p'));
  EXPECT_EQ(checked->info->metadata, (Metadata{{"grid", "4,5,6"}}));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(SharedTierTest, APutDoesNotWaitAndWhatTheQueueCannotHoldIsDropped) {
  options_.queue_entries = 2;
  Begin();
  redis_->OnCommand([](const Command&) { return Answer{.hang = true}; });
  for (const char* name : {"a", "b", "c", "d"}) Put(ProtoItem(name));
  const SharedTierStats stats = shared_->GetStats();
  EXPECT_EQ(stats.queued_writes, 2u);
  EXPECT_EQ(stats.dropped_writes, 2u);
  EXPECT_GT(stats.queued_bytes, 1024u);
}

TEST_F(SharedTierTest, WhatIsLargerThanIsSharedIsNotWritten) {
  options_.store.max_value_bytes = 1000;
  Begin();
  Put(ProtoItem("a", 1000));
  Put(ProtoItem("b", 100));
  Await([](const SharedTierStats& stats) { return stats.writes == 1; });
  EXPECT_FALSE(InRedis("a"));
  EXPECT_EQ(shared_->GetStats().dropped_writes, 1u);
}

TEST_F(SharedTierTest, WhatIsRemovedHereIsRemovedThere) {
  for (const char* name : {"a", "b"}) Put(ProtoItem(name));
  Delete("a");
  v1::PopRequest pop;
  *pop.mutable_key() = ProtoKey("b");
  EXPECT_EQ(CallHandler(service_.get(), &CacheService::Pop, pop, OpenSession())
                .response.result()
                .verdict(),
            Result::HIT);
  Await([](const SharedTierStats& stats) { return stats.removals == 2; });
  EXPECT_FALSE(InRedis("a"));
  EXPECT_FALSE(InRedis("b"));
}

TEST_F(SharedTierTest, WhatAPutTooLargeForTheCacheWasToReplaceIsRemovedThereToo) {
  KeepInRedis("a");
  v1::PutRequest request;
  *request.add_items() = ProtoItem("a", cache_->max_entry_bytes() + 1);
  auto put = CallHandler(service_.get(), &CacheService::Put, request);
  EXPECT_NE(put.response.results(0).status().code(), 0);
  Await([](const SharedTierStats& stats) { return stats.removals == 1; });
  EXPECT_FALSE(InRedis("a"));
}

TEST_F(SharedTierTest, AnEntryThatLeftBeforeItsTurnIsNotWritten) {
  // The writer is busy with something else until "a" is deleted and put again.
  absl::Notification go_on;
  redis_->OnCommand([&](const Command& command) -> std::optional<Answer> {
    if (command[0] == "SET" && command[1] == SharedName(SharedKey("first"))) {
      go_on.WaitForNotification();
    }
    return std::nullopt;
  });
  Put(ProtoItem("first"));
  redis_->AwaitCount("SET", 1);
  Put(ProtoItem("a", 512, 'o'));
  Put(ProtoItem("a", 512, 'n'));
  go_on.Notify();
  Await([](const SharedTierStats& stats) { return stats.writes + stats.dropped_writes == 3; });
  EXPECT_EQ(shared_->GetStats().writes, 2u);
  const std::string value = redis_->data()[SharedName(SharedKey("a"))];
  EXPECT_EQ(std::string(CheckSharedValue(SharedKey("a"), value)->payload), std::string(512, 'n'));
}

TEST_F(SharedTierTest, AWriteThatIsRefusedIsCountedAndReadingGoesOn) {
  redis_->OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] == "SET") return Answer{"-OOM\r\n"};
    return std::nullopt;
  });
  for (const char* name : {"a", "b", "c", "d"}) Put(ProtoItem(name));
  Await([](const SharedTierStats& stats) { return stats.write_failures == 4; });
  KeepInRedis("e");
  EXPECT_EQ(Get("e").verdict(), Result::HIT);
}

// --- Models -------------------------------------------------------------------------------------

TEST_F(SharedTierTest, AModelWhoseEpochIsAdvancedIsClosedForAllNodes) {
  KeepInRedis("a");
  AdvanceEpoch();
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  Put(ProtoItem("b"));
  while (redis_->data().count(ClosedName("model")) == 0) std::this_thread::yield();
  EXPECT_EQ(redis_->Count("GETRANGE"), 0u);
  EXPECT_EQ(shared_->GetStats().queued_writes + shared_->GetStats().writes, 0u);
  EXPECT_EQ(shared_->GetStats().closed_models, 1u);
}

TEST_F(SharedTierTest, AModelThatAnotherNodeClosedIsNeitherReadNorWritten) {
  KeepInRedis("a");
  redis_->Set(ClosedName("model"), "1");
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(redis_->Count("GETRANGE"), 1u) << "it is remembered";
  Put(ProtoItem("b"));
  EXPECT_EQ(redis_->Count("SET"), 0u);
  Begin();  // one that does not know yet
  Put(ProtoItem("b"));
  Await([](const SharedTierStats& stats) { return stats.dropped_writes == 1; });
  EXPECT_FALSE(InRedis("b"));
}

TEST_F(SharedTierTest, AModelThatHasHadAnEpochIsNotSharedByThisNode) {
  options_.not_shared = {"model"};
  Begin();
  KeepInRedis("a");
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  Put(ProtoItem("b"));
  v1::PutItem item = ProtoItem("c");
  item.mutable_key()->set_model("another");
  Put(item);
  Await([](const SharedTierStats& stats) { return stats.writes == 1; });
  EXPECT_EQ(redis_->Count("GETRANGE"), 0u);
  EXPECT_FALSE(InRedis("b"));
  EXPECT_EQ(redis_->data().count(ClosedName("model")), 0u) << "for others it is open";
}

TEST_F(SharedTierTest, ARedisThatForgotWhatIsClosedIsToldAgain) {
  AdvanceEpoch();
  while (redis_->data().count(ClosedName("model")) == 0) std::this_thread::yield();
  redis_ = nullptr;
  redis_ = std::make_unique<FakeRedis>(socket_);
  v1::PutItem item = ProtoItem("a");
  item.mutable_key()->set_model("another");
  Put(item);
  while (redis_->data().count(ClosedName("model")) == 0) std::this_thread::yield();
}

}  // namespace
}  // namespace embcache
