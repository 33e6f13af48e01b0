// ClaimTable by itself, with a clock that moves when told.

#include "server/claim_table.h"

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

using Verdict = ClaimTable::Verdict;
using Outcome = ClaimTable::Outcome;

CacheKey KeyOf(const std::string& name, const std::string& model = "model") {
  return *CacheKey::Create(model, name + std::string(32 - name.size(), '.'), "");
}

Token Session(uint8_t number) { return Token{number}; }

std::shared_ptr<const EntryInfo> Announced(const std::string& name) {
  return std::make_shared<EntryInfo>(
      EntryInfo{.key = KeyOf(name), .layout = {}, .metadata = {{"grid", "1,2,3"}}});
}

class ClaimTableTest : public testing::Test {
 protected:
  struct Waiter {
    std::optional<Outcome> outcome;
    bool woken() const { return outcome.has_value(); }
    Verdict verdict() const { return outcome->verdict; }
  };

  // A get of `session`, which may claim and waits for `wait`.
  std::shared_ptr<Waiter> Join(uint8_t session, const std::string& name,
                               absl::Duration wait = absl::Seconds(10), bool may_claim = true,
                               bool accept_pending = false) {
    auto waiter = std::make_shared<Waiter>();
    auto now = table_.Join({.key = KeyOf(name),
                            .session = Session(session),
                            .may_claim = may_claim,
                            .accept_pending = accept_pending,
                            .until = clock_.MonotonicNow() + wait},
                           [waiter](Outcome outcome) {
                             EXPECT_FALSE(waiter->woken()) << "woken twice";
                             waiter->outcome = std::move(outcome);
                           });
    if (now.has_value()) waiter->outcome = std::move(now);
    return waiter;
  }

  ClaimId Claim(uint8_t session, const std::string& name) {
    const auto claimer = Join(session, name);
    EXPECT_TRUE(claimer->woken() && claimer->verdict() == Verdict::kClaimed);
    return claimer->outcome->claim;
  }

  bool Fail(ClaimId claim, uint8_t session) {
    ClaimTable::Wakes wakes;
    return table_.Fail(claim, Session(session), &wakes);
  }
  void Stored(const std::string& name) { const auto wakes = table_.Stored(KeyOf(name)); }
  void Expire() { const auto wakes = table_.Expire(); }

  SimulatedClock clock_;
  ClaimTable table_{
      ClaimLimits{
          .ttl = absl::Seconds(30), .max_claims = 8, .max_claims_per_session = 2, .max_waiters = 6},
      &clock_};
};

TEST_F(ClaimTableTest, TheFirstClaimsAndTheOthersWait) {
  Claim(1, "a");
  const auto second = Join(2, "a");
  EXPECT_FALSE(second->woken());
  EXPECT_EQ(table_.GetStats().claims, 1u);
  EXPECT_EQ(table_.GetStats().waiters, 1u);
}

TEST_F(ClaimTableTest, StoringTheKeyEndsTheClaimAndMakesAllWaitersLookAgain) {
  Claim(1, "a");
  std::vector<std::shared_ptr<Waiter>> waiters;
  for (uint8_t session = 2; session < 6; ++session) waiters.push_back(Join(session, "a"));
  Stored("a");
  for (const auto& waiter : waiters) {
    ASSERT_TRUE(waiter->woken());
    EXPECT_EQ(waiter->verdict(), Verdict::kLookAgain);
  }
  EXPECT_EQ(table_.GetStats().claims, 0u);
  EXPECT_EQ(table_.GetStats().failed, 0u);
}

TEST_F(ClaimTableTest, StoringAnotherKeyWakesNobody) {
  Claim(1, "a");
  const auto waiter = Join(2, "a");
  Stored("b");
  EXPECT_FALSE(waiter->woken());
}

TEST_F(ClaimTableTest, AFailurePromotesExactlyTheFirstThatCame) {
  const ClaimId claim = Claim(1, "a");
  const auto second = Join(2, "a");
  const auto third = Join(3, "a");
  EXPECT_TRUE(Fail(claim, 1));
  ASSERT_TRUE(second->woken());
  EXPECT_EQ(second->verdict(), Verdict::kClaimed);
  EXPECT_NE(second->outcome->claim, claim);
  EXPECT_FALSE(third->woken());
  EXPECT_TRUE(Fail(second->outcome->claim, 2));
  ASSERT_TRUE(third->woken());
  EXPECT_EQ(third->verdict(), Verdict::kClaimed);
}

TEST_F(ClaimTableTest, APromotionSkipsThoseThatCannotClaim) {
  const ClaimId claim = Claim(1, "a");
  const auto reader = Join(2, "a", absl::Seconds(10), /*may_claim=*/false);
  const auto writer = Join(3, "a");
  EXPECT_TRUE(Fail(claim, 1));
  EXPECT_FALSE(reader->woken());
  ASSERT_TRUE(writer->woken());
  EXPECT_EQ(writer->verdict(), Verdict::kClaimed);
  Stored("a");
  ASSERT_TRUE(reader->woken());
  EXPECT_EQ(reader->verdict(), Verdict::kLookAgain);
}

TEST_F(ClaimTableTest, APromotionSkipsThoseWhoseTimeIsUp) {
  const ClaimId claim = Claim(1, "a");
  const auto late = Join(2, "a", absl::Seconds(1));
  const auto patient = Join(3, "a");
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Fail(claim, 1));
  EXPECT_FALSE(late->woken());
  ASSERT_TRUE(patient->woken());
  EXPECT_EQ(patient->verdict(), Verdict::kClaimed);
  Expire();
  ASSERT_TRUE(late->woken());
  EXPECT_EQ(late->verdict(), Verdict::kTimedOut);
}

TEST_F(ClaimTableTest, APromotionSkipsSessionsThatHoldAllTheClaimsTheyMay) {
  const ClaimId claim = Claim(1, "a");
  Claim(2, "b");
  Claim(2, "c");
  const auto busy = Join(2, "a");
  const auto idle = Join(3, "a");
  EXPECT_TRUE(Fail(claim, 1));
  EXPECT_FALSE(busy->woken());
  ASSERT_TRUE(idle->woken());
  EXPECT_EQ(idle->verdict(), Verdict::kClaimed);
}

TEST_F(ClaimTableTest, WhoWouldClaimAFreedKeyAndMayNotIsToldSoAtOnce) {
  const ClaimId claim = Claim(1, "a");
  Claim(2, "b");
  Claim(2, "c");
  const auto busy = Join(2, "a");
  const auto too = Join(2, "a");
  const auto reader = Join(3, "a", absl::Seconds(10), /*may_claim=*/false);
  EXPECT_TRUE(Fail(claim, 1));
  for (const auto& waiter : {busy, too}) {
    ASSERT_TRUE(waiter->woken());
    EXPECT_EQ(waiter->verdict(), Verdict::kRefused);
    EXPECT_EQ(waiter->outcome->status,
              absl::ResourceExhaustedError("claims: 2 held by this session of 2, 2 in all of 8"));
  }
  EXPECT_FALSE(reader->woken());
  // The key is free, and the reader waits for whoever takes it.
  Claim(4, "a");
  Stored("a");
  ASSERT_TRUE(reader->woken());
  EXPECT_EQ(reader->verdict(), Verdict::kLookAgain);
}

TEST_F(ClaimTableTest, AClaimEndsWithItsTimeToLive) {
  Claim(1, "a");
  const auto waiter = Join(2, "a", absl::Minutes(5));
  clock_.Advance(absl::Seconds(29));
  Expire();
  EXPECT_FALSE(waiter->woken());
  clock_.Advance(absl::Seconds(1));
  Expire();
  ASSERT_TRUE(waiter->woken());
  EXPECT_EQ(waiter->verdict(), Verdict::kClaimed);
  EXPECT_EQ(table_.GetStats().failed, 1u);
}

TEST_F(ClaimTableTest, AWaitEndsWithItsTimeAndSaysWhetherSomebodyEncodes) {
  Claim(1, "a");
  const auto waiter = Join(2, "a", absl::Seconds(1));
  const auto reader = Join(3, "b", absl::Seconds(1), /*may_claim=*/false);
  clock_.Advance(absl::Seconds(1));
  Expire();
  ASSERT_TRUE(waiter->woken() && reader->woken());
  EXPECT_EQ(waiter->verdict(), Verdict::kTimedOut);
  EXPECT_TRUE(waiter->outcome->claimed);
  EXPECT_EQ(reader->verdict(), Verdict::kTimedOut);
  EXPECT_FALSE(reader->outcome->claimed);
}

TEST_F(ClaimTableTest, WithoutAWaitTheAnswerComesAtOnce) {
  Claim(1, "a");
  const auto impatient = Join(2, "a", absl::ZeroDuration());
  ASSERT_TRUE(impatient->woken());
  EXPECT_EQ(impatient->verdict(), Verdict::kTimedOut);
  EXPECT_TRUE(impatient->outcome->claimed);
}

TEST_F(ClaimTableTest, WhoMayNotClaimWaitsForAKeyThatNobodyClaimsYet) {
  const auto reader = Join(1, "a", absl::Seconds(10), /*may_claim=*/false);
  EXPECT_FALSE(reader->woken());
  const ClaimId claim = Claim(2, "a");
  EXPECT_TRUE(Fail(claim, 2));
  EXPECT_FALSE(reader->woken());
  Stored("a");
  ASSERT_TRUE(reader->woken());
  EXPECT_EQ(reader->verdict(), Verdict::kLookAgain);
}

TEST_F(ClaimTableTest, AClaimerThatAsksAgainHasTheSameClaim) {
  const ClaimId claim = Claim(1, "a");
  EXPECT_EQ(Claim(1, "a"), claim);
}

TEST_F(ClaimTableTest, AnUndeliveredClaimPassesOn) {
  const ClaimId claim = Claim(1, "a");
  const auto waiter = Join(2, "a");
  { const auto wakes = table_.Undelivered(claim, Session(1)); }
  ASSERT_TRUE(waiter->woken());
  EXPECT_EQ(waiter->verdict(), Verdict::kClaimed);
}

TEST_F(ClaimTableTest, AnUndeliveredSecondAnswerLeavesTheClaimToTheFirst) {
  const ClaimId claim = Claim(1, "a");
  EXPECT_EQ(Claim(1, "a"), claim);
  const auto waiter = Join(2, "a");
  { const auto wakes = table_.Undelivered(claim, Session(1)); }
  EXPECT_FALSE(waiter->woken());
  { const auto wakes = table_.Undelivered(claim, Session(1)); }
  EXPECT_TRUE(waiter->woken());
}

TEST_F(ClaimTableTest, OnlyItsSessionCanGiveAClaimUp) {
  const ClaimId claim = Claim(1, "a");
  EXPECT_FALSE(Fail(claim, 2));
  EXPECT_TRUE(Fail(claim, 1));
  EXPECT_FALSE(Fail(claim, 1));
}

TEST_F(ClaimTableTest, TheEndOfASessionPassesItsClaimsOnAndRefusesItsWaiters) {
  Claim(1, "a");
  const ClaimId other = Claim(2, "b");
  const auto own_waiter = Join(1, "b");
  const auto heir = Join(3, "a");
  { const auto wakes = table_.EndSession(Session(1)); }
  ASSERT_TRUE(own_waiter->woken() && heir->woken());
  EXPECT_EQ(own_waiter->verdict(), Verdict::kRefused);
  EXPECT_EQ(heir->verdict(), Verdict::kClaimed);
  EXPECT_TRUE(Fail(other, 2));
  EXPECT_EQ(table_.GetStats().waiters, 0u);
}

TEST_F(ClaimTableTest, WaitersOfAnEndingSessionAreNotGivenItsOwnClaims) {
  Claim(1, "a");
  const ClaimId full = Claim(2, "x");
  Claim(2, "y");
  const auto skipped = Join(2, "a");
  const auto own = Join(1, "x");
  EXPECT_TRUE(Fail(full, 2));
  ASSERT_TRUE(own->woken());
  EXPECT_EQ(own->verdict(), Verdict::kClaimed);
  { const auto wakes = table_.EndSession(Session(1)); }
  EXPECT_TRUE(skipped->woken());
  { const auto wakes = table_.EndSession(Session(2)); }
  EXPECT_EQ(table_.GetStats().claims, 0u);
}

TEST_F(ClaimTableTest, AnAnnouncedValueIsToldToThoseWhoTakeIt) {
  const ClaimId claim = Claim(1, "a");
  const auto early = Join(2, "a", absl::Seconds(10), true, /*accept_pending=*/true);
  const auto patient = Join(3, "a");
  { const auto wakes = table_.Reserved(claim, 77, Announced("a")); }
  ASSERT_TRUE(early->woken());
  EXPECT_EQ(early->verdict(), Verdict::kPending);
  EXPECT_EQ(early->outcome->pending->metadata[0].second, "1,2,3");
  EXPECT_FALSE(patient->woken());
  const auto later = Join(4, "a", absl::Seconds(10), true, /*accept_pending=*/true);
  ASSERT_TRUE(later->woken());
  EXPECT_EQ(later->verdict(), Verdict::kPending);
}

TEST_F(ClaimTableTest, AReservationThatFailsEndsItsClaim) {
  const ClaimId claim = Claim(1, "a");
  { const auto wakes = table_.Reserved(claim, 77, Announced("a")); }
  const auto waiter = Join(2, "a");
  { const auto wakes = table_.ReservationFailed(78); }
  EXPECT_FALSE(waiter->woken());
  { const auto wakes = table_.ReservationFailed(77); }
  ASSERT_TRUE(waiter->woken());
  EXPECT_EQ(waiter->verdict(), Verdict::kClaimed);
}

TEST_F(ClaimTableTest, APutMayNameItsOwnClaimOrOneThatIsOver) {
  const ClaimId claim = Claim(1, "a");
  EXPECT_TRUE(table_.CheckPut(claim, Session(1), KeyOf("a")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(table_.CheckPut(claim, Session(2), KeyOf("a"))));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.CheckPut(claim, Session(1), KeyOf("b"))));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.CheckPut(claim, std::nullopt, KeyOf("a"))));
  EXPECT_TRUE(Fail(claim, 1));
  EXPECT_TRUE(table_.CheckPut(claim, Session(1), KeyOf("a")).ok());
}

TEST_F(ClaimTableTest, AnAdvancedEpochGivesWaitersClaimsOfTheirOwn) {
  const ClaimId claim = Claim(1, "a");
  const auto waiter = Join(2, "a");
  { const auto wakes = table_.AdvanceEpoch("other model"); }
  EXPECT_FALSE(waiter->woken());
  { const auto wakes = table_.AdvanceEpoch("model"); }
  ASSERT_TRUE(waiter->woken());
  EXPECT_EQ(waiter->verdict(), Verdict::kClaimed);
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.CheckPut(claim, Session(1), KeyOf("a"))));
  // The old claim's end is nobody's business any more.
  EXPECT_TRUE(Fail(claim, 1));
  EXPECT_TRUE(table_.CheckPut(waiter->outcome->claim, Session(2), KeyOf("a")).ok());
}

TEST_F(ClaimTableTest, ClaimsAreBoundedPerSessionAndInAll) {
  Claim(1, "a");
  Claim(1, "b");
  const auto third = Join(1, "c");
  ASSERT_TRUE(third->woken());
  EXPECT_EQ(third->verdict(), Verdict::kRefused);
  EXPECT_TRUE(absl::IsResourceExhausted(third->outcome->status));
  for (int i = 0; i < 6; ++i) Claim(static_cast<uint8_t>(2 + i / 2), absl::StrCat("k", i));
  const auto ninth = Join(9, "z");
  ASSERT_TRUE(ninth->woken());
  EXPECT_EQ(ninth->verdict(), Verdict::kRefused);
}

TEST_F(ClaimTableTest, WaitsAreSharedOutEvenlyWhenAllAreTaken) {
  Claim(1, "a");
  std::map<uint8_t, std::vector<std::shared_ptr<Waiter>>> waiters;
  const auto join = [&](uint8_t session, int times) {
    for (int i = 0; i < times; ++i) waiters[session].push_back(Join(session, "a"));
  };
  const auto waiting = [&](uint8_t session) {
    int count = 0;
    for (const auto& waiter : waiters[session]) {
      if (!waiter->woken()) {
        ++count;
      } else {
        EXPECT_TRUE(absl::IsResourceExhausted(waiter->outcome->status));
      }
    }
    return count;
  };
  join(2, 7);
  EXPECT_EQ(waiting(2), 6);
  EXPECT_EQ(waiters[2].back()->outcome->status.message(),
            "waits for claims: all of max-waiters = 6 are taken, 6 by this session, and no other "
            "session has more");
  join(3, 4);
  EXPECT_EQ(waiting(2), 3);
  EXPECT_EQ(waiting(3), 3);
  EXPECT_FALSE(waiters[2].front()->woken()) << "the newest are refused";
  for (const uint8_t session : {4, 5, 6, 7}) join(session, 3);
  for (const uint8_t session : {2, 3, 4, 5, 6, 7}) EXPECT_EQ(waiting(session), 1) << int{session};
  join(8, 1);
  EXPECT_EQ(waiting(8), 0);
  // Nobody is lost: all who still wait are woken.
  Stored("a");
  for (const auto& [session, of_session] : waiters) {
    for (const auto& waiter : of_session) EXPECT_TRUE(waiter->woken());
  }
}

TEST_F(ClaimTableTest, AWaitForAKeyThatNobodyClaimsMayBeTheOneThatGoes) {
  for (int i = 0; i < 6; ++i) Join(2, absl::StrCat("k", i), absl::Seconds(10), /*may_claim=*/false);
  const auto other = Join(3, "k5", absl::Seconds(10), /*may_claim=*/false);
  EXPECT_FALSE(other->woken());
  Stored("k5");
  ASSERT_TRUE(other->woken());
  EXPECT_EQ(other->verdict(), Verdict::kLookAgain);
  EXPECT_EQ(table_.GetStats().waiters, 5u);
}

TEST_F(ClaimTableTest, ClosingRefusesWaitersAndThoseThatCome) {
  Claim(1, "a");
  const auto waiter = Join(2, "a");
  { const auto wakes = table_.Close(); }
  ASSERT_TRUE(waiter->woken());
  EXPECT_TRUE(absl::IsUnavailable(waiter->outcome->status));
  const auto late = Join(3, "b");
  EXPECT_TRUE(absl::IsUnavailable(late->outcome->status));
  EXPECT_FALSE(table_.AwaitExpired().has_value());
}

TEST_F(ClaimTableTest, FiveHundredWaitersAreAllWoken) {
  ClaimTable table({.max_waiters = 1000}, &clock_);
  const auto request = [&](uint8_t session) {
    return ClaimTable::Request{.key = KeyOf("a"),
                               .session = Session(session),
                               .may_claim = true,
                               .until = clock_.MonotonicNow() + absl::Seconds(10)};
  };
  ASSERT_TRUE(table.Join(request(1), {}).has_value());
  int woken = 0;
  for (int i = 0; i < 500; ++i) {
    ASSERT_FALSE(table.Join(request(2), [&](Outcome) { ++woken; }).has_value());
  }
  { const auto wakes = table.Stored(KeyOf("a")); }
  EXPECT_EQ(woken, 500);
  EXPECT_EQ(table.GetStats().waiters, 0u);
}

TEST(ClaimTableTimerTest, AwaitExpiredWakesAtTheDeadlineOfALaterComer) {
  ClaimTable table({}, SystemClock());
  std::thread timer([&] {
    while (table.AwaitExpired().has_value()) {
    }
  });
  absl::Notification late;
  const absl::Duration asked = SystemClock()->MonotonicNow();
  EXPECT_FALSE(table
                   .Join({.key = KeyOf("a"), .until = asked + absl::Milliseconds(30)},
                         [&](Outcome outcome) {
                           EXPECT_EQ(outcome.verdict, Verdict::kTimedOut);
                           late.Notify();
                         })
                   .has_value());
  EXPECT_TRUE(late.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_GE(SystemClock()->MonotonicNow() - asked, absl::Milliseconds(30));
  { const auto wakes = table.Close(); }
  timer.join();
}

// Whatever happens in whatever order: no key has two claims, everybody who waits is answered once,
// and whoever is left when all ends is known to the table.
TEST(ClaimTableModelTest, RandomHistoriesKeepOneClaimForAKeyAndForgetNobody) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t n) { return random() % n; };
    SimulatedClock clock;
    ClaimTable table({.ttl = absl::Seconds(5), .max_claims_per_session = 3, .max_waiters = 6},
                     &clock);
    struct Held {
      ClaimId id;
      uint8_t session;
      std::string key;
    };
    std::vector<Held> held;  // claims told, which may be over
    std::map<std::string, ClaimId> current;
    int waiting = 0;
    const auto granted = [&](uint8_t session, const std::string& key, const Outcome& outcome) {
      if (outcome.verdict != Verdict::kClaimed) return;
      current[key] = outcome.claim;
      held.push_back({outcome.claim, session, key});
    };
    for (int step = 0; step < 300; ++step) {
      const std::string key(1, static_cast<char>('a' + pick(3)));
      const auto session = static_cast<uint8_t>(1 + pick(4));
      switch (pick(7)) {
        case 0:
        case 1:
        case 2: {
          ++waiting;
          auto outcome = table.Join({.key = KeyOf(key),
                                     .session = Session(session),
                                     .may_claim = pick(3) != 0,
                                     .until = clock.MonotonicNow() + absl::Seconds(pick(4))},
                                    [&, session, key](Outcome later) {
                                      --waiting;
                                      granted(session, key, later);
                                    });
          if (outcome.has_value()) {
            --waiting;
            granted(session, key, *outcome);
          }
          break;
        }
        case 3: {
          const auto wakes = table.Stored(KeyOf(key));
          break;
        }
        case 4: {
          if (held.empty()) break;
          const Held one = held[pick(held.size())];
          ClaimTable::Wakes wakes;
          // Only the newest claim of a key can still be there.
          if (table.Fail(one.id, Session(one.session), &wakes)) {
            ASSERT_EQ(current[one.key], one.id);
          }
          break;
        }
        case 5: {
          const auto wakes = table.EndSession(Session(session));
          break;
        }
        case 6: {
          clock.Advance(absl::Seconds(pick(3)));
          const auto wakes = table.Expire();
          break;
        }
      }
      ASSERT_EQ(table.GetStats().waiters, static_cast<uint64_t>(waiting));
    }
    { const auto wakes = table.Close(); }
    ASSERT_EQ(waiting, 0);
  }
}

}  // namespace
}  // namespace embcache
