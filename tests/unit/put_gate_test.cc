// Timeouts here are either long past or never reached: nothing depends on how fast the test runs.

#include "storage/put_gate.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

constexpr absl::Duration kForever = absl::Hours(1);
constexpr absl::Duration kShort = absl::Milliseconds(5);

TEST(PutGateTest, WithoutPutsNobodyWaits) {
  PutGate gate(kForever);
  EXPECT_TRUE(gate.Wait());
  gate.Set(false, kForever);
  EXPECT_TRUE(gate.Wait());
}

TEST(PutGateTest, APutHoldsWorkUpUntilPatienceEnds) {
  PutGate gate(absl::ZeroDuration());
  gate.Set(true, kShort);
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(gate.Wait());
  EXPECT_GE(absl::Now() - begin, kShort);
}

TEST(PutGateTest, WithoutPatienceAPutHoldsUpNothing) {
  PutGate gate(kForever);
  gate.Set(true, absl::ZeroDuration());
  EXPECT_FALSE(gate.Wait());
}

TEST(PutGateTest, TheEndOfAPutWakesWhoWaits) {
  for (int i = 0; i < 200; ++i) {
    PutGate gate(absl::ZeroDuration());
    gate.Set(true, kForever);
    bool quiet = false;
    absl::Notification begun;
    std::thread writer([&] {
      begun.Notify();
      quiet = gate.Wait();
    });
    begun.WaitForNotification();
    gate.Set(false, kForever);
    writer.join();
    EXPECT_TRUE(quiet);
  }
}

// Often, since only some of the writers wait already when patience ends.
TEST(PutGateTest, WhoeverRunsOutOfPatienceDoesSoAtOnce) {
  for (int i = 0; i < 200; ++i) {
    PutGate gate(absl::ZeroDuration());
    gate.Set(true, kForever);
    bool quiet = true;
    absl::Notification begun;
    std::thread writer([&] {
      begun.Notify();
      quiet = gate.Wait();
    });
    begun.WaitForNotification();
    gate.Set(true, absl::ZeroDuration());
    writer.join();
    EXPECT_FALSE(quiet);
  }
}

TEST(PutGateTest, WorkDoesNotBeginRightAfterAPut) {
  PutGate gate(kForever);
  gate.Set(true, kShort);
  gate.Set(false, kShort);
  EXPECT_FALSE(gate.Wait());
}

TEST(PutGateTest, SayingAgainThatNoPutIsUnderWayDoesNotBeginTheTimeToSettleAnew) {
  PutGate gate(absl::Milliseconds(1));
  gate.Set(true, kForever);
  gate.Set(false, kForever);
  ASSERT_TRUE(gate.Wait());
  gate.Set(false, absl::ZeroDuration());
  EXPECT_TRUE(gate.Wait());
}

}  // namespace
}  // namespace embcache
