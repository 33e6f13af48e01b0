// Tiers that shrink and grow while they serve.

#include <string>
#include <utility>
#include <vector>

#include "client/fast/embcache_fast.h"
#include "gmock/gmock.h"
#include "gpu/host_memory.h"
#include "gtest/gtest.h"
#include "tests/unit/cache_fixture.h"
#include "tests/unit/fast_reader.h"

namespace embcache {
namespace {

constexpr TierId kL1 = TierId::kL1;
constexpr TierId kL2 = TierId::kL2;

class ResizeTest : public CacheFixture {
 protected:
  // Segments of 4 units.
  void Start(uint64_t l1_units, uint64_t l2_units = 0) {
    TieredCacheOptions options;
    options.l1.segment_bytes = options.l2.segment_bytes = 4 * kUnit;
    StartCache(l1_units, l2_units, nullptr, options);
  }

  bool IsShrunk(TierId tier = kL1) { return cache_->AwaitShrunk(tier, absl::InfinitePast()); }

  // To so many units, at once: nothing is pinned.
  void Shrink(uint64_t units, TierId tier = kL1) {
    cache_->StartShrink(tier, units * kUnit);
    Settle();
    cache_->CheckInvariants();
    EXPECT_TRUE(IsShrunk(tier));
    EXPECT_EQ(cache_->EndShrink(tier).pinned_entries, 0u);
  }

  void ExpectHolds(absl::string_view name, uint64_t units, char fill) {
    const LookupResult found = Get(name);
    ASSERT_TRUE(found.hit()) << name;
    EXPECT_EQ(BytesOf(found.handle), Payload(units * kUnit, fill));
  }
};

TEST_F(ResizeTest, WhatIsInASegmentThatGoesIsMovedToThoseThatStay) {
  Start(8);
  ASSERT_TRUE(Put("a", 2, 'a').ok());
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  ASSERT_TRUE(Put("c", 2, 'c').ok());  // in the second segment
  ASSERT_TRUE(*Delete(TestKey("a")));
  Shrink(4);
  EXPECT_EQ(memory_.used_bytes(), 4 * kUnit) << "the memory is freed";
  EXPECT_EQ(Stats().memory[0].capacity_bytes, 4 * kUnit);
  EXPECT_EQ(cache_->Segments().size(), 1u);
  EXPECT_EQ(TierOfKey("b") + TierOfKey("c"), "l1l1");
  ExpectHolds("b", 2, 'b');
  ExpectHolds("c", 2, 'c');
  EXPECT_EQ(Stats().memory[0].evictions_capacity, 0u);
}

TEST_F(ResizeTest, WhatDoesNotFitAnyMoreIsDemotedTheLeastRecentlyUsedFirst) {
  Start(8, 8);
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(name, 2, name[0]).ok());
  Get("a").handle.Reset();
  Shrink(4);
  EXPECT_EQ(TierOfKey("a") + TierOfKey("b") + TierOfKey("c") + TierOfKey("d"), "l1l2l2l1");
  ExpectHolds("d", 2, 'd');
  ExpectHolds("a", 2, 'a');
  ExpectHolds("b", 2, 'b');
}

TEST_F(ResizeTest, TheLastTierDropsTheLeastRecentlyUsed) {
  Start(0, 8);
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(name, 2, name[0]).ok());
  Shrink(4, kL2);
  EXPECT_EQ(TierOfKey("a") + TierOfKey("b") + TierOfKey("c") + TierOfKey("d"), "nonenonel2l2");
  EXPECT_EQ(memory_.used_bytes(), 4 * kUnit);
  ExpectHolds("c", 2, 'c');
  ExpectHolds("d", 2, 'd');
}

TEST_F(ResizeTest, MovingKeepsTheOrderOfUse) {
  Start(8);
  ASSERT_TRUE(Put("used", 2, 'u').ok());
  ASSERT_TRUE(Put("x", 2, 'x').ok());
  ASSERT_TRUE(Put("old", 2, 'o').ok());  // in the second segment
  ASSERT_TRUE(*Delete(TestKey("x")));
  Get("used").handle.Reset();
  Shrink(4);
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  EXPECT_EQ(TierOfKey("old") + TierOfKey("used"), "nonel1");
}

TEST_F(ResizeTest, APinnedEntryKeepsItsBytesAndLeavesWithItsLastPin) {
  Start(8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ReadHandle pinned = *PutAndPin(TestKey("b"), 2 * kUnit, 'b');
  ReadHandle again = pinned.Duplicate();
  ASSERT_TRUE(*Delete(TestKey("a")));
  cache_->StartShrink(kL1, 4 * kUnit);
  Settle();
  cache_->Tick();
  Settle();
  EXPECT_FALSE(IsShrunk());
  EXPECT_EQ(BytesOf(pinned), Payload(2 * kUnit, 'b'));
  pinned.Reset();
  EXPECT_EQ(copier_.pending(), 0u);
  again.Reset();
  EXPECT_EQ(copier_.pending(), 1u) << "it leaves at once";
  Settle();
  EXPECT_TRUE(IsShrunk());
  EXPECT_EQ(cache_->EndShrink(kL1).gone.size(), 1u);
  ExpectHolds("b", 2, 'b');
}

TEST_F(ResizeTest, WhatIsStillPinnedAtTheEndIsTold_AndItsSegmentIsUsedAgain) {
  Start(12);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ReadHandle pinned = *PutAndPin(TestKey("b"), 3 * kUnit, 'b');
  cache_->StartShrink(kL1, 4 * kUnit);  // the third segment is empty, and goes
  Settle();
  EXPECT_FALSE(IsShrunk());
  const TieredCache::Shrunk shrunk = cache_->EndShrink(kL1);
  EXPECT_EQ(shrunk.gone.size(), 1u);
  EXPECT_EQ(shrunk.pinned_entries, 1u);
  EXPECT_EQ(shrunk.pinned_bytes, 3 * kUnit);
  EXPECT_EQ(cache_->capacity_bytes(kL1), 8 * kUnit);
  EXPECT_EQ(BytesOf(pinned), Payload(3 * kUnit, 'b'));
  ASSERT_TRUE(Put("c", 1, 'c').ok());
  EXPECT_EQ(DataAt({.segment = pinned.location().segment, .offset = 3 * kUnit})[0], 'c');
}

TEST_F(ResizeTest, AReservationIsWaitedForAndItsEntryIsMovedThen) {
  Start(8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  const ReservedPlace place = *Reserve(TestKey("b"), 2 * kUnit);
  ASSERT_TRUE(*Delete(TestKey("a")));
  cache_->StartShrink(kL1, 4 * kUnit);
  std::memset(DataAt(place.location), 'b', 2 * kUnit);
  EXPECT_FALSE(IsShrunk());
  cache_->Commit(place.id)->Reset();
  Settle();
  EXPECT_TRUE(IsShrunk());
  cache_->EndShrink(kL1);
  ExpectHolds("b", 2, 'b');
}

TEST_F(ResizeTest, NothingNewIsPutIntoASegmentThatGoes) {
  Start(8, 8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ReadHandle pinned = *PutAndPin(TestKey("b"), 1 * kUnit, 'b');
  const uint32_t going = pinned.location().segment;
  cache_->StartShrink(kL1, 4 * kUnit);
  for (int i = 0; i < 8; ++i) {
    const absl::StatusOr<ReservedPlace> place = Reserve(TestKey(std::to_string(i)), kUnit);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_NE(place->location.segment, going);
    cache_->Commit(place->id)->Reset();
  }
  pinned.Reset();
  Settle();
  EXPECT_TRUE(IsShrunk());
  cache_->EndShrink(kL1);
}

TEST_F(ResizeTest, ALookupDuringAMoveWaitsForIt) {
  Start(8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  ASSERT_TRUE(*Delete(TestKey("a")));
  cache_->StartShrink(kL1, 4 * kUnit);
  ASSERT_EQ(copier_.pending(), 1u);
  auto answer = StartGet(TestKey("b"));
  EXPECT_FALSE(answer->has_value());
  Settle();
  ASSERT_TRUE(answer->has_value() && (**answer)->hit());
  EXPECT_EQ(BytesOf((**answer)->handle), Payload(2 * kUnit, 'b'));
  EXPECT_TRUE(IsShrunk()) << "though it is pinned: in its new place";
  cache_->EndShrink(kL1);
}

TEST_F(ResizeTest, APinTakenDuringAMoveCallsItOff) {
  Start(8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  ASSERT_TRUE(*Delete(TestKey("a")));
  cache_->StartShrink(kL1, 4 * kUnit);
  ReadHandle pinned = cache_->PinInPlace(TestKey("b"));
  ASSERT_TRUE(static_cast<bool>(pinned));
  Settle();
  cache_->CheckInvariants();
  EXPECT_FALSE(IsShrunk());
  EXPECT_EQ(BytesOf(pinned), Payload(2 * kUnit, 'b'));
  pinned.Reset();
  Settle();
  EXPECT_TRUE(IsShrunk());
  cache_->EndShrink(kL1);
  ExpectHolds("b", 2, 'b');
}

TEST_F(ResizeTest, AnEntryDeletedDuringItsMoveIsGone) {
  Start(8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  ASSERT_TRUE(*Delete(TestKey("a")));
  cache_->StartShrink(kL1, 4 * kUnit);
  ASSERT_EQ(copier_.pending(), 1u);
  cache_->Delete(TestKey("b"), [](const absl::StatusOr<bool>&) {});
  auto answer = StartGet(TestKey("b"));
  Settle();
  EXPECT_FALSE((**answer)->hit());
  EXPECT_TRUE(IsShrunk());
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
  cache_->EndShrink(kL1);
}

TEST_F(ResizeTest, AMoveThatFailsIsTriedAgainAtTheNextTick) {
  Start(8);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  ASSERT_TRUE(*Delete(TestKey("a")));
  cache_->StartShrink(kL1, 4 * kUnit);
  copier_.FailOne(0, absl::InternalError("injected"));
  EXPECT_EQ(copier_.pending(), 0u) << "not at once, over and over";
  EXPECT_FALSE(IsShrunk());
  ExpectHolds("b", 2, 'b');
  cache_->Tick();
  Settle();
  EXPECT_TRUE(IsShrunk());
  cache_->EndShrink(kL1);
  ExpectHolds("b", 2, 'b');
}

TEST_F(ResizeTest, ATierOfOneSegmentLeavesItAltogether) {
  Start(4, 4);
  ASSERT_TRUE(Put("a", 2, 'a').ok());
  Shrink(2);
  EXPECT_EQ(cache_->capacity_bytes(kL1), 0u);
  EXPECT_EQ(TierOfKey("a"), "l2");
  ASSERT_TRUE(cache_->AddSegments(kL1, 2 * kUnit).ok());
  cache_->OpenSegments(kL1);
  EXPECT_EQ(memory_.used_bytes(), 6 * kUnit);
  ExpectHolds("a", 2, 'a');
  EXPECT_EQ(TierOfKey("a"), "l1") << "promoted into the smaller one";
}

TEST_F(ResizeTest, ATierCanGoAndComeBack) {
  Start(8, 8);
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(name, 2, name[0]).ok());
  Shrink(0);
  EXPECT_EQ(memory_.used_bytes(), 8 * kUnit);
  for (const char* name : {"a", "b", "c", "d"}) ExpectHolds(name, 2, name[0]);
  ASSERT_TRUE(Put("e", 2, 'e').ok());
  EXPECT_EQ(TierOfKey("e"), "l2");
  ASSERT_TRUE(cache_->AddSegments(kL1, 12 * kUnit).ok());
  cache_->OpenSegments(kL1);
  EXPECT_EQ(cache_->capacity_bytes(kL1), 12 * kUnit);
  EXPECT_EQ(cache_->Segments().size(), 2u + 3u);
  ExpectHolds("e", 2, 'e');
  EXPECT_EQ(TierOfKey("e"), "l1");
}

TEST_F(ResizeTest, NothingIsPutIntoNewSegmentsBeforeTheyAreOpened) {
  Start(4);
  const uint64_t before = cache_->segments_version();
  ASSERT_TRUE(cache_->AddSegments(kL1, 8 * kUnit).ok());
  EXPECT_NE(cache_->segments_version(), before);
  EXPECT_EQ(cache_->Segments().size(), 2u) << "whoever connects now is told of both";
  EXPECT_EQ(Stats().memory[0].capacity_bytes, 4 * kUnit);
  ReadHandle first = *PutAndPin(TestKey("a"), 4 * kUnit, 'a');
  EXPECT_TRUE(absl::IsResourceExhausted(PutAndPin(TestKey("b"), 4 * kUnit, 'b').status()));
  cache_->OpenSegments(kL1);
  EXPECT_EQ(Stats().memory[0].capacity_bytes, 8 * kUnit);
  EXPECT_TRUE(PutAndPin(TestKey("b"), 4 * kUnit, 'b').ok());
}

TEST_F(ResizeTest, ASegmentNeverHasTheNumberOfAnEarlierOne) {
  Start(8);
  std::vector<uint32_t> seen;
  for (int i = 0; i < 5; ++i) {
    Shrink(4);
    ASSERT_TRUE(cache_->AddSegments(kL1, 8 * kUnit).ok());
    cache_->OpenSegments(kL1);
    uint32_t newest = 0;
    for (const auto& segment : cache_->Segments()) newest = std::max(newest, segment.id);
    EXPECT_THAT(seen, testing::Not(testing::Contains(newest)));
    seen.push_back(newest);
  }
}

TEST_F(ResizeTest, WhoWaitsForRoomThatWillNotBeGetsAnAnswer) {
  Start(8);
  ReadHandle a = *PutAndPin(TestKey("a"), 4 * kUnit, 'a');
  ReadHandle b = *PutAndPin(TestKey("b"), 4 * kUnit, 'b');
  cache_->StartShrink(kL1, 4 * kUnit);
  auto answer = StartReserve(TestKey("c"), 2 * kUnit);
  ASSERT_TRUE(answer->has_value());
  EXPECT_TRUE(absl::IsResourceExhausted((*answer)->status()));
  cache_->EndShrink(kL1);
}

// A reader that asked nobody must not keep a shrink from going on, nor lose its bytes.
TEST_F(ResizeTest, AnEntryHeldWithoutACallMovesAndItsOldBytesStayUntilTheReaderIsDone) {
  HostMemory shared;
  TieredCacheOptions options;
  options.l1.capacity_bytes = 8 * kUnit;
  options.l1.segment_bytes = 4 * kUnit;
  options.fast_index_entries = 64;
  auto cache = TieredCache::Create(options, {.clock = &clock_,
                                             .executor = &executor_,
                                             .copier = &copier_,
                                             .l1_memory = &memory_,
                                             .l2_memory = &memory_,
                                             .fast_memory = &shared});
  ASSERT_TRUE(cache.ok()) << cache.status();
  cache_ = *std::move(cache);
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  ASSERT_TRUE(Put("b", 2, 'b').ok());
  ASSERT_TRUE(*Delete(TestKey("a")));
  FastReader reader(cache_.get());
  const auto held = reader.Get("b");
  ASSERT_TRUE(held.has_value());
  const uint32_t going = held->entry->segment;
  cache_->StartShrink(kL1, 4 * kUnit);
  Settle();
  cache_->CheckInvariants();
  EXPECT_FALSE(IsShrunk());
  const auto now = reader.Get("b");
  ASSERT_TRUE(now.has_value());
  EXPECT_NE(now->entry->segment, going) << "found in its new place";
  EXPECT_EQ(std::string(DataAt({.segment = going, .offset = held->entry->offset}), 2 * kUnit),
            Payload(2 * kUnit, 'b'));
  reader.Release(*now);
  reader.Release(*held);
  cache_->Tick();
  EXPECT_TRUE(IsShrunk());
  cache_->EndShrink(kL1);
  ExpectHolds("b", 2, 'b');
}

}  // namespace
}  // namespace embcache
