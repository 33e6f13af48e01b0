// What the shared tier blames a server for, and how it goes on with the rest of its work.

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/shared_tier_fixture.h"

namespace embcache {
namespace {

// Later than the machine's, so that connections, which go by that, wait as long as they must.
class SharedTierBlameTest : public SharedTierFixture {
 protected:
  SharedTierBlameTest() {
    time_.Advance(SystemClock()->MonotonicNow() + absl::Hours(10000));
    options_.threads = 1;
    shared_->Stop();
    tier_ = std::make_unique<SharedTier>(options_, cache_.get(), &time_);
  }
  ~SharedTierBlameTest() override { tier_->Stop(); }

  void AwaitTier(const std::function<bool(const SharedTierStats&)>& wanted) const {
    while (!wanted(tier_->GetStats())) std::this_thread::yield();
  }

  // "x" is being read, and four others wait behind it, when the time goes on.
  void AskForMany(absl::Duration takes) {
    auto released = std::make_shared<absl::Notification>();
    redis_->OnCommand([released](const Command& command) -> std::optional<Answer> {
      if (command[1] != SharedName(SharedKey("x"))) return Answer{.close = true};
      released->WaitForNotification();
      return std::nullopt;
    });
    ASSERT_TRUE(tier_->Ask(SharedKey("x"), [] {}));
    redis_->AwaitCount("GETRANGE", 1);
    for (const char* name : {"a", "b", "c", "d"}) {
      ASSERT_TRUE(tier_->Ask(SharedKey(name), [] {}));
    }
    time_.Advance(takes);
    released->Notify();
  }

  SimulatedClock time_;
  std::unique_ptr<SharedTier> tier_;
};

TEST_F(SharedTierBlameTest, AReadThatBeganWithMostOfItsTimeGoneDoesNotCountAgainstTheServer) {
  AskForMany(absl::Minutes(40));
  AwaitTier([](const SharedTierStats& stats) { return stats.late + stats.failed == 4; });
  EXPECT_EQ(tier_->GetStats().late, 4u);
  EXPECT_FALSE(tier_->GetStats().left_alone);
}

TEST_F(SharedTierBlameTest, AReadWithoutAnyTimeLeftIsNotBegun) {
  AskForMany(absl::Hours(2));
  AwaitTier([](const SharedTierStats& stats) { return stats.late + stats.failed == 4; });
  EXPECT_EQ(redis_->Count("GETRANGE"), 1u);
  EXPECT_FALSE(tier_->GetStats().left_alone);
}

TEST_F(SharedTierBlameTest, ARemovalThatFailsLetsOthersPassAndDoesNotCountForEver) {
  redis_->OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] != "UNLINK" || command[1] != SharedName(SharedKey("bad"))) return std::nullopt;
    return Answer{"+nonsense\r\n"};
  });
  tier_->Removing(SharedKey("bad"));
  // Again and again, with others in between.
  for (size_t tries = 1; tries <= 5; ++tries) {
    const auto tried = [&] {
      size_t count = 0;
      for (const Command& command : redis_->commands()) {
        if (command[0] == "UNLINK" && command[1] == SharedName(SharedKey("bad"))) ++count;
      }
      return count >= tries;
    };
    while (!tried()) {
      time_.Advance(absl::Seconds(5));
      const uint64_t removals = tier_->GetStats().removals;
      tier_->Removing(SharedKey("good"));
      AwaitTier([&](const SharedTierStats& stats) { return stats.removals > removals; });
    }
  }
  EXPECT_EQ(tier_->GetStats().queued_removals, 1u);
  EXPECT_FALSE(tier_->GetStats().left_alone);
}

TEST_F(SharedTierBlameTest, TheTrialOfAServerThatFailedIsAReads) {
  redis_->OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] == "UNLINK") return Answer{.hang = true};
    return Answer{.close = true};
  });
  for (const char* name : {"a", "b", "c"}) {
    absl::Notification done;
    ASSERT_TRUE(tier_->Ask(SharedKey(name), [&] { done.Notify(); }));
    done.WaitForNotification();
  }
  ASSERT_TRUE(tier_->GetStats().left_alone);
  time_.Advance(absl::Milliseconds(500));
  EXPECT_FALSE(tier_->Ask(SharedKey("d"), [] {}));
  time_.Advance(absl::Milliseconds(500));
  tier_->Removing(SharedKey("e"));
  for (int i = 0; i < 10000; ++i) std::this_thread::yield();
  EXPECT_TRUE(tier_->Ask(SharedKey("d"), [] {}));
}

TEST_F(SharedTierBlameTest, AServerThatEndsEachConnectionIsNotToldWhatIsClosedEachTime) {
  redis_->OnCommand([](const Command& command) {
    return Answer{.bytes = command[0] == "SET" ? "+OK\r\n" : ":0\r\n", .close = true};
  });
  tier_->CloseModel("model");
  for (int i = 0; i < 20; ++i) tier_->Removing(SharedKey(std::to_string(i), "another"));
  AwaitTier([](const SharedTierStats& stats) { return stats.removals == 20; });
  EXPECT_EQ(redis_->Count("SET"), 1u);
}

TEST_F(SharedTierBlameTest, AServerThatWasEmptiedIsToldAgainWhatIsClosed) {
  tier_->CloseModel("model");
  redis_->AwaitCount("SET", 1);
  while (redis_->data().count(ClosedName("model")) == 0) std::this_thread::yield();
  redis_->Clear();
  // Whenever the writer has done something it looks what is due.
  while (redis_->data().count(ClosedName("model")) == 0) {
    time_.Advance(absl::Seconds(10));
    tier_->Removing(SharedKey("a", "another"));
    std::this_thread::yield();
  }
}

TEST_F(SharedTierBlameTest, AModelTooManyIsNotRemembered) {
  for (size_t i = 0; i <= SharedTier::kMaxClosedModels + 3; ++i) {
    tier_->CloseModel(std::to_string(i));
  }
  EXPECT_EQ(tier_->GetStats().closed_models, SharedTier::kMaxClosedModels);
  EXPECT_FALSE(tier_->Ask(SharedKey("a"), [] {})) << "nothing is shared any more";
}

}  // namespace
}  // namespace embcache
