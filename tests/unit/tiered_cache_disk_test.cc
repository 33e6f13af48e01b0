// What the cache promises about L3, over an in-memory store. Sizes in units of 4 KiB.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

class TieredCacheDiskTest : public CacheWithStoreFixture {
 protected:
  static TieredCacheOptions Evicting() {
    TieredCacheOptions options;
    options.l3_write = L3WriteMode::kEvict;
    return options;
  }

  static constexpr uint64_t kMetadata = 40 << 10;
  absl::Status PutWithMetadata(absl::string_view name, uint64_t units) {
    std::optional<absl::StatusOr<ReservedPlace>> place;
    cache_->Reserve({.key = TestKey(name),
                     .layout = TestLayout(units * kUnit),
                     .metadata = {{"m", std::string(kMetadata, 'm')}}},
                    [&](absl::StatusOr<ReservedPlace> p) { place = std::move(p); });
    while (!place.has_value() && copier_.pending() + executor_.pending() > 0) Step();
    if (!place.has_value()) return absl::InternalError("reserve never answered");
    if (!place->ok()) return place->status();
    std::memset(DataAt((*place)->location), 'm', units * kUnit);
    return cache_->Commit((*place)->id).status();
  }
};

TEST_F(TieredCacheDiskTest, AnEntryStoredBeforeARestartIsAHitAfterIt) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  Restart(100, 0);
  EXPECT_EQ(TierOfKey("a"), "l3");
  const LookupResult a = Get("a");
  ASSERT_TRUE(a.hit());
  EXPECT_EQ(a.source, TierId::kL3);
  EXPECT_EQ(a.handle.location().tier, TierId::kL1);
  EXPECT_EQ(BytesOf(a.handle), Payload(3 * kUnit, 'a'));
  EXPECT_EQ(a.handle.info()->encode_cost_us, 1000u);
  EXPECT_EQ(Stats().l3.hits, 1u);
  EXPECT_EQ(Get("a").source, TierId::kL1);
}

TEST_F(TieredCacheDiskTest, ManyGetsOfOneEntryMakeOneDiskRead) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  Restart(100, 0);
  std::vector<decltype(StartGet(TestKey("a")))> gets;
  for (int i = 0; i < 100; ++i) gets.push_back(StartGet(TestKey("a")));
  EXPECT_EQ(executor_.pending(), 1u);
  Settle();
  for (auto& get : gets) ASSERT_TRUE(get->has_value() && (*get)->value().hit());
  EXPECT_EQ(Stats().l3.loads, 1u);
  gets.clear();
}

TEST_F(TieredCacheDiskTest, ADamagedRecordIsAMissAndIsRemoved) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 3).ok());
  Restart(100, 0);
  store_.Corrupt(TestKey("a"));
  const LookupResult a = Get("a");
  EXPECT_FALSE(a.hit());
  EXPECT_EQ(a.reason, MissReason::kDamaged);
  EXPECT_EQ(Stats().l3.load_failures, 1u);
  EXPECT_EQ(TierOfKey("a"), "none");
}

TEST_F(TieredCacheDiskTest, AFailedReadIsAMissAndMayWorkTheNextTime) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 3).ok());
  Restart(100, 0);
  store_.FailNextReads(1, absl::UnknownError("EIO"));
  EXPECT_FALSE(Get("a").hit());
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
  EXPECT_TRUE(Get("a").hit());
}

TEST_F(TieredCacheDiskTest, ARefusingDiskNeverFailsAPut) {
  StartWithStore(100, 0);
  store_.SetWritable(false);
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  Settle();
  EXPECT_EQ(Stats().l3.write_failures, 1u);
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(3 * kUnit, 'a'));
}

TEST_F(TieredCacheDiskTest, AnEntryThatOnlyFitsL2IsLoadedThere) {
  StartWithStore(1, 100);
  ASSERT_TRUE(Put("a", 3).ok());
  Restart(1, 100);
  EXPECT_EQ(Get("a").handle.location().tier, TierId::kL2);
}

TEST_F(TieredCacheDiskTest, AnEntryOnDiskThatFitsNoTierIsAnErrorAndAMiss) {
  StartWithStore(10, 0);
  ASSERT_TRUE(Put("a", 5).ok());
  Restart(1, 0);
  auto get = StartGet(TestKey("a"));
  Settle();
  ASSERT_TRUE(get->has_value());
  EXPECT_EQ((*get)->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Stats().misses, 1u);
}

// --- What a load is charged
// --------------------------------------------------------------------------

TEST_F(TieredCacheDiskTest, AnEntryIsChargedForItsMetadataAfterARestartAsBefore) {
  StartWithStore(100, 0);
  ASSERT_TRUE(PutWithMetadata("a", 1).ok());
  Settle();
  const uint64_t charged = Stats().memory[0].used_bytes;
  ASSERT_GT(charged, kUnit + kMetadata - 1024);
  Restart(100, 0);
  ASSERT_TRUE(Get("a").hit());
  EXPECT_EQ(Stats().memory[0].used_bytes, charged);
  EXPECT_EQ(Stats().l3.loads, 1u);
}

TEST_F(TieredCacheDiskTest, LargeMetadataOfWhatIsLoadedIsBoundByTheTier) {
  for (bool told : {true, false}) {
    store_.SetTellsHeapBytes(told);
    StartWithStore(100, 0);
    for (int i = 0; i < 40; ++i) {
      ASSERT_TRUE(PutWithMetadata(std::to_string(i), 1).ok());
      Settle();
    }
    Restart(100, 0);
    for (int i = 0; i < 40; ++i) {
      const LookupResult got = Get(std::to_string(i));
      ASSERT_TRUE(got.hit());
      EXPECT_EQ(BytesOf(got.handle), Payload(kUnit, 'm'));
    }
    EXPECT_LE(Stats().memory[0].entries, 100 * kUnit / (kUnit + kMetadata - 1024));
    EXPECT_EQ(Stats().l3.loads, 40u);
    EXPECT_EQ(Stats().l3.load_failures, 0u);
    Settle();
    cache_.reset();
  }
}

TEST_F(TieredCacheDiskTest, WhatFitsL1OnlyWithoutItsMetadataIsLoadedIntoL2) {
  for (bool told : {true, false}) {
    store_.SetTellsHeapBytes(told);
    StartWithStore(1, 100);
    ASSERT_TRUE(PutWithMetadata("a", 1).ok());
    Restart(1, 100);
    const LookupResult got = Get("a");
    ASSERT_TRUE(got.hit());
    EXPECT_EQ(got.handle.location().tier, TierId::kL2);
    EXPECT_EQ(BytesOf(got.handle), Payload(kUnit, 'm'));
    EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
  }
}

TEST_F(TieredCacheDiskTest, WhatFitsNoTierWithItsMetadataIsAnErrorAndAMiss) {
  for (bool told : {true, false}) {
    store_.SetTellsHeapBytes(told);
    StartWithStore(100, 0);
    ASSERT_TRUE(PutWithMetadata("a", 1).ok());
    Restart(5, 0);
    auto get = StartGet(TestKey("a"));
    Settle();
    ASSERT_TRUE(get->has_value());
    EXPECT_EQ((*get)->status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE((*get)->status().message().find("with its metadata"), std::string::npos);
    EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
    cache_->CheckInvariants();
  }
}

TEST_F(TieredCacheDiskTest, ADeleteWhileALoadStartsAgainWins) {
  store_.SetTellsHeapBytes(false);
  StartWithStore(100, 0);
  ASSERT_TRUE(PutWithMetadata("a", 1).ok());
  Restart(100, 0);
  auto get = StartGet(TestKey("a"));
  executor_.RunOne();  // the first read, which finds that more room is needed
  ASSERT_FALSE(get->has_value());
  ASSERT_EQ(executor_.pending(), 1u);
  ASSERT_TRUE(Delete(TestKey("a")).ok());
  Settle();
  ASSERT_TRUE(get->has_value() && (*get)->ok());
  EXPECT_FALSE((*get)->value().hit());
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
}

// --- The write queue
// ------------------------------------------------------------------------------

TEST_F(TieredCacheDiskTest, AFullQueueDropsTheNewestWriteAndNeverBlocks) {
  TieredCacheOptions options;
  options.l3_queue_entries = 2;
  StartWithStore(100, 0, options);
  // The first is being written already; two wait; the fourth is dropped.
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(name, 1).ok());
  EXPECT_EQ(Stats().l3.queued_writes, 2u);
  EXPECT_EQ(Stats().l3.dropped_writes, 1u);
  Settle();
  EXPECT_EQ(Stats().l3.writes, 3u);
  EXPECT_FALSE(store_.Find(TestKey("d")).has_value());
}

TEST_F(TieredCacheDiskTest, TheQueueIsBoundedInBytesToo) {
  TieredCacheOptions options;
  options.l3_queue_bytes = 2 * kUnit;
  StartWithStore(100, 0, options);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 2).ok());
  EXPECT_EQ(Stats().l3.queued_bytes, 2 * kUnit);
  EXPECT_EQ(Stats().l3.dropped_writes, 1u);
}

TEST_F(TieredCacheDiskTest, AQueuedKeyIsNotQueuedTwice) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("first", 1).ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Put("a", 1, static_cast<char>('0' + i)).ok());
  EXPECT_EQ(Stats().l3.queued_writes, 1u);
  Restart(100, 0);
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(kUnit, '9'));
}

TEST_F(TieredCacheDiskTest, AnEntryEvictedBeforeItsTurnIsStillWritten) {
  StartWithStore(4, 0);
  ASSERT_TRUE(Put("first", 1).ok());
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  ASSERT_TRUE(Put("b", 4, 'b').ok());  // evicts both
  EXPECT_NE(TierOfKey("a"), "l1");
  Settle();
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(3 * kUnit, 'a'));
  EXPECT_EQ(Stats().l3.dropped_writes, 0u);
}

TEST_F(TieredCacheDiskTest, InEvictModeOnlyWhatLeavesMemoryIsWritten) {
  StartWithStore(4, 4, Evicting());
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  ASSERT_TRUE(Put("b", 3).ok());
  Settle();
  EXPECT_EQ(Stats().l3.writes, 0u);
  ASSERT_TRUE(Put("c", 3).ok());  // a falls out of L2
  Settle();
  EXPECT_EQ(Stats().l3.writes, 1u);
  const LookupResult a = Get("a");
  ASSERT_TRUE(a.hit());
  EXPECT_EQ(a.source, TierId::kL3);
  EXPECT_EQ(BytesOf(a.handle), Payload(3 * kUnit, 'a'));
}

TEST_F(TieredCacheDiskTest, AnEntryThatCameFromDiskIsNotWrittenAgain) {
  StartWithStore(4, 0, Evicting());
  ASSERT_TRUE(Put("a", 3).ok());
  ASSERT_TRUE(Put("b", 3).ok());
  Settle();
  ASSERT_EQ(Stats().l3.writes, 1u);
  EXPECT_TRUE(Get("a").hit());    // pushes b out
  ASSERT_TRUE(Put("c", 3).ok());  // pushes a out
  Settle();
  EXPECT_EQ(Stats().l3.writes, 2u);
}

TEST_F(TieredCacheDiskTest, AGetWhileTheBytesAreStagedKeepsTheEntry) {
  StartWithStore(4, 0, Evicting());
  ASSERT_TRUE(Put("a", 4, 'a').ok());
  auto reserved = StartReserve(TestKey("b"), 4 * kUnit);
  ASSERT_EQ(copier_.pending(), 1u);
  auto a = StartGet(TestKey("a"));
  ASSERT_TRUE(a->has_value() && (*a)->value().hit());
  Settle();
  ASSERT_TRUE(reserved->has_value());
  EXPECT_FALSE((*reserved)->ok());  // a is pinned: no room
  EXPECT_EQ(BytesOf((*a)->value().handle), Payload(4 * kUnit, 'a'));
  a->reset();
}

TEST_F(TieredCacheDiskTest, FlushAnswersWhenEverythingBeforeItIsWritten) {
  StartWithStore(100, 0);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 1).ok());
  std::optional<absl::Status> flushed;
  cache_->Flush([&](absl::Status status) { flushed = std::move(status); });
  while (!flushed.has_value()) {
    EXPECT_LT(Stats().l3.writes, 4u);
    Step();
  }
  EXPECT_TRUE(flushed->ok());
  EXPECT_EQ(Stats().l3.writes, 3u);
}

TEST_F(TieredCacheDiskTest, FlushWithoutL3IsRefused) {
  StartCache(10, 0);
  absl::Status flushed;
  cache_->Flush([&](absl::Status status) { flushed = std::move(status); });
  EXPECT_EQ(flushed.code(), absl::StatusCode::kFailedPrecondition);
}

// --- Invalidation against what is in flight
// -------------------------------------------------------

TEST_F(TieredCacheDiskTest, ADeletedEntryDoesNotComeBackFromTheQueue) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("first", 1).ok());
  ASSERT_TRUE(Put("a", 1).ok());
  EXPECT_TRUE(Delete(TestKey("a")).value());
  Restart(100, 0);
  EXPECT_FALSE(Get("a").hit());
}

TEST_F(TieredCacheDiskTest, ADeletedEntryDoesNotComeBackFromAWriteInFlight) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  copier_.RunAll();  // staged; the disk task is waiting
  ASSERT_EQ(executor_.pending(), 1u);
  cache_->Delete(TestKey("a"), [](const absl::StatusOr<bool>& existed) { EXPECT_TRUE(*existed); });
  Settle();
  EXPECT_FALSE(Get("a").hit());
  Restart(100, 0);
  EXPECT_FALSE(Get("a").hit());
}

TEST_F(TieredCacheDiskTest, WithSecondHitAnEntryIsStoredWhenItIsAskedForAgain) {
  TieredCacheOptions options;
  options.l3_admit = L3Admit::kSecondHit;
  StartWithStore(100, 0, options);
  ASSERT_TRUE(Put("a", 3).ok());
  ASSERT_TRUE(Put("b", 3).ok());
  Settle();
  EXPECT_EQ(store_.GetStats().entries, 0u);
  EXPECT_TRUE(Get("a").hit());
  Settle();
  EXPECT_TRUE(store_.Find(TestKey("a")).has_value());
  EXPECT_FALSE(store_.Find(TestKey("b")).has_value());
  EXPECT_TRUE(Get("a").hit());
  Settle();
  EXPECT_EQ(Stats().l3.writes, 1u);
}

TEST_F(TieredCacheDiskTest, WithSecondHitASecondPutIsStoredAndReplacesWhatWas) {
  TieredCacheOptions options;
  options.l3_admit = L3Admit::kSecondHit;
  StartWithStore(100, 0, options);
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  ASSERT_TRUE(Put("a", 3, 'b').ok());
  Settle();
  Restart(100, 0, options);
  const LookupResult a = Get("a");
  ASSERT_TRUE(a.hit());
  EXPECT_EQ(BytesOf(a.handle), Payload(3 * kUnit, 'b'));
  // The set of keys put before is not kept: this put is a first one, and must not leave the old
  // value behind.
  ASSERT_TRUE(Put("a", 3, 'c').ok());
  Settle();
  EXPECT_FALSE(store_.Find(TestKey("a")).has_value());
}

TEST_F(TieredCacheDiskTest, WithSecondHitAndEvictOnlyWhatWasAskedForAgainIsStored) {
  TieredCacheOptions options = Evicting();
  options.l3_admit = L3Admit::kSecondHit;
  StartWithStore(6, 0, options);
  ASSERT_TRUE(Put("a", 3).ok());
  ASSERT_TRUE(Put("b", 3).ok());
  EXPECT_TRUE(Get("a").hit());
  ASSERT_TRUE(Put("c", 3).ok());
  ASSERT_TRUE(Put("d", 3).ok());
  Settle();
  EXPECT_TRUE(store_.Find(TestKey("a")).has_value());
  EXPECT_FALSE(store_.Find(TestKey("b")).has_value());
}

TEST_F(TieredCacheDiskTest, ACheckReadsAllThatIsStoredAndRemovesWhatIsDamaged) {
  StartWithStore(100, 0);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 3).ok());
  Settle();
  store_.Corrupt(TestKey("b"));
  std::optional<absl::StatusOr<TieredCache::StoreCheck>> first, second;
  cache_->CheckStore([&](auto check) { first = std::move(check); });
  cache_->CheckStore([&](auto check) { second = std::move(check); });
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(second->status())) << second->status();
  Settle();
  ASSERT_TRUE(first.has_value() && first->ok());
  EXPECT_EQ((*first)->records, 2u);
  EXPECT_EQ((*first)->bytes, 6 * kUnit);
  EXPECT_EQ((*first)->damaged, 1u);
  EXPECT_EQ((*first)->failed, 0u);
  EXPECT_EQ(store_.GetStats().entries, 2u);
}

TEST_F(TieredCacheDiskTest, ADeleteIsAnsweredOnlyWhenTheRecordOfAnEarlierPutIsGoneFromTheDiskToo) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 3, 'a').ok());
  Settle();
  ASSERT_TRUE(Put("b", 3, 'b').ok());  // the one being written
  ASSERT_TRUE(Put("a", 3, 'c').ok());  // queued
  bool answered = false;
  cache_->Delete(TestKey("a"), [&](const absl::StatusOr<bool>& existed) {
    EXPECT_TRUE(*existed);
    answered = true;
  });
  EXPECT_FALSE(answered) << "the first record is still on disk";
  Settle();
  EXPECT_TRUE(answered);
  EXPECT_FALSE(store_.Find(TestKey("a")).has_value());
}

TEST_F(TieredCacheDiskTest, ADeleteDuringALoadWins) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  Restart(100, 0);
  auto get = StartGet(TestKey("a"));
  ASSERT_FALSE(get->has_value());
  cache_->Delete(TestKey("a"), [](const absl::StatusOr<bool>& existed) { EXPECT_TRUE(*existed); });
  Settle();
  ASSERT_TRUE(get->has_value());
  EXPECT_FALSE((*get)->value().hit());
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
}

TEST_F(TieredCacheDiskTest, AReplacedValueIsNotServedFromDisk) {
  StartWithStore(2, 0);
  ASSERT_TRUE(Put("a", 1, 'o').ok());
  Settle();
  store_.FailNextPuts(1, absl::UnavailableError("full"));
  ASSERT_TRUE(Put("a", 1, 'n').ok());
  ASSERT_TRUE(Put("b", 2).ok());  // evicts the new a, whose write failed
  Settle();
  EXPECT_FALSE(Get("a").hit());
  Restart(2, 0);
  EXPECT_FALSE(Get("a").hit());
}

TEST_F(TieredCacheDiskTest, NoTierReturnsAnEntryOfAnOldEpochAlsoAfterARestart) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  Settle();
  ASSERT_TRUE(Put("b", 1).ok());  // its write is under way
  cache_->AdvanceEpoch("model",
                       [](const absl::StatusOr<uint64_t>& epoch) { EXPECT_EQ(*epoch, 1u); });
  EXPECT_FALSE(Get("a").hit());
  EXPECT_FALSE(Get("b").hit());
  Restart(100, 0);
  EXPECT_FALSE(Get("a").hit());
  EXPECT_FALSE(Get("b").hit());
  ASSERT_TRUE(Put("a", 1, 'n').ok());
  Restart(100, 0);
  EXPECT_EQ(BytesOf(Get("a").handle), Payload(kUnit, 'n'));
}

TEST_F(TieredCacheDiskTest, AnEntryPastItsTimeIsGoneFromDiskToo) {
  StartWithStore(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a"), kUnit, 'a', absl::Seconds(10)).ok());
  Restart(100, 0);
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(Get("a").reason, MissReason::kExpired);
  EXPECT_EQ(TierOfKey("a"), "none");
}

TEST_F(TieredCacheDiskTest, AMismatchRemovesTheRecordFromDisk) {
  StartWithStore(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a"), 256, 'a').ok());
  Restart(100, 0);
  EXPECT_EQ(Get(TestKey("a"), {{.rows = 275}}).reason, MissReason::kMismatch);
  Settle();
  Restart(100, 0);
  EXPECT_EQ(Get("a").reason, MissReason::kAbsent);
}

TEST_F(TieredCacheDiskTest, AMismatchInMemoryRemovesTheRecordFromDiskToo) {
  StartWithStore(100, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a"), 256, 'a').ok());
  Settle();
  ASSERT_TRUE(store_.Find(TestKey("a")).has_value());
  EXPECT_EQ(Get(TestKey("a"), {{.rows = 275}}).reason, MissReason::kMismatch);
  EXPECT_FALSE(store_.Find(TestKey("a")).has_value());
  EXPECT_EQ(Get("a").reason, MissReason::kAbsent);
}

TEST_F(TieredCacheDiskTest, PopOfAnEntryOnDiskGivesItAndRemovesIt) {
  StartWithStore(100, 0);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  Restart(100, 0);
  LookupResult popped;
  cache_->Pop(
      TestKey("a"),
      [&](LookupResult r) {
        popped = std::move(r);
        return popped.hit();
      },
      [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  Settle();
  ASSERT_TRUE(popped.hit());
  EXPECT_EQ(BytesOf(popped.handle), Payload(kUnit, 'a'));
  EXPECT_EQ(TierOfKey("a"), "none");
  EXPECT_EQ(Stats().gets, 0u);
}

TEST_F(TieredCacheDiskTest, ListMergesMemoryAndDisk) {
  StartWithStore(100, 0);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Put("disk" + std::to_string(i), 1).ok());
  Restart(100, 0);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Get("disk" + std::to_string(i)).hit());
  ListQuery query{.limit = 6};
  std::vector<std::string> seen;
  int in_memory = 0;
  do {
    const ListPage page = cache_->List(query);
    for (const ListedEntry& row : page.entries) {
      seen.push_back(std::string(row.key.encoded()));
      EXPECT_TRUE(row.on_disk);
      if (row.tier == TierId::kL1) ++in_memory;
    }
    query.after = page.next;
  } while (!query.after.empty());
  EXPECT_EQ(seen.size(), 20u);
  EXPECT_EQ(in_memory, 5);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

}  // namespace
}  // namespace embcache
