#include "storage/lru_policy.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LruPolicyTest : public testing::Test {
 protected:
  // Indices of hooks_ in the order in which they should leave.
  std::vector<int> Order(size_t limit = 100) const {
    std::vector<int> order;
    policy_->VisitCandidates([&](PolicyHook* hook) {
      order.push_back(static_cast<int>(hook - hooks_.data()));
      return order.size() < limit;
    });
    return order;
  }
  void InsertFirst(int count) {
    for (int i = 0; i < count; ++i) policy_->Insert(&hooks_[i]);
  }

  mutable std::array<PolicyHook, 50> hooks_;
  std::unique_ptr<EvictionPolicy> policy_ = NewLruPolicy();
};

TEST_F(LruPolicyTest, AnEmptyPolicyHasNoCandidates) { EXPECT_THAT(Order(), IsEmpty()); }

TEST_F(LruPolicyTest, UntouchedEntriesLeaveInTheOrderOfInsertion) {
  InsertFirst(3);
  EXPECT_THAT(Order(), ElementsAre(0, 1, 2));
}

TEST_F(LruPolicyTest, ATouchedEntryLeavesLast) {
  InsertFirst(3);
  policy_->Touch(&hooks_[0]);
  EXPECT_THAT(Order(), ElementsAre(1, 2, 0));
  policy_->Touch(&hooks_[0]);
  EXPECT_THAT(Order(), ElementsAre(1, 2, 0));
}

TEST_F(LruPolicyTest, ARemovedEntryIsNoCandidate) {
  InsertFirst(3);
  policy_->Remove(&hooks_[1]);
  EXPECT_THAT(Order(), ElementsAre(0, 2));
}

TEST_F(LruPolicyTest, TheVisitEndsWhenTheVisitorHasEnough) {
  InsertFirst(5);
  EXPECT_THAT(Order(2), ElementsAre(0, 1));
}

TEST_F(LruPolicyTest, AHookIsLinkedFromInsertToRemove) {
  EXPECT_FALSE(hooks_[0].linked());
  policy_->Insert(&hooks_[0]);
  EXPECT_TRUE(hooks_[0].linked());
  policy_->Touch(&hooks_[0]);
  EXPECT_TRUE(hooks_[0].linked());
  policy_->Remove(&hooks_[0]);
  EXPECT_FALSE(hooks_[0].linked());
}

TEST_F(LruPolicyTest, ARemovedEntryMayJoinAnotherPolicy) {
  InsertFirst(1);
  policy_->Remove(&hooks_[0]);
  const std::unique_ptr<EvictionPolicy> other = NewLruPolicy();
  other->Insert(&hooks_[0]);
  EXPECT_TRUE(hooks_[0].linked());
  EXPECT_THAT(Order(), IsEmpty());
}

TEST_F(LruPolicyTest, DestructionUnlinksWhatIsLeft) {
  InsertFirst(2);
  policy_.reset();
  EXPECT_FALSE(hooks_[0].linked());
  EXPECT_FALSE(hooks_[1].linked());
}

using LruPolicyDeathTest = LruPolicyTest;

TEST_F(LruPolicyDeathTest, MisuseAborts) {
  policy_->Insert(&hooks_[0]);
  EXPECT_DEATH(policy_->Insert(&hooks_[0]), "invariant broken");
  EXPECT_DEATH(policy_->Touch(&hooks_[1]), "invariant broken");
  EXPECT_DEATH(policy_->Remove(&hooks_[1]), "invariant broken");
}

TEST_F(LruPolicyTest, AgreesWithAListOverRandomOperations) {
  std::mt19937 random(7);
  std::vector<int> model;
  for (int i = 0; i < 20'000; ++i) {
    const int at = static_cast<int>(random() % hooks_.size());
    const auto it = std::find(model.begin(), model.end(), at);
    if (it == model.end()) {
      policy_->Insert(&hooks_[at]);
      model.push_back(at);
    } else if (random() % 3 == 0) {
      policy_->Remove(&hooks_[at]);
      model.erase(it);
    } else {
      policy_->Touch(&hooks_[at]);
      std::rotate(it, it + 1, model.end());
    }
    if (i % 10 == 0) {
      ASSERT_EQ(Order(), model) << "operation " << i;
    }
  }
}

}  // namespace
}  // namespace embcache
