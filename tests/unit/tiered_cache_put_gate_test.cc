// How the way to L3 steps aside for puts, over an in-memory store.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "absl/time/clock.h"
#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

using TieredCachePutGateTest = CacheWithStoreFixture;

TEST_F(TieredCachePutGateTest, TheStoreIsAskedToWaitWhileAPutIsUnderWay) {
  StartWithStore(100, 0);
  EXPECT_TRUE(gate_.Wait());
  const auto place = Reserve(TestKey("a"), kUnit);
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(gate_.Wait());
  ASSERT_TRUE(cache_->Commit(place->id).ok());
  EXPECT_TRUE(gate_.Wait());
  const auto given_up = Reserve(TestKey("b"), kUnit);
  EXPECT_FALSE(gate_.Wait());
  ASSERT_TRUE(cache_->Abort(given_up->id).ok());
  EXPECT_TRUE(gate_.Wait());
  Settle();
}

TEST_F(TieredCachePutGateTest, TheStoreGoesFirstWhenItsQueueFillsOrSomebodyWaitsForIt) {
  const auto time_of_wait = [this] {
    const absl::Time begin = absl::Now();
    EXPECT_FALSE(gate_.Wait());
    return absl::Now() - begin;
  };
  TieredCacheOptions options;
  options.l3_queue_entries = 4;
  StartWithStore(100, 0, options);
  const auto place = Reserve(TestKey("a"), kUnit);
  const absl::Duration with_room = gate_.patience();
  EXPECT_GE(time_of_wait(), with_room);
  for (const char* name : {"1", "2", "3", "4"}) ASSERT_TRUE(Put(name, 1).ok());  // one is taken
  const absl::Duration half_full = gate_.patience();
  EXPECT_LT(half_full, with_room);
  EXPECT_GT(half_full, absl::ZeroDuration());
  ASSERT_TRUE(Put("5", 1).ok());
  EXPECT_EQ(gate_.patience(), absl::ZeroDuration());
  Settle();
  ASSERT_TRUE(Put("6", 1).ok());
  EXPECT_EQ(gate_.patience(), with_room);
  cache_->Flush([](absl::Status) {});
  EXPECT_EQ(gate_.patience(), absl::ZeroDuration());
  ASSERT_TRUE(cache_->Abort(place->id).ok());
  Settle();
}

TEST_F(TieredCachePutGateTest, PutsGoFirstBetweenThePiecesOfALargeEntryOnItsWayToTheDisk) {
  constexpr uint64_t kBytes = (uint64_t{5} << 20) / 2;  // three pieces
  StartWithStore(2000, 0);
  const auto place = Reserve(TestKey("a"), kBytes);
  ASSERT_TRUE(place.ok());
  std::string bytes(kBytes, 0);
  for (uint64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>(i / 4099);
  std::memcpy(DataAt(place->location), bytes.data(), kBytes);
  ASSERT_TRUE(cache_->Commit(place->id).ok());
  for (int piece = 0; piece < 2; ++piece) {
    ASSERT_EQ(copier_.pending(), 1u);
    copier_.RunOne();
    EXPECT_EQ(copier_.pending(), 0u);  // until the gate was asked
    ASSERT_EQ(executor_.pending(), 1u);
    executor_.RunOne();
  }
  Restart(2000, 0);
  const LookupResult a = Get("a");
  ASSERT_TRUE(a.hit());
  EXPECT_EQ(a.source, TierId::kL3);
  EXPECT_EQ(BytesOf(a.handle), bytes);
}

TEST_F(TieredCachePutGateTest, AnEntryThatIsDeletedOnItsWayToTheDiskIsCopiedNoFurther) {
  StartWithStore(2000, 0);
  ASSERT_TRUE(Put("a", 1000).ok());
  copier_.RunOne();
  cache_->Delete(TestKey("a"), [](const absl::StatusOr<bool>& existed) { EXPECT_TRUE(*existed); });
  executor_.RunAll();
  copier_.RunOne();
  EXPECT_EQ(copier_.pending() + executor_.pending(), 0u);
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
  EXPECT_EQ(Stats().l3.writes, 0u);
}

}  // namespace
}  // namespace embcache
