#include "server/session_registry.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/cache_fixture.h"

namespace embcache {
namespace {

using testing::HasSubstr;

TEST(TokenTest, HexRoundTripsAndRefusesWhatIsNoToken) {
  const Token token = RandomToken();
  const std::string hex = TokenToHex(token);
  EXPECT_EQ(hex.size(), 32u);
  EXPECT_EQ(TokenFromHex(hex), token);
  EXPECT_EQ(TokenFromHex(hex.substr(1)), std::nullopt);
  EXPECT_EQ(TokenFromHex(hex + "00"), std::nullopt);
  EXPECT_EQ(TokenFromHex("zz" + hex.substr(2)), std::nullopt);
  EXPECT_EQ(TokenFromHex(""), std::nullopt);
}

TEST(TokenTest, TwoTokensDiffer) { EXPECT_NE(RandomToken(), RandomToken()); }

class SessionRegistryTest : public CacheFixture {
 protected:
  ~SessionRegistryTest() override {
    registry_.reset();
    EXPECT_EQ(pinned_bytes(), 0u) << "a pin outlived the registry";
    cache_->CheckInvariants();
  }

  SessionRegistry& registry() {
    if (registry_ == nullptr) {
      registry_ = std::make_unique<SessionRegistry>(limits_, cache_.get(), &clock_);
    }
    return *registry_;
  }

  Token Open(bool writer = true, uid_t uid = 1000) {
    auto token = registry().Open({.name = "test", .writer = writer, .pid = 42, .uid = uid});
    EXPECT_TRUE(token.ok()) << token.status();
    return token.value_or(Token());
  }

  LeaseId Lease(const Token& session, const std::string& name) {
    auto lease = registry().AddLease(session, Pin(name));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(0);
  }

  ReservationId ReserveIn(const Token& session, const std::string& name) {
    EXPECT_TRUE(registry().BeginReservation(session, kPayloadBytes).ok());
    const ReservationId id = Reserve(name);
    EXPECT_TRUE(registry().FinishReservation(session, id, kPayloadBytes).ok());
    return id;
  }

  std::string OnlyState() {
    const auto sessions = registry().Sessions();
    EXPECT_EQ(sessions.size(), 1u);
    return sessions.empty() ? "" : sessions[0].state;
  }

  SessionLimits limits_;  // change it before the first use of registry()

 private:
  std::unique_ptr<SessionRegistry> registry_;
};

TEST_F(SessionRegistryTest, CheckKnowsConnectedSessionsAndTheirRoles) {
  const Token writer = Open(/*writer=*/true);
  const Token reader = Open(/*writer=*/false);
  EXPECT_TRUE(registry().Check(writer, /*need_writer=*/true).ok());
  EXPECT_TRUE(registry().Check(reader, /*need_writer=*/false).ok());
  EXPECT_EQ(registry().Check(reader, /*need_writer=*/true).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(registry().Check(RandomToken(), false).code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionRegistryTest, ErrorsDoNotRepeatAWholeToken) {
  const Token token = RandomToken();
  EXPECT_THAT(std::string(registry().Check(token, false).message()),
              testing::Not(HasSubstr(TokenToHex(token))));
}

TEST_F(SessionRegistryTest, RefusesSessionsOverTheTotal) {
  limits_.max_sessions = 2;
  Open();
  const Token second = Open();
  const auto third = registry().Open({.name = "third", .writer = false, .pid = 1, .uid = 7});
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("2 of 2"));
  registry().Close(second);
  EXPECT_TRUE(registry().Open({.name = "third", .writer = false, .pid = 1, .uid = 7}).ok());
}

TEST_F(SessionRegistryTest, RefusesSessionsOverAUsersShareButNotOtherUsers) {
  limits_.max_sessions_per_uid = 1;
  const Token first = Open(true, 1000);
  const auto second = registry().Open({.name = "second", .writer = false, .pid = 1, .uid = 1000});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("uid 1000"));
  Open(true, 1001);
  registry().Close(first);
  Open(true, 1000);
}

TEST_F(SessionRegistryTest, SessionsThatLostTheirConnectionStillCount) {
  limits_.max_sessions = 1;
  const Token session = Open();
  Lease(session, "a");
  registry().ConnectionLost(session);
  EXPECT_EQ(
      registry().Open({.name = "again", .writer = true, .pid = 42, .uid = 1000}).status().code(),
      absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionRegistryTest, DrainRefusesNewSessionsAndKeepsOldOnes) {
  const Token session = Open();
  EXPECT_FALSE(registry().draining());
  registry().Drain();
  EXPECT_TRUE(registry().draining());
  EXPECT_EQ(registry().Open({.name = "late", .writer = false, .pid = 1, .uid = 1}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(registry().Check(session, false).ok());
}

TEST_F(SessionRegistryTest, ALeasePinsUntilItsRelease) {
  const Token session = Open();
  const LeaseId lease = Lease(session, "a");
  EXPECT_GT(pinned_bytes(), 0u);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, kPayloadBytes);
  EXPECT_EQ(*registry().Release(session, {lease}), 1u);
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, 0u);
}

TEST_F(SessionRegistryTest, ReleaseIsIdempotentAndLeaseIdsAreNeverReused) {
  const Token session = Open();
  const LeaseId first = Lease(session, "a");
  EXPECT_EQ(*registry().Release(session, {first, first}), 1u);
  EXPECT_EQ(*registry().Release(session, {first}), 0u);
  const LeaseId second = Lease(session, "b");
  EXPECT_NE(first, second);
  EXPECT_EQ(*registry().Release(session, {first}), 0u);
  EXPECT_EQ(registry().GetStats().leases, 1u);
}

TEST_F(SessionRegistryTest, ReleaseCannotTouchAnotherSessionsLease) {
  const Token owner = Open();
  const Token other = Open();
  const LeaseId lease = Lease(owner, "a");
  EXPECT_EQ(*registry().Release(other, {lease}), 0u);
  EXPECT_GT(pinned_bytes(), 0u);
  EXPECT_EQ(registry().Release(RandomToken(), {lease}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(SessionRegistryTest, LeasesOverTheCountQuotaAreRefusedAndUnpinned) {
  limits_.max_leases = 1;
  const Token session = Open();
  Lease(session, "a");
  const uint64_t pinned = pinned_bytes();
  const auto refused = registry().AddLease(session, Pin("b"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1 held + 1 asked > 1"));
  EXPECT_EQ(pinned_bytes(), pinned);
}

TEST_F(SessionRegistryTest, LeasesOverTheByteQuotaAreRefusedAndUnpinned) {
  limits_.max_pinned_bytes = kPayloadBytes + 1;
  const Token session = Open();
  Lease(session, "a");
  const uint64_t pinned = pinned_bytes();
  const auto refused = registry().AddLease(session, Pin("b"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1024 held + 1024 asked > 1025"));
  EXPECT_EQ(pinned_bytes(), pinned);
}

TEST_F(SessionRegistryTest, ALeaseForAnUnknownSessionIsUnpinned) {
  EXPECT_EQ(registry().AddLease(RandomToken(), Pin("a")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(SessionRegistryTest, LeasesExpireByTheMonotonicClockOnly) {
  limits_.lease_ttl = absl::Seconds(30);
  const Token session = Open();
  Lease(session, "a");
  clock_.Advance(absl::Seconds(20));
  const LeaseId younger = Lease(session, "b");
  clock_.JumpWall(absl::Hours(24 * 3650));
  registry().Tick();
  EXPECT_EQ(registry().GetStats().leases, 2u);
  clock_.Advance(absl::Seconds(10));
  registry().Tick();
  EXPECT_EQ(registry().GetStats().leases, 1u);
  EXPECT_EQ(registry().GetStats().leases_expired, 1u);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, kPayloadBytes);
  EXPECT_EQ(*registry().Release(session, {younger}), 1u);
}

TEST_F(SessionRegistryTest, WithoutATimeToLiveLeasesLast) {
  const Token session = Open();
  Lease(session, "a");
  clock_.Advance(absl::Hours(24 * 3650));
  registry().Tick();
  EXPECT_EQ(registry().GetStats().leases, 1u);
}

// --- Reservations -------------------------------------------------------------------------------

TEST_F(SessionRegistryTest, AReservationIsChargedFromBeginToTake) {
  limits_.max_pinned_bytes = kPayloadBytes;
  const Token session = Open();
  const ReservationId id = ReserveIn(session, "a");
  EXPECT_EQ(registry().BeginReservation(session, 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(registry().GetStats().reservations, 1u);
  EXPECT_TRUE(registry().TakeReservation(session, id).ok());
  EXPECT_EQ(registry().TakeReservation(session, id).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(registry().BeginReservation(session, kPayloadBytes).ok());
  registry().CancelReservation(session, kPayloadBytes);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, 0u);
  EXPECT_TRUE(cache_->Abort(id).ok());
}

TEST_F(SessionRegistryTest, BegunReservationsCountAgainstTheQuota) {
  limits_.max_leases = 1;
  const Token session = Open();
  EXPECT_TRUE(registry().BeginReservation(session, 1).ok());
  EXPECT_EQ(registry().BeginReservation(session, 1).code(), absl::StatusCode::kResourceExhausted);
  registry().CancelReservation(session, 1);
  EXPECT_TRUE(registry().BeginReservation(session, 1).ok());
  registry().CancelReservation(session, 1);
}

TEST_F(SessionRegistryTest, AnotherSessionCannotTakeAReservation) {
  const Token owner = Open();
  const Token other = Open();
  const ReservationId id = ReserveIn(owner, "a");
  EXPECT_EQ(registry().TakeReservation(other, id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry().GetStats().reservations, 1u);
}

TEST_F(SessionRegistryTest, AReservationFinishedAfterItsSessionEndedIsTheCallersToAbort) {
  const Token session = Open();
  ASSERT_TRUE(registry().BeginReservation(session, kPayloadBytes).ok());
  registry().Close(session);
  const ReservationId id = Reserve("a");
  EXPECT_EQ(registry().FinishReservation(session, id, kPayloadBytes).code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(cache_->Abort(id).ok());
}

TEST_F(SessionRegistryTest, AReservationFinishedAfterItsConnectionWasLostIsNotKept) {
  const Token session = Open();
  Lease(session, "a");
  ASSERT_TRUE(registry().BeginReservation(session, kPayloadBytes).ok());
  registry().ConnectionLost(session);
  const ReservationId id = Reserve("b");
  EXPECT_EQ(registry().FinishReservation(session, id, kPayloadBytes).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, kPayloadBytes);
  EXPECT_TRUE(cache_->Abort(id).ok());
}

TEST_F(SessionRegistryTest, AReservationPastItsTimeStaysChargedWhileItsWriterMayWrite) {
  const Token session = Open();
  const ReservationId id = ReserveIn(session, "a");
  clock_.Advance(absl::Hours(1));
  cache_->Tick();
  registry().Tick();
  EXPECT_EQ(registry().GetStats().reservations, 1u);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, kPayloadBytes);
  ASSERT_TRUE(registry().TakeReservation(session, id).ok());
  EXPECT_EQ(cache_->Commit(id).status().code(), absl::StatusCode::kFailedPrecondition);
}

// --- The end of a session -----------------------------------------------------------------------

TEST_F(SessionRegistryTest, CloseFreesLeasesAndReservationsAtOnce) {
  const Token session = Open();
  Lease(session, "a");
  ReserveIn(session, "b");
  registry().Close(session);
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_FALSE(registry().Exists(session));
  EXPECT_EQ(cache_->GetStats(false).reservations, 0u);
}

TEST_F(SessionRegistryTest, ALiveProcessThatLostItsConnectionKeepsItsPins) {
  const Token session = Open();
  const LeaseId lease = Lease(session, "a");
  ReserveIn(session, "b");
  registry().ConnectionLost(session);
  EXPECT_EQ(OnlyState(), "LOST");
  clock_.Advance(absl::Seconds(5));
  registry().Tick();
  EXPECT_EQ(OnlyState(), "LOST");
  EXPECT_EQ(registry().GetStats().quarantined_bytes, 2 * kPayloadBytes);
  EXPECT_GT(pinned_bytes(), kPayloadBytes);
  EXPECT_EQ(registry().Check(session, false).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry().Release(session, {lease}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionRegistryTest, APinOfADeadProcessGoesAfterTheQuarantine) {
  limits_.quarantine = absl::Milliseconds(100);
  const Token session = Open();
  Lease(session, "a");
  ReserveIn(session, "b");
  registry().ConnectionLost(session);
  registry().ProcessGone(session);
  EXPECT_EQ(OnlyState(), "QUARANTINED");
  clock_.Advance(absl::Milliseconds(99));
  registry().Tick();
  EXPECT_GT(pinned_bytes(), 0u);
  clock_.Advance(absl::Milliseconds(1));
  registry().Tick();
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_FALSE(registry().Exists(session));
}

TEST_F(SessionRegistryTest, TheProcessMayBeSeenToGoBeforeItsConnection) {
  const Token session = Open();
  Lease(session, "a");
  registry().ProcessGone(session);
  registry().ConnectionLost(session);
  EXPECT_EQ(OnlyState(), "QUARANTINED");
}

TEST_F(SessionRegistryTest, RepeatedNewsOfADeathDoesNotProlongTheQuarantine) {
  const Token session = Open();
  Lease(session, "a");
  registry().ProcessGone(session);
  clock_.Advance(limits_.quarantine);
  registry().ProcessGone(session);
  registry().Tick();
  EXPECT_FALSE(registry().Exists(session));
}

TEST_F(SessionRegistryTest, ASessionThatHoldsNothingEndsWithItsConnection) {
  const Token session = Open();
  registry().ConnectionLost(session);
  EXPECT_FALSE(registry().Exists(session));
}

TEST_F(SessionRegistryTest, ALostSessionEndsWhenItsLastLeaseExpires) {
  limits_.lease_ttl = absl::Seconds(30);
  const Token session = Open();
  Lease(session, "a");
  registry().ConnectionLost(session);
  clock_.Advance(absl::Seconds(30));
  registry().Tick();
  EXPECT_FALSE(registry().Exists(session));
}

TEST_F(SessionRegistryTest, AcknowledgingEndsALostSessionOfTheSameUserOnly) {
  const Token session = Open(true, 1000);
  Lease(session, "a");
  registry().ConnectionLost(session);
  registry().Acknowledge(session, 1001);
  EXPECT_TRUE(registry().Exists(session));
  registry().Acknowledge(session, 1000);
  EXPECT_FALSE(registry().Exists(session));
  EXPECT_EQ(pinned_bytes(), 0u);
}

// --- Share and Adopt ----------------------------------------------------------------------------

TEST_F(SessionRegistryTest, AdoptedLeasesAreOnTheSameBytesAndTheAdoptersOwn) {
  const Token rank0 = Open();
  const Token rank1 = Open();
  const LeaseId a = Lease(rank0, "a");
  const LeaseId b = Lease(rank0, "b");
  const auto share = registry().Share(rank0, {b, a}, absl::Seconds(30));
  ASSERT_TRUE(share.ok()) << share.status();
  const auto adopted = registry().Adopt(rank1, *share);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_EQ(adopted->size(), 2u);
  EXPECT_EQ((*adopted)[0].info->key, Key("b"));
  EXPECT_EQ((*adopted)[1].info->key, Key("a"));
  EXPECT_EQ((*adopted)[0].location, cache_->PinInPlace(Key("b")).location());
  EXPECT_NE((*adopted)[0].id, b);
  EXPECT_EQ(*registry().Release(rank1, {a, b}), 0u);
  EXPECT_EQ(*registry().Release(rank1, {(*adopted)[0].id, (*adopted)[1].id}), 2u);
  EXPECT_EQ(*registry().Release(rank0, {a, b}), 2u);
}

TEST_F(SessionRegistryTest, AShareTokenOutlivesTheSharer) {
  const Token rank0 = Open();
  const Token rank1 = Open();
  const auto share = registry().Share(rank0, {Lease(rank0, "a")}, absl::Seconds(30));
  registry().Close(rank0);
  EXPECT_GT(pinned_bytes(), 0u);
  EXPECT_TRUE(registry().Adopt(rank1, *share).ok());
}

TEST_F(SessionRegistryTest, AShareTokenEndsWithItsTimeToLiveAndGivesItsPinsBack) {
  const Token session = Open();
  const LeaseId lease = Lease(session, "a");
  const auto share = registry().Share(session, {lease}, absl::Seconds(30));
  EXPECT_EQ(*registry().Release(session, {lease}), 1u);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, kPayloadBytes);
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(registry().Adopt(session, *share).status().code(), absl::StatusCode::kNotFound);
  registry().Tick();
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_EQ(registry().Sessions()[0].pinned_bytes, 0u);
}

TEST_F(SessionRegistryTest, ShareRefusesForeignLeasesAndImpossibleTimes) {
  const Token owner = Open();
  const Token other = Open();
  const LeaseId lease = Lease(owner, "a");
  const auto foreign = registry().Share(other, {lease}, absl::Seconds(1));
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(foreign.status().message()), HasSubstr(absl::StrCat("lease ", lease)));
  for (const absl::Duration ttl :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::Minutes(10) + absl::Nanoseconds(1),
        absl::InfiniteDuration()}) {
    EXPECT_EQ(registry().Share(owner, {lease}, ttl).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(registry().Share(owner, {}, absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionRegistryTest, AdoptTakesAllOrNothing) {
  limits_.max_leases = 4;
  const Token rank0 = Open();
  const Token rank1 = Open();
  const auto share =
      registry().Share(rank0, {Lease(rank0, "a"), Lease(rank0, "b")}, absl::Seconds(30));
  ASSERT_TRUE(share.ok()) << share.status();
  for (const char* name : {"c", "d", "e"}) Lease(rank1, name);
  EXPECT_EQ(registry().Adopt(rank1, *share).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(registry().GetStats().leases, 5u);
}

TEST_F(SessionRegistryTest, ShareTokensAreBounded) {
  limits_.max_share_tokens = 1;
  const Token session = Open();
  const LeaseId lease = Lease(session, "a");
  ASSERT_TRUE(registry().Share(session, {lease}, absl::Seconds(30)).ok());
  EXPECT_EQ(registry().Share(session, {lease}, absl::Seconds(30)).status().code(),
            absl::StatusCode::kResourceExhausted);
  clock_.Advance(absl::Seconds(30));
  registry().Tick();
  EXPECT_TRUE(registry().Share(session, {lease}, absl::Seconds(30)).ok());
}

// --- Threads ------------------------------------------------------------------------------------

TEST_F(SessionRegistryTest, ManyThreadsLoseNoPin) {
  limits_.lease_ttl = absl::Seconds(30);
  registry();
  Pin("hot").Reset();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 200; ++round) {
        const Token session = Open();
        const LeaseId lease = *registry().AddLease(session, cache_->PinInPlace(Key("hot")));
        // Longer than the clock can get while this thread is kept waiting.
        const auto share = registry().Share(session, {lease}, absl::Seconds(30));
        EXPECT_TRUE(registry().Adopt(session, *share).ok());
        registry().Tick();
        if (i == 0) clock_.Advance(absl::Milliseconds(10));
        if (round % 2 == 0) {
          registry().ConnectionLost(session);
          registry().ProcessGone(session);
        } else {
          registry().Close(session);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  clock_.Advance(absl::Seconds(30));
  registry().Tick();
  EXPECT_EQ(registry().GetStats().sessions, 0u);
  EXPECT_EQ(pinned_bytes(), 0u);
}

}  // namespace
}  // namespace embcache
