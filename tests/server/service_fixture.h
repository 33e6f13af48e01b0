// A CacheService over a small real cache, with shorthands for its calls.

#ifndef EMBCACHE_TESTS_SERVER_SERVICE_FIXTURE_H_
#define EMBCACHE_TESTS_SERVER_SERVICE_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/cache_service.h"
#include "server/session_registry.h"
#include "tests/server/cache_fixture.h"
#include "tests/server/service_calls.h"

namespace embcache {

inline constexpr int32_t kInvalid = static_cast<int32_t>(absl::StatusCode::kInvalidArgument);
inline constexpr int32_t kNotFound = static_cast<int32_t>(absl::StatusCode::kNotFound);

// gmock's matchers know std::string only.
inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ServiceFixture : public CacheFixture {
 protected:
  ServiceFixture()
      : registry_(SessionLimits{.max_leases = 8}, cache_.get(), &clock_),
        service_({.cache = cache_.get(),
                  .registry = &registry_,
                  .clock = &clock_,
                  .epoch = {1, 2, 3},
                  .limits = {.max_batch = 64, .inline_limit = 4096},
                  .version = "1.2.3"}) {}

  CallContext OpenSession(bool writer) {
    auto token = registry_.Open({.name = "test", .writer = writer, .pid = 1, .uid = 1});
    EXPECT_TRUE(token.ok()) << token.status();
    return CallContext{.session = *token, .caller = Caller::kLocal};
  }

  v1::PutResult Put(const v1::PutItem& item) {
    v1::PutRequest request;
    *request.add_items() = item;
    auto put = CallHandler(&service_, &CacheService::Put, request);
    EXPECT_TRUE(put.status.ok()) << put.status;
    return put.response.results(0);
  }

  v1::GetResult Get(const std::string& name, const CallContext& context = AdminCall(),
                    uint64_t inline_limit = 0) {
    v1::GetRequest request;
    *request.add_items()->mutable_key() = ProtoKey(name);
    request.set_inline_limit(inline_limit);
    auto got = CallHandler(&service_, &CacheService::Get, request, context);
    EXPECT_TRUE(got.status.ok()) << got.status;
    return got.response.results(0);
  }

  v1::ReserveResult ReserveItem(const CallContext& writer, const std::string& name) {
    v1::ReserveRequest request;
    *request.add_items() = ProtoItem(name);
    request.mutable_items(0)->clear_inline_();
    auto reserved = CallHandler(&service_, &CacheService::Reserve, request, writer);
    EXPECT_TRUE(reserved.status.ok()) << reserved.status;
    return reserved.response.results(0);
  }

  v1::CommitResult CommitOne(const CallContext& context, uint64_t id, bool keep_lease = false) {
    v1::CommitRequest request;
    request.add_reservations(id);
    request.set_keep_lease(keep_lease);
    auto committed = CallHandler(&service_, &CacheService::Commit, request, context);
    EXPECT_TRUE(committed.status.ok()) << committed.status;
    return committed.response.results(0);
  }

  v1::ReleaseResponse ReleaseOne(const CallContext& context, uint64_t lease) {
    v1::ReleaseRequest request;
    request.add_leases(lease);
    return CallHandler(&service_, &CacheService::Release, request, context).response;
  }

  v1::StatsResponse Stats() {
    v1::StatsRequest request;
    request.set_per_model(true);
    return CallHandler(&service_, &CacheService::Stats, request).response;
  }

  SessionRegistry registry_;
  CacheService service_;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_SERVICE_FIXTURE_H_
