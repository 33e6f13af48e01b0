// TieredCache under real threads, real copies and real disk threads: for the thread sanitizer, and
// for whatever only happens when things happen at once. Each value is one 64-bit number, repeated,
// so that a torn or foreign payload shows.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu/host_copy_engine.h"
#include "storage/clock.h"
#include "storage/executor.h"
#include "storage/memory_store.h"
#include "storage/tiered_cache.h"
#include "tests/unit/heap_memory.h"

namespace embcache {
namespace {

constexpr int kThreads = 4;
constexpr int kKeys = 24;

class CacheThreadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TieredCacheOptions options;
    options.l1.capacity_bytes = 256 << 10;
    options.l1.segment_bytes = 64 << 10;
    options.l2.capacity_bytes = 512 << 10;
    options.l2.segment_bytes = 128 << 10;
    auto cache = TieredCache::Create(options, {.clock = SystemClock(),
                                               .executor = &executor_,
                                               .copier = &copier_,
                                               .l1_memory = &memory_,
                                               .l2_memory = &memory_,
                                               .store = &store_});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  uint64_t* DataAt(const Location& location) {
    for (const TieredCache::SegmentInfo& segment : cache_->Segments()) {
      if (segment.id != location.segment) continue;
      return reinterpret_cast<uint64_t*>(segment.memory->host_data() + location.offset);
    }
    ADD_FAILURE() << "segment " << location.segment << " is gone";
    std::abort();
  }

  static CacheKey Key(uint64_t number) {
    return *CacheKey::Create("m" + std::to_string(number % 2),
                             "key-" + std::to_string(1000 + number), "");
  }

  // The values of a key have its number in the low byte.
  void Put(uint64_t key, uint64_t value, uint64_t words) {
    absl::Notification reserved;
    absl::StatusOr<ReservedPlace> place;
    cache_->Reserve(
        {.key = Key(key),
         .layout = *LayOutTensors(
             {{.name = "t", .dtype = DType::kU64, .shape = {static_cast<int64_t>(words)}}})},
        [&](absl::StatusOr<ReservedPlace> answer) {
          place = std::move(answer);
          reserved.Notify();
        });
    reserved.WaitForNotification();
    if (!place.ok()) return;  // all pinned
    for (uint64_t i = 0; i < words; ++i) DataAt(place->location)[i] = value << 8 | key;
    const absl::StatusOr<ReadHandle> committed = cache_->Commit(place->id);
    EXPECT_TRUE(committed.ok() || absl::IsFailedPrecondition(committed.status()));
  }

  void Get(uint64_t key) {
    absl::Notification answered;
    absl::StatusOr<LookupResult> result;
    cache_->Lookup(Key(key), {}, [&](absl::StatusOr<LookupResult> answer) {
      result = std::move(answer);
      answered.Notify();
    });
    answered.WaitForNotification();
    if (!result.ok() || !result->hit()) return;
    const uint64_t* data = DataAt(result->handle.location());
    const uint64_t first = data[0];
    EXPECT_EQ(first & 0xff, key);
    for (uint64_t i = 0; i < result->handle.location().bytes / 8; ++i) ASSERT_EQ(data[i], first);
    ++hits_;
  }

  ThreadPoolExecutor executor_{"disk", 3, 1024};
  HostCopyEngine copier_;
  HeapMemory memory_;
  MemoryStore store_{4 << 20};
  std::unique_ptr<TieredCache> cache_;
  std::atomic<uint64_t> hits_ = 0;
  uint64_t gone_ = 0;  // segments
};

TEST_F(CacheThreadsTest, NoThreadEverSeesATornOrForeignValue) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (uint64_t i = 1; i <= 3000; ++i) {
        const uint64_t key = random() % kKeys;
        const uint64_t op = random() % 100;
        if (op < 60) {
          Get(key);
        } else if (op < 95) {
          Put(key, i << 8 | static_cast<uint64_t>(t), 1 + random() % 6000);
        } else if (op < 98) {
          cache_->Delete(Key(key), [](const absl::StatusOr<bool>&) {});
        } else if (op == 98) {
          cache_->Tick();
        } else if (i % 50 == 0) {
          cache_->AdvanceEpoch("m1", [](const absl::StatusOr<uint64_t>&) {});
        }
        if (i % 500 == 0) cache_->CheckInvariants();
      }
    });
  }
  // All the while both tiers shrink, to nothing at times, and grow again.
  std::atomic<bool> over = false;
  std::thread resizer([this, &over] {
    std::mt19937_64 random(77);
    for (uint64_t i = 0; !over; ++i) {
      const TierId tier = random() % 2 == 0 ? TierId::kL1 : TierId::kL2;
      cache_->StartShrink(tier, random() % (192 << 10));
      cache_->AwaitShrunk(tier, absl::Now() + absl::Milliseconds(5));
      gone_ += cache_->EndShrink(tier).gone.size();
      const uint64_t back = tier == TierId::kL1 ? 256 << 10 : 512 << 10;
      EXPECT_TRUE(cache_->AddSegments(tier, back).ok());
      cache_->OpenSegments(tier);
      cache_->Tick();
    }
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  resizer.join();
  EXPECT_GT(gone_, 0u);
  EXPECT_GT(cache_->work().relocation.duration.Take().count, 0u);
  cache_->CheckInvariants();
  EXPECT_GT(hits_, 100u);
  const CacheStats stats = cache_->GetStats(false);
  EXPECT_EQ(stats.gets, stats.hits + stats.misses);
  EXPECT_EQ(stats.memory[0].pinned_bytes + stats.memory[1].pinned_bytes, 0u);
}

}  // namespace
}  // namespace embcache
