// `embcachectl top` on a terminal, which is a pseudo-terminal here.

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon_process.h"

namespace embcache::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kLeave[] = "\033[?25h\033[?1049l";

class TopTerminalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = daemon_.Start();
    ASSERT_TRUE(status.ok()) << status;
    const std::string program = EMBCACHE_BIN "/embcachectl";
    const std::string directory = "--socket-dir=" + daemon_.socket_dir();
    winsize size = {};
    size.ws_col = 60;
    size.ws_row = 12;
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      execl(program.c_str(), "embcachectl", "top", "--interval=0.1", directory.c_str(), nullptr);
      _exit(127);
    }
  }
  void TearDown() override {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(terminal_);
  }

  // Reads until `text` has come; false when it does not, or the program ends.
  bool Await(const std::string& text) {
    seen_.clear();
    char chunk[4096];
    pollfd event = {terminal_, POLLIN, 0};
    while (seen_.find(text) == std::string::npos) {
      if (poll(&event, 1, 20'000) != 1) return false;
      const ssize_t size = read(terminal_, chunk, sizeof(chunk));
      if (size <= 0) return false;
      seen_.append(chunk, static_cast<size_t>(size));
    }
    return true;
  }
  int ExitCode() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  testing_support::DaemonProcess daemon_;
  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

TEST_F(TopTerminalTest, DrawsAgainAndAgainUntilQAndLeavesTheTerminalAsItWas) {
  ASSERT_TRUE(Await("q quits")) << seen_;
  EXPECT_THAT(seen_, HasSubstr("serving"));
  ASSERT_TRUE(Await("q quits")) << seen_;
  ASSERT_EQ(write(terminal_, "q", 1), 1);
  EXPECT_TRUE(Await(kLeave)) << seen_;
  EXPECT_EQ(ExitCode(), 0);
}

TEST_F(TopTerminalTest, EndsOrderlyOnInterruptAndFollowsTheWindowsSize) {
  ASSERT_TRUE(Await("q quits")) << seen_;
  winsize size = {};
  size.ws_col = 20;
  size.ws_row = 5;
  ASSERT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);
  EXPECT_TRUE(Await("~")) << seen_;           // what does not fit
  ASSERT_EQ(write(terminal_, "\003", 1), 1);  // ^C
  EXPECT_TRUE(Await(kLeave)) << seen_;
  EXPECT_EQ(ExitCode(), 0);
}

TEST_F(TopTerminalTest, GoesOnWhenTheDaemonIsGone) {
  ASSERT_TRUE(Await("q quits")) << seen_;
  daemon_.Kill();
  EXPECT_TRUE(Await("no answer: ")) << seen_;
  ASSERT_EQ(write(terminal_, "q", 1), 1);
  EXPECT_TRUE(Await(kLeave)) << seen_;
  EXPECT_EQ(ExitCode(), 0);
}

}  // namespace
}  // namespace embcache::cli
