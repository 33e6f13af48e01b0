// A TieredCache over a little host memory and a simulated clock, for tests of the daemon's parts.

#ifndef EMBCACHE_TESTS_SERVER_CACHE_FIXTURE_H_
#define EMBCACHE_TESTS_SERVER_CACHE_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gpu/host_copy_engine.h"
#include "gpu/host_memory.h"
#include "gtest/gtest.h"
#include "storage/clock.h"
#include "storage/executor.h"
#include "storage/tiered_cache.h"

namespace embcache {

class CacheFixture : public testing::Test {
 protected:
  static constexpr uint64_t kPayloadBytes = 1024;

  CacheFixture() {
    TieredCacheOptions options;
    options.l1.capacity_bytes = uint64_t{1} << 20;
    options.l1.segment_bytes = uint64_t{1} << 19;
    options.fast_index_entries = 64;
    TieredCacheDeps deps;
    deps.clock = &clock_;
    deps.executor = &executor_;
    deps.copier = &copier_;
    deps.l1_memory = &memory_;
    deps.l2_memory = &memory_;
    deps.fast_memory = &memory_;
    auto cache = TieredCache::Create(options, deps);
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  static CacheKey Key(const std::string& name) {
    return *CacheKey::Create("model", name + std::string(32 - name.size(), '\0'), "");
  }

  ReservationId Reserve(const std::string& name) {
    ReserveRequest request = {.key = Key(name),
                              .layout = *LayOutTensors({TensorSpec{
                                  .name = "x", .dtype = DType::kU8, .shape = {kPayloadBytes}}}),
                              .metadata = {}};
    ReservationId id = 0;
    absl::Notification done;
    cache_->Reserve(std::move(request), [&](absl::StatusOr<ReservedPlace> place) {
      EXPECT_TRUE(place.ok()) << place.status();
      if (place.ok()) id = place->id;
      done.Notify();
    });
    done.WaitForNotification();
    return id;
  }

  // A committed entry, pinned.
  ReadHandle Pin(const std::string& name) {
    auto handle = cache_->Commit(Reserve(name));
    EXPECT_TRUE(handle.ok()) << handle.status();
    return *std::move(handle);
  }

  uint64_t pinned_bytes() { return cache_->GetStats(/*per_model=*/false).memory[0].pinned_bytes; }

  SimulatedClock clock_;
  ManualExecutor executor_;
  HostCopyEngine copier_;
  HostMemory memory_;
  std::unique_ptr<TieredCache> cache_;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_CACHE_FIXTURE_H_
