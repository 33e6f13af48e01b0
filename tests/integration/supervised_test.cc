// embcached under a service manager that waits for its notifications and watches it.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/integration/daemon_process.h"
#include "tests/server/notify_socket.h"

namespace embcache {
namespace {

using testing_support::ChildProcess;
using testing_support::DaemonProcess;
using testing_support::NotifySocket;

class SupervisedTest : public ::testing::TestWithParam<NotifySocket::Kind> {
 protected:
  // The daemon inherits both.
  void SetUp() override {
    setenv("NOTIFY_SOCKET", socket_.address().c_str(), 1);
    setenv("WATCHDOG_USEC", "20000", 1);
  }
  void TearDown() override {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
  }

  // The next notification that is no sign of life.
  std::string Receive() {
    std::string message = socket_.Receive();
    while (message == "WATCHDOG=1") message = socket_.Receive();
    return message;
  }
  // Signs of life that were sent before now no longer count.
  void Forget() {
    while (!socket_.Receive(absl::ZeroDuration()).empty()) {
    }
  }

  NotifySocket socket_{GetParam()};
  DaemonProcess daemon_;
};

TEST_P(SupervisedTest, SaysReadyWhenItServesAndStoppingWhenItIsToldTo) {
  ChildProcess process(daemon_.command(), absl::StrCat(daemon_.directory(), "/log"), false);
  ASSERT_EQ(Receive(), absl::StrCat("READY=1\nSTATUS=serving ", daemon_.socket_dir()));
  EXPECT_TRUE(daemon_.Connect().ok());
  process.Signal(SIGTERM);
  EXPECT_EQ(Receive(), "STOPPING=1\nSTATUS=waiting for clients to release what they hold");
  EXPECT_EQ(Receive(), "STATUS=writing to L3");
  EXPECT_EQ(process.Wait(), 0);
}

TEST_P(SupervisedTest, GivesSignsOfLifeAlsoWhenItWasDrained) {
  ASSERT_TRUE(daemon_.Start().ok());
  Forget();
  EXPECT_EQ(socket_.Receive(), "WATCHDOG=1");
  ChildProcess drain({EMBCACHE_BIN "/embcachectl", "--socket-dir", daemon_.socket_dir(), "drain"},
                     absl::StrCat(daemon_.directory(), "/drain.log"), false);
  ASSERT_EQ(drain.Wait(), 0);
  Forget();
  EXPECT_EQ(socket_.Receive(), "WATCHDOG=1");
}

INSTANTIATE_TEST_SUITE_P(Sockets, SupervisedTest,
                         ::testing::Values(NotifySocket::Kind::kPath,
                                           NotifySocket::Kind::kAbstract),
                         [](const auto& info) {
                           return info.param == NotifySocket::Kind::kPath ? "Path" : "Abstract";
                         });

}  // namespace
}  // namespace embcache
