// What Clear says when L3 does not take part: what is gone, for how long, and what to do.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gpu/host_copy_engine.h"
#include "gpu/host_memory.h"
#include "gtest/gtest.h"
#include "server/admin_service.h"
#include "storage/late_store.h"
#include "storage/memory_store.h"
#include "tests/server/service_calls.h"

namespace embcache {
namespace {

using testing::HasSubstr;

class AdminClearTest : public testing::Test {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;

  void Start(PersistentStore* store) {
    admin_.reset();
    registry_.reset();
    cache_.reset();
    TieredCacheOptions options;
    options.l1.capacity_bytes = kMiB;
    TieredCacheDeps deps;
    deps.clock = &clock_;
    deps.executor = &executor_;
    deps.copier = &copier_;
    deps.l1_memory = &memory_;
    deps.l2_memory = &memory_;
    deps.store = store;
    auto cache = TieredCache::Create(options, deps);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    registry_ = std::make_unique<SessionRegistry>(SessionLimits{}, cache_.get(), &clock_);
    admin_.reset(new AdminService({.cache = cache_.get(), .registry = registry_.get()}));
  }

  static CacheKey Key(const std::string& model) {
    return *CacheKey::Create(model, std::string(32, 'k'), "");
  }
  void Put(const std::string& model) {
    ReservationId id = 0;
    absl::Notification reserved;
    cache_->Reserve(
        {.key = Key(model),
         .layout = *LayOutTensors({TensorSpec{.name = "x", .dtype = DType::kU8, .shape = {100}}}),
         .metadata = {}},
        [&](absl::StatusOr<ReservedPlace> place) {
          if (place.ok()) id = place->id;
          reserved.Notify();
        });
    reserved.WaitForNotification();
    ASSERT_TRUE(cache_->Commit(id).ok());
  }
  void Flush() {
    absl::Notification flushed;
    cache_->Flush([&](absl::Status) { flushed.Notify(); });
    flushed.WaitForNotification();
  }
  bool Has(const std::string& model) { return cache_->Contains(Key(model)).has_value(); }

  // "" clears all.
  Answer<v1::ClearResponse> Clear(const std::string& model) {
    v1::ClearRequest request;
    request.set_model(model);
    request.set_all(model.empty());
    return CallHandler(admin_.get(), &AdminService::Clear, request);
  }

  SimulatedClock clock_;
  ThreadPoolExecutor executor_{"disk", 1, 64};
  HostCopyEngine copier_;
  HostMemory memory_;
  MemoryStore disk_{kMiB};
  // Nothing opens it but Retry.
  LateStore late_{{.open = [this]() -> absl::StatusOr<std::unique_ptr<PersistentStore>> {
                     if (!mounted_) return absl::UnavailableError("no such disk");
                     return std::make_unique<MemoryStore>(kMiB);
                   },
                   .capacity_bytes = kMiB,
                   .background_thread = false}};
  bool mounted_ = false;
  std::unique_ptr<TieredCache> cache_;
  std::unique_ptr<SessionRegistry> registry_;
  std::unique_ptr<AdminService> admin_;
};

TEST_F(AdminClearTest, WhatADiskThatRefusesHasNotRecordedIsGoneUntilARestartAndTheAnswerSaysSo) {
  Start(&disk_);
  Put("a");
  Put("b");
  Flush();
  disk_.SetWritable(false);
  const auto one = Clear("a");
  EXPECT_EQ(one.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(one.status.message()),
              AllOf(HasSubstr("model \"a\": nothing put before is returned any more"),
                    HasSubstr("epoch 1 is in force"), HasSubstr("repeat the call")));
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(Has("b"));
  const auto all = Clear("");
  EXPECT_EQ(all.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(all.status.message()),
              AllOf(HasSubstr("0 cleared for good, 2 until a restart, 0 not at all"),
                    HasSubstr("repeat the call")));
  EXPECT_FALSE(Has("b"));
  disk_.SetWritable(true);
  const auto again = Clear("");
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.response.models(), 2u);
}

TEST_F(AdminClearTest, AnL3ThatIsNotOpenMayHoldModelsThatNobodyKnows) {
  Start(&late_);
  const auto empty = Clear("");
  EXPECT_EQ(empty.status.code(), absl::StatusCode::kUnavailable) << "it may hold anything";
  EXPECT_THAT(std::string(empty.status.message()),
              AllOf(HasSubstr("0 cleared for good, 0 until a restart"),
                    HasSubstr("L3 could not be opened yet"), HasSubstr("repeat the call")));
  Put("a");
  const auto all = Clear("");
  EXPECT_EQ(all.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(all.status.message()),
              HasSubstr("0 cleared for good, 1 until a restart, 0 not at all"));
  EXPECT_FALSE(Has("a"));
  mounted_ = true;
  ASSERT_TRUE(late_.Retry().ok());
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(Clear("").status.ok());
}

}  // namespace
}  // namespace embcache
