#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

Outcome RunCtl(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"embcachectl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  const int exit_code = Main(static_cast<int>(argv.size()), argv.data(), out, err);
  return {exit_code, out.str(), err.str()};
}

constexpr char kNowhere[] = "--socket-dir=/nonexistent/embcache";
constexpr char kHash[] = "--hash=00112233445566778899aabbccddeeff";

const std::vector<std::string> kCommands = {"put",    "get",       "contains", "rm",       "import",
                                            "export", "ls",        "stat",     "sessions", "events",
                                            "health", "version",   "clear",    "flush",    "epoch",
                                            "drain",  "log-level", "bench",    "top",      "size"};

TEST(CliArgsTest, HelpNamesEveryCommandAndTheExitCodes) {
  const Outcome outcome = RunCtl({"--help"});
  EXPECT_EQ(outcome.exit_code, kExitOk);
  for (const std::string& command : kCommands) EXPECT_THAT(outcome.out, HasSubstr(command));
  EXPECT_THAT(outcome.out, HasSubstr("Exit codes"));
}

TEST(CliArgsTest, EveryCommandHasHelp) {
  for (const std::string& command : kCommands) {
    const Outcome outcome = RunCtl({command, "--help"});
    EXPECT_EQ(outcome.exit_code, kExitOk) << command;
    EXPECT_GT(outcome.out.size(), 100u) << command;
  }
}

TEST(CliArgsTest, TheHelpOfACommandNamesTheOptionsThatEveryCommandHas) {
  std::vector<std::vector<std::string>> all = {{"resize"}, {"l3", "verify"}};
  for (const std::string& command : kCommands) all.push_back({command});
  for (std::vector<std::string>& arguments : all) {
    arguments.push_back("--help");
    const Outcome outcome = RunCtl(arguments);
    for (const char* option : {"--socket-dir", "--json", "--timeout", "EMBCACHE_SOCKET_DIR"}) {
      EXPECT_THAT(outcome.out, HasSubstr(option)) << ::testing::PrintToString(arguments);
    }
  }
  EXPECT_THAT(RunCtl({"--help"}).out, Not(HasSubstr("Options of every command")));
}

TEST(CliArgsTest, SizesAreWrittenAsInTheDaemonsSettings) {
  for (const char* size : {"536870912", "512MiB", "512mb", "512 M", "524288KiB"}) {
    const Outcome outcome = RunCtl({"--json", "size", "--distinct-per-hour=1", "--entry", size});
    EXPECT_EQ(outcome.exit_code, kExitOk) << size << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("\"entry_bytes\":536870912")) << size;
  }
  EXPECT_THAT(RunCtl({"resize", "--l1=5XB"}).err,
              HasSubstr("--l1: \"5XB\": not a size; write 8GiB, 512MiB, 64KiB or plain bytes\n"));
  EXPECT_THAT(RunCtl({"resize", "--l2=17EiB"}).err, HasSubstr("\"17EiB\": too large"));
  EXPECT_THAT(RunCtl({"bench", "--bytes=-1"}).err, HasSubstr("\"-1\": not a size"));
}

TEST(CliArgsTest, WrongCommandLinesExitWithTwoAndSayWhy) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"no-such-command"},
      {"get"},
      {"get", "--model=m"},
      {"get", "--model=m", "--hash=xyz"},
      {"get", "--model=m", "--hash=abc"},
      {"get", "--model=m", kHash, "--variant=a", "--variant-hex=00"},
      {"get", "--model=m", kHash, "surplus"},
      {"put"},
      {"put", kHash, "a.safetensors", "b.safetensors"},
      {"put", "--ttl=-1", "a.safetensors"},
      {"import"},
      {"export"},
      {"clear"},
      {"clear", "--all", "--model=m"},
      {"epoch"},
      {"log-level"},
      {"log-level", "loud"},
      {"stat", "--count=3"},
      {"stat", "--watch=0"},
      {"top", "--interval=0"},
      {"size"},
      {"size", "--entry=2MiB"},
      {"size", "--distinct-per-hour=100"},
      {"size", "--entry=2MiB", "--distinct-per-hour=100", "--l1-for=soon"},
      {"size", "--image=640x480", "--distinct-per-hour=100"},
      {"size", "--image=640", "--hidden=4096", "--distinct-per-hour=100"},
      {"size", "--trace=t.csv", "--entry=2MiB"},
      {"size", "--capacity=1GiB", "--entry=2MiB", "--distinct-per-hour=1"},
      {"bench", "everything"},
      {"bench", "--callers=0"},
      {"bench", "--bytes=none"},
      {"bench", "--bytes=-1"},
      {"resize", "--l1=-1"},
      {"resize", "--l1=99999999999999999999"},
      {"resize", "--l2=17EiB"},
      {"size", "--trace=t.csv", "--capacity=-1"},
      {"events", "--count=0"},
      {"stat", "--watch=1", "--count=0"},
      {"--timeout=0", "health"},
      {"--unknown", "health"},
  };
  for (const auto& arguments : wrong) {
    const Outcome outcome = RunCtl(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_FALSE(outcome.err.empty()) << ::testing::PrintToString(arguments);
  }
}

TEST(CliArgsTest, WithoutADaemonEveryCommandExitsWithThree) {
  const std::string file = EMBCACHE_TEST_DATA "/embeddings/coffee.safetensors";
  const fs::path out = fs::temp_directory_path() / ("cli_args_test." + std::to_string(getpid()));
  const std::vector<std::vector<std::string>> commands = {
      {"put", file},
      {"get", "--model=m", kHash},
      {"contains", "--model=m", kHash},
      {"rm", "--model=m", kHash},
      {"import", EMBCACHE_TEST_DATA "/embeddings"},
      {"export", "--out", out.string()},
      {"ls"},
      {"stat"},
      {"sessions"},
      {"events"},
      {"events", "--model", "m", "--no-snapshot", "--count", "3"},
      {"health"},
      {"version"},
      {"clear", "--all"},
      {"flush"},
      {"epoch", "--model=m"},
      {"drain"},
      {"log-level", "debug"},
      {"bench", "--bytes=1KiB"},
      {"top"},
  };
  ASSERT_EQ(commands.size(), kCommands.size());  // events twice, and size needs none
  for (auto arguments : commands) {
    arguments.push_back(kNowhere);
    const Outcome outcome = RunCtl(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUnreachable) << arguments[0] << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("embcachectl: "));
  }
  fs::remove_all(out);
}

TEST(CliArgsTest, VersionNeedsNoDaemonToSayItsOwn) {
  const Outcome outcome = RunCtl({"version", kNowhere});
  EXPECT_THAT(outcome.out, HasSubstr("embcachectl 0."));
}

TEST(OutputTest, TableColumnsAreAsWideAsTheirWidestCell) {
  Table table({"A", "LONG"});
  table.Add({"wide", "x"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "A     LONG\nwide  x\n");
}

TEST(OutputTest, SizesAndTimesAreShortForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(HumanNanoseconds(61'200), "61.2 us");
  EXPECT_EQ(HumanNanoseconds(1'500'000'000), "1.50 s");
}

TEST(OutputTest, VariantsThatAreNoTextAreShownInHex) {
  EXPECT_EQ(VariantText("a=b"), "a=b");
  EXPECT_EQ(VariantText(std::string("\x01z", 2)), "hex:017a");
  EXPECT_EQ(KeyJson({"m", "12345678", "\xff"}).at("variant_hex"), "ff");
  EXPECT_EQ(KeyJson({"m", "12345678", "v"}).at("variant"), "v");
}

}  // namespace
}  // namespace embcache::cli
