// How embcached ends, and with which exit code: scripts and supervisors act on it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/daemon_process.h"

namespace embcache {
namespace {

using ::testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::DaemonProcess;

struct Ended {
  int exit_code = 0;
  std::string output;
};

// Runs a command that should end by itself.
Ended RunToEnd(std::vector<std::string> command, const std::string& directory) {
  const std::string log = absl::StrCat(directory, "/other.log");
  Ended ended;
  {
    ChildProcess process(std::move(command), log, false);
    ended.exit_code = process.Wait();
  }
  std::ifstream file(log);
  ended.output.assign(std::istreambuf_iterator<char>(file), {});
  return ended;
}

class DaemonExitTest : public ::testing::Test {
 protected:
  Ended RunWith(std::vector<std::string> flags) {
    std::vector<std::string> command = {
        EMBCACHE_BIN "/embcached", absl::StrCat("--socket-dir=", daemon_.directory(), "/other"),
        "--l1-capacity=16MiB", "--l3-write=off"};
    command.insert(command.end(), flags.begin(), flags.end());
    return RunToEnd(std::move(command), daemon_.directory());
  }

  DaemonProcess daemon_{{"--l3-write=through", "--l3-dir={dir}/l3", "--l3-capacity=64MiB"}};
};

TEST_F(DaemonExitTest, ATerminatedDaemonExitsWithZeroAndRemovesItsSockets) {
  ASSERT_TRUE(daemon_.Start().ok());
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(daemon_.socket_dir() + "/embcached.sock"));
  EXPECT_FALSE(std::filesystem::exists(daemon_.socket_dir() + "/control.sock"));
}

TEST_F(DaemonExitTest, ASecondSignalEndsTheWaitForLeases) {
  ASSERT_TRUE(daemon_.Start().ok());
  auto client = daemon_.Connect();
  ASSERT_TRUE(client.ok());
  auto held = (*client)->Reserve({"m", "hash....", ""},
                                 {{.name = "t", .dtype = client::DType::kU8, .shape = {1}}});
  ASSERT_TRUE(held.ok());
  daemon_.Signal(SIGTERM);
  daemon_.Signal(SIGTERM);
  daemon_.Signal(SIGINT);
  EXPECT_EQ(daemon_.Wait(), 0);
}

TEST_F(DaemonExitTest, AnUnknownFlagIsAUsageErrorThatNamesIt) {
  const Ended ended = RunWith({"--frobnicate=1"});
  EXPECT_EQ(ended.exit_code, 64);
  EXPECT_THAT(ended.output, HasSubstr("frobnicate"));
}

TEST_F(DaemonExitTest, MemoryThatTheMachineLacksIsRefusedWithBothNumbers) {
  const Ended ended = RunWith({"--l1-capacity=64TiB"});
  EXPECT_EQ(ended.exit_code, 78);
  EXPECT_THAT(ended.output, HasSubstr("70368744177664"));
}

TEST_F(DaemonExitTest, ADirectoryInUseIsRefusedAndItsOwnerGoesOn) {
  ASSERT_TRUE(daemon_.Start().ok());
  const Ended ended = RunWith({"--l3-write=through", "--l3-capacity=64MiB",
                               absl::StrCat("--l3-dir=", daemon_.directory(), "/l3")});
  EXPECT_EQ(ended.exit_code, 75);
  EXPECT_THAT(ended.output, HasSubstr(absl::StrCat(daemon_.pid())));
  EXPECT_TRUE(daemon_.Connect().ok());
}

TEST_F(DaemonExitTest, CheckConfigSaysWhatIsWrongWithoutStarting) {
  EXPECT_EQ(RunWith({"--check-config"}).exit_code, 0);
  EXPECT_NE(RunWith({"--check-config", "--max-batch=0"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(daemon_.directory() + "/other"));
}

}  // namespace
}  // namespace embcache
