// Readers that ask nobody, under everything that a cache does: random puts, replacements, deletes,
// gets, evictions, demotions, promotions, epochs and growth, with copies that end late. After every
// step the cache's invariants hold, and every byte that a reader holds is what it was when it was
// got.

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/host_memory.h"
#include "gtest/gtest.h"
#include "tests/unit/cache_fixture.h"
#include "tests/unit/fast_reader.h"

namespace embcache {
namespace {

class FastPathModelTest : public CacheFixture {
 protected:
  static constexpr int kKeys = 12;

  struct Held {
    FastReader* reader;
    embcache_fast_hit hit;
    char fill;
    uint64_t generation;
  };

  void Start(uint64_t l1_units, uint64_t l2_units) {
    TieredCacheOptions options;
    options.l1.capacity_bytes = l1_units * kUnit;
    options.l2.capacity_bytes = l2_units * kUnit;
    options.fast_index_entries = 8;  // fewer than there may be
    auto cache = TieredCache::Create(options, {.clock = &clock_,
                                               .executor = &executor_,
                                               .copier = &copier_,
                                               .l1_memory = &memory_,
                                               .l2_memory = &memory_,
                                               .fast_memory = &shared_});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    for (int i = 0; i < 2; ++i) readers_.push_back(std::make_unique<FastReader>(cache_.get()));
  }

  int Random(int below) { return static_cast<int>(random_() % below); }
  CacheKey RandomKey() {
    return TestKey(absl::StrCat("k", Random(kKeys)), Random(5) == 0 ? "b" : "a");
  }

  void PutSomething() {
    const CacheKey key = RandomKey();
    const uint64_t bytes = (1 + Random(3)) * kUnit - 128;
    const char fill = static_cast<char>('a' + Random(26));
    auto place = StartReserve(key, bytes);
    for (int i = 0; i < 3 && !place->has_value() && copier_.pending() > 0; ++i) copier_.RunOne();
    if (!place->has_value()) Settle();
    ASSERT_TRUE(place->has_value());
    if (!(*place)->ok()) return;
    std::memset(DataAt((**place)->location), fill, bytes);
    const auto handle = cache_->Commit((**place)->id);
    if (handle.ok()) fills_[handle->generation()] = fill;
  }

  void HitSomething() {
    FastReader* reader = readers_[Random(2)].get();
    const auto hit = reader->Get(RandomKey());
    if (!hit.has_value()) return;
    ++hits_;
    const auto fill = fills_.find(hit->entry->generation);
    ASSERT_NE(fill, fills_.end());
    held_.push_back({reader, *hit, fill->second, hit->entry->generation});
  }

  void ReleaseSomething() {
    if (held_.empty()) return;
    const size_t i = Random(static_cast<int>(held_.size()));
    held_[i].reader->Release(held_[i].hit);
    held_.erase(held_.begin() + static_cast<int64_t>(i));
  }

  void CheckHeld() {
    for (const Held& held : held_) {
      const embcache_fast_blob& entry = *held.hit.entry;
      ASSERT_EQ(entry.generation, held.generation);
      const char* bytes = cache_->Segments()[entry.segment].memory->host_data() + entry.offset;
      ASSERT_EQ(bytes[0], held.fill);
      ASSERT_EQ(std::memcmp(bytes, bytes + 1, entry.bytes - 1), 0);
    }
  }

  void Step() {
    const int what = Random(100);
    if (what < 25) return PutSomething();
    if (what < 55) return HitSomething();
    if (what < 75) return ReleaseSomething();
    if (what < 82) return StartGet(RandomKey()).reset();
    if (what < 86) return cache_->Delete(RandomKey(), [](absl::StatusOr<bool>) {});
    if (what < 87) return cache_->AdvanceEpoch("b", [](absl::StatusOr<uint64_t>) {});
    if (what < 92) return cache_->Tick();
    if (copier_.pending() > 0) copier_.RunOne();
  }

  void Run(uint32_t seed, int steps) {
    random_.seed(seed);
    for (int i = 0; i < steps; ++i) {
      Step();
      cache_->CheckInvariants();
      CheckHeld();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << ", step " << i;
    }
    while (!held_.empty()) ReleaseSomething();
    Settle();
    cache_->Tick();
    Settle();
    const CacheStats stats = Stats();
    EXPECT_EQ(stats.memory[0].pinned_bytes, 0u);
    EXPECT_EQ(stats.memory[1].pinned_bytes, 0u);
    EXPECT_EQ(stats.doomed_entries, 0u);
    EXPECT_EQ(stats.fast_hits, hits_);
    EXPECT_EQ(stats.gets, stats.hits + stats.misses);
    EXPECT_GT(hits_, static_cast<uint64_t>(steps) / 40);
    readers_.clear();
  }

  HostMemory shared_;
  std::vector<std::unique_ptr<FastReader>> readers_;
  std::vector<Held> held_;
  std::map<uint64_t, char> fills_;  // by generation
  uint64_t hits_ = 0;
  std::minstd_rand random_;
};

TEST_F(FastPathModelTest, OneTier) {
  Start(10, 0);
  Run(1, 20'000);
}

TEST_F(FastPathModelTest, TwoTiers) {
  Start(6, 8);
  Run(2, 20'000);
}

TEST_F(FastPathModelTest, TwoTiersOfWhichTheSecondIsSmall) {
  Start(8, 3);
  Run(3, 20'000);
}

}  // namespace
}  // namespace embcache
