#include "server/admin_service.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service_fixture.h"

namespace embcache {
namespace {

using testing::StartsWith;

class AdminServiceTest : public ServiceFixture {
 protected:
  AdminServiceTest()
      : admin_({.cache = cache_.get(), .registry = &registry_, .drain = [this] { ++drains_; }}) {}

  mutable int drains_ = 0;
  AdminService admin_;
};

TEST_F(AdminServiceTest, ClearTakesOneModelOrAll) {
  Put(ProtoItem("a"));
  v1::PutItem other = ProtoItem("b");
  other.mutable_key()->set_model("other");
  Put(other);
  v1::ClearRequest request;
  EXPECT_EQ(CallHandler(&admin_, &AdminService::Clear, request).status.code(),
            absl::StatusCode::kInvalidArgument);
  request.set_model("other");
  auto cleared = CallHandler(&admin_, &AdminService::Clear, request);
  ASSERT_TRUE(cleared.status.ok()) << cleared.status;
  EXPECT_EQ(cleared.response.models(), 1u);
  EXPECT_EQ(Get("a").verdict(), v1::GetResult::HIT);
  request.clear_model();
  request.set_all(true);
  cleared = CallHandler(&admin_, &AdminService::Clear, request);
  EXPECT_EQ(cleared.response.models(), 2u);
  EXPECT_EQ(Get("a").verdict(), v1::GetResult::MISS);
}

TEST_F(AdminServiceTest, FlushWithoutAnSsdSaysSo) {
  EXPECT_EQ(CallHandler(&admin_, &AdminService::Flush, v1::FlushRequest()).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(AdminServiceTest, DrainCallsTheDaemon) {
  EXPECT_TRUE(CallHandler(&admin_, &AdminService::Drain, v1::DrainRequest()).status.ok());
  EXPECT_EQ(drains_, 1);
}

TEST_F(AdminServiceTest, TheLogLevelChangesAndTheOldOneIsAnswered) {
  v1::SetLogLevelRequest request;
  request.set_level("warn");
  EXPECT_EQ(CallHandler(&admin_, &AdminService::SetLogLevel, request).response.previous(), "info");
  request.set_level("info");
  EXPECT_EQ(CallHandler(&admin_, &AdminService::SetLogLevel, request).response.previous(), "warn");
  request.set_level("loud");
  EXPECT_THAT(Message(CallHandler(&admin_, &AdminService::SetLogLevel, request).status),
              StartsWith("level"));
}

TEST_F(AdminServiceTest, SessionsSayWhoHoldsWhat) {
  Put(ProtoItem("a"));
  Get("a", OpenSession(true));
  const auto sessions = CallHandler(&admin_, &AdminService::Sessions, v1::SessionsRequest());
  ASSERT_EQ(sessions.response.sessions_size(), 1);
  EXPECT_EQ(sessions.response.sessions(0).name(), "test");
  EXPECT_TRUE(sessions.response.sessions(0).writer());
  EXPECT_EQ(sessions.response.sessions(0).state(), "CONNECTED");
  EXPECT_EQ(sessions.response.sessions(0).leases(), 1u);
  EXPECT_EQ(sessions.response.sessions(0).pinned_bytes(), 512u);
}

}  // namespace
}  // namespace embcache
