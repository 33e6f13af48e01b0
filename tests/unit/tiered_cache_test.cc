// What the memory tiers promise. Capacities and sizes in units of 4 KiB.

#include "storage/tiered_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

using ::testing::HasSubstr;

class TieredCacheTest : public CacheFixture {};

// --- Exclusive tiers -----------------------------------------------------------------------------

TEST_F(TieredCacheTest, PutDemotesTheOldestAndAHitPromotesIt) {
  StartCache(150, 1000);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("b", 100).ok());
  EXPECT_EQ(TierOfKey("a"), "l2");
  EXPECT_EQ(TierOfKey("b"), "l1");
  EXPECT_EQ(Stats().demotions, 1u);

  const LookupResult a = Get("a");
  ASSERT_TRUE(a.hit());
  EXPECT_EQ(a.source, TierId::kL2);
  EXPECT_EQ(a.handle.location().tier, TierId::kL1);
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(TierOfKey("b"), "l2");
  const CacheStats stats = Stats();
  EXPECT_EQ(stats.promotions, 1u);
  EXPECT_EQ(stats.demotions, 2u);
  EXPECT_EQ(stats.memory[0].hits, 0u);
  EXPECT_EQ(stats.memory[1].hits, 1u);
  EXPECT_EQ(stats.misses, 0u);
}

TEST_F(TieredCacheTest, WithoutL2TheEvictedEntryIsGone) {
  StartCache(150, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("b", 100).ok());
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(Stats().demotions, 0u);
  EXPECT_FALSE(Get("a").hit());
  EXPECT_EQ(Stats().misses, 1u);
}

TEST_F(TieredCacheTest, TheLeastRecentlyUsedLeavesFirst) {
  StartCache(250, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("b", 100).ok());
  EXPECT_TRUE(Get("a").hit());
  ASSERT_TRUE(Put("c", 100).ok());
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(TierOfKey("b"), "none");
  EXPECT_EQ(TierOfKey("c"), "l1");
  EXPECT_EQ(Stats().memory[0].used_bytes, 200 * kUnit);
}

TEST_F(TieredCacheTest, AnEntryLargerThanATierEvictsNothingThere) {
  StartCache(50, 0);
  ASSERT_TRUE(Put("a", 10).ok());
  EXPECT_EQ(Put("big", 100).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(TierOfKey("big"), "none");
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(Stats().rejected_puts, 1u);
}

TEST_F(TieredCacheTest, AnEntryLargerThanL1LivesInL2AndStaysThere) {
  StartCache(100, 1000);
  ASSERT_TRUE(Put("big", 300).ok());
  EXPECT_EQ(TierOfKey("big"), "l2");
  for (int i = 0; i < 2; ++i) {
    const LookupResult big = Get("big");
    ASSERT_TRUE(big.hit());
    EXPECT_EQ(big.handle.location().tier, TierId::kL2);
    EXPECT_EQ(TierOfKey("big"), "l2");
  }
  EXPECT_EQ(Stats().memory[1].hits, 2u);
}

TEST_F(TieredCacheTest, APutThatFitsNowhereStillRemovesTheOldValue) {
  StartCache(100, 0);
  ASSERT_TRUE(Put("a", 50).ok());
  EXPECT_FALSE(Put("a", 200).ok());
  EXPECT_EQ(TierOfKey("a"), "none");
}

TEST_F(TieredCacheTest, AVictimLargerThanL2IsDroppedWithoutACopy) {
  StartCache(100, 40);
  ASSERT_TRUE(Put("a", 60).ok());
  auto reserved = StartReserve(TestKey("b"), 60 * kUnit);
  EXPECT_EQ(copier_.pending(), 0u);
  ASSERT_TRUE(reserved->has_value() && (*reserved)->ok());
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(Stats().demotions, 0u);
  EXPECT_TRUE(cache_->Abort((*reserved)->value().id).ok());
}

TEST_F(TieredCacheTest, L2DropsItsOwnOldestForADemotion) {
  StartCache(100, 100);
  ASSERT_TRUE(Put("a", 100, 'a').ok());
  ASSERT_TRUE(Put("b", 100, 'b').ok());
  ASSERT_TRUE(Put("c", 100, 'c').ok());
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(TierOfKey("b"), "l2");
  EXPECT_EQ(BytesOf(Get("b").handle), Payload(100 * kUnit, 'b'));
}

TEST_F(TieredCacheTest, TheBoundOnEntriesHoldsBesideTheBoundOnBytes) {
  TieredCacheOptions options;
  options.l1.max_entries = 2;
  StartCache(100, 0, nullptr, options);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 1).ok());
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(Stats().memory[0].entries, 2u);
}

TEST_F(TieredCacheTest, ImpossibleCapacitiesAreRefusedByName) {
  const auto create = [&](uint64_t l1) {
    TieredCacheOptions options;
    options.l1.capacity_bytes = l1;
    return TieredCache::Create(options, {.clock = &clock_,
                                         .executor = &executor_,
                                         .copier = &copier_,
                                         .l1_memory = &memory_,
                                         .l2_memory = &memory_})
        .status();
  };
  EXPECT_EQ(create(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(create(1).message()), HasSubstr("l1 capacity_bytes"));
}

// --- Replacing -----------------------------------------------------------------------------------

TEST_F(TieredCacheTest, ReplacingWithALargerValueIsNoEviction) {
  StartCache(150, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  ASSERT_TRUE(Put("a", 120, 'y').ok());
  const CacheStats stats = Stats();
  EXPECT_EQ(stats.memory[0].evictions_capacity, 0u);
  EXPECT_EQ(stats.replaced, 1u);
  EXPECT_EQ(stats.memory[0].used_bytes, 120 * kUnit);
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(120 * kUnit, 'y'));
}

TEST_F(TieredCacheTest, AReaderKeepsTheOldBytesWhileNewGetsSeeTheNew) {
  StartCache(300, 0);
  ASSERT_TRUE(Put("a", 50, 'o').ok());
  const ReadHandle old = Get("a").handle;
  ASSERT_TRUE(Put("a", 50, 'n').ok());
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(50 * kUnit, 'n'));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Put("filler" + std::to_string(i), 60).ok());
  EXPECT_EQ(BytesOf(old), Payload(50 * kUnit, 'o'));
}

TEST_F(TieredCacheTest, APutDropsAnOlderCopyInL2) {
  StartCache(150, 1000);
  ASSERT_TRUE(Put("a", 100, 'o').ok());
  ASSERT_TRUE(Put("b", 100).ok());
  ASSERT_TRUE(Put("a", 100, 'n').ok());
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(100 * kUnit, 'n'));
  EXPECT_EQ(Stats().memory[1].entries, 1u);
}

TEST_F(TieredCacheTest, TheOldValueIsServedUntilTheCommit) {
  StartCache(300, 0);
  ASSERT_TRUE(Put("a", 50, 'o').ok());
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), 50 * kUnit);
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(50 * kUnit, 'o'));
  EXPECT_TRUE(cache_->Abort(place->id).ok());
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(50 * kUnit, 'o'));
}

// --- Reservations --------------------------------------------------------------------------------

TEST_F(TieredCacheTest, AReservationIsInvisibleUntilCommitted) {
  StartCache(100, 0);
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), kUnit);
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(cache_->Contains(TestKey("a")).has_value());
  EXPECT_FALSE(Get("a").hit());
  EXPECT_TRUE(cache_->Commit(place->id).ok());
  EXPECT_TRUE(Get("a").hit());
}

TEST_F(TieredCacheTest, ASecondCommitOrAbortFindsNothing) {
  StartCache(100, 0);
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), kUnit);
  ASSERT_TRUE(cache_->Commit(place->id).ok());
  EXPECT_EQ(cache_->Commit(place->id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Abort(place->id).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Get("a").hit());
}

TEST_F(TieredCacheTest, AnExpiredReservationHoldsItsBytesUntilItsWriterIsDone) {
  StartCache(100, 0);
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), kUnit);
  clock_.Advance(absl::Seconds(31));
  cache_->Tick();
  EXPECT_EQ(Stats().memory[0].reserved_bytes, kUnit);
  EXPECT_EQ(cache_->Commit(place->id).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Stats().memory[0].reserved_bytes, 0u);
  EXPECT_FALSE(Get("a").hit());
}

TEST_F(TieredCacheTest, WritesOutsideAReservationAreRefused) {
  StartCache(100, 0);
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), 10);
  absl::Status written;
  cache_->WriteReserved(place->id, 5, "123456", [&](absl::Status s) { written = std::move(s); });
  EXPECT_EQ(written.code(), absl::StatusCode::kOutOfRange);
  cache_->WriteReserved(place->id, UINT64_MAX, "1",
                        [&](absl::Status s) { written = std::move(s); });
  EXPECT_EQ(written.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(cache_->Abort(place->id).ok());
}

TEST_F(TieredCacheTest, AnAbortWaitsForTheCopyIntoTheRange) {
  StartCache(1, 0);
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), kUnit);
  const std::string bytes = Payload(kUnit, 'w');
  cache_->WriteReserved(place->id, 0, bytes, [](const absl::Status&) {});
  EXPECT_TRUE(cache_->Abort(place->id).ok());
  EXPECT_EQ(Stats().memory[0].used_bytes, kUnit);
  copier_.RunAll();
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
}

// --- Pins ----------------------------------------------------------------------------------------

TEST_F(TieredCacheTest, APinnedEntryIsNeverAVictim) {
  StartCache(150, 1000);
  ASSERT_TRUE(Put("a", 100, 'a').ok());
  const ReadHandle a = Get("a").handle;
  ASSERT_TRUE(Put("b", 50).ok());
  ASSERT_TRUE(Put("c", 50).ok());
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(TierOfKey("b"), "l2");
  EXPECT_EQ(BytesOf(a), Payload(100 * kUnit, 'a'));
}

TEST_F(TieredCacheTest, WhenAllIsPinnedAPutFailsAndSaysSo) {
  StartCache(100, 0);
  ASSERT_TRUE(Put("a", 100).ok());
  const ReadHandle a = Get("a").handle;
  const absl::Status status = Put("b", 10);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pinned"));
}

TEST_F(TieredCacheTest, WhenL1IsPinnedAPutGoesToL2AndAHitIsServedFromThere) {
  StartCache(100, 100);
  ASSERT_TRUE(Put("a", 100).ok());
  const ReadHandle a = Get("a").handle;
  ASSERT_TRUE(Put("b", 10, 'b').ok());
  EXPECT_EQ(TierOfKey("b"), "l2");
  const LookupResult b = Get("b");
  ASSERT_TRUE(b.hit());
  EXPECT_EQ(b.handle.location().tier, TierId::kL2);
  EXPECT_EQ(BytesOf(b.handle), Payload(10 * kUnit, 'b'));
}

TEST_F(TieredCacheTest, ADeletedEntryLivesOnForItsReadersAndThenGivesItsBytesBack) {
  StartCache(100, 0);
  ASSERT_TRUE(Put("a", 40, 'a').ok());
  ReadHandle a = Get("a").handle;
  ReadHandle twin = a.Duplicate();
  EXPECT_EQ(Delete(TestKey("a")).value(), true);
  EXPECT_FALSE(Get("a").hit());
  EXPECT_EQ(BytesOf(a), Payload(40 * kUnit, 'a'));
  a.Reset();
  EXPECT_EQ(Stats().memory[0].used_bytes, 40 * kUnit);
  twin.Reset();
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
}

// --- Moves in flight -----------------------------------------------------------------------------

TEST_F(TieredCacheTest, AGetDuringADemotionIsServedAtOnceAndTheMoveIsCalledOff) {
  StartCache(150, 1000);
  ASSERT_TRUE(Put("a", 50, 'a').ok());
  ASSERT_TRUE(Put("b", 100, 'b').ok());
  auto reserved = StartReserve(TestKey("c"), 50 * kUnit);
  ASSERT_EQ(copier_.pending(), 1u);  // a is on its way to L2
  auto a = StartGet(TestKey("a"));
  ASSERT_TRUE(a->has_value());
  EXPECT_EQ((*a)->value().source, TierId::kL1);
  Settle();
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(TierOfKey("b"), "l2");  // went instead
  ASSERT_TRUE(reserved->has_value() && (*reserved)->ok());
  EXPECT_EQ(BytesOf((*a)->value().handle), Payload(50 * kUnit, 'a'));
  EXPECT_TRUE(cache_->Abort((*reserved)->value().id).ok());
  a->reset();
}

TEST_F(TieredCacheTest, ManyGetsOfOneEntryMakeOnePromotion) {
  StartCache(100, 100);
  ASSERT_TRUE(Put("a", 60, 'a').ok());
  ASSERT_TRUE(Put("b", 60).ok());
  ASSERT_EQ(TierOfKey("a"), "l2");
  std::vector<decltype(StartGet(TestKey("a")))> gets;
  for (int i = 0; i < 50; ++i) gets.push_back(StartGet(TestKey("a")));
  Settle();
  for (auto& get : gets) {
    ASSERT_TRUE(get->has_value());
    EXPECT_EQ((*get)->value().source, TierId::kL2);
    EXPECT_EQ(BytesOf((*get)->value().handle), Payload(60 * kUnit, 'a'));
  }
  EXPECT_EQ(Stats().promotions, 1u);
  EXPECT_EQ(Stats().hits, 50u);
  gets.clear();
}

TEST_F(TieredCacheTest, ADeleteDuringAPromotionWins) {
  StartCache(100, 100);
  ASSERT_TRUE(Put("a", 60).ok());
  ASSERT_TRUE(Put("b", 60).ok());
  auto get = StartGet(TestKey("a"));
  ASSERT_FALSE(get->has_value());
  EXPECT_EQ(Delete(TestKey("a")).value(), true);
  Settle();
  ASSERT_TRUE(get->has_value());
  EXPECT_FALSE((*get)->value().hit());
  EXPECT_EQ(TierOfKey("a"), "none");
}

TEST_F(TieredCacheTest, AReplacementDuringAPromotionIsWhatTheWaiterGets) {
  StartCache(200, 100);
  ASSERT_TRUE(Put("a", 60, 'o').ok());
  ASSERT_TRUE(Put("b", 180).ok());
  ASSERT_EQ(TierOfKey("a"), "l2");
  auto reserved = StartReserve(TestKey("c"), 20 * kUnit);
  ASSERT_TRUE(reserved->has_value());
  EXPECT_TRUE(cache_->Abort((*reserved)->value().id).ok());
  auto get = StartGet(TestKey("a"));
  ASSERT_FALSE(get->has_value());
  ASSERT_TRUE(Put("a", 10, 'n').ok());
  Settle();
  ASSERT_TRUE(get->has_value());
  EXPECT_EQ(BytesOf((*get)->value().handle), Payload(10 * kUnit, 'n'));
  get->reset();
}

TEST_F(TieredCacheTest, AFailedDemotionLosesTheEntryButNotThePut) {
  StartCache(100, 100);
  ASSERT_TRUE(Put("a", 100).ok());
  auto reserved = StartReserve(TestKey("b"), 100 * kUnit);
  ASSERT_EQ(copier_.pending(), 1u);
  copier_.FailOne(0, absl::InternalError("copy"));
  ASSERT_TRUE(reserved->has_value() && (*reserved)->ok());
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_TRUE(cache_->Abort((*reserved)->value().id).ok());
}

TEST_F(TieredCacheTest, AFailedPromotionIsServedFromL2) {
  StartCache(100, 200);
  ASSERT_TRUE(Put("a", 60, 'a').ok());
  ASSERT_TRUE(Put("b", 60).ok());
  auto get = StartGet(TestKey("a"));
  copier_.RunOne();  // b makes room
  ASSERT_EQ(copier_.pending(), 1u);
  copier_.FailOne(0, absl::InternalError("copy"));
  ASSERT_TRUE(get->has_value());
  EXPECT_EQ((*get)->value().handle.location().tier, TierId::kL2);
  EXPECT_EQ(BytesOf((*get)->value().handle), Payload(60 * kUnit, 'a'));
  get->reset();
}

TEST_F(TieredCacheTest, FragmentedRoomIsMadeByTheCheapestNeighbours) {
  StartCache(100, 0);
  for (const char* name : {"a", "b", "c", "d", "e"}) ASSERT_TRUE(Put(name, 20).ok());
  ASSERT_TRUE(Delete(TestKey("a")).value());
  ASSERT_TRUE(Delete(TestKey("c")).value());
  // 40 units are free in two pieces with b between them: only b has to go.
  ASSERT_TRUE(Put("f", 40, 'f').ok());
  EXPECT_EQ(TierOfKey("b"), "none");
  EXPECT_EQ(TierOfKey("d"), "l1");
  EXPECT_EQ(TierOfKey("e"), "l1");
  EXPECT_EQ(Stats().memory[0].evictions_capacity, 1u);
}

// --- Keys, counters, expectations ----------------------------------------------------------------

TEST_F(TieredCacheTest, ContainsPopAndDeleteCountNoHitOrMiss) {
  StartCache(100, 0);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  EXPECT_TRUE(cache_->Contains(TestKey("a")).has_value());
  EXPECT_FALSE(cache_->Contains(TestKey("b")).has_value());
  LookupResult popped;
  cache_->Pop(
      TestKey("a"),
      [&](LookupResult r) {
        popped = std::move(r);
        return popped.hit();
      },
      [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  ASSERT_TRUE(popped.hit());
  EXPECT_EQ(BytesOf(popped.handle), Payload(kUnit, 'a'));
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(Delete(TestKey("a")).value(), false);
  EXPECT_EQ(Stats().gets, 0u);
  EXPECT_EQ(Stats().hits + Stats().misses, 0u);
}

TEST_F(TieredCacheTest, APopThatIsNotTakenLeavesTheEntry) {
  StartCache(100, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  bool done = false;
  cache_->Pop(
      TestKey("a"), [](const LookupResult&) { return false; },
      [&](const absl::Status& status) { done = status.ok(); });
  EXPECT_TRUE(done);
  EXPECT_EQ(TierOfKey("a"), "l1");
}

TEST_F(TieredCacheTest, AMismatchIsAMissAndRemovesTheEntry) {
  StartCache(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a"), 256, 'a').ok());
  EXPECT_TRUE(Get(TestKey("a"), {{.rows = 256}}).hit());
  const LookupResult result = Get(TestKey("a"), {{.rows = 275}});
  EXPECT_FALSE(result.hit());
  EXPECT_EQ(result.reason, MissReason::kMismatch);
  EXPECT_EQ(Stats().mismatches, 1u);
  EXPECT_EQ(TierOfKey("a"), "none");
}

TEST_F(TieredCacheTest, EqualBytesOfOtherShapeUnderAnotherKeyStayWhatTheyAre) {
  StartCache(100, 0);
  for (const auto& [name, shape] : {std::pair{"wide", std::vector<int64_t>{30, 150}},
                                    std::pair{"tall", std::vector<int64_t>{150, 30}}}) {
    std::optional<ReservedPlace> place;
    cache_->Reserve(
        {.key = TestKey(name),
         .layout = *LayOutTensors({{.name = "m", .dtype = DType::kU8, .shape = shape}})},
        [&](absl::StatusOr<ReservedPlace> p) { place = *p; });
    std::memset(DataAt(place->location), 7, 4500);
    ASSERT_TRUE(cache_->Commit(place->id).ok());
  }
  EXPECT_EQ(Get("wide").handle.info()->layout.tensors[0].shape, (std::vector<int64_t>{30, 150}));
  EXPECT_EQ(Get("tall").handle.info()->layout.tensors[0].shape, (std::vector<int64_t>{150, 30}));
}

TEST_F(TieredCacheTest, AnEntryPastItsTimeIsAMissAndGivesItsBytesBack) {
  StartCache(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a"), kUnit, 'a', absl::Seconds(10)).ok());
  EXPECT_TRUE(Get("a").hit());
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(Get("a").reason, MissReason::kExpired);
  ASSERT_TRUE(PutAndPin(TestKey("b"), kUnit, 'b', absl::Seconds(10)).ok());
  clock_.Advance(absl::Seconds(10));
  cache_->Tick();
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
  EXPECT_EQ(Stats().memory[0].evictions_expired, 2u);
}

TEST_F(TieredCacheTest, AJumpOfTheWallClockEndsNoReservation) {
  StartCache(100, 0);
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("a"), kUnit);
  clock_.JumpWall(absl::Hours(24 * 3650));
  cache_->Tick();
  EXPECT_TRUE(cache_->Commit(place->id).ok());
}

TEST_F(TieredCacheTest, CountersArePerModelAndAgree) {
  StartCache(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a", "m1"), kUnit, 'a').ok());
  EXPECT_TRUE(Get(TestKey("a", "m1")).hit());
  EXPECT_FALSE(Get(TestKey("a", "m2")).hit());
  for (const ModelStats& model : Stats().models) {
    EXPECT_EQ(model.gets, model.hits + model.misses) << model.model;
    EXPECT_EQ(model.saved_us, model.model == "m1" ? 1000u : 0u);
  }
  EXPECT_EQ(Stats().saved_us, 1000u);
}

TEST_F(TieredCacheTest, LookupsOfRandomModelsDoNotFillTheTableOfModels) {
  StartCache(100, 0);
  for (int i = 0; i < 6000; ++i) Get(TestKey("a", "random" + std::to_string(i)));
  EXPECT_LT(Stats().models.size(), 3000u);
  EXPECT_TRUE(PutAndPin(TestKey("a", "real"), kUnit, 'a').ok());
}

TEST_F(TieredCacheTest, ListPagesThroughEveryKeyOnceInOrder) {
  StartCache(1000, 0);
  for (int i = 0; i < 250; ++i) {
    ASSERT_TRUE(PutAndPin(TestKey("k" + std::to_string(i), i % 2 ? "odd" : "even"), 1, 'x').ok());
  }
  ListQuery query{.model = "odd", .limit = 7};
  std::vector<std::string> seen;
  do {
    ListPage page = cache_->List(query);
    for (const ListedEntry& row : page.entries) seen.push_back(std::string(row.key.encoded()));
    query.after = page.next;
  } while (!query.after.empty());
  EXPECT_EQ(seen.size(), 125u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

// --- Epochs --------------------------------------------------------------------------------------

TEST_F(TieredCacheTest, AnAdvancedEpochHidesOneModelOnlyAndRefusesItsOpenReservations) {
  StartCache(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a", "m"), kUnit, 'a').ok());
  ASSERT_TRUE(PutAndPin(TestKey("a", "other"), kUnit, 'a').ok());
  const ReadHandle held = Get(TestKey("a", "m")).handle;
  const absl::StatusOr<ReservedPlace> place = Reserve(TestKey("b", "m"), kUnit);
  EXPECT_EQ(AdvanceEpoch("m").value(), 1u);
  EXPECT_FALSE(cache_->Contains(TestKey("a", "m")).has_value());
  EXPECT_FALSE(cache_->PinInPlace(TestKey("a", "m")));
  EXPECT_FALSE(Get(TestKey("a", "m")).hit());
  EXPECT_TRUE(Get(TestKey("a", "other")).hit());
  EXPECT_EQ(BytesOf(held), Payload(kUnit, 'a'));
  const absl::Status refused = cache_->Commit(place->id).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("epoch"));
  EXPECT_TRUE(PutAndPin(TestKey("b", "m"), kUnit, 'n').ok());
  EXPECT_TRUE(Get(TestKey("b", "m")).hit());
}

TEST_F(TieredCacheTest, TheSweepOfAnOldEpochSurvivesTheEvictionsThatItSetsOff) {
  StartCache(150, 150);
  ASSERT_TRUE(PutAndPin(TestKey("z", "m"), 100 * kUnit, 'z').ok());
  ASSERT_TRUE(PutAndPin(TestKey("a", "m"), 50 * kUnit, 'a').ok());
  ASSERT_TRUE(PutAndPin(TestKey("b", "o"), 50 * kUnit, 'b').ok());  // sends z to L2
  ASSERT_TRUE(PutAndPin(TestKey("c", "o"), 50 * kUnit, 'c').ok());
  Settle();
  ASSERT_TRUE(Get(TestKey("a", "m")).hit());                  // b and c are to leave before a
  auto first = StartReserve(TestKey("r1", "o"), 50 * kUnit);  // b is on its way to a full L2
  auto second = StartReserve(TestKey("r2", "o"), 100 * kUnit);
  ASSERT_FALSE(first->has_value());
  cache_->AdvanceEpoch("m", [](const absl::StatusOr<uint64_t>&) {});
  cache_->Tick();  // frees a: r1 gets its room, r2 sends c to L2, and that sends z away
  Settle();
  cache_->CheckInvariants();
  for (auto& reserved : {first, second}) {
    if (reserved->has_value() && (*reserved)->ok()) {
      EXPECT_TRUE(cache_->Abort((*reserved)->value().id).ok());
    }
  }
}

TEST_F(TieredCacheTest, LargeMetadataIsChargedToTheTier) {
  StartCache(100, 0);
  for (int i = 0; i < 100; ++i) {
    std::optional<absl::StatusOr<ReservedPlace>> place;
    cache_->Reserve({.key = TestKey("k" + std::to_string(i)),
                     .layout = TestLayout(1),
                     .metadata = {{"m", std::string(60 << 10, 'm')}}},
                    [&](absl::StatusOr<ReservedPlace> p) { place = std::move(p); });
    ASSERT_TRUE(place.has_value() && place->ok());
    ASSERT_TRUE(cache_->Commit((*place)->id).ok());
    cache_->CheckInvariants();
  }
  EXPECT_LE(Stats().memory[0].entries, 100 * kUnit / (59 << 10));
}

TEST_F(TieredCacheTest, TheBytesOfAnOldEpochComeBackWithoutBeingAskedFor) {
  StartCache(1000, 0);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(PutAndPin(TestKey("k" + std::to_string(i), "m"), kUnit, 'a').ok());
  }
  ASSERT_TRUE(AdvanceEpoch("m").ok());
  EXPECT_EQ(Stats().memory[0].used_bytes, 100 * kUnit);
  cache_->Tick();
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
  EXPECT_EQ(Stats().memory[0].evictions_epoch, 100u);
}

}  // namespace
}  // namespace embcache
