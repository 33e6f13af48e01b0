#include "server/idle_shrinker.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/clock.h"

namespace embcache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::Duration kAfter = absl::Minutes(10);
constexpr absl::Duration kTick = absl::Milliseconds(100);

// Eight segments of 100 bytes.
class FakeTier : public IdleTier {
 public:
  bool usable() const override { return usable_; }
  bool held() const override { return held_; }
  uint64_t uses() const override { return uses_; }
  uint64_t capacity_bytes() const override { return capacity_; }
  uint64_t segment_bytes() const override { return 100; }
  Resizer::Choice chosen() const override { return chosen_; }
  void Resize(uint64_t capacity_bytes, uint64_t choice, Resizer::Callback done) override {
    EXPECT_EQ(choice, chosen_.number);
    asked_.push_back(capacity_bytes);
    done_ = std::move(done);
    if (!answers_) return;
    if (result_.ok()) capacity_ = std::min(capacity_bytes, most_);
    Answer(result_);
  }

  void Answer(const absl::Status& status) {
    if (!status.ok()) return std::exchange(done_, {})(status);
    std::exchange(done_, {})(Resizer::Resized{});
  }
  void Choose(uint64_t bytes) {
    capacity_ = bytes;
    chosen_ = {bytes, chosen_.number + 1};
  }

  bool usable_ = true;
  bool held_ = false;
  uint64_t uses_ = 1;
  uint64_t capacity_ = 800;
  uint64_t most_ = 100'000;  // that it can have, as segments come out
  Resizer::Choice chosen_ = {800, 0};
  bool answers_ = true;
  absl::Status result_;
  std::vector<uint64_t> asked_;
  Resizer::Callback done_;
};

class IdleShrinkerTest : public testing::Test {
 protected:
  explicit IdleShrinkerTest(uint64_t keeps = 250, absl::Duration after = kAfter) {
    auto tier = std::make_unique<FakeTier>();
    tier_ = tier.get();
    shrinker_ = std::make_unique<IdleShrinker>(IdleShrinker::Options{after, keeps}, std::move(tier),
                                               &clock_);
  }

  void Pass(absl::Duration time) {
    clock_.Advance(time);
    shrinker_->Tick();
  }
  void Use() {
    ++tier_->uses_;
    Pass(kTick);
  }
  // What has been asked for since the last time.
  std::vector<uint64_t> Asked() { return std::exchange(tier_->asked_, {}); }
  // How long it took until something was asked for, when the cache is used all the time.
  absl::Duration TimeToNext() {
    const absl::Duration start = clock_.MonotonicNow();
    while (Asked().empty()) Use();
    return clock_.MonotonicNow() - start;
  }

  SimulatedClock clock_;
  FakeTier* tier_;
  std::unique_ptr<IdleShrinker> shrinker_;
};

TEST_F(IdleShrinkerTest, WhileItIsUsedNothingHappens) {
  for (int i = 0; i < 5; ++i) {
    Pass(kAfter - 2 * kTick);
    Use();
  }
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(shrinker_->given_back_bytes(), 0u);
}

TEST_F(IdleShrinkerTest, WithoutAUseItShrinksOnce) {
  Pass(kAfter - kTick);
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(kTick);
  EXPECT_THAT(Asked(), ElementsAre(250));
  EXPECT_EQ(shrinker_->given_back_bytes(), 550u);
  for (int i = 0; i < 100; ++i) Pass(kAfter);
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(IdleShrinkerTest, TheFirstUseGrowsItBackBySingleSegments) {
  Pass(kAfter);
  Asked();
  Use();
  EXPECT_THAT(Asked(), ElementsAre(350));
  EXPECT_EQ(shrinker_->given_back_bytes(), 450u);
  for (int i = 0; i < 100; ++i) Pass(kTick);
  EXPECT_THAT(Asked(), ElementsAre(450, 550, 650, 750, 800));
  EXPECT_EQ(shrinker_->given_back_bytes(), 0u);
  Pass(kAfter);
  EXPECT_THAT(Asked(), ElementsAre(250)) << "and it begins again";
}

TEST_F(IdleShrinkerTest, OneResizeIsUnderWayAtATime) {
  tier_->answers_ = false;
  Pass(kAfter);
  for (int i = 0; i < 100; ++i) Pass(kAfter);
  Use();
  EXPECT_THAT(Asked(), ElementsAre(250));
  // The use that came meanwhile is not forgotten.
  tier_->capacity_ = 250;
  tier_->Answer(absl::OkStatus());
  Pass(kTick);
  EXPECT_THAT(Asked(), ElementsAre(350));
}

TEST_F(IdleShrinkerTest, WhatPinsHaveKeptIsTriedAgainAfterAWhile) {
  tier_->result_ = absl::FailedPreconditionError("pinned");
  Pass(kAfter);
  EXPECT_THAT(Asked(), ElementsAre(250));
  tier_->capacity_ = 600;  // a part went later
  Pass(IdleShrinker::kShrinkAgain - kTick);
  EXPECT_THAT(Asked(), IsEmpty());
  tier_->result_ = absl::OkStatus();
  Pass(kTick);
  EXPECT_THAT(Asked(), ElementsAre(250));
}

TEST_F(IdleShrinkerTest, APartThatWentIsGrownBack) {
  tier_->answers_ = false;
  Pass(kAfter);
  Asked();
  tier_->capacity_ = 700;
  tier_->Answer(absl::FailedPreconditionError("pinned"));
  EXPECT_EQ(shrinker_->given_back_bytes(), 100u);
  Use();
  EXPECT_THAT(Asked(), ElementsAre(800));
}

TEST_F(IdleShrinkerTest, WithoutMemoryItGrowsLaterAndRarelyWhileItIsUsed) {
  Pass(kAfter);
  Asked();
  tier_->result_ = absl::ResourceExhaustedError("the engine has it");
  Use();
  EXPECT_THAT(Asked(), ElementsAre(350));
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(TimeToNext(), absl::Seconds(seconds));
  }
  EXPECT_EQ(shrinker_->given_back_bytes(), 550u);
  // As soon as one segment can be had the others follow without a pause.
  tier_->result_ = absl::OkStatus();
  EXPECT_EQ(TimeToNext(), absl::Minutes(1));
  tier_->result_ = absl::ResourceExhaustedError("the engine has the others");
  EXPECT_EQ(TimeToNext(), kTick);
  EXPECT_EQ(TimeToNext(), absl::Seconds(1));
}

TEST_F(IdleShrinkerTest, ItDoesNotTryToGrowWhenNobodyUsesItAnyMore) {
  Pass(kAfter);
  tier_->result_ = absl::ResourceExhaustedError("the engine has it");
  Use();
  Asked();
  for (int i = 0; i < 100; ++i) Pass(kAfter);
  EXPECT_THAT(Asked(), IsEmpty());
  Use();
  EXPECT_THAT(Asked(), ElementsAre(350)) << "but with the next use at once";
}

TEST_F(IdleShrinkerTest, WhatHasGrownInPartShrinksAgain) {
  Pass(kAfter);
  Use();
  tier_->result_ = absl::ResourceExhaustedError("the engine has it");
  Use();
  EXPECT_THAT(Asked(), ElementsAre(250, 350, 450));
  tier_->result_ = absl::OkStatus();
  Pass(kAfter);
  EXPECT_THAT(Asked(), ElementsAre(250));
}

TEST_F(IdleShrinkerTest, ARestThatIsNotWorthASegmentIsNotAskedForAgain) {
  tier_->chosen_.capacity_bytes = 801;
  tier_->most_ = 800;
  Pass(kAfter);
  for (int i = 0; i < 100; ++i) Use();
  EXPECT_THAT(Asked(), ElementsAre(250, 350, 450, 550, 650, 750, 801, 801));
  EXPECT_EQ(shrinker_->given_back_bytes(), 0u);
}

TEST_F(IdleShrinkerTest, AnOperatorsCapacityIsWhatItReturnsTo) {
  Pass(kAfter);
  Asked();
  tier_->Choose(400);
  EXPECT_EQ(shrinker_->given_back_bytes(), 0u);
  Use();
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(kAfter);
  EXPECT_THAT(Asked(), ElementsAre(250));
  EXPECT_EQ(shrinker_->given_back_bytes(), 150u);
  for (int i = 0; i < 10; ++i) Use();
  EXPECT_THAT(Asked(), ElementsAre(350, 400));
}

TEST_F(IdleShrinkerTest, AnOperatorsCapacityIsKeptThoughItIsTheOneItHad) {
  Pass(kAfter);
  Asked();
  tier_->Choose(250);
  Use();
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(IdleShrinkerTest, AnOperatorsResizeIsAUse) {
  Pass(kAfter - kTick);
  tier_->Choose(1000);
  Pass(kTick);
  Pass(kAfter - kTick);
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(kTick);
  EXPECT_THAT(Asked(), ElementsAre(250));
}

TEST_F(IdleShrinkerTest, WhatAnOperatorsResizeCutShortIsTriedAgainSoon) {
  tier_->result_ = absl::AbortedError("another resize is under way");
  Pass(kAfter);
  Asked();
  tier_->result_ = absl::OkStatus();
  Pass(kTick);
  EXPECT_THAT(Asked(), IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), ElementsAre(250));
}

TEST_F(IdleShrinkerTest, WhileAClientHasNotGivenUpWhatWentL1NeitherGrowsNorShrinks) {
  Pass(kAfter);
  Asked();
  tier_->held_ = true;
  Use();
  EXPECT_THAT(Asked(), IsEmpty());
  tier_->held_ = false;
  Pass(kTick);
  EXPECT_THAT(Asked(), ElementsAre(350));
  tier_->held_ = true;
  Pass(kAfter);
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(IdleShrinkerTest, ATierWhoseMemoryIsLostIsLeftAlone) {
  Pass(kAfter);
  Asked();
  tier_->usable_ = false;
  EXPECT_EQ(shrinker_->given_back_bytes(), 0u);
  Use();
  Pass(kAfter);
  EXPECT_THAT(Asked(), IsEmpty());
}

class OneSegmentIdleShrinkerTest : public IdleShrinkerTest {
 protected:
  OneSegmentIdleShrinkerTest() : IdleShrinkerTest(0) {}
};

TEST_F(OneSegmentIdleShrinkerTest, ByDefaultOneSegmentStays) {
  Pass(kAfter);
  EXPECT_THAT(Asked(), ElementsAre(100));
}

class ShortIdleShrinkerTest : public IdleShrinkerTest {
 protected:
  ShortIdleShrinkerTest() : IdleShrinkerTest(700, absl::Seconds(1)) {}
};

TEST_F(ShortIdleShrinkerTest, WhatWasUsedMeanwhileDoesNotWaitLongerThanItWasIdle) {
  Pass(absl::Seconds(1));
  Use();
  EXPECT_THAT(Asked(), ElementsAre(700, 800));
  Pass(absl::Seconds(1));
  EXPECT_THAT(Asked(), ElementsAre(700));
}

}  // namespace
}  // namespace embcache
