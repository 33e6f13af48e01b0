// Claims through the service: what gets are answered, what ends a claim, and what is counted.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/server/service_fixture.h"

namespace embcache {
namespace {

using Result = v1::GetResult;

class ClaimsTest : public ServiceFixture {
 protected:
  // A Get that is answered when it is.
  struct Call {
    v1::GetRequest request;
    v1::GetResponse response;
    absl::Notification done;
    absl::Status status;
    const Result& result(int i = 0) const { return response.results(i); }
  };

  std::unique_ptr<Call> StartGet(const CallContext& context, const std::vector<std::string>& names,
                                 v1::OnMiss on_miss = v1::ON_MISS_CLAIM, uint64_t wait_ms = 10'000,
                                 bool accept_pending = false) {
    auto call = std::make_unique<Call>();
    for (const std::string& name : names) {
      *call->request.add_items()->mutable_key() = ProtoKey(name);
    }
    call->request.set_on_miss(on_miss);
    call->request.set_wait_ms(wait_ms);
    call->request.set_accept_pending(accept_pending);
    service_.Get(context, call->request, &call->response, [raw = call.get()](absl::Status status) {
      raw->status = std::move(status);
      raw->done.Notify();
    });
    return call;
  }

  uint64_t Claim(const CallContext& context, const std::string& name) {
    const auto call = StartGet(context, {name});
    call->done.WaitForNotification();
    EXPECT_EQ(call->result().verdict(), Result::CLAIMED);
    return call->result().claim();
  }

  v1::PutResult PutFor(const CallContext& context, v1::PutItem item, uint64_t claim) {
    item.set_claim(claim);
    v1::PutRequest request;
    *request.add_items() = item;
    return CallHandler(&service_, &CacheService::Put, request, context).response.results(0);
  }

  v1::ReserveResult ReserveFor(const CallContext& context, const std::string& name,
                               uint64_t claim) {
    v1::ReserveRequest request;
    *request.add_items() = ProtoItem(name);
    request.mutable_items(0)->clear_inline_();
    request.mutable_items(0)->set_claim(claim);
    (*request.mutable_items(0)->mutable_metadata())["grid"] = "1,2,3";
    return CallHandler(&service_, &CacheService::Reserve, request, context).response.results(0);
  }

  v1::AbandonResponse Abandon(const CallContext& context, uint64_t claim) {
    v1::AbandonRequest request;
    request.add_claims(claim);
    return CallHandler(&service_, &CacheService::Abandon, request, context).response;
  }

  void AbortOne(const CallContext& context, uint64_t reservation) {
    v1::AbortRequest request;
    request.add_reservations(reservation);
    CallHandler(&service_, &CacheService::Abort, request, context);
  }

  // Answered with a claim that passed on.
  static bool Promoted(const Call& call) {
    return call.done.WaitForNotificationWithTimeout(absl::Seconds(30)) &&
           call.result().verdict() == Result::CLAIMED;
  }

  CallContext first_ = OpenSession(true);
  CallContext second_ = OpenSession(true);
  CallContext third_ = OpenSession(true);
};

TEST_F(ClaimsTest, OneCallerEncodesAndTheOthersGetWhatItPuts) {
  const uint64_t claim = Claim(first_, "a");
  const auto waiter = StartGet(second_, {"a"});
  EXPECT_FALSE(waiter->done.HasBeenNotified());
  EXPECT_EQ(PutFor(first_, ProtoItem("a"), claim).status().code(), 0);
  waiter->done.WaitForNotification();
  EXPECT_EQ(waiter->result().verdict(), Result::HIT);
  EXPECT_NE(waiter->result().lease(), 0u);
}

TEST_F(ClaimsTest, AKeyThatIsThereIsAHitAndNoClaim) {
  Put(ProtoItem("a"));
  const auto call = StartGet(first_, {"a"});
  call->done.WaitForNotification();
  EXPECT_EQ(call->result().verdict(), Result::HIT);
  EXPECT_EQ(Stats().claims_granted(), 0u);
}

TEST_F(ClaimsTest, AClaimIsAMissAndAWaitedGetThatEndsWellIsAHit) {
  const uint64_t claim = Claim(first_, "a");
  EXPECT_EQ(Stats().gets(), 1u);
  EXPECT_EQ(Stats().misses(), 1u);
  const auto waiter = StartGet(second_, {"a"});
  EXPECT_EQ(Stats().gets(), 1u) << "a get counts when it is answered";
  PutFor(first_, ProtoItem("a"), claim);
  waiter->done.WaitForNotification();
  const v1::StatsResponse stats = Stats();
  EXPECT_EQ(stats.gets(), 2u);
  EXPECT_EQ(stats.hits(), 1u);
  EXPECT_EQ(stats.misses(), 1u);
  EXPECT_EQ(stats.claims_granted(), 1u);
  EXPECT_EQ(stats.claim_waits(), 1u);
  EXPECT_EQ(stats.claims(), 0u);
  cache_->CheckInvariants();
}

TEST_F(ClaimsTest, APutByAnybodyEndsTheWait) {
  Claim(first_, "a");
  const auto waiter = StartGet(second_, {"a"});
  Put(ProtoItem("a"));  // no session, no claim
  waiter->done.WaitForNotification();
  EXPECT_EQ(waiter->result().verdict(), Result::HIT);
  EXPECT_EQ(Stats().claims(), 0u);
}

TEST_F(ClaimsTest, ACommitWakesWaitersAndAnAbortPromotesOne) {
  uint64_t claim = Claim(first_, "a");
  const v1::ReserveResult aborted = ReserveFor(first_, "a", claim);
  const auto heir = StartGet(second_, {"a"});
  const auto other = StartGet(third_, {"a"});
  AbortOne(first_, aborted.reservation());
  ASSERT_TRUE(Promoted(*heir));
  EXPECT_FALSE(other->done.HasBeenNotified());
  claim = heir->result().claim();
  const v1::ReserveResult reserved = ReserveFor(second_, "a", claim);
  EXPECT_EQ(CommitOne(second_, reserved.reservation()).status().code(), 0);
  other->done.WaitForNotification();
  EXPECT_EQ(other->result().verdict(), Result::HIT);
}

TEST_F(ClaimsTest, AbandoningPromotesTheNext) {
  const uint64_t claim = Claim(first_, "a");
  const auto heir = StartGet(second_, {"a"});
  EXPECT_EQ(Abandon(second_, claim).unknown(), 1u) << "another session's";
  EXPECT_EQ(Abandon(first_, claim).abandoned(), 1u);
  EXPECT_TRUE(Promoted(*heir));
  EXPECT_EQ(Abandon(first_, claim).unknown(), 1u);
}

TEST_F(ClaimsTest, APutThatFailsPromotesTheNext) {
  const uint64_t claim = Claim(first_, "a");
  const auto heir = StartGet(second_, {"a"});
  v1::PutItem bad = ProtoItem("a");
  bad.set_inline_("too short");
  EXPECT_EQ(PutFor(first_, bad, claim).status().code(), kInvalid);
  EXPECT_TRUE(Promoted(*heir));
}

TEST_F(ClaimsTest, AReserveThatFailsPromotesTheNext) {
  const uint64_t claim = Claim(first_, "a");
  const auto heir = StartGet(second_, {"a"});
  v1::ReserveRequest request;
  *request.add_items() = ProtoItem("a", 64 << 20);  // larger than every tier
  request.mutable_items(0)->clear_inline_();
  request.mutable_items(0)->set_claim(claim);
  const auto reserved = CallHandler(&service_, &CacheService::Reserve, request, first_);
  EXPECT_NE(reserved.response.results(0).status().code(), 0);
  EXPECT_TRUE(Promoted(*heir));
}

TEST_F(ClaimsTest, ACommitThatComesTooLatePromotesTheNext) {
  const uint64_t claim = Claim(first_, "a");
  const v1::ReserveResult reserved = ReserveFor(first_, "a", claim);
  const auto heir = StartGet(second_, {"a"}, v1::ON_MISS_CLAIM, 60'000);
  clock_.Advance(absl::Seconds(31));
  cache_->Tick();
  EXPECT_NE(CommitOne(first_, reserved.reservation()).status().code(), 0);
  EXPECT_TRUE(Promoted(*heir));
}

TEST_F(ClaimsTest, TheEndOfTheClaimersSessionPromotesTheNext) {
  for (const auto end :
       {&SessionRegistry::Close, &SessionRegistry::ConnectionLost, &SessionRegistry::ProcessGone}) {
    const CallContext claimer = OpenSession(true);
    Claim(claimer, "a");
    const auto heir = StartGet(second_, {"a"});
    (registry_.*end)(*claimer.session);
    ASSERT_TRUE(Promoted(*heir));
    Abandon(second_, heir->result().claim());
  }
}

TEST_F(ClaimsTest, APutWithAnothersClaimIsRefusedAndChangesNothing) {
  const uint64_t claim = Claim(first_, "a");
  const auto waiter = StartGet(third_, {"a"});
  EXPECT_EQ(PutFor(second_, ProtoItem("a"), claim).status().code(), kInvalid);
  EXPECT_EQ(PutFor(AdminCall(), ProtoItem("a"), claim).status().code(), kInvalid);
  EXPECT_EQ(PutFor(first_, ProtoItem("b"), claim).status().code(), kInvalid);
  EXPECT_FALSE(waiter->done.HasBeenNotified());
  EXPECT_EQ(PutFor(first_, ProtoItem("a"), claim).status().code(), 0);
  waiter->done.WaitForNotification();
}

TEST_F(ClaimsTest, APutWhoseClaimIsOverIsStoredAllTheSame) {
  const uint64_t claim = Claim(first_, "a");
  Abandon(first_, claim);
  EXPECT_EQ(PutFor(first_, ProtoItem("a"), claim).status().code(), 0);
  EXPECT_EQ(Get("a").verdict(), Result::HIT);
}

TEST_F(ClaimsTest, AfterAnAdvancedEpochTheOldClaimStoresNothingAndTheNextEncodes) {
  const uint64_t claim = Claim(first_, "a");
  const auto heir = StartGet(second_, {"a"});
  v1::AdvanceEpochRequest request;
  request.set_model("model");
  CallHandler(&service_, &CacheService::AdvanceEpoch, request);
  ASSERT_TRUE(Promoted(*heir));
  EXPECT_EQ(PutFor(first_, ProtoItem("a"), claim).status().code(),
            static_cast<int32_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(PutFor(second_, ProtoItem("a"), heir->result().claim()).status().code(), 0);
}

TEST_F(ClaimsTest, ADeleteDuringTheEncodeLeavesTheClaim) {
  const uint64_t claim = Claim(first_, "a");
  const auto waiter = StartGet(second_, {"a"});
  v1::DeleteRequest request;
  *request.add_keys() = ProtoKey("a");
  CallHandler(&service_, &CacheService::Delete, request);
  EXPECT_FALSE(waiter->done.HasBeenNotified());
  PutFor(first_, ProtoItem("a"), claim);
  waiter->done.WaitForNotification();
  EXPECT_EQ(waiter->result().verdict(), Result::HIT);
}

TEST_F(ClaimsTest, ThePutMetadataIsThereBeforeTheBytesForThoseWhoAskForIt) {
  const uint64_t claim = Claim(first_, "a");
  const auto eager = StartGet(second_, {"a"}, v1::ON_MISS_WAIT, 10'000, /*accept_pending=*/true);
  EXPECT_FALSE(eager->done.HasBeenNotified());
  const v1::ReserveResult reserved = ReserveFor(first_, "a", claim);
  eager->done.WaitForNotification();
  EXPECT_EQ(eager->result().verdict(), Result::PENDING);
  EXPECT_EQ(eager->result().entry().tensors(0).name(), "t");
  EXPECT_EQ(eager->result().entry().metadata().at("grid"), "1,2,3");
  EXPECT_FALSE(eager->result().has_location());
  const auto later = StartGet(third_, {"a"}, v1::ON_MISS_WAIT, 10'000, /*accept_pending=*/true);
  later->done.WaitForNotification();
  EXPECT_EQ(later->result().verdict(), Result::PENDING);
  CommitOne(first_, reserved.reservation());
  EXPECT_EQ(Stats().gets(), Stats().hits() + Stats().misses());
}

TEST_F(ClaimsTest, EachKeyOfABatchHasItsOwnFateAndTheAnswerComesWithTheLast) {
  Put(ProtoItem("there"));
  const uint64_t claim = Claim(first_, "busy");
  v1::GetRequest request;
  const auto call = StartGet(second_, {"there", "busy", "new"});
  EXPECT_FALSE(call->done.HasBeenNotified());
  PutFor(first_, ProtoItem("busy"), claim);
  call->done.WaitForNotification();
  EXPECT_EQ(call->result(0).verdict(), Result::HIT);
  EXPECT_EQ(call->result(1).verdict(), Result::HIT);
  EXPECT_EQ(call->result(2).verdict(), Result::CLAIMED);
}

TEST_F(ClaimsTest, AKeyTwiceInABatchIsClaimedOnce) {
  const auto call = StartGet(first_, {"a", "a"});
  call->done.WaitForNotification();
  EXPECT_EQ(call->result(0).verdict(), Result::CLAIMED);
  EXPECT_EQ(call->result(1).claim(), call->result(0).claim());
}

TEST_F(ClaimsTest, WithoutAWaitTheAnswerNamesTheReason) {
  Claim(first_, "a");
  const auto call = StartGet(second_, {"a"}, v1::ON_MISS_CLAIM, 0);
  call->done.WaitForNotification();
  EXPECT_EQ(call->result().verdict(), Result::MISS);
  EXPECT_EQ(call->result().reason(), Result::CLAIMED_ELSEWHERE);
}

TEST_F(ClaimsTest, ReadersAndCallersWithoutASessionMayWaitAndNotClaim) {
  const CallContext reader = OpenSession(false);
  const auto refused = StartGet(reader, {"a"});
  refused->done.WaitForNotification();
  EXPECT_TRUE(absl::IsPermissionDenied(refused->status));
  const auto nobody = StartGet({}, {"a"});
  EXPECT_TRUE(absl::IsUnauthenticated(nobody->status));
  const uint64_t claim = Claim(first_, "a");
  const auto waiting = StartGet(reader, {"a"}, v1::ON_MISS_WAIT);
  const auto anonymous = StartGet({}, {"a"}, v1::ON_MISS_WAIT);
  Abandon(first_, claim);
  EXPECT_FALSE(waiting->done.HasBeenNotified());
  Put(ProtoItem("a"));
  waiting->done.WaitForNotification();
  anonymous->done.WaitForNotification();
  EXPECT_EQ(waiting->result().verdict(), Result::HIT);
  EXPECT_EQ(anonymous->result().verdict(), Result::HIT);
}

TEST_F(ClaimsTest, AnAnswerThatDoesNotArriveGivesTheClaimUp) {
  const uint64_t claim = Claim(first_, "a");
  const auto gone = StartGet(second_, {"a"});
  const auto heir = StartGet(third_, {"a"});
  Abandon(first_, claim);
  ASSERT_TRUE(Promoted(*gone));
  service_.Undelivered(second_, gone->response);
  EXPECT_TRUE(Promoted(*heir));
}

TEST_F(ClaimsTest, AValueThatDoesNotMeetTheExpectationIsEncodedAnew) {
  const uint64_t claim = Claim(first_, "a");
  auto picky = std::make_unique<Call>();
  v1::GetItem* item = picky->request.add_items();
  *item->mutable_key() = ProtoKey("a");
  item->add_expect()->set_bytes(999);
  picky->request.set_on_miss(v1::ON_MISS_CLAIM);
  picky->request.set_wait_ms(1000);
  service_.Get(second_, picky->request, &picky->response,
               [&](absl::Status) { picky->done.Notify(); });
  PutFor(first_, ProtoItem("a"), claim);
  picky->done.WaitForNotification();
  EXPECT_EQ(picky->result().verdict(), Result::CLAIMED);
  const v1::StatsResponse stats = Stats();
  EXPECT_EQ(stats.mismatches(), 1u);
  EXPECT_EQ(stats.gets(), stats.hits() + stats.misses());
}

TEST_F(ClaimsTest, DrainingEndsEveryWait) {
  Claim(first_, "a");
  const auto waiter = StartGet(second_, {"a"});
  service_.Drain();
  waiter->done.WaitForNotification();
  EXPECT_EQ(waiter->result().verdict(), Result::ERROR);
  EXPECT_EQ(waiter->result().status().code(), static_cast<int>(absl::StatusCode::kUnavailable));
}

// The window between a look that misses and the claim: a put that falls into it ends the claim.
TEST_F(ClaimsTest, APutRightAfterTheMissIsNotOverlooked) {
  struct Window : LongWait {
    std::function<void()> work;
    void Begin() override {
      if (work) std::exchange(work, nullptr)();
    }
  };
  Window window;
  window.work = [this] { Put(ProtoItem("a")); };
  CallContext context = first_;
  context.long_wait = &window;
  const auto call = StartGet(context, {"a"});
  call->done.WaitForNotification();
  EXPECT_EQ(call->result().verdict(), Result::HIT);
  EXPECT_EQ(Stats().claims(), 0u);
}

TEST_F(ClaimsTest, ASessionThatEndsRightAfterItsMissKeepsNoClaim) {
  struct Window : LongWait {
    std::function<void()> work;
    void Begin() override {
      if (work) std::exchange(work, nullptr)();
    }
  };
  Window window;
  window.work = [this] { registry_.Close(*first_.session); };
  CallContext context = first_;
  context.long_wait = &window;
  const auto call = StartGet(context, {"a"});
  call->done.WaitForNotification();
  EXPECT_EQ(call->result().verdict(), Result::ERROR);
  EXPECT_EQ(Stats().claims(), 0u);
  Claim(second_, "a");
}

}  // namespace
}  // namespace embcache
