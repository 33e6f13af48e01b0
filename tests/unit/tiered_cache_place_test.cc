// Lookups by callers who cannot use all memory, where L1 is device memory, and the loss of L1.

#include "gmock/gmock.h"
#include "storage/memory_store.h"
#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

using testing::HasSubstr;

// Heap memory that says it is a device's. Where the test itself needs the bytes it may look.
class DeviceHeap : public HeapMemory {
 public:
  std::string device_uuid() const override { return "GPU-test"; }
};

using GetAnswer = std::shared_ptr<std::optional<absl::StatusOr<LookupResult>>>;

class PlaceTest : public CacheFixture {
 protected:
  void StartDeviceCache(uint64_t l1_units, uint64_t l2_units, PersistentStore* store = nullptr) {
    TieredCacheOptions options;
    options.l1.capacity_bytes = l1_units * kUnit;
    options.l2.capacity_bytes = l2_units * kUnit;
    auto cache = TieredCache::Create(options, {.clock = &clock_,
                                               .executor = &executor_,
                                               .copier = &copier_,
                                               .l1_memory = &device_,
                                               .l2_memory = &memory_,
                                               .store = store});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  GetAnswer StartGetAt(absl::string_view name, Place place) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<LookupResult>>>();
    cache_->Lookup(TestKey(name), {}, place, [answer](absl::StatusOr<LookupResult> result) {
      answer->emplace(std::move(result));
    });
    return answer;
  }
  absl::StatusOr<LookupResult> GetAt(absl::string_view name, Place place) {
    GetAnswer answer = StartGetAt(name, place);
    while (!answer->has_value() && copier_.pending() + executor_.pending() > 0) Step();
    cache_->CheckInvariants();
    return answer->has_value() ? *std::move(*answer) : absl::InternalError("never answered");
  }
  static TierId TierOf(const absl::StatusOr<LookupResult>& result) {
    EXPECT_TRUE(result.ok() && result->hit()) << result.status();
    return result.ok() && result->hit() ? result->handle.location().tier : TierId::kL3;
  }
  absl::StatusOr<ReservedPlace> ReserveAt(absl::string_view name, uint64_t units, Place place) {
    std::optional<absl::StatusOr<ReservedPlace>> answer;
    cache_->Reserve({.key = TestKey(name), .layout = TestLayout(units * kUnit), .place = place},
                    [&](absl::StatusOr<ReservedPlace> reserved) { answer = std::move(reserved); });
    while (!answer.has_value() && copier_.pending() + executor_.pending() > 0) Step();
    return *answer;
  }

  DeviceHeap device_;
};

TEST_F(PlaceTest, AGetForTheHostBringsAnEntryFromTheDeviceToL2) {
  StartDeviceCache(4, 4);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  EXPECT_EQ(TierOfKey("a"), "l1");
  const auto got = GetAt("a", Place::kHost);
  EXPECT_EQ(TierOf(got), TierId::kL2);
  EXPECT_EQ(got->source, TierId::kL1);
  EXPECT_EQ(BytesOf(got->handle), Payload(kUnit, 'a'));
  EXPECT_EQ(Stats().demotions, 1u);
  EXPECT_EQ(Stats().memory[0].evictions_capacity, 0u) << "it did not have to leave";
}

TEST_F(PlaceTest, AGetForTheHostDoesNotPromote) {
  StartDeviceCache(4, 4);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_EQ(TierOf(GetAt("a", Place::kHost)), TierId::kL2);
  EXPECT_EQ(TierOf(GetAt("a", Place::kHost)), TierId::kL2);
  EXPECT_EQ(Stats().promotions, 0u);
  EXPECT_EQ(TierOf(GetAt("a", Place::kAny)), TierId::kL1);
}

TEST_F(PlaceTest, AnEntryPinnedOnTheDeviceIsRefusedToTheHostAndTheErrorSaysWhy) {
  StartDeviceCache(4, 4);
  auto pin = PutAndPin(TestKey("a"), kUnit, 'a');
  ASSERT_TRUE(pin.ok());
  const absl::Status refused = GetAt("a", Place::kHost).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("l1, device memory"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 pins"));
  pin->Reset();
  EXPECT_EQ(TierOf(GetAt("a", Place::kHost)), TierId::kL2);
}

TEST_F(PlaceTest, WithoutL2TheHostIsRefused) {
  StartDeviceCache(4, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  const absl::Status refused = GetAt("a", Place::kHost).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("L2 is missing"));
  EXPECT_EQ(TierOf(GetAt("a", Place::kAny)), TierId::kL1);
}

TEST_F(PlaceTest, AGetForTheDeviceThatComesDuringTheMoveIsServedAtOnceAndTheHostIsRefused) {
  StartDeviceCache(4, 4);
  ASSERT_TRUE(Put("a", 1).ok());
  GetAnswer host = StartGetAt("a", Place::kHost);
  EXPECT_FALSE(host->has_value());
  GetAnswer device = StartGetAt("a", Place::kAny);
  ASSERT_TRUE(device->has_value());
  EXPECT_EQ(TierOf(**device), TierId::kL1);
  Settle();
  ASSERT_TRUE(host->has_value());
  EXPECT_EQ((**host).status().code(), absl::StatusCode::kFailedPrecondition);
  cache_->CheckInvariants();
}

TEST_F(PlaceTest, AGetForTheHostCallsAPromotionOff) {
  StartDeviceCache(4, 4);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  ASSERT_EQ(TierOf(GetAt("a", Place::kHost)), TierId::kL2);
  GetAnswer any = StartGetAt("a", Place::kAny);
  EXPECT_FALSE(any->has_value());
  GetAnswer host = StartGetAt("a", Place::kHost);
  ASSERT_TRUE(host->has_value());
  EXPECT_EQ(TierOf(**host), TierId::kL2);
  Settle();
  EXPECT_EQ(TierOf(**any), TierId::kL2) << "who takes any place gets this one";
  EXPECT_EQ(BytesOf((**host)->handle), Payload(kUnit, 'a'));
  cache_->CheckInvariants();
}

TEST_F(PlaceTest, AGetForTheDeviceIsNeverServedFromTheHost) {
  StartDeviceCache(2, 4);
  ASSERT_TRUE(Put("a", 2).ok());
  ASSERT_EQ(TierOf(GetAt("a", Place::kHost)), TierId::kL2);
  EXPECT_EQ(TierOf(GetAt("a", Place::kDevice)), TierId::kL1);

  ASSERT_EQ(TierOf(GetAt("a", Place::kHost)), TierId::kL2);
  auto everything = PutAndPin(TestKey("b"), 2 * kUnit, 'b');
  ASSERT_TRUE(everything.ok());
  const absl::Status full = GetAt("a", Place::kDevice).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(full.message()), HasSubstr("there is no room"));
  EXPECT_EQ(TierOf(GetAt("a", Place::kAny)), TierId::kL2);

  const auto pinned = GetAt("a", Place::kHost);
  EXPECT_THAT(std::string(GetAt("a", Place::kDevice).status().message()), HasSubstr("pins"));
}

TEST_F(PlaceTest, AReservationIsWhereItsWriterCanWrite) {
  StartDeviceCache(2, 2);
  const auto host = ReserveAt("a", 1, Place::kHost);
  ASSERT_TRUE(host.ok());
  EXPECT_EQ(host->location.tier, TierId::kL2);
  const auto any = ReserveAt("b", 2, Place::kAny);
  ASSERT_TRUE(any.ok());
  EXPECT_EQ(any->location.tier, TierId::kL1);
  EXPECT_EQ(ReserveAt("c", 1, Place::kDevice).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(cache_->Abort(host->id).ok());
  EXPECT_TRUE(cache_->Abort(any->id).ok());
}

TEST_F(PlaceTest, ALoadFromL3ForTheHostGoesToL2) {
  MemoryStore store(uint64_t{1} << 30);
  StartDeviceCache(4, 4, &store);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  Settle();
  StartDeviceCache(4, 4, &store);
  const auto got = GetAt("a", Place::kHost);
  EXPECT_EQ(TierOf(got), TierId::kL2);
  EXPECT_EQ(got->source, TierId::kL3);
  EXPECT_EQ(BytesOf(got->handle), Payload(kUnit, 'a'));
}

TEST_F(PlaceTest, AWriteToL3UnderWayIsWaitedForAndThenTheEntryMoves) {
  MemoryStore store(uint64_t{1} << 30);
  StartDeviceCache(4, 4, &store);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  ASSERT_EQ(copier_.pending(), 1u) << "the bytes for L3 are being copied out";
  GetAnswer host = StartGetAt("a", Place::kHost);
  EXPECT_EQ(copier_.pending(), 1u);
  Settle();
  ASSERT_TRUE(host->has_value());
  EXPECT_EQ(TierOf(**host), TierId::kL2);
  EXPECT_EQ(BytesOf((**host)->handle), Payload(kUnit, 'a'));
}

// --- Loss ---------------------------------------------------------------------------------------

TEST_F(PlaceTest, WhatWasOnALostDeviceIsAMissAndWhatIsInL2IsServed) {
  StartDeviceCache(4, 4);
  ASSERT_TRUE(Put("host", 1, 'h').ok());
  ASSERT_EQ(TierOf(GetAt("host", Place::kHost)), TierId::kL2);
  ASSERT_TRUE(Put("gone", 1).ok());
  cache_->LoseTier(TierId::kL1);
  cache_->CheckInvariants();
  EXPECT_FALSE(cache_->TierUsable(TierId::kL1));
  EXPECT_FALSE(GetAt("gone", Place::kAny)->hit());
  EXPECT_EQ(TierOf(GetAt("host", Place::kAny)), TierId::kL2);
  ASSERT_EQ(cache_->Segments().size(), 1u);
  EXPECT_EQ(cache_->Segments()[0].tier, TierId::kL2);
  ASSERT_TRUE(Put("new", 1, 'n').ok());
  EXPECT_EQ(TierOfKey("new"), "l2");
}

TEST_F(PlaceTest, PinsReservationsAndMovesOnALostDeviceEndWithoutHarm) {
  StartDeviceCache(4, 4);
  auto pin = PutAndPin(TestKey("pinned"), kUnit, 'p');
  const auto reserved = ReserveAt("reserved", 1, Place::kAny);
  ASSERT_TRUE(reserved.ok());
  ASSERT_TRUE(Put("down", 1).ok());
  ASSERT_TRUE(Put("up", 1, 'u').ok());
  ASSERT_EQ(TierOf(GetAt("up", Place::kHost)), TierId::kL2);
  GetAnswer down = StartGetAt("down", Place::kHost);
  GetAnswer up = StartGetAt("up", Place::kAny);
  ASSERT_EQ(copier_.pending(), 2u);
  cache_->LoseTier(TierId::kL1);
  cache_->CheckInvariants();
  Settle();  // both copies report success, but too late
  EXPECT_FALSE((**down)->hit());
  EXPECT_EQ(TierOf(**up), TierId::kL2);
  EXPECT_FALSE(cache_->PinInPlace(TestKey("pinned")));
  EXPECT_EQ(cache_->Commit(reserved->id).status().code(), absl::StatusCode::kUnavailable);
  pin->Reset();
  cache_->CheckInvariants();
  EXPECT_EQ(Stats().memory[0].used_bytes, 0u);
}

TEST_F(PlaceTest, WhoWaitsForRoomOnALostDeviceGetsL2) {
  StartDeviceCache(2, 4);
  ASSERT_TRUE(Put("a", 2).ok());
  auto waiting = StartReserve(TestKey("b"), 2 * kUnit);
  ASSERT_FALSE(waiting->has_value());
  cache_->LoseTier(TierId::kL1);
  Settle();
  ASSERT_TRUE(waiting->has_value() && (*waiting)->ok());
  EXPECT_EQ((**waiting)->location.tier, TierId::kL2);
  EXPECT_TRUE(cache_->Abort((**waiting)->id).ok());
}

TEST_F(PlaceTest, ALoadIntoALostDeviceStartsAnewInL2) {
  MemoryStore store(uint64_t{1} << 30);
  StartDeviceCache(4, 4, &store);
  ASSERT_TRUE(Put("a", 1, 'a').ok());
  Settle();
  StartDeviceCache(4, 4, &store);
  GetAnswer loading = StartGetAt("a", Place::kAny);
  ASSERT_FALSE(loading->has_value());
  cache_->LoseTier(TierId::kL1);
  Settle();
  ASSERT_TRUE(loading->has_value());
  EXPECT_EQ(TierOf(**loading), TierId::kL2);
  EXPECT_EQ(BytesOf((**loading)->handle), Payload(kUnit, 'a'));
}

TEST_F(PlaceTest, WithNoMemoryLeftEverythingIsAMiss) {
  MemoryStore store(uint64_t{1} << 30);
  StartDeviceCache(4, 0, &store);
  ASSERT_TRUE(Put("a", 1).ok());
  Settle();
  cache_->LoseTier(TierId::kL1);
  EXPECT_FALSE(GetAt("a", Place::kAny)->hit());
  EXPECT_EQ(ReserveAt("b", 1, Place::kAny).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace embcache
