// The notifications, read from a socket as a service manager has one.

#include "server/service_manager.h"

#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/notify_socket.h"

namespace embcache {
namespace {

using testing_support::NotifySocket;

// What a watchdog asks for, answered when the test says so.
class Questions {
 public:
  void Ask(Watchdog::Answer answer) {
    absl::MutexLock lock(&mu_);
    open_.push_back(std::move(answer));
    ++asked_;
  }
  // Waits until `count` have been asked, ever.
  void Await(int count) {
    absl::MutexLock lock(&mu_);
    const auto reached = [this, count]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return asked_ >= count; };
    mu_.Await(absl::Condition(&reached));
  }
  int asked() {
    absl::MutexLock lock(&mu_);
    return asked_;
  }
  std::vector<Watchdog::Answer> Take() {
    absl::MutexLock lock(&mu_);
    return std::move(open_);
  }

 private:
  absl::Mutex mu_;
  std::vector<Watchdog::Answer> open_ ABSL_GUARDED_BY(mu_);
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
};

class ServiceManagerTest : public testing::TestWithParam<NotifySocket::Kind> {
 protected:
  void SetUp() override { setenv("NOTIFY_SOCKET", socket_.address().c_str(), 1); }
  void TearDown() override {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
  }

  NotifySocket socket_{GetParam()};
};

TEST_P(ServiceManagerTest, SaysReadyStatusAndStopping) {
  NotifyReady("serving /run/x");
  NotifyStatus("busy");
  NotifyStopping("draining");
  EXPECT_EQ(socket_.Receive(), "READY=1\nSTATUS=serving /run/x");
  EXPECT_EQ(socket_.Receive(), "STATUS=busy");
  EXPECT_EQ(socket_.Receive(), "STOPPING=1\nSTATUS=draining");
}

TEST_P(ServiceManagerTest, TheWatchdogGivesASignOfLifeForEachAnswer) {
  Questions questions;
  Watchdog watchdog(absl::Milliseconds(2),
                    [&](Watchdog::Answer answer) { questions.Ask(std::move(answer)); });
  for (int round = 1; round <= 3; ++round) {
    questions.Await(round);
    for (Watchdog::Answer& answer : questions.Take()) answer();
    EXPECT_EQ(socket_.Receive(), "WATCHDOG=1");
  }
}

TEST_P(ServiceManagerTest, WithoutAnAnswerThereIsNoSignOfLifeAndNoSecondQuestion) {
  Questions questions;
  {
    Watchdog watchdog(absl::Milliseconds(2),
                      [&](Watchdog::Answer answer) { questions.Ask(std::move(answer)); });
    questions.Await(1);
    EXPECT_EQ(socket_.Receive(absl::Milliseconds(50)), "");  // 50 periods
    EXPECT_EQ(questions.asked(), 1);
  }
  for (Watchdog::Answer& answer : questions.Take()) answer();  // too late, and harmless
  EXPECT_EQ(socket_.Receive(absl::Milliseconds(1)), "");
}

INSTANTIATE_TEST_SUITE_P(Sockets, ServiceManagerTest,
                         testing::Values(NotifySocket::Kind::kPath, NotifySocket::Kind::kAbstract),
                         [](const auto& info) {
                           return info.param == NotifySocket::Kind::kPath ? "Path" : "Abstract";
                         });

TEST(WatchdogTimeoutTest, IsWhatTheServiceManagerAskedForOrZero) {
  unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(WatchdogTimeout(), absl::ZeroDuration());
  setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(WatchdogTimeout(), absl::Seconds(30));
  setenv("WATCHDOG_PID", "1", 1);  // meant for another process
  EXPECT_EQ(WatchdogTimeout(), absl::ZeroDuration());
  unsetenv("WATCHDOG_PID");
  setenv("WATCHDOG_USEC", "soon", 1);
  EXPECT_EQ(WatchdogTimeout(), absl::ZeroDuration());
  unsetenv("WATCHDOG_USEC");
}

TEST(NotifyTest, WithoutASocketNothingHappens) {
  unsetenv("NOTIFY_SOCKET");
  NotifyReady("serving");
  NotifyStopping("stopping");
}

}  // namespace
}  // namespace embcache
