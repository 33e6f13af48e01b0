#include "storage/store_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/store_test_util.h"

namespace embcache {
namespace {

IndexEntry Place(uint64_t generation, uint64_t file, uint64_t model_epoch = 0) {
  return {.generation = generation, .payload_bytes = 10, .model_epoch = model_epoch, .file = file};
}

class StoreIndexTest : public testing::Test {
 protected:
  StoreIndexTest() { index_.set_open_file(5); }

  absl::Status Put(absl::string_view name, const IndexEntry& entry) {
    std::optional<IndexEntry> replaced;
    return index_.Put(TestKey(name), entry, &replaced);
  }

  StoreIndex index_;
};

TEST_F(StoreIndexTest, ForgettingWhatIsOnDiskHasToBeWritten) {
  ASSERT_TRUE(Put("k", Place(1, 4)).ok());
  index_.Forget(TestKey("k"), 1);
  EXPECT_TRUE(index_.IsDirty(TestKey("k")));
  ASSERT_EQ(index_.CollectDirty().tombstones.size(), 1);
  index_.MarkWritten(index_.CollectDirty());
  EXPECT_FALSE(index_.has_dirty());
}

TEST_F(StoreIndexTest, CountsTheEntriesOfEachFile) {
  const auto counts = [this] {
    return std::vector<uint64_t>{index_.entries_in(3), index_.entries_in(4), index_.entries_in(5)};
  };
  index_.LoadRecords({{TestKey("a"), Place(1, 3)}, {TestKey("b"), Place(2, 3)}});
  index_.LoadRecords({{TestKey("a"), Place(3, 4)}, {TestKey("c"), Place(4, 4)}});
  EXPECT_EQ(counts(), (std::vector<uint64_t>{1, 2, 0}));
  ASSERT_TRUE(Put("c", Place(5, 5)).ok());
  ASSERT_TRUE(Put("d", Place(6, 5)).ok());
  EXPECT_EQ(counts(), (std::vector<uint64_t>{1, 1, 2}));
  index_.Move(TestKey("b"), 5, 2);
  EXPECT_EQ(counts(), (std::vector<uint64_t>{0, 1, 3}));
  index_.Forget(TestKey("a"), 3);
  index_.ErasePlace(TestKey("d"), 5, 0);
  EXPECT_EQ(counts(), (std::vector<uint64_t>{0, 0, 2}));
  index_.RaiseEpoch("model", 1);
  EXPECT_EQ(index_.EraseHidden("model", 10).size(), 2);
  EXPECT_EQ(counts(), (std::vector<uint64_t>{0, 0, 0}));
}

TEST_F(StoreIndexTest, ForgettingWhatIsInRamOnlyHasNot) {
  ASSERT_TRUE(Put("k", Place(1, 5)).ok());
  index_.Forget(TestKey("k"), 1);
  index_.Forget(TestKey("unknown"), 1);
  EXPECT_FALSE(index_.has_dirty());
}

TEST_F(StoreIndexTest, ReplacingWhatIsOnDiskHasToBeWritten) {
  ASSERT_TRUE(Put("k", Place(1, 4)).ok());
  ASSERT_TRUE(Put("k", Place(2, 5)).ok());
  ASSERT_EQ(index_.CollectDirty().tombstones.size(), 1);
  EXPECT_EQ(index_.CollectDirty().tombstones[0].generation, 1);
  EXPECT_EQ(index_.Find(TestKey("k"))->generation, 2);
}

TEST_F(StoreIndexTest, ARemovalThatRoseWhileItWasWrittenIsWrittenAgain) {
  ASSERT_TRUE(Put("k", Place(1, 4)).ok());
  index_.Forget(TestKey("k"), 1);
  const MetaState writing = index_.CollectDirty();
  ASSERT_TRUE(Put("k", Place(2, 4)).ok());
  index_.Forget(TestKey("k"), 2);
  index_.MarkWritten(writing);
  ASSERT_EQ(index_.CollectDirty().tombstones.size(), 1);
  EXPECT_EQ(index_.CollectDirty().tombstones[0].generation, 2);
}

TEST_F(StoreIndexTest, TombstonesGoWithTheLastFileTheyCover) {
  ASSERT_TRUE(Put("k", Place(1, 4)).ok());
  index_.Forget(TestKey("k"), 1);
  index_.MarkWritten(index_.CollectDirty());
  index_.PruneTombstones(5);
  EXPECT_EQ(index_.tombstones(), 1);
  index_.PruneTombstones(6);
  EXPECT_EQ(index_.tombstones(), 0);
  EXPECT_TRUE(absl::IsCancelled(Put("k", Place(1, 5)))) << "not even then may it come back";
}

TEST_F(StoreIndexTest, RemembersABoundedNumberOfRemovalsButRefusesLateWritesOfAll) {
  for (size_t i = 0; i < 2 * StoreIndex::kVolatileTombstones; ++i) {
    index_.Forget(TestKey(absl::StrCat(i)), 100);
  }
  EXPECT_LE(index_.tombstones(), StoreIndex::kVolatileTombstones);
  for (size_t i = 0; i < 2 * StoreIndex::kVolatileTombstones; i += 1000) {
    EXPECT_TRUE(absl::IsCancelled(Put(absl::StrCat(i), Place(100, 5))));
  }
  EXPECT_TRUE(Put("0", Place(101, 5)).ok());
}

TEST_F(StoreIndexTest, LoadingKeepsTheHighestGenerationNotRemovedInTheCurrentEpoch) {
  MetaState meta;
  meta.tombstones.push_back({TestKey("removed"), 4, 2});
  meta.epochs = {{"m", 2}};
  meta.max_generation = 3;
  index_.LoadMeta(meta);
  index_.LoadRecords({{TestKey("removed"), Place(4, 1)}});
  index_.LoadRecords({{TestKey("k"), Place(6, 1)}});
  index_.LoadRecords({{TestKey("k"), Place(9, 2)}});
  index_.LoadRecords({{TestKey("old", "m"), Place(7, 1, 1)}});
  index_.LoadRecords({{TestKey("new", "m"), Place(8, 1, 2)}});
  EXPECT_EQ(index_.Find(TestKey("removed")), nullptr);
  EXPECT_EQ(index_.Find(TestKey("k"))->generation, 9);
  EXPECT_EQ(index_.Find(TestKey("old", "m")), nullptr);
  EXPECT_NE(index_.Find(TestKey("new", "m")), nullptr);
  EXPECT_EQ(index_.entries(), 2);
  EXPECT_EQ(index_.payload_bytes(), 20);
  EXPECT_EQ(index_.max_generation(), 9);
  EXPECT_TRUE(index_.IsDirty(TestKey("k"))) << "the lower generation is still on disk";
}

// The epoch's own write failed in the last run, after records of it were written.
TEST_F(StoreIndexTest, ARecordOfALaterEpochRaisesTheEpoch) {
  index_.LoadRecords({{TestKey("old", "m"), Place(1, 1, 0)}});
  index_.LoadRecords({{TestKey("new", "m"), Place(2, 2, 3)}});
  EXPECT_EQ(index_.Find(TestKey("old", "m")), nullptr);
  EXPECT_TRUE(index_.IsEpochDirty("m"));
  EXPECT_THAT(index_.ModelEpochs(), testing::ElementsAre(testing::Pair("m", 3)));
  EXPECT_EQ(index_.EraseHidden("m", 100).size(), 1);
  EXPECT_EQ(index_.entries(), 1);
}

}  // namespace
}  // namespace embcache
