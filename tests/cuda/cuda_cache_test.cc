// TieredCache with L1 in device memory, on the fake driver: right bytes in every move, and what
// each costs in driver calls.

#include <cstring>
#include <optional>

#include "gmock/gmock.h"
#include "gpu/cuda_memory.h"
#include "storage/memory_store.h"
#include "storage/tiered_cache.h"
#include "tests/cuda/cuda_test_support.h"

namespace embcache {
namespace {

class CudaCacheTest : public CudaTest {
 protected:
  ~CudaCacheTest() override { cache_.reset(); }

  void Start(uint64_t l1_bytes, uint64_t l2_bytes, PersistentStore* store = nullptr) {
    cache_.reset();
    if (device_ == nullptr) device_ = OpenDevice();
    TieredCacheOptions options;
    options.l1.capacity_bytes = l1_bytes;
    options.l2.capacity_bytes = l2_bytes;
    auto cache = TieredCache::Create(options, {.clock = SystemClock(),
                                               .executor = &executor_,
                                               .copier = device_->copier(),
                                               .l1_memory = device_->device_memory(),
                                               .l2_memory = device_->pinned_memory(),
                                               .store = store});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  static CacheKey Key(const std::string& name) {
    std::string hash = name;
    hash.resize(8, '.');
    return *CacheKey::Create("model", hash, "");
  }

  void Put(const std::string& name, const std::string& bytes) {
    absl::Notification ended;
    absl::StatusOr<ReservedPlace> place = absl::UnknownError("");
    const TensorLayout layout = *LayOutTensors({TensorSpec{
        .name = "x", .dtype = DType::kU8, .shape = {static_cast<int64_t>(bytes.size())}}});
    cache_->Reserve({.key = Key(name), .layout = layout}, [&](absl::StatusOr<ReservedPlace> got) {
      place = std::move(got);
      ended.Notify();
    });
    ended.WaitForNotification();
    ASSERT_TRUE(place.ok()) << place.status();
    ASSERT_TRUE(Await([&](CopyEngine::Done done) {
                  cache_->WriteReserved(place->id, 0, bytes, std::move(done));
                }).ok());
    ASSERT_TRUE(cache_->Commit(place->id).ok());
  }

  LookupResult Get(const std::string& name, Place place = Place::kAny) {
    absl::Notification ended;
    absl::StatusOr<LookupResult> result = absl::UnknownError("");
    cache_->Lookup(Key(name), {}, place, [&](absl::StatusOr<LookupResult> got) {
      result = std::move(got);
      ended.Notify();
    });
    ended.WaitForNotification();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : LookupResult{};
  }

  // What a client sees at this instant that maps the segment, without any synchronisation.
  std::string Seen(const ReadHandle& handle) {
    const Location& at = handle.location();
    std::string bytes(at.bytes, '?');
    for (const TieredCache::SegmentInfo& segment : cache_->Segments()) {
      if (segment.id != at.segment) continue;
      if (at.tier == TierId::kL2) return {segment.memory->host_data() + at.offset, at.bytes};
      EXPECT_EQ(
          fakecuda_peek(DevicePointer(segment.memory.get()) + at.offset, bytes.data(), at.bytes),
          0);
    }
    return bytes;
  }

  ThreadPoolExecutor executor_{"io", 2, 1000};
  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<TieredCache> cache_;
};

TEST_F(CudaCacheTest, AHitInL1MakesNoDriverCall) {
  Start(16 * kMiB, 16 * kMiB);
  Put("a", Pattern(kMiB, 1));
  const uint64_t before = AllCalls();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Get("a").hit());
  EXPECT_EQ(AllCalls(), before);
}

TEST_F(CudaCacheTest, ADemotionAndAPromotionAreOneCopyAndOneSynchronisationEach) {
  Start(8 * kMiB, 16 * kMiB);
  Put("a", Pattern(3 * kMiB, 1));
  fakecuda_reset();
  EXPECT_EQ(Seen(Get("a", Place::kHost).handle), Pattern(3 * kMiB, 1));
  EXPECT_EQ(Calls("cuMemcpyDtoHAsync"), 1u);
  EXPECT_EQ(Calls("cuEventSynchronize"), 1u);
  EXPECT_EQ(Calls("cuMemcpyHtoDAsync"), 0u);
  EXPECT_EQ(Seen(Get("a", Place::kAny).handle), Pattern(3 * kMiB, 1));
  EXPECT_EQ(Calls("cuMemcpyHtoDAsync"), 1u);
  EXPECT_EQ(Calls("cuEventSynchronize"), 2u);
  EXPECT_EQ(Calls("cuStreamCreate") + Calls("cuEventCreate") + Calls("cuMemHostRegister") +
                Calls("cuMemAlloc") + Calls("cuStreamSynchronize"),
            0u);
  EXPECT_EQ(fakecuda_pageable_copies(getpid()), 0u);
}

TEST_F(CudaCacheTest, WhoeverGetsALeaseSeesTheBytesHoweverSlowTheDeviceIs) {
  Start(8 * kMiB, 32 * kMiB);
  fakecuda_set_delay_us(5'000);
  for (int i = 0; i < 6; ++i) Put(std::to_string(i), Pattern(3 * kMiB, i));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 6; ++i) {
      const LookupResult got = Get(std::to_string(i));
      ASSERT_TRUE(got.hit()) << i;
      EXPECT_EQ(got.handle.location().tier, TierId::kL1);
      EXPECT_TRUE(Seen(got.handle) == Pattern(3 * kMiB, i)) << i;
    }
  }
  EXPECT_GT(cache_->GetStats(false).promotions, 0u);
}

TEST_F(CudaCacheTest, AnEntryComesBackFromL3IntoDeviceMemory) {
  MemoryStore store(uint64_t{1} << 30);
  Start(16 * kMiB, 16 * kMiB, &store);
  Put("a", Pattern(9 * kMiB, 3));
  ASSERT_TRUE(Await([&](CopyEngine::Done done) { cache_->Flush(std::move(done)); }).ok());
  Start(16 * kMiB, 16 * kMiB, &store);
  fakecuda_set_delay_us(5'000);
  const LookupResult got = Get("a");
  ASSERT_TRUE(got.hit());
  EXPECT_EQ(got.source, TierId::kL3);
  EXPECT_EQ(got.handle.location().tier, TierId::kL1);
  EXPECT_TRUE(Seen(got.handle) == Pattern(9 * kMiB, 3));
}

TEST_F(CudaCacheTest, AFailedDemotionDropsTheEntryAndKeepsTheCacheSound) {
  Start(4 * kMiB, 16 * kMiB);
  Put("a", Pattern(3 * kMiB, 1));
  ASSERT_EQ(fakecuda_fail(getpid(), "cuMemcpyDtoHAsync", 1, CUDA_ERROR_INVALID_VALUE), 0);
  Put("b", Pattern(3 * kMiB, 2));
  EXPECT_FALSE(Get("a").hit());
  EXPECT_EQ(Seen(Get("b").handle), Pattern(3 * kMiB, 2));
  cache_->CheckInvariants();
}

TEST_F(CudaCacheTest, AFailedPromotionIsServedFromL2) {
  Start(8 * kMiB, 16 * kMiB);
  Put("a", Pattern(kMiB, 1));
  ASSERT_TRUE(Get("a", Place::kHost).hit());
  ASSERT_EQ(fakecuda_fail(getpid(), "cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE), 0);
  const LookupResult got = Get("a");
  EXPECT_EQ(got.handle.location().tier, TierId::kL2);
  EXPECT_EQ(Seen(got.handle), Pattern(kMiB, 1));
}

TEST_F(CudaCacheTest, AStickyErrorMakesItsEntriesMissesAndL2ServesOn) {
  Start(8 * kMiB, 16 * kMiB);
  Put("host", Pattern(kMiB, 1));
  ASSERT_TRUE(Get("host", Place::kHost).hit());
  Put("device", Pattern(kMiB, 2));
  device_->OnLost([this](const absl::Status&) { cache_->LoseTier(TierId::kL1); });
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  const LookupResult served = Get("host");  // its promotion finds out
  EXPECT_EQ(served.handle.location().tier, TierId::kL2);
  EXPECT_EQ(Seen(served.handle), Pattern(kMiB, 1));
  EXPECT_FALSE(Get("device").hit());
  Put("new", Pattern(kMiB, 3));
  EXPECT_EQ(Get("new").handle.location().tier, TierId::kL2);
  cache_->CheckInvariants();
}

TEST_F(CudaCacheTest, WithL2ThatCouldNotBePinnedEverythingStillWorks) {
  device_ = OpenDevice();
  fakecuda_set_host_limit(fakecuda_pinned_bytes());
  Start(8 * kMiB, 16 * kMiB);
  EXPECT_EQ(device_->GetStats().pageable_bytes, 16 * kMiB);
  Put("a", Pattern(5 * kMiB, 1));
  EXPECT_EQ(Seen(Get("a", Place::kHost).handle), Pattern(5 * kMiB, 1));
  EXPECT_EQ(Seen(Get("a").handle), Pattern(5 * kMiB, 1));
  EXPECT_EQ(fakecuda_pageable_copies(getpid()), 0u) << "by way of the buffers";
}

}  // namespace
}  // namespace embcache
