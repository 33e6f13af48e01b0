#include "storage/meta_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

MetaState OneRemoval(absl::string_view name, uint64_t generation) {
  MetaState state;
  state.tombstones.push_back({TestKey(name), generation, 7});
  state.max_generation = generation;
  return state;
}

class MetaLogTest : public testing::Test {
 protected:
  // What a fresh reader finds.
  absl::StatusOr<MetaState> Load() { return MetaLog(path_).Load(); }

  TestDirectory directory_;
  const std::string path_ = directory_.path() + "/meta.log";
};

TEST_F(MetaLogTest, ReturnsWhatWasWrittenInItsOrder) {
  MetaLog log(path_);
  EXPECT_TRUE(absl::IsNotFound(log.Load().status()));
  EXPECT_TRUE(log.needs_rewrite());
  MetaState whole = OneRemoval("a", 5);
  whole.epochs = {{"m", 3}};
  ASSERT_TRUE(log.Rewrite(whole).ok());
  ASSERT_FALSE(log.needs_rewrite());
  ASSERT_TRUE(log.Append(OneRemoval("b", 9)).ok());
  const absl::StatusOr<MetaState> loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->tombstones.size(), 2);
  EXPECT_EQ(loaded->tombstones[0].key, TestKey("a"));
  EXPECT_EQ(loaded->tombstones[1].generation, 9);
  EXPECT_EQ(loaded->tombstones[1].last_file, 7);
  EXPECT_EQ(loaded->epochs, whole.epochs);
  EXPECT_EQ(loaded->max_generation, 9);
}

TEST_F(MetaLogTest, AFlippedBitAnywhereIsDamage) {
  {
    MetaLog log(path_);
    ASSERT_TRUE(log.Rewrite(OneRemoval("a", 5)).ok());
    ASSERT_TRUE(log.Append(OneRemoval("b", 6)).ok());
  }
  const std::string whole = ReadFile(path_);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] ^= 1 << bit % 8;
    WriteFile(path_, damaged);
    EXPECT_TRUE(absl::IsDataLoss(Load().status())) << "bit " << bit;
  }
}

TEST_F(MetaLogTest, ALogCutAnywhereKeepsTheWholeRecordsBeforeTheCut) {
  size_t first = 0;
  {
    MetaLog log(path_);
    ASSERT_TRUE(log.Rewrite(OneRemoval("a", 5)).ok());
    first = log.bytes();
    ASSERT_TRUE(log.Append(OneRemoval("b", 6)).ok());
  }
  const std::string whole = ReadFile(path_);
  for (size_t bytes = first; bytes < whole.size(); ++bytes) {
    WriteFile(path_, whole.substr(0, bytes));
    MetaLog log(path_);
    const absl::StatusOr<MetaState> loaded = log.Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->tombstones.size(), 1) << bytes;
    EXPECT_EQ(log.needs_rewrite(), bytes != first) << bytes;
  }
}

TEST_F(MetaLogTest, RecordsThatStrayedAreDamage) {
  size_t first = 0;
  {
    MetaLog log(path_);
    ASSERT_TRUE(log.Rewrite(OneRemoval("a", 5)).ok());
    first = log.bytes();
    ASSERT_TRUE(log.Append(OneRemoval("b", 6)).ok());
  }
  const std::string whole = ReadFile(path_);
  WriteFile(path_, whole + whole.substr(first));
  EXPECT_TRUE(absl::IsDataLoss(Load().status()));
}

TEST_F(MetaLogTest, WantsToBeRewrittenWhenItHasDoubled) {
  MetaLog log(path_);
  ASSERT_TRUE(log.Rewrite(OneRemoval("a", 5)).ok());
  int appended = 0;
  while (!log.needs_rewrite()) {
    MetaState state;
    for (int i = 0; i < 500; ++i) state.tombstones.push_back({TestKey(absl::StrCat(i)), 1, 1});
    ASSERT_TRUE(log.Append(state).ok());
    ASSERT_LT(++appended, 100);
  }
  ASSERT_TRUE(log.Rewrite(OneRemoval("a", 6)).ok());
  EXPECT_FALSE(log.needs_rewrite());
  EXPECT_LT(std::filesystem::file_size(path_), 200);
}

}  // namespace
}  // namespace embcache
