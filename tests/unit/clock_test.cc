#include "storage/clock.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

TEST(SystemClockTest, WallTimeIsThatOfTheMachine) {
  const absl::Time before = absl::Now();
  const absl::Time now = SystemClock()->Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
}

TEST(SystemClockTest, MonotonicTimeNeverGoesBackAndMoves) {
  absl::Duration last = SystemClock()->MonotonicNow();
  const absl::Duration first = last;
  while (last == first) {
    const absl::Duration now = SystemClock()->MonotonicNow();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, first);
}

TEST(SystemClockTest, ThereIsOneForTheWholeProcess) { EXPECT_EQ(SystemClock(), SystemClock()); }

TEST(SimulatedClockTest, StandsStillUntilAdvanced) {
  SimulatedClock clock;
  const absl::Time wall = clock.Now();
  const absl::Duration monotonic = clock.MonotonicNow();
  EXPECT_EQ(clock.Now(), wall);
  EXPECT_EQ(clock.MonotonicNow(), monotonic);
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now() - wall, absl::Seconds(3));
  EXPECT_EQ(clock.MonotonicNow() - monotonic, absl::Seconds(3));
}

TEST(SimulatedClockTest, AWallJumpLeavesMonotonicTimeAlone) {
  SimulatedClock clock;
  const absl::Time wall = clock.Now();
  const absl::Duration monotonic = clock.MonotonicNow();
  clock.JumpWall(-absl::Hours(24 * 3650));
  EXPECT_EQ(wall - clock.Now(), absl::Hours(24 * 3650));
  EXPECT_EQ(clock.MonotonicNow(), monotonic);
}

TEST(SimulatedClockDeathTest, TimeCannotBeAdvancedBackwards) {
  SimulatedClock clock;
  EXPECT_DEATH(clock.Advance(-absl::Nanoseconds(1)), "invariant broken");
}

}  // namespace
}  // namespace embcache
