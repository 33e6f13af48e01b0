#include "storage/model_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

constexpr absl::Duration kRest = absl::Seconds(60);

class ModelTableTest : public testing::Test {
 protected:
  // Takes all places that are left, for models in use that are called so and a number.
  void Fill(ModelTable& table, const std::string& name) {
    for (int i = 0;; ++i) {
      CacheModel* const model = table.Get(absl::StrCat(name, i));
      if (model == nullptr) return;
      uses_.emplace_back(model);
    }
  }

  ModelTable table_{/*keeps_epochs=*/true};
  std::vector<ModelUse> uses_;
};

TEST_F(ModelTableTest, WhenAllPlacesAreInUseANewModelHasNone) {
  Fill(table_, "m");
  EXPECT_EQ(table_.models().size(), ModelTable::kMaxModels);
  EXPECT_EQ(table_.Get("new"), nullptr);
  EXPECT_EQ(table_.Get("m0"), uses_[0].get());
}

TEST_F(ModelTableTest, TheUnusedModelThatWasUsedLeastRecentlyGivesItsPlaceUp) {
  Fill(table_, "m");
  std::vector<ModelUse> ended;
  for (int i = 0; i < 200; ++i) {
    table_.Tick(absl::Seconds(200 - i), kRest);
    table_.MarkUsed(uses_.back().get());
    ended.push_back(std::move(uses_.back()));
    uses_.pop_back();
  }
  const std::string oldest = ended.back()->stats.model;
  const std::string newest = ended.front()->stats.model;
  ended.clear();
  EXPECT_NE(table_.Get("new"), nullptr);
  EXPECT_EQ(table_.Find(oldest), nullptr);
  EXPECT_NE(table_.Find(newest), nullptr);
}

TEST_F(ModelTableTest, NoTwoModelsHaveTheSameIdInTheSharedIndex) {
  for (int i = 0; i < 3 * static_cast<int>(ModelTable::kMaxModels); ++i) {
    ASSERT_NE(table_.Get(absl::StrCat("m", i)), nullptr) << i;
  }
  std::set<uint32_t> ids;
  for (const auto& [name, model] : table_.models()) ids.insert(model->fast_id);
  EXPECT_EQ(ids.size(), table_.models().size());
  EXPECT_LT(*ids.rbegin(), ModelTable::kMaxModels);
}

TEST_F(ModelTableTest, TheCountersOfAModelWithoutAPlaceAreAmongTheOthers) {
  table_.Get("gone")->stats.gets = 7;
  table_.Get("gone")->stats.misses = 7;
  Fill(table_, "m");
  EXPECT_EQ(table_.Find("gone"), nullptr);
  EXPECT_EQ(table_.other()->stats.gets, 7u);
  EXPECT_EQ(table_.other()->stats.misses, 7u);
}

TEST_F(ModelTableTest, AnEpochOutlivesTheModelsPlace) {
  table_.Get("a");
  EXPECT_EQ(table_.AdvanceEpoch("a"), 1u);
  Fill(table_, "m");
  ASSERT_EQ(table_.Find("a"), nullptr);
  EXPECT_EQ(table_.EpochOf("a"), 1u);
  EXPECT_EQ(table_.AdvanceEpoch("a"), 2u);
  uses_.pop_back();
  EXPECT_EQ(table_.Tick(absl::Seconds(1), kRest).size(), 0u);
  EXPECT_EQ(table_.Get("a")->stats.model_epoch, 2u);
  EXPECT_EQ(table_.AdvanceEpoch("a"), 3u);
  EXPECT_EQ(table_.EpochOf("never seen"), 0u);
}

TEST_F(ModelTableTest, WithoutL3EpochsNeverFall) {
  ModelTable table(/*keeps_epochs=*/false);
  table.Get("a");
  EXPECT_EQ(table.AdvanceEpoch("a"), 1u);
  EXPECT_EQ(table.AdvanceEpoch("a"), 2u);
  Fill(table, "m");
  ASSERT_EQ(table.Find("a"), nullptr);
  EXPECT_GT(*table.AdvanceEpoch("a"), 2u);
  uses_.clear();  // before the table
}

TEST_F(ModelTableTest, EpochsAreBoundedAndThoseThatExistGoOnRising) {
  for (size_t i = 0; i < ModelTable::kMaxEpochs; ++i) {
    ASSERT_TRUE(table_.AdvanceEpoch(absl::StrCat("m", i)).has_value()) << i;
  }
  EXPECT_FALSE(table_.AdvanceEpoch("new").has_value());
  EXPECT_EQ(table_.AdvanceEpoch("m0"), 2u);
  table_.Get("m1");
  EXPECT_EQ(table_.AdvanceEpoch("m1"), 2u);
  table_.Get("new");
  EXPECT_FALSE(table_.AdvanceEpoch("new").has_value());
}

TEST_F(ModelTableTest, TickNamesThoseThatNobodyUsedForLongestWhenPlacesAreShort) {
  Fill(table_, "m");
  EXPECT_TRUE(table_.Tick(kRest - absl::Seconds(1), kRest).empty());
  // All but three are used again.
  for (size_t i = 3; i < uses_.size(); ++i) table_.MarkUsed(uses_[i].get());
  EXPECT_THAT(table_.Tick(kRest, kRest), testing::UnorderedElementsAre("m0", "m1", "m2"));
  EXPECT_EQ(table_.Tick(2 * kRest, kRest).size(), ModelTable::kSpare);
  uses_.clear();
  EXPECT_TRUE(table_.Tick(2 * kRest, kRest).empty());
  EXPECT_EQ(table_.models().size(), ModelTable::kMaxModels - ModelTable::kSpare);
}

}  // namespace
}  // namespace embcache
