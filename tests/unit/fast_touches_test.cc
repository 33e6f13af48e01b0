// Sessions that fill their rings of touches over and over: looking at touches happens under the
// cache's lock, so how much of it there is must not depend on what clients write.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "storage/cache_entry.h"
#include "storage/fast_path.h"
#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

constexpr uint64_t kTouchesPerTable = EMBCACHE_FAST_LANES * EMBCACHE_FAST_LANE_TOUCHES;
constexpr uint64_t kTables = 40;
static_assert(kTables * kTouchesPerTable > 4 * FastPath::kMaxTouches);

class FastTouchesTest : public testing::Test {
 protected:
  FastTouchesTest() {
    path_ = *FastPath::Create(&memory_, 64);
    info_ = std::make_shared<EntryInfo>(EntryInfo{.key = TestKey("a"), .layout = TestLayout(16)});
    publication_ = path_->Publish({.info = info_.get()}, &entry_);
    for (uint64_t i = 0; i < kTables; ++i) {
      tables_.push_back(*FastTable::Create(&memory_, 0));
      path_->AddTable(tables_.back());
    }
  }

  static embcache_fast_table* Written(const FastTable& table) {
    return reinterpret_cast<embcache_fast_table*>(table.memory().host_data());
  }
  // One session makes as many hits as its rings can tell of.
  void Fill(const FastTable& table) {
    embcache_fast_table* const written = Written(table);
    written->lanes_used = EMBCACHE_FAST_LANES;
    for (embcache_fast_lane& lane : written->lanes) {
      for (uint64_t& touch : lane.touches) touch = publication_;
      lane.touch_count += EMBCACHE_FAST_LANE_TOUCHES;
    }
  }
  void FillAll() {
    for (const auto& table : tables_) Fill(*table);
  }

  struct Drained {
    uint64_t looked_at = 0;
    uint64_t counted = 0;
  };
  Drained Drain(FastPath::Drain how) {
    Drained drained;
    path_->DrainTouches(how, [&](CacheEntry* entry, uint64_t hits) {
      if (entry != nullptr) ++drained.looked_at;
      drained.counted += hits;
    });
    return drained;
  }

  HeapMemory memory_;
  std::unique_ptr<FastPath> path_;
  std::shared_ptr<EntryInfo> info_;
  CacheEntry entry_;
  uint64_t publication_ = 0;
  std::vector<std::shared_ptr<FastTable>> tables_;
};

TEST_F(FastTouchesTest, ATickLooksAtABoundedNumberOfTouchesAndCountsThemAll) {
  FillAll();
  const Drained drained = Drain(FastPath::Drain::kTick);
  EXPECT_EQ(drained.looked_at, FastPath::kMaxTouches);
  EXPECT_EQ(drained.counted, kTables * kTouchesPerTable);
}

TEST_F(FastTouchesTest, BetweenTwoTicksNoMoreAreLookedAtHoweverOftenSomebodyMakesRoom) {
  Drain(FastPath::Drain::kTick);
  uint64_t looked_at = 0;
  for (int eviction = 0; eviction < 20; ++eviction) {
    FillAll();
    looked_at += Drain(FastPath::Drain::kSome).looked_at;
  }
  EXPECT_EQ(looked_at, FastPath::kMaxTouches);
  // The next tick brings new ones.
  FillAll();
  EXPECT_EQ(Drain(FastPath::Drain::kTick).looked_at, FastPath::kMaxTouches);
  FillAll();
  EXPECT_EQ(Drain(FastPath::Drain::kSome).looked_at, FastPath::kMaxTouches);
}

TEST_F(FastTouchesTest, ACountOfAllTouchesLooksAtNoMoreOfThem) {
  Drain(FastPath::Drain::kTick);
  uint64_t looked_at = 0;
  for (int stats = 0; stats < 20; ++stats) {
    FillAll();
    const Drained drained = Drain(FastPath::Drain::kAll);
    EXPECT_EQ(drained.counted, kTables * kTouchesPerTable);
    looked_at += drained.looked_at;
  }
  EXPECT_EQ(looked_at, FastPath::kMaxTouches);
}

TEST_F(FastTouchesTest, WhatWaitsForTheTickIsNotLost) {
  uint64_t counted = 0;
  FillAll();
  counted += Drain(FastPath::Drain::kSome).counted;
  // The last table's turn has not come; its touches go on.
  Written(*tables_.back())->lanes[0].touch_count += 5;
  counted += Drain(FastPath::Drain::kSome).counted;
  EXPECT_LT(counted, kTables * kTouchesPerTable + 5);
  counted += Drain(FastPath::Drain::kTick).counted;
  EXPECT_EQ(counted, kTables * kTouchesPerTable + 5);
}

}  // namespace
}  // namespace embcache
