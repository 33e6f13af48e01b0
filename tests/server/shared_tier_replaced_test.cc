// A put that does not come to the shared tier is a removal there: what it replaced stays gone.

#include <string>

#include "gtest/gtest.h"
#include "tests/server/shared_tier_fixture.h"

namespace embcache {
namespace {

class SharedTierReplacedTest : public SharedTierFixture {
 protected:
  // From memory alone, as an eviction does.
  void LoseHere(const std::string& name) {
    absl::Notification done;
    cache_->Delete(SharedKey(name), [&](const absl::StatusOr<bool>&) { done.Notify(); });
    done.WaitForNotification();
  }
  // The writer is held up by a write of "first" until the returned function is called.
  std::function<void()> HoldWriter() {
    auto released = std::make_shared<absl::Notification>();
    redis_->OnCommand([released](const Command& command) -> std::optional<Answer> {
      if (command[0] == "SET" && command[1] == SharedName(SharedKey("first"))) {
        released->WaitForNotification();
      }
      return std::nullopt;
    });
    Put(ProtoItem("first"));
    redis_->AwaitCount("SET", 1);
    return [released] { released->Notify(); };
  }
  void ExpectGone(const std::string& name) {
    Await([](const SharedTierStats& stats) { return stats.removals == 1; });
    EXPECT_FALSE(InRedis(name));
    LoseHere(name);
    EXPECT_EQ(Get(name).verdict(), Result::MISS);
  }
};

TEST_F(SharedTierReplacedTest, ByAValueThatIsTooLargeToBeShared) {
  options_.store.max_value_bytes = 1000;
  Begin();
  KeepInRedis("a");
  Put(ProtoItem("a", 1000));
  ExpectGone("a");
}

TEST_F(SharedTierReplacedTest, ByAValueThatTheQueueHasNoRoomFor) {
  options_.queue_entries = 1;
  Begin();
  KeepInRedis("a");
  const auto release = HoldWriter();
  Put(ProtoItem("a"));
  release();
  ExpectGone("a");
}

TEST_F(SharedTierReplacedTest, ByAValueThatLeftBeforeItsTurn) {
  KeepInRedis("a");
  const auto release = HoldWriter();
  Put(ProtoItem("a"));
  LoseHere("a");
  release();
  ExpectGone("a");
}

TEST_F(SharedTierReplacedTest, ByAValueWhoseWriteIsRefused) {
  KeepInRedis("a");
  redis_->OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] == "SET") return Answer{"-OOM\r\n"};
    return std::nullopt;
  });
  Put(ProtoItem("a"));
  ExpectGone("a");
}

TEST_F(SharedTierReplacedTest, ByAValueWhoseWriteFails) {
  KeepInRedis("a");
  redis_->OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] == "SET") return Answer{.close = true};
    return std::nullopt;
  });
  Put(ProtoItem("a"));
  ExpectGone("a");
}

TEST_F(SharedTierReplacedTest, IsNotAskedForWhileTheNewValueWaitsToBeWritten) {
  KeepInRedis("a");
  const auto release = HoldWriter();
  Put(ProtoItem("a"));
  LoseHere("a");
  EXPECT_EQ(Get("a").verdict(), Result::MISS);
  EXPECT_EQ(redis_->Count("GETRANGE"), 0u);
  release();
}

TEST_F(SharedTierReplacedTest, ManyRemovalsOfAKeyThatWaitAreOne) {
  const auto release = HoldWriter();
  for (int i = 0; i < 10; ++i) Delete("a");
  EXPECT_EQ(shared_->GetStats().queued_removals, 1u);
  release();
}

}  // namespace
}  // namespace embcache
