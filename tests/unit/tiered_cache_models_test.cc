// What the cache promises when there are more models than it has places for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/memory_store.h"
#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

constexpr int kModels = static_cast<int>(ModelTable::kMaxModels) - 1;  // one is for the others

class TieredCacheModelsTest : public CacheFixture {
 protected:
  absl::Status PutIn(const std::string& model, char fill = 'x') {
    return PutAndPin(TestKey("a", model), 16, fill).status();
  }
  void PutRubbish(int models = kModels) {
    for (int i = 0; i < models; ++i) ASSERT_TRUE(PutIn(absl::StrCat("rubbish", i)).ok()) << i;
  }
  bool Has(const std::string& model) { return Get(TestKey("a", model)).hit(); }
  // Time enough for models that nobody uses to lose their places.
  void Rest() {
    clock_.Advance(absl::Minutes(1));
    cache_->Tick();
    Settle();
    cache_->Tick();
  }

  MemoryStore store_{uint64_t{64} << 20};
};

TEST_F(TieredCacheModelsTest, RubbishNamesKeepNewModelsOutForAMinute) {
  StartCache(5000, 0);
  PutRubbish();
  const absl::Status refused = PutIn("new");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("4096"));
  EXPECT_TRUE(PutIn("rubbish7").ok());
  Rest();
  EXPECT_TRUE(PutIn("new").ok());
  EXPECT_TRUE(Has("new"));
}

TEST_F(TieredCacheModelsTest, ModelsInUseKeepTheirPlacesAndEntries) {
  StartCache(5000, 0);
  ASSERT_TRUE(PutIn("hit").ok());
  absl::StatusOr<ReadHandle> pinned = PutAndPin(TestKey("a", "pinned"), 16, 'p');
  const absl::StatusOr<ReservedPlace> reserved = Reserve(TestKey("a", "reserved"), 16);
  PutRubbish(kModels - 3);
  for (int i = 0; i < 100; ++i) {
    clock_.Advance(absl::Seconds(20));
    cache_->Tick();
    EXPECT_TRUE(Has("hit"));
    for (int k = 0; k < 10; ++k) PutIn(absl::StrCat("new", i, "-", k)).IgnoreError();
  }
  EXPECT_TRUE(Has("hit"));
  EXPECT_EQ(BytesOf(*pinned), Payload(16, 'p'));
  EXPECT_EQ(cache_->Abort(reserved->id), absl::OkStatus());
  EXPECT_TRUE(Has("pinned"));
  cache_->CheckInvariants();
}

TEST_F(TieredCacheModelsTest, AClearMakesRoomAtOnceAndForGood) {
  StartCache(5000, 0, &store_);
  PutRubbish();
  Settle();
  for (const std::string& model : cache_->Models()) ASSERT_TRUE(AdvanceEpoch(model).ok());
  while (Stats().memory[0].entries > 0) cache_->Tick();
  EXPECT_TRUE(PutIn("new", 'n').ok());
  Settle();
  StartCache(5000, 0, &store_);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(PutIn(absl::StrCat("newer", i)).ok());
  EXPECT_TRUE(Has("new"));
}

TEST_F(TieredCacheModelsTest, WhatLosesItsPlaceInMemoryIsServedFromL3) {
  StartCache(5000, 0, &store_);
  ASSERT_TRUE(PutIn("resting", 'r').ok());
  PutRubbish(kModels - 1);
  Settle();
  Rest();
  EXPECT_EQ(cache_->Contains(TestKey("a", "resting")), TierId::kL3);
  const LookupResult found = Get(TestKey("a", "resting"));
  ASSERT_TRUE(found.hit());
  EXPECT_EQ(BytesOf(found.handle), Payload(16, 'r'));
}

TEST_F(TieredCacheModelsTest, AnAdvancedEpochHoldsWhenItsModelHasLostItsPlace) {
  StartCache(5000, 0, &store_);
  ASSERT_TRUE(PutIn("m", 'o').ok());
  Settle();
  ASSERT_EQ(*AdvanceEpoch("m"), 1u);
  cache_->Tick();
  PutRubbish();
  Settle();
  EXPECT_FALSE(cache_->Contains(TestKey("a", "m")).has_value());
  EXPECT_EQ(cache_->List({.model = "m"}).entries.size(), 0u);
  EXPECT_FALSE(Has("m"));
  Rest();
  // What is put when it has a place again is of the new epoch, before and after a restart.
  for (const char value : {'n', 'r'}) {
    ASSERT_TRUE(PutIn("m", value).ok());
    Settle();
    StartCache(5000, 0, &store_);
    const LookupResult found = Get(TestKey("a", "m"));
    ASSERT_TRUE(found.hit());
    EXPECT_EQ(BytesOf(found.handle), Payload(16, value));
  }
}

// More lookups of unknown models than get places: those are counted together, and must not be
// loaded so.
TEST_F(TieredCacheModelsTest, AnEpochHoldsForWhatWasLoadedWhenTheTableWasCrowded) {
  StartCache(5000, 0, &store_);
  ASSERT_TRUE(PutIn("m").ok());
  Settle();
  StartCache(5000, 0, &store_);
  for (int i = 0; i < 3000; ++i) Has(absl::StrCat("unknown", i));
  EXPECT_TRUE(Has("m"));
  ASSERT_TRUE(AdvanceEpoch("m").ok());
  EXPECT_FALSE(Has("m"));
}

TEST_F(TieredCacheModelsTest, AModelWithAWriteOnItsWayToL3IsAmongThem) {
  TieredCacheOptions options;
  options.l3_write = L3WriteMode::kEvict;
  StartCache(5000, 0, &store_, options);
  ASSERT_TRUE(PutIn("m").ok());
  clock_.Advance(absl::Seconds(1));
  cache_->Tick();
  PutRubbish(kModels - 1);
  clock_.Advance(absl::Minutes(1));
  cache_->Tick();
  copier_.RunAll();  // it has left memory, and is not on disk yet
  cache_->Tick();
  EXPECT_FALSE(cache_->Contains(TestKey("a", "m")).has_value());
  EXPECT_THAT(cache_->Models(), testing::Contains("m"));
}

TEST_F(TieredCacheModelsTest, ModelsThatAreInL3OnlyAreAmongThem) {
  StartCache(5000, 0, &store_);
  for (const char* model : {"a", "aa", "b"}) {
    ASSERT_TRUE(PutIn(model).ok());
    ASSERT_TRUE(PutAndPin(TestKey("z", model), 16, 'z').ok());
  }
  Settle();
  StartCache(5000, 0, &store_);
  EXPECT_THAT(cache_->Models(), testing::ElementsAre("a", "aa", "b"));
}

}  // namespace
}  // namespace embcache
