// Hits without a call, both sides in one process: the cache publishes and frees, libembcache_fast
// finds, pins and touches, through the same memory as in life.

#include "storage/fast_path.h"

#include <cstring>
#include <memory>
#include <optional>
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

class FastPathTest : public CacheFixture {
 protected:
  void Start(uint64_t l1_units, uint64_t l2_units = 0, uint64_t entries = 64) {
    TieredCacheOptions options;
    options.l1.capacity_bytes = l1_units * kUnit;
    options.l2.capacity_bytes = l2_units * kUnit;
    options.fast_index_entries = entries;
    auto cache = TieredCache::Create(options, {.clock = &clock_,
                                               .executor = &executor_,
                                               .copier = &copier_,
                                               .l1_memory = &memory_,
                                               .l2_memory = &memory_,
                                               .fast_memory = &shared_});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  std::string BytesOf(const embcache_fast_hit& hit) {
    const char* base = cache_->Segments()[hit.entry->segment].memory->host_data();
    return std::string(base + hit.entry->offset, hit.entry->bytes);
  }

  HostMemory shared_;
};

TEST_F(FastPathTest, AReaderFindsWhatWasPutWithAllThatBelongsToIt) {
  Start(8);
  ReserveRequest request{
      .key = TestKey("a"),
      .layout = *LayOutTensors({{.name = "main", .dtype = DType::kBF16, .shape = {8, 128}},
                                {.name = "deepstack", .dtype = DType::kF32, .shape = {3}},
                                {.name = "none", .absent = true}}),
      .metadata = {{"grid_thw", "1 2 3"}, {"empty", ""}},
      .encode_cost_us = 77};
  ReservationId id = 0;
  cache_->Reserve(request, [&](absl::StatusOr<ReservedPlace> place) { id = place->id; });
  const uint64_t generation = cache_->Commit(id)->generation();
  FastReader reader(cache_.get());
  const auto hit = reader.Get("a");
  ASSERT_TRUE(hit.has_value());
  const embcache_fast_blob& entry = *hit->entry;
  EXPECT_EQ(entry.generation, generation);
  EXPECT_EQ(entry.encode_cost_us, 77u);
  EXPECT_EQ(entry.tier, 1u);
  EXPECT_EQ(entry.bytes, request.layout.payload_bytes);
  ASSERT_EQ(entry.tensors, 3u);
  const embcache_fast_tensor* tensors = embcache_fast_tensors(&entry);
  for (int i = 0; i < 3; ++i) {
    const TensorSpec& spec = request.layout.tensors[i];
    EXPECT_EQ(std::string(embcache_fast_text(&entry, tensors[i].name_at), tensors[i].name_bytes),
              spec.name);
    EXPECT_EQ(tensors[i].dtype, static_cast<uint8_t>(spec.dtype));
    EXPECT_EQ(tensors[i].offset, spec.offset);
    EXPECT_EQ(tensors[i].bytes, spec.bytes);
    EXPECT_EQ(tensors[i].absent, spec.absent ? 1u : 0u);
    EXPECT_EQ(std::vector<int64_t>(tensors[i].shape, tensors[i].shape + tensors[i].rank),
              spec.shape);
  }
  ASSERT_EQ(entry.metadata, 2u);
  const embcache_fast_metadata* metadata = embcache_fast_metadata_of(&entry);
  EXPECT_EQ(std::string(embcache_fast_text(&entry, metadata->name_at), metadata->name_bytes),
            "grid_thw");
  EXPECT_EQ(std::string(embcache_fast_text(&entry, metadata->value_at), metadata->value_bytes),
            "1 2 3");
  reader.Release(*hit);
}

TEST_F(FastPathTest, WhatIsNotThereIsNotFound) {
  Start(8);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  EXPECT_TRUE(reader.Hits("a"));
  EXPECT_FALSE(reader.Hits("b"));
  EXPECT_FALSE(reader.Get(TestKey("a", "another model")).has_value());
}

TEST_F(FastPathTest, HitsAreCountedLikeThoseOfCalls) {
  Start(8);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(reader.Hits("a"));
  Get("a").handle.Reset();
  Get("absent");
  const CacheStats stats = Stats();
  EXPECT_EQ(stats.gets, 12u);
  EXPECT_EQ(stats.hits, 11u);
  EXPECT_EQ(stats.fast_hits, 10u);
  EXPECT_EQ(stats.memory[0].hits, 11u);
  EXPECT_EQ(stats.saved_us, 11'000u);
  cache_->CheckInvariants();
}

TEST_F(FastPathTest, PutsGetsAndHitsWithoutACallAreUsesAndNothingElseIs) {
  Start(8);
  uint64_t uses = cache_->uses();
  const auto used = [&] { return std::exchange(uses, cache_->uses()) != uses; };
  ASSERT_TRUE(Put("a", 1).ok());
  EXPECT_TRUE(used());
  EXPECT_FALSE(Put("b", 9).ok());
  EXPECT_TRUE(used()) << "a put that is refused, too";
  Get("a");
  EXPECT_TRUE(used());
  Get("absent");
  EXPECT_TRUE(used());
  FastReader reader(cache_.get());
  EXPECT_TRUE(reader.Hits("a"));
  cache_->Tick();
  EXPECT_TRUE(used());
  cache_->Tick();
  cache_->GetStats(/*per_model=*/true);
  EXPECT_TRUE(cache_->Contains(TestKey("a")).has_value());
  ASSERT_TRUE(*Delete(TestKey("a")));
  EXPECT_FALSE(used());
}

TEST_F(FastPathTest, MoreTouchesThanTheRingHoldsAreCountedAllTheSame) {
  Start(8);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(reader.Hits("a"));
  const CacheStats stats = Stats();
  EXPECT_EQ(stats.hits, 2000u);
  EXPECT_EQ(stats.gets, 2000u);
  cache_->CheckInvariants();
}

TEST_F(FastPathTest, AHitMakesTheEntryTheLastToLeave) {
  Start(4);
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(name, 1).ok());
  FastReader reader(cache_.get());
  EXPECT_TRUE(reader.Hits("a"));
  ASSERT_TRUE(Put("e", 1).ok());
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(TierOfKey("b"), "none");
}

TEST_F(FastPathTest, APinnedEntryIsNoVictim) {
  Start(2);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  ASSERT_TRUE(Put("b", 1).ok());
  FastReader reader(cache_.get());
  const auto hit = reader.Get("a");
  ASSERT_TRUE(hit.has_value());
  ASSERT_TRUE(reader.Hits("b"));  // more recently used
  ASSERT_TRUE(Put("c", 1).ok());
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(Stats().memory[0].pinned_bytes, kUnit);
  EXPECT_EQ(BytesOf(*hit), Payload(kUnit, 'a'));
  reader.Release(*hit);
  EXPECT_EQ(Stats().memory[0].pinned_bytes, 0u);
}

TEST_F(FastPathTest, WhenAllIsPinnedAPutFailsUntilSomethingIsReleased) {
  Start(1);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  const auto hit = reader.Get("a");
  ASSERT_TRUE(hit.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(Put("b", 1)));
  EXPECT_EQ(TierOfKey("a"), "l1");
  reader.Release(*hit);
  EXPECT_TRUE(Put("b", 1).ok());
}

TEST_F(FastPathTest, ADeletedEntryIsNotFoundButItsBytesStayForWhoHoldsIt) {
  Start(1);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  FastReader reader(cache_.get());
  const auto hit = reader.Get("a");
  ASSERT_TRUE(hit.has_value());
  ASSERT_TRUE(*Delete(TestKey("a")));
  EXPECT_FALSE(reader.Hits("a"));
  EXPECT_EQ(Stats().memory[0].used_bytes, kUnit);
  EXPECT_EQ(Stats().memory[0].pinned_bytes, kUnit);
  EXPECT_TRUE(absl::IsResourceExhausted(Put("b", 1)));
  EXPECT_EQ(BytesOf(*hit), Payload(kUnit, 'a'));
  EXPECT_EQ(hit->entry->publication, hit->publication);
  reader.Release(*hit);
  ASSERT_TRUE(Put("b", 1).ok());
  EXPECT_EQ(Stats().memory[0].used_bytes, kUnit);
}

TEST_F(FastPathTest, AReplacedEntryIsServedAnewAndTheOldBytesStayForWhoHoldsThem) {
  Start(2);
  ASSERT_TRUE(Put("a", 1, '1').ok());
  FastReader reader(cache_.get());
  const auto old = reader.Get("a");
  ASSERT_TRUE(old.has_value());
  ASSERT_TRUE(Put("a", 1, '2').ok());
  const auto now = reader.Get("a");
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(BytesOf(*old), Payload(kUnit, '1'));
  EXPECT_EQ(BytesOf(*now), Payload(kUnit, '2'));
  EXPECT_LT(old->entry->generation, now->entry->generation);
  reader.Release(*old);
  reader.Release(*now);
  cache_->Tick();
  EXPECT_EQ(Stats().memory[0].used_bytes, kUnit);
}

TEST_F(FastPathTest, AnEntryOfAnOldEpochIsNotFoundFromTheAdvanceOn) {
  Start(4);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  EXPECT_TRUE(reader.Hits("a"));
  cache_->AdvanceEpoch("model", [](absl::StatusOr<uint64_t>) {});
  EXPECT_FALSE(reader.Hits("a"));
  ASSERT_TRUE(Put("a", 1).ok());
  EXPECT_TRUE(reader.Hits("a"));
}

TEST_F(FastPathTest, AnEntryPastItsTimeIsNotFound) {
  Start(4);
  clock_.Advance(absl::Now() - clock_.Now());  // readers look at the real clock
  ASSERT_TRUE(PutAndPin(TestKey("short"), kUnit, 'x', absl::Nanoseconds(1)).ok());
  ASSERT_TRUE(PutAndPin(TestKey("long"), kUnit, 'x', absl::Hours(1)).ok());
  FastReader reader(cache_.get());
  EXPECT_FALSE(reader.Hits("short"));
  EXPECT_TRUE(reader.Hits("long"));
}

TEST_F(FastPathTest, ADemotedEntryIsFoundInItsNewPlaceAndTheOldOneStaysForWhoHoldsIt) {
  Start(1, 2);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  FastReader reader(cache_.get());
  auto reserved = StartReserve(TestKey("b"), kUnit);  // the demotion of "a" begins
  const auto hit = reader.Get("a");                   // while it is being copied
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->entry->tier, 1u);
  Settle();
  EXPECT_EQ(TierOfKey("a"), "l2");
  const auto moved = reader.Get("a");
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(moved->entry->tier, 2u);
  EXPECT_EQ(BytesOf(*hit), Payload(kUnit, 'a'));
  EXPECT_EQ(BytesOf(*moved), Payload(kUnit, 'a'));
  EXPECT_EQ(Stats().memory[0].used_bytes, kUnit);  // in limbo
  cache_->CheckInvariants();
  reader.Release(*hit);
  reader.Release(*moved);
  cache_->Tick();
  Settle();
}

TEST_F(FastPathTest, AHitInL2IsServedThereAndPromotedByTheTick) {
  Start(1, 2);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  ASSERT_TRUE(Put("b", 1, 'b').ok());
  ASSERT_EQ(TierOfKey("a"), "l2");
  FastReader reader(cache_.get());
  EXPECT_TRUE(reader.Hits("a"));
  EXPECT_EQ(TierOfKey("a"), "l2");
  EXPECT_EQ(Stats().memory[1].hits, 1u);
  cache_->Tick();
  Settle();
  EXPECT_EQ(TierOfKey("a"), "l1");
  EXPECT_EQ(TierOfKey("b"), "l2");
  EXPECT_TRUE(reader.Hits("a"));
}

TEST_F(FastPathTest, TheIndexGrowsAndWhatWasPinnedBeforeStaysPinned) {
  Start(2 * FastPath::kFirstEntries, 0, 3 * FastPath::kFirstEntries);
  const int entries = FastPath::kFirstEntries + 100;
  ASSERT_TRUE(Put("first", 1, 'f').ok());
  FastReader reader(cache_.get());
  const auto hit = reader.Get("first");
  ASSERT_TRUE(hit.has_value());
  for (int i = 0; i < entries; ++i) {
    ASSERT_TRUE(PutAndPin(TestKey(absl::StrCat("k", i)), kUnit, 'x').ok());
  }
  EXPECT_FALSE(reader.Hits(absl::StrCat("k", entries - 1)));
  const auto before = cache_->FastIndexMemory();
  cache_->Tick();
  ASSERT_NE(cache_->FastIndexMemory(), before);
  EXPECT_FALSE(reader.Hits("k0")) << "the old index must not be used any more";
  ASSERT_TRUE(reader.FollowIndex());
  for (int i = 0; i < entries; ++i) EXPECT_TRUE(reader.Hits(absl::StrCat("k", i)));
  ASSERT_TRUE(*Delete(TestKey("first")));
  cache_->Tick();
  EXPECT_EQ(Stats().memory[0].pinned_bytes, kUnit);
  EXPECT_EQ(BytesOf(*hit), Payload(kUnit, 'f'));
  EXPECT_EQ(hit->entry->encode_cost_us, 1000u);
  reader.Release(*hit);
}

TEST_F(FastPathTest, WhatFindsNoRoomInTheIndexIsPublishedWhenItIsHitAndThereIsRoom) {
  Start(8, 0, 1);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());
  FastReader reader(cache_.get());
  EXPECT_TRUE(reader.Hits("a"));
  EXPECT_FALSE(reader.Hits("b"));
  ASSERT_TRUE(*Delete(TestKey("a")));
  Get("b");
  EXPECT_TRUE(reader.Hits("b"));
}

TEST_F(FastPathTest, ThePinsOfATableThatIsClosedCountForNothing) {
  Start(1);
  ASSERT_TRUE(Put("a", 1).ok());
  {
    FastReader reader(cache_.get());
    ASSERT_TRUE(reader.Get("a").has_value());
    EXPECT_TRUE(absl::IsResourceExhausted(Put("b", 1)));
  }
  EXPECT_TRUE(Put("b", 1).ok());
}

TEST_F(FastPathTest, AReaderStopsAtItsQuota) {
  Start(8);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 1).ok());
  FastReader reader(cache_.get(), 2 * kUnit);
  const auto a = reader.Get("a");
  const auto b = reader.Get("b");
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_FALSE(reader.Get("c").has_value());
  reader.Release(*a);
  EXPECT_TRUE(reader.Hits("c"));
  EXPECT_FALSE(reader.Get("a").has_value() && reader.Get("c").has_value());
}

TEST_F(FastPathTest, AReaderAtItsQuotaKeepsItsBytesWhateverElseItAsksFor) {
  Start(8);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 1, name[0]).ok());
  FastReader reader(cache_.get(), 2 * kUnit);
  const auto a = reader.Get("a");
  const auto b = reader.Get("b");
  ASSERT_TRUE(a.has_value() && b.has_value());
  // A pin that is over the quota must not be seen even for a moment, so it is charged before.
  std::atomic<bool> stop = false;
  std::thread asks([&] {
    while (!stop) reader.Get("c");
  });
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(Put(i % 2 == 0 ? "a" : "b", 1, 'x').ok());
    if (i % 100 == 0) cache_->Tick();
    if (BytesOf(*a)[0] != 'a' || BytesOf(*b)[0] != 'b') break;
  }
  stop = true;
  asks.join();
  EXPECT_EQ(BytesOf(*a), Payload(kUnit, 'a'));
  EXPECT_EQ(BytesOf(*b), Payload(kUnit, 'b'));
}

TEST_F(FastPathTest, OneLookThatFindsTooMuchTakesNoPinAway) {
  Start(3);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  ASSERT_TRUE(Put("b", 1, 'b').ok());
  FastReader reader(cache_.get(), kUnit);
  const auto a = reader.Get("a");
  ASSERT_TRUE(a.has_value());
  // As it looks while a pin is ended and another taken elsewhere in the table.
  embcache_fast_table* table = reader.table();
  table->lanes[0].pins_used = 64;
  table->lanes[0].pins[63] = a->publication + 1;
  cache_->Tick();
  ASSERT_TRUE(*Delete(TestKey("a")));
  ASSERT_TRUE(Put("c", 1, 'c').ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Put("d", 2, 'd')));
  EXPECT_EQ(BytesOf(*a), Payload(kUnit, 'a'));
}

TEST_F(FastPathTest, WhoGoesOnPinningMoreThanItsQuotaIsIgnored) {
  Start(2);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());
  FastReader reader(cache_.get(), kUnit);
  const uint64_t a = [&] {
    const auto hit = reader.Get("a");
    reader.Release(*hit);
    return hit->publication;
  }();
  embcache_fast_table* table = reader.table();
  table->lanes_used = 1;
  table->lanes[0].pins_used = 2;
  table->lanes[0].pins[0] = a;
  table->lanes[0].pins[1] = a + 1;
  EXPECT_TRUE(absl::IsResourceExhausted(Put("c", 1))) << "not at once";
  for (int i = 0; i < 100; ++i) cache_->Tick();
  EXPECT_TRUE(Put("c", 1).ok());
  for (int i = 0; i < 100; ++i) cache_->Tick();
  EXPECT_TRUE(absl::IsResourceExhausted(Put("d", 2))) << "what is within its quota counts again";
}

TEST_F(FastPathTest, ATableOfRubbishHarmsNobody) {
  Start(4);
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(name, 1, name[0]).ok());
  FastReader honest(cache_.get());
  FastReader rubbish(cache_.get());
  std::memset(rubbish.table(), 0xA5, sizeof(embcache_fast_table));
  const auto hit = honest.Get("a");
  ASSERT_TRUE(hit.has_value());
  ASSERT_TRUE(Put("e", 3).ok());
  EXPECT_EQ(BytesOf(*hit), Payload(kUnit, 'a'));
  const uint64_t hits = Stats().hits;
  std::memset(rubbish.table(), 0x11, sizeof(embcache_fast_table));
  cache_->Tick();
  EXPECT_EQ(Stats().hits, hits);
  honest.Release(*hit);
  cache_->CheckInvariants();
}

TEST_F(FastPathTest, AStoppedIndexAnswersNothingAndPinsStay) {
  Start(1);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  const auto hit = reader.Get("a");
  ASSERT_TRUE(hit.has_value());
  cache_->StopFastPath();
  EXPECT_FALSE(reader.Hits("a"));
  EXPECT_TRUE(absl::IsResourceExhausted(Put("b", 1)));
  reader.Release(*hit);
  EXPECT_TRUE(Put("b", 1).ok());
}

TEST_F(FastPathTest, ASlotLeftHalfWrittenIsPassedOver) {
  Start(4);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());
  FastReader reader(cache_.get());
  // As if the daemon had been killed in the middle of a write.
  char* base = cache_->FastIndexMemory()->host_data();
  const auto* header = reinterpret_cast<const embcache_fast_header*>(base);
  auto* slots = reinterpret_cast<embcache_fast_slot*>(base + header->slots_at);
  const FastHash hash = HashForFastIndex(TestKey("a").encoded());
  for (uint64_t i = 0; i <= header->slot_mask; ++i) {
    if (slots[i].hash_low == hash.low) ++slots[i].seq;
  }
  EXPECT_FALSE(reader.Hits("a"));
  EXPECT_TRUE(reader.Hits("b"));
}

TEST_F(FastPathTest, MoreThanALaneOfPinsAreHeldAtOnce) {
  Start(4);
  ASSERT_TRUE(Put("a", 1).ok());
  FastReader reader(cache_.get());
  std::vector<embcache_fast_hit> hits;
  while (const auto hit = reader.Get("a")) hits.push_back(*hit);
  EXPECT_EQ(hits.size(), size_t{EMBCACHE_FAST_LANES * EMBCACHE_FAST_LANE_PINS});
  for (const embcache_fast_hit& hit : hits) reader.Release(hit);
  EXPECT_TRUE(reader.Hits("a"));
}

}  // namespace
}  // namespace embcache
