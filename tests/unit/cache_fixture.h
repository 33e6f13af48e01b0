// CacheFixture: a TieredCache whose copies, disk work and time move only when a test says so.

#ifndef EMBCACHE_TESTS_UNIT_CACHE_FIXTURE_H_
#define EMBCACHE_TESTS_UNIT_CACHE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/executor.h"
#include "storage/memory_store.h"
#include "storage/tiered_cache.h"
#include "tests/unit/heap_memory.h"
#include "tests/unit/manual_copy_engine.h"

namespace embcache {

inline CacheKey TestKey(absl::string_view name, absl::string_view model = "model") {
  std::string hash(name);
  hash.resize(8, '.');
  return *CacheKey::Create(model, hash, "");
}

// One U8 tensor of `bytes`.
inline TensorLayout TestLayout(uint64_t bytes) {
  return *LayOutTensors(
      {TensorSpec{.name = "main", .dtype = DType::kU8, .shape = {static_cast<int64_t>(bytes)}}});
}

class CacheFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kUnit = 4096;  // the unit of capacities and sizes below

  void StartCache(uint64_t l1_units, uint64_t l2_units, PersistentStore* store = nullptr,
                  TieredCacheOptions options = {}) {
    cache_.reset();
    options.l1.capacity_bytes = l1_units * kUnit;
    options.l2.capacity_bytes = l2_units * kUnit;
    auto cache = TieredCache::Create(options, {.clock = &clock_,
                                               .executor = &executor_,
                                               .copier = &copier_,
                                               .l1_memory = &memory_,
                                               .l2_memory = &memory_,
                                               .store = store,
                                               .gate = &gate_});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  void TearDown() override {
    if (cache_ == nullptr) return;
    Settle();
    cache_->CheckInvariants();
    cache_.reset();
  }

  // Lets every copy and disk task run, also those that follow.
  void Settle() {
    while (copier_.pending() + executor_.pending() > 0) {
      copier_.RunAll();
      executor_.RunAll();
    }
  }

  static std::string Payload(uint64_t bytes, char fill) { return std::string(bytes, fill); }

  // Starts a reservation; the answer may come later.
  std::shared_ptr<std::optional<absl::StatusOr<ReservedPlace>>> StartReserve(
      const CacheKey& key, uint64_t bytes, absl::Duration ttl = absl::InfiniteDuration()) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<ReservedPlace>>>();
    cache_->Reserve({.key = key, .layout = TestLayout(bytes), .encode_cost_us = 1000, .ttl = ttl},
                    [answer](absl::StatusOr<ReservedPlace> place) { *answer = std::move(place); });
    return answer;
  }

  absl::StatusOr<ReservedPlace> Reserve(const CacheKey& key, uint64_t bytes,
                                        absl::Duration ttl = absl::InfiniteDuration()) {
    auto answer = StartReserve(key, bytes, ttl);
    while (!answer->has_value() && copier_.pending() + executor_.pending() > 0) Step();
    return answer->has_value() ? **answer : absl::InternalError("reserve never answered");
  }

  // Reserve, write, commit; answers with the pin.
  absl::StatusOr<ReadHandle> PutAndPin(const CacheKey& key, uint64_t bytes, char fill,
                                       absl::Duration ttl = absl::InfiniteDuration()) {
    absl::StatusOr<ReservedPlace> place = Reserve(key, bytes, ttl);
    if (!place.ok()) return place.status();
    std::memset(DataAt(place->location), fill, bytes);
    return cache_->Commit(place->id);
  }

  absl::Status Put(absl::string_view name, uint64_t units, char fill = 'x') {
    absl::Status status = PutAndPin(TestKey(name), units * kUnit, fill).status();
    cache_->CheckInvariants();
    return status;
  }

  std::shared_ptr<std::optional<absl::StatusOr<LookupResult>>> StartGet(
      const CacheKey& key, std::vector<TensorExpectation> expect = {}) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<LookupResult>>>();
    cache_->Lookup(key, std::move(expect), [answer](absl::StatusOr<LookupResult> result) {
      answer->emplace(std::move(result));
    });
    return answer;
  }

  LookupResult Get(const CacheKey& key, std::vector<TensorExpectation> expect = {}) {
    auto answer = StartGet(key, std::move(expect));
    while (!answer->has_value() && copier_.pending() + executor_.pending() > 0) Step();
    cache_->CheckInvariants();
    EXPECT_TRUE(answer->has_value()) << "lookup never answered";
    EXPECT_TRUE((*answer)->ok()) << (*answer)->status();
    return *std::move(**answer);
  }
  LookupResult Get(absl::string_view name) { return Get(TestKey(name)); }

  absl::StatusOr<bool> Delete(const CacheKey& key) {
    std::optional<absl::StatusOr<bool>> answer;
    cache_->Delete(key, [&](absl::StatusOr<bool> existed) { answer = std::move(existed); });
    while (!answer.has_value() && copier_.pending() + executor_.pending() > 0) Step();
    return *answer;
  }

  absl::StatusOr<uint64_t> AdvanceEpoch(absl::string_view model) {
    std::optional<absl::StatusOr<uint64_t>> answer;
    cache_->AdvanceEpoch(model, [&](absl::StatusOr<uint64_t> epoch) { answer = std::move(epoch); });
    while (!answer.has_value() && copier_.pending() + executor_.pending() > 0) Step();
    return *answer;
  }

  void Step() { copier_.pending() > 0 ? copier_.RunOne() : executor_.RunOne(); }

  char* DataAt(const Location& location) {
    for (const TieredCache::SegmentInfo& segment : cache_->Segments()) {
      if (segment.id == location.segment) return segment.memory->host_data() + location.offset;
    }
    return nullptr;
  }
  std::string BytesOf(const ReadHandle& handle) {
    return std::string(DataAt(handle.location()), handle.location().bytes);
  }

  std::string TierOfKey(absl::string_view name) {
    std::optional<TierId> tier = cache_->Contains(TestKey(name));
    return tier.has_value() ? std::string(TierName(*tier)) : "none";
  }
  CacheStats Stats() { return cache_->GetStats(true); }

  SimulatedClock clock_;
  ManualExecutor executor_;
  ManualCopyEngine copier_;
  HeapMemory memory_;
  PutGate gate_;
  std::unique_ptr<TieredCache> cache_;
};

// With an L3 in memory.
class CacheWithStoreFixture : public CacheFixture {
 protected:
  void StartWithStore(uint64_t l1_units, uint64_t l2_units, TieredCacheOptions options = {}) {
    StartCache(l1_units, l2_units, &store_, options);
  }
  void Restart(uint64_t l1_units, uint64_t l2_units, TieredCacheOptions options = {}) {
    Settle();
    StartWithStore(l1_units, l2_units, options);
  }

  MemoryStore store_{uint64_t{64} << 20};
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_CACHE_FIXTURE_H_
