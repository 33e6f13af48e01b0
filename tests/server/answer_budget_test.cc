#include "server/answer_budget.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

class AnswerBudgetTest : public testing::Test {
 protected:
  static constexpr absl::Duration kPatience = absl::Milliseconds(100);

  std::vector<std::string> cut_;
  SimulatedClock clock_;
  AnswerBudget budget_{{.total = 100, .per_connection = 40, .patience = kPatience},
                       [this](absl::string_view peer) {
                         const_cast<AnswerBudgetTest*>(this)->cut_.emplace_back(peer);
                       },
                       &clock_};
};

TEST_F(AnswerBudgetTest, WhoDoesNotReadGetsNoMoreUntilItHasRead) {
  EXPECT_TRUE(budget_.Charge("a", 30, /*may_refuse=*/true).ok());
  EXPECT_TRUE(budget_.Charge("a", 20, true).ok());
  EXPECT_EQ(budget_.Charge("a", 20, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(budget_.Charge("b", 20, true).ok());
  budget_.Refund("a", 30);
  EXPECT_TRUE(budget_.Charge("a", 20, true).ok());
  EXPECT_TRUE(cut_.empty());
}

TEST_F(AnswerBudgetTest, OneAnswerMayBeLargerThanTheBound) {
  EXPECT_TRUE(budget_.Charge("a", 90, true).ok());
  EXPECT_TRUE(budget_.crowded());
  EXPECT_EQ(budget_.Admit("a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(budget_.Admit("b").ok());
}

TEST_F(AnswerBudgetTest, WhatCannotBeRefusedIsCounted) {
  EXPECT_TRUE(budget_.Charge("a", 30, /*may_refuse=*/false).ok());
  EXPECT_TRUE(budget_.Charge("a", 30, /*may_refuse=*/false).ok());
  EXPECT_EQ(budget_.unread(), 60u);
  EXPECT_EQ(budget_.Admit("a").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(AnswerBudgetTest, BeyondTheTotalWhoHasTheMostUnreadIsCutAndOnlyWhoHasNoneIsAdmitted) {
  EXPECT_TRUE(budget_.Charge("a", 30, true).ok());
  EXPECT_TRUE(budget_.Charge("b", 39, true).ok());
  EXPECT_TRUE(budget_.Charge("c", 35, true).ok());
  EXPECT_EQ(cut_, std::vector<std::string>{"b"});
  EXPECT_TRUE(budget_.crowded());
  EXPECT_EQ(budget_.Admit("a").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(budget_.Admit("d").ok());
  budget_.Refund("b", 39);
  EXPECT_TRUE(budget_.Admit("a").ok());
  EXPECT_EQ(budget_.unread(), 65u);
}

TEST_F(AnswerBudgetTest, NobodyIsCutForHavingAsMuchUnreadAsTheOthers) {
  for (const char* peer : {"a", "b", "c", "d"}) EXPECT_TRUE(budget_.Charge(peer, 25, true).ok());
  EXPECT_EQ(budget_.Charge("e", 25, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(cut_.empty());
  EXPECT_EQ(budget_.unread(), 100u);
  EXPECT_TRUE(budget_.Admit("e").ok());  // nothing is held against it
  budget_.Refund("b", 25);
  EXPECT_TRUE(budget_.Charge("e", 25, true).ok());
}

TEST_F(AnswerBudgetTest, WhoHasReadNothingForAWhileIsCutBeforeWhoHasMoreAndReads) {
  EXPECT_TRUE(budget_.Charge("slow", 10, true).ok());
  EXPECT_TRUE(budget_.Charge("slower", 20, true).ok());
  EXPECT_TRUE(budget_.Charge("reader", 15, true).ok());
  EXPECT_TRUE(budget_.Charge("reader", 15, true).ok());
  clock_.Advance(kPatience);
  budget_.Refund("reader", 15);
  EXPECT_TRUE(budget_.Charge("reader", 24, true).ok());
  EXPECT_TRUE(budget_.Charge("other", 35, true).ok());
  EXPECT_EQ(cut_, std::vector<std::string>{"slower"});
}

TEST_F(AnswerBudgetTest, OfEqualsWhoReadLongestAgoIsCut) {
  for (const char* peer : {"c", "a", "d", "b"}) {
    EXPECT_TRUE(budget_.Charge(peer, 25, true).ok());
    clock_.Advance(kPatience);
  }
  EXPECT_TRUE(budget_.Charge("e", 25, true).ok());
  EXPECT_EQ(cut_, std::vector<std::string>{"c"});
}

TEST_F(AnswerBudgetTest, WhoIsCutMakesRoomOnceHoweverLongItTakesToGo) {
  EXPECT_TRUE(budget_.Charge("a", 39, true).ok());
  EXPECT_TRUE(budget_.Charge("b", 39, true).ok());
  clock_.Advance(kPatience);
  EXPECT_TRUE(budget_.Charge("c", 30, true).ok());
  EXPECT_TRUE(budget_.Charge("d", 30, true).ok());
  EXPECT_TRUE(budget_.Charge("e", 30, true).ok());
  EXPECT_THAT(cut_, testing::UnorderedElementsAre("a", "b"));
  // Nobody is left who does not read, and what is on its way out is not twice the total.
  EXPECT_TRUE(budget_.Charge("f", 10, true).ok());
  EXPECT_EQ(budget_.Charge("g", 30, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget_.Charge("a", 1, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget_.unread(), 178u);
  budget_.Refund("a", 39);
  budget_.Refund("b", 39);
  EXPECT_EQ(budget_.Charge("g", 30, true).code(), absl::StatusCode::kResourceExhausted);
  budget_.Refund("c", 30);
  EXPECT_TRUE(budget_.Charge("g", 30, true).ok());
  EXPECT_EQ(cut_.size(), 2u);
}

TEST_F(AnswerBudgetTest, WithWhatIsOnItsWayOutThereIsTwiceTheTotalAtMost) {
  uint64_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    sent += budget_.Charge(std::to_string(i), 30, true).ok() ? 30 : 0;
    clock_.Advance(kPatience);
  }
  EXPECT_EQ(budget_.unread(), sent);
  EXPECT_GT(sent, 100u);
  EXPECT_LE(sent, 200u);
}

TEST_F(AnswerBudgetTest, WhatCannotBeRefusedIsSentAlsoWhenNobodyIsCut) {
  for (const char* peer : {"a", "b", "c", "d"}) EXPECT_TRUE(budget_.Charge(peer, 25, true).ok());
  EXPECT_TRUE(budget_.Charge("e", 25, /*may_refuse=*/false).ok());
  EXPECT_TRUE(cut_.empty());
  EXPECT_EQ(budget_.unread(), 125u);
}

}  // namespace
}  // namespace embcache
