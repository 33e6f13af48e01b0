// A CacheService with a shared tier, over a small real cache and a Redis that does as told.

#ifndef EMBCACHE_TESTS_SERVER_SHARED_TIER_FIXTURE_H_
#define EMBCACHE_TESTS_SERVER_SHARED_TIER_FIXTURE_H_

#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/cache_service.h"
#include "server/session_registry.h"
#include "server/shared_tier.h"
#include "tests/server/cache_fixture.h"
#include "tests/server/fake_redis.h"
#include "tests/server/service_calls.h"
#include "tests/server/shared_value_util.h"

namespace embcache {

class SharedTierFixture : public CacheFixture {
 protected:
  using Answer = FakeRedis::Answer;
  using Command = FakeRedis::Command;
  using Result = v1::GetResult;

  // A Get that is answered when it is.
  struct Call {
    v1::GetRequest request;
    v1::GetResponse response;
    absl::Notification done;
    const Result& result() {
      done.WaitForNotification();
      return response.results(0);
    }
  };

  SharedTierFixture() : registry_(SessionLimits{.max_leases = 8}, cache_.get(), &clock_) {
    options_.store.redis.address = redis_->address();
    options_.store.name_space = "ns";
    options_.timeout = absl::Hours(1);  // tests do not depend on how fast the machine is
    options_.threads = 2;
    Begin();
  }
  ~SharedTierFixture() override {
    if (shared_ != nullptr) shared_->Stop();
    service_.reset();
    std::filesystem::remove_all(directory_);
  }

  // The tier and the service anew, by options_.
  void Begin() {
    if (shared_ != nullptr) shared_->Stop();
    service_.reset();
    shared_ = std::make_unique<SharedTier>(options_, cache_.get(), SystemClock());
    service_ = std::make_unique<CacheService>(
        CacheServiceDeps{.cache = cache_.get(),
                         .registry = &registry_,
                         .clock = &clock_,
                         .limits = {.max_batch = 64, .inline_limit = 1 << 20},
                         .shared = shared_.get()});
  }

  CallContext OpenSession() {
    auto token = registry_.Open({.name = "test", .writer = true, .pid = 1, .uid = 1});
    EXPECT_TRUE(token.ok()) << token.status();
    return CallContext{.session = *token, .caller = Caller::kLocal};
  }

  std::unique_ptr<Call> StartGet(const std::string& name, const CallContext& context = AdminCall(),
                                 v1::OnMiss on_miss = v1::ON_MISS_RETURN, uint64_t rows = 0) {
    auto call = std::make_unique<Call>();
    *call->request.add_items()->mutable_key() = ProtoKey(name);
    if (rows > 0) {
      call->request.mutable_items(0)->add_expect()->set_rows(static_cast<int64_t>(rows));
    }
    call->request.set_inline_limit(1 << 16);
    call->request.set_on_miss(on_miss);
    service_->Get(context, call->request, &call->response, [raw = call.get()](absl::Status status) {
      EXPECT_TRUE(status.ok()) << status;
      raw->done.Notify();
    });
    return call;
  }
  Result Get(const std::string& name, const CallContext& context = AdminCall()) {
    return StartGet(name, context)->result();
  }
  void Put(const v1::PutItem& item) {
    v1::PutRequest request;
    *request.add_items() = item;
    auto put = CallHandler(service_.get(), &CacheService::Put, request);
    ASSERT_TRUE(put.status.ok()) << put.status;
    EXPECT_EQ(put.response.results(0).status().code(), 0) << put.response.DebugString();
  }
  void Delete(const std::string& name) {
    v1::DeleteRequest request;
    *request.add_keys() = ProtoKey(name);
    EXPECT_TRUE(CallHandler(service_.get(), &CacheService::Delete, request).status.ok());
  }
  void AdvanceEpoch() {
    v1::AdvanceEpochRequest request;
    request.set_model("model");
    EXPECT_TRUE(CallHandler(service_.get(), &CacheService::AdvanceEpoch, request).status.ok());
  }

  // As another node would have put it.
  void KeepInRedis(const std::string& name, char fill = 'r') {
    const CacheKey key = SharedKey(name);
    redis_->Set(SharedName(key), SharedValueOf(SharedInfo(key), fill));
  }
  bool InRedis(const std::string& name) const {
    return redis_->data().count(SharedName(SharedKey(name))) > 0;
  }
  // The next reads of Redis are answered with what is there when they come, but only when the
  // returned function is called; and that nothing is closed.
  std::function<void()> HoldReads() {
    auto released = std::make_shared<absl::Notification>();
    redis_->OnCommand([this, released](const Command& command) -> std::optional<Answer> {
      if (command[0] == "EXISTS") return Answer{":0\r\n"};
      if (command[0] != "GETRANGE") return std::nullopt;
      const std::string value = redis_->data()[command[1]];
      released->WaitForNotification();
      return Answer{absl::StrCat("$", value.size(), "\r\n", value, "\r\n")};
    });
    return [released] { released->Notify(); };
  }

  void Await(const std::function<bool(const SharedTierStats&)>& wanted) const {
    while (!wanted(shared_->GetStats())) std::this_thread::yield();
  }
  bool InCache(const std::string& name) const {
    return cache_->Contains(SharedKey(name)).has_value();
  }

  std::string directory_ = testing::TempDir() + "/shared.XXXXXX";
  const std::string socket_ = std::string(mkdtemp(directory_.data())) + "/redis.sock";
  std::unique_ptr<FakeRedis> redis_ = std::make_unique<FakeRedis>(socket_);
  SessionRegistry registry_;
  SharedTierOptions options_;
  std::unique_ptr<SharedTier> shared_;
  std::unique_ptr<CacheService> service_;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_SHARED_TIER_FIXTURE_H_
