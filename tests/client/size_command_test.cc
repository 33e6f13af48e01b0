// embcachectl size, from its command line to its JSON.

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class SizeCommandTest : public ::testing::Test {
 protected:
  ~SizeCommandTest() override { std::filesystem::remove(trace_); }

  int Run(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"embcachectl", "size"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    out_.str("");
    err_.str("");
    return Main(static_cast<int>(argv.size()), argv.data(), out_, err_);
  }
  json RunJson(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    EXPECT_EQ(Run(arguments), kExitOk) << err_.str();
    return json::parse(out_.str(), nullptr, false);
  }
  std::string WriteTrace(const std::string& text) {
    trace_ = absl::StrCat("/tmp/embtrace.", getpid(), ".csv");
    std::ofstream(trace_) << text;
    return absl::StrCat("--trace=", trace_);
  }

  std::ostringstream out_, err_;
  std::string trace_;
};

TEST_F(SizeCommandTest, CapacityIsRateTimesTimeAndL3KeepsItsReserve) {
  const json sizes = RunJson(
      {"--entry=2MiB", "--distinct-per-hour=600", "--l1-for=30m", "--l2-for=1h", "--l3-for=10h"});
  EXPECT_EQ(sizes["entry_bytes"], 2 * kMiB);
  EXPECT_EQ(sizes["l1_capacity"], 600 * kMiB);
  EXPECT_EQ(sizes["l2_capacity"], 600 * kMiB);  // of the half hour that L1 does not hold
  EXPECT_EQ(sizes["l3_capacity"], 12008 * kMiB);
  EXPECT_EQ(sizes["l3_written_per_day"], 28800 * kMiB);
}

TEST_F(SizeCommandTest, AnImagesRowsArePatchesRoundedToWhole) {
  // 46 × 34 patches of 28 pixels, 4096 values of 2 bytes each.
  const json sizes = RunJson({"--image=1280x960", "--hidden=4096", "--distinct-per-hour=1"});
  EXPECT_EQ(sizes["entry_bytes"], 46 * 34 * 8192);
  const json small = RunJson(
      {"--image=5x5", "--hidden=8", "--patch=16", "--value-bytes=4", "--distinct-per-hour=1"});
  EXPECT_EQ(small["entry_bytes"], 32);
}

TEST_F(SizeCommandTest, TiersThatAreNotWantedAreLeftOut) {
  EXPECT_EQ(Run({"--entry=2MiB", "--distinct-per-hour=600", "--l3-for=0"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("--l1-capacity=200MiB"));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("l2")));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("l3")));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("SSD")));
}

TEST_F(SizeCommandTest, ATraceGivesHitsAndCostForEachCapacity) {
  // Of the four uses two are repeats; between those of "a" lie 3 MiB with itself, of "b" 3 MiB.
  const std::string trace =
      WriteTrace("key,bytes,cost\na,1048576,5\nb,2097152,1\na,1048576,5\nb,2097152,1\n");
  const json sizes = RunJson({trace, "--capacity=2MiB", "--capacity=3MiB"});
  EXPECT_EQ(sizes["uses"], 4);
  EXPECT_EQ(sizes["keys"], 2);
  EXPECT_EQ(sizes["distinct_bytes"], 3 * kMiB);
  EXPECT_EQ(sizes["capacities"][0]["hits"], 0);
  EXPECT_EQ(sizes["capacities"][1]["hits"], 2);
  EXPECT_EQ(sizes["capacities"][1]["cost_saved"], 6);
  EXPECT_EQ(Run({trace}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("50.0%"));
}

TEST_F(SizeCommandTest, ATraceThatCannotBeUsedIsAFailureThatSaysWhy) {
  EXPECT_EQ(Run({"--trace=/nonexistent.csv"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("/nonexistent.csv"));
  EXPECT_EQ(Run({WriteTrace("key,bytes\na,x\n")}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("line 2"));
  EXPECT_EQ(Run({WriteTrace("key,bytes\na,4194304\n"), "--capacity=1MiB"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("largest entry takes 4194304"));
}

}  // namespace
}  // namespace embcache::cli
