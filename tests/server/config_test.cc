#include "server/config.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/size_text.h"
#include "server/config_settings.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Strings = std::vector<std::string>;

const Strings kHome = {"HOME=/home/u", "XDG_RUNTIME_DIR=/run/user/7"};

Strings WithHome(const Strings& environment) {
  Strings all = kHome;
  all.insert(all.end(), environment.begin(), environment.end());
  return all;
}

ConfigOutcome Parse(const Strings& arguments, const Strings& environment = {}) {
  return ParseConfig(arguments, WithHome(environment));
}

// The configuration of a command line that must be good.
Config Good(const Strings& arguments, const Strings& environment = {}) {
  const ConfigOutcome outcome = Parse(arguments, environment);
  EXPECT_TRUE(outcome.run) << outcome.text;
  return outcome.config;
}

std::string WriteFile(const std::string& text) {
  const std::string path = absl::StrCat(
      testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name(), ".toml");
  std::ofstream(path) << text;
  return path;
}

void ExpectRefused(const ConfigOutcome& outcome, int exit_code,
                   const testing::Matcher<std::string>& text) {
  EXPECT_FALSE(outcome.run);
  EXPECT_EQ(outcome.exit_code, exit_code);
  EXPECT_THAT(outcome.text, text);
}

TEST(ConfigTest, DefaultsAreValid) {
  const Config config = Good({});
  EXPECT_EQ(config.l1_capacity_bytes, uint64_t{1} << 30);
  EXPECT_EQ(config.l3_dir, "/home/u/.cache/embcache");
  EXPECT_TRUE(config.l3_enabled());
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

TEST(ConfigTest, CacheHomeGoesBeforeHome) {
  EXPECT_EQ(Good({}, {"XDG_CACHE_HOME=/c"}).l3_dir, "/c/embcache");
}

TEST(ConfigTest, FlagsGoBeforeEnvironmentBeforeFileBeforeDefaults) {
  const std::string file =
      WriteFile("# comment\nl1-capacity = \"3MiB\"\nl2-capacity = \"3MiB\"\nmax-batch = 3\n");
  const Config config = Good({"--config", file, "--l1-capacity=1MiB"},
                             {"EMBCACHE_L1_CAPACITY=2MiB", "EMBCACHE_L2_CAPACITY=2MiB"});
  EXPECT_EQ(config.l1_capacity_bytes, uint64_t{1} << 20);
  EXPECT_EQ(config.l2_capacity_bytes, uint64_t{2} << 20);
  EXPECT_EQ(config.max_batch, 3u);
  EXPECT_EQ(config.io_threads, 4u);
}

TEST(ConfigTest, TheFileCanBeNamedByTheEnvironment) {
  const std::string file = WriteFile("max-batch = 9\n");
  EXPECT_EQ(Good({}, {"EMBCACHE_CONFIG=" + file}).max_batch, 9u);
  EXPECT_EQ(
      Good({"--config=" + WriteFile("max-batch = 8\n")}, {"EMBCACHE_CONFIG=/nowhere"}).max_batch,
      8u);
}

TEST(ConfigTest, TheLastOfARepeatedFlagWins) {
  EXPECT_EQ(Good({"--max-batch=1", "--max-batch", "2"}).max_batch, 2u);
}

TEST(ConfigTest, IdsCanBeRepeatedEverywhere) {
  EXPECT_THAT(Good({"--allow-uid=1", "--allow-uid", "2"}).allow_uids, ElementsAre(1, 2));
  EXPECT_THAT(Good({}, {"EMBCACHE_ALLOW_GID=3,4"}).allow_gids, ElementsAre(3, 4));
  EXPECT_THAT(Good({"--config", WriteFile("allow-uid = [5, 6]\n")}).allow_uids, ElementsAre(5, 6));
  EXPECT_THAT(Good({"--allow-uid=1"}, {"EMBCACHE_ALLOW_UID=2"}).allow_uids, ElementsAre(1));
}

TEST(ConfigTest, ASwitchNeedsNoValue) {
  EXPECT_FALSE(Good({}).huge_pages);
  EXPECT_TRUE(Good({"--huge-pages", "--max-batch=1"}).huge_pages);
  EXPECT_FALSE(Good({"--huge-pages=false"}, {"EMBCACHE_HUGE_PAGES=true"}).huge_pages);
  EXPECT_TRUE(Good({"--config", WriteFile("huge-pages = true\n")}).huge_pages);
  ExpectRefused(Parse({"--huge-pages=maybe"}), kExitUsage, HasSubstr("maybe"));
}

TEST(ConfigTest, AnEmptyL3DirectoryTurnsL3Off) {
  EXPECT_FALSE(Good({"--l3-dir="}).l3_enabled());
  EXPECT_FALSE(Good({"--l3-dir=", "--max-batch=2"}).l3_enabled());
  EXPECT_EQ(Good({"--l3-dir=", "--max-batch=2"}).max_batch, 2u);
  EXPECT_FALSE(Good({"--l3-dir", ""}).l3_enabled());
  EXPECT_FALSE(Good({}, {"EMBCACHE_L3_DIR="}).l3_enabled());
  EXPECT_FALSE(Good({"--config", WriteFile("l3-dir = \"\"\n")}).l3_enabled());
  EXPECT_FALSE(Good({"--l3-write=off"}).l3_enabled());
}

TEST(ConfigTest, SizesHaveBinaryUnits) {
  EXPECT_EQ(*ParseSize("0"), 0u);
  EXPECT_EQ(*ParseSize("4097"), 4097u);
  EXPECT_EQ(*ParseSize("64KiB"), 65536u);
  EXPECT_EQ(*ParseSize("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseSize("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(*ParseSize("2TiB"), uint64_t{2} << 40);
  EXPECT_EQ(*ParseSize("3EiB"), uint64_t{3} << 60);
  for (const char* same : {"8GB", "8G", "8Gi", "8gib", "8 GiB", " 8GiB ", "8589934592B"}) {
    EXPECT_EQ(*ParseSize(same), uint64_t{8} << 30) << same;
  }
  EXPECT_EQ(*ParseSize("18446744073709551615"), ~uint64_t{0});
  for (const char* bad : {"", "-1", "+1", "1.5GiB", "GiB", "0x10", "1e9", "8XB", "8GiBB", "8 G i B",
                          "8bb", "18446744073709551616", "99999999999TiB", "16EiB"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
}

TEST(ConfigTest, FormattedSizesParseBack) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1024}, uint64_t{1025},
                               uint64_t{3} << 20, uint64_t{5} << 30, uint64_t{7} << 40}) {
    EXPECT_EQ(*ParseSize(FormatSize(bytes)), bytes);
  }
  EXPECT_EQ(FormatSize(uint64_t{1536} << 20), "1536MiB");
}

TEST(ConfigTest, TimesHaveUnits) {
  EXPECT_EQ(Good({"--drain-timeout=1500ms"}).drain_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(Good({"--lease-ttl=0"}).lease_ttl, absl::ZeroDuration());
  EXPECT_EQ(Good({"--lease-ttl=1h30m"}).lease_ttl, absl::Minutes(90));
  for (const char* bad : {"30", "-1s", "inf", "abc", "25h"}) {
    ExpectRefused(Parse({absl::StrCat("--lease-ttl=", bad)}), kExitUsage,
                  HasSubstr("--lease-ttl: "));
  }
}

TEST(ConfigTest, ErrorsNameTheFlagTheValueAndTheLimit) {
  ExpectRefused(Parse({"--l1-capacity=65TiB"}), kExitUsage,
                "embcached: --l1-capacity: \"65TiB\": must be 0 to 64TiB\n");
  ExpectRefused(Parse({"--l1-capacity=0"}), kExitConfig, HasSubstr("at least one must be above 0"));
  ExpectRefused(Parse({"--l1-capacity=-1"}), kExitUsage, HasSubstr("\"-1\": not a size"));
  ExpectRefused(Parse({"--rpc-threads=0"}), kExitUsage, HasSubstr("must be 1 to 256"));
  ExpectRefused(Parse({"--rpc-threads=-3"}), kExitUsage, HasSubstr("\"-3\""));
  ExpectRefused(Parse({"--inline-limit=65MiB"}), kExitUsage, HasSubstr("must be 0 to 64MiB"));
  ExpectRefused(Parse({"--max-pinned-fraction=1.5"}), kExitUsage, HasSubstr("0.001 to 1"));
  ExpectRefused(Parse({"--max-pinned-fraction=nan"}), kExitUsage, HasSubstr("nan"));
  ExpectRefused(Parse({"--l3-write=sometimes"}), kExitUsage, HasSubstr("through|evict|off"));
  ExpectRefused(Parse({"--log-level=loud"}), kExitUsage, HasSubstr("loud"));
  ExpectRefused(Parse({"--socket-mode=888"}), kExitUsage, HasSubstr("octal"));
  ExpectRefused(Parse({"--socket-mode=0060"}), kExitUsage, HasSubstr("owner"));
  ExpectRefused(Parse({"--allow-uid=root"}), kExitUsage, HasSubstr("numeric"));
  ExpectRefused(Parse({"--allow-uid=4294967295"}), kExitUsage, HasSubstr("numeric"));
  ExpectRefused(Parse({"--l3-dir=cache"}), kExitUsage, HasSubstr("absolute"));
}

TEST(ConfigTest, ASharedTierNeedsANamespaceAndSaysWhatThatPromises) {
  EXPECT_EQ(Good({"--shared-tier=redis:6379", "--shared-namespace=vit.r3"}).shared_tier,
            "redis:6379");
  EXPECT_EQ(Good({}).shared_tier, "");
  ExpectRefused(Parse({"--shared-tier=redis:6379"}), kExitConfig, HasSubstr("same weights"));
  ExpectRefused(Parse({"--shared-tier=redis"}), kExitUsage, HasSubstr("redis"));
  ExpectRefused(Parse({"--shared-namespace=a:b"}), kExitUsage, HasSubstr("letters"));
  ExpectRefused(Parse({"--shared-tier=unix:/r.sock", "--shared-namespace=ns", "--shared-user=me"}),
                kExitConfig, HasSubstr("--shared-password-file"));
  ExpectRefused(Parse({"--shared-max-bytes=513MiB"}), kExitUsage, HasSubstr("512MiB"));
}

TEST(ConfigTest, ADeviceIsAutoOrHostOrADeviceByIndexOrByUuid) {
  EXPECT_EQ(Good({"--device=host"}).device, "host");
  EXPECT_EQ(Good({"--device=cuda:0"}).device, "cuda:0");
  const std::string by_uuid = "cuda:GPU-0a1b2c3d-0000-1111-2222-333344445555";
  EXPECT_EQ(Good({"--device=" + by_uuid}).device, by_uuid);
  for (const char* bad : {"tpu", "cuda", "cuda:", "cuda:one two", "cuda:123456"}) {
    ExpectRefused(Parse({std::string("--device=") + bad}), kExitUsage, HasSubstr("cuda:<index>"));
  }
}

TEST(ConfigTest, AllFaultsAreReportedAtOnceWithWhereTheyCameFrom) {
  const std::string file = WriteFile("max-batch = 0\nnonsense = 1\n");
  const ConfigOutcome outcome =
      Parse({"--config", file, "--io-threads=0"}, {"EMBCACHE_COPY_THREADS=x", "EMBCACHE_FOO=1"});
  ExpectRefused(
      outcome, kExitConfig,
      testing::AllOf(HasSubstr("--io-threads: "), HasSubstr("EMBCACHE_COPY_THREADS: "),
                     HasSubstr("EMBCACHE_FOO: no such setting"), HasSubstr(file + ": max-batch: "),
                     HasSubstr(file + ": nonsense: no such setting")));
  EXPECT_EQ(Strings(absl::StrSplit(outcome.text, '\n')).size(), 6u);
}

TEST(ConfigTest, AnUnknownFlagIsAUsageError) {
  ExpectRefused(Parse({"--l4-capacity=1"}), kExitUsage, HasSubstr("l4-capacity"));
  ExpectRefused(Parse({"stray"}), kExitUsage, HasSubstr("stray"));
  ExpectRefused(Parse({"--max-batch"}), kExitUsage, HasSubstr("max-batch"));
}

TEST(ConfigTest, EachTableInAFileIsRefusedOnce) {
  const std::string file = WriteFile("[cache]\nmax-batch = 5\nx = 1\n\n[a.b]\nx = 1\n[empty]\n");
  std::string expected;
  for (const char* table : {"cache", "a", "empty"}) {
    absl::StrAppend(&expected, "embcached: ", file, ": [", table,
                    "]: tables are not settings; write the settings at the top level\n");
  }
  const ConfigOutcome outcome = Parse({"--config", file});
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_EQ(outcome.text, expected);
  ExpectRefused(Parse({"--config", WriteFile("cache.max-batch = 5\n")}), kExitConfig,
                HasSubstr("[cache]: tables are not settings"));
}

TEST(ConfigTest, VariablesOfOthersAreNotErrors) {
  Good({}, {"EMBCACHE_SOCKET=/x", "EMBCACHE_SEED=1", "EMBCACHE_TEST_DATA=/y", "EMBCACHE=1",
            "EMBCACHE_SERVICE_HOST=10.0.0.1", "EMBCACHE_PORT_80_TCP=tcp://10.0.0.1:80"});
}

TEST(ConfigTest, FilesThatAreNotPlainSettingsAreRefused) {
  ExpectRefused(Parse({"--config=/nowhere/x.toml"}), kExitConfig, HasSubstr("cannot be read"));
  ExpectRefused(Parse({"--config=/"}), kExitConfig, HasSubstr("cannot be read"));
  ExpectRefused(Parse({"--config", WriteFile("max-batch = 1\nio-threads = 1\nmax-batch = 2\n")}),
                kExitConfig, HasSubstr("given once"));
  ExpectRefused(Parse({"--config", WriteFile("max-batch = [1, 2]\n")}), kExitConfig,
                HasSubstr("one value"));
  ExpectRefused(Parse({"--config", WriteFile("l3-dir = \"/a#b\"\n")}), kExitConfig,
                HasSubstr("not supported"));
}

TEST(ConfigTest, AnEmptyFileIsFine) { Good({"--config", WriteFile("\n# nothing\n")}); }

TEST(ConfigTest, PathsInFilesMayHaveSpaces) {
  EXPECT_EQ(Good({"--config", WriteFile("l3-dir = \"/a b/c\"\n")}).l3_dir, "/a b/c");
}

TEST(ConfigTest, ASocketDirectoryTooLongForASocketIsRefused) {
  const std::string fits(107 - std::string("/embcached.sock").size() - 1, 'd');
  EXPECT_EQ(Good({"--socket-dir=/" + fits}).socket_dir, "/" + fits);
  ExpectRefused(Parse({"--socket-dir=/d" + fits}), kExitConfig, HasSubstr("at most 107"));
}

TEST(ConfigTest, WithoutAHomeTheCacheDirectoryMustBeGiven) {
  const Strings none = {"XDG_RUNTIME_DIR=/run/user/7"};
  ExpectRefused(ParseConfig({}, none), kExitConfig, HasSubstr("--l3-dir"));
  EXPECT_TRUE(ParseConfig({"--l3-dir="}, none).run);
  EXPECT_TRUE(ParseConfig({"--l3-write=off"}, none).run);
}

TEST(ConfigTest, HelpAndVersionExitCleanly) {
  const ConfigOutcome help = Parse({"--help"});
  EXPECT_FALSE(help.run);
  EXPECT_EQ(help.exit_code, 0);
  for (const Setting& setting : Settings()) {
    EXPECT_THAT(help.text, HasSubstr("--" + setting.name));
  }
  EXPECT_THAT(help.text, Not(HasSubstr("print-config-reference")));
  ExpectRefused(Parse({"--version"}), 0, HasSubstr("embcached 0."));
}

TEST(ConfigTest, CheckConfigSaysValidOrWhatIsWrong) {
  ExpectRefused(Parse({"--check-config"}), 0, "the configuration is valid\n");
  ExpectRefused(Parse({"--check-config"}, {"EMBCACHE_MAX_BATCH=0"}), kExitConfig,
                HasSubstr("EMBCACHE_MAX_BATCH"));
}

TEST(ConfigTest, ThePrintedConfigurationReadsBackTheSame) {
  const Strings flags = {"--l1-capacity=3MiB", "--allow-uid=1", "--allow-uid=2",
                         "--lease-ttl=90s",    "--huge-pages",  "--l3-write=evict",
                         "--socket-mode=0600", "--l3-dir=/a b", "--max-pinned-fraction=0.25",
                         "--log-format=json",  "--device=host", "--quarantine=250ms"};
  Strings print = flags;
  print.push_back("--print-config");
  const ConfigOutcome printed = Parse(print);
  EXPECT_EQ(printed.exit_code, 0);
  EXPECT_THAT(printed.text, HasSubstr("l1-capacity = \"3MiB\"\n"));
  const Config again = Good({"--config", WriteFile(printed.text)});
  EXPECT_EQ(RenderConfigFile(again), printed.text);
  EXPECT_EQ(RenderConfigFile(Good(flags)), printed.text);
  EXPECT_THAT(again.allow_uids, ElementsAre(1, 2));
}

TEST(ConfigTest, TheReferenceHasEverySettingOnce) {
  const ConfigOutcome reference = Parse({"--print-config-reference"});
  EXPECT_EQ(reference.exit_code, 0);
  EXPECT_EQ(reference.text, RenderConfigReference());
  const Strings lines = absl::StrSplit(reference.text, '\n');
  EXPECT_EQ(lines.size(), Settings().size() + 3);
  for (const Setting& setting : Settings()) {
    EXPECT_THAT(reference.text, HasSubstr("`" + setting.environment_name() + "`"));
  }
}

TEST(ConfigTest, DefaultsInTheTableAreTheDefaultsOfTheStruct) {
  for (const Setting& setting : Settings()) {
    if (setting.repeatable || setting.value == "PATH") continue;
    EXPECT_THAT(setting.show(Config()), ElementsAre(setting.default_text)) << setting.name;
  }
}

TEST(ConfigTest, ValidateReportsEveryFaultOfAConfigMadeInCode) {
  Config config;
  config.l1_capacity_bytes = 0;
  config.rpc_threads = 0;
  config.drain_timeout = -absl::Seconds(1);
  const std::string faults(config.Validate().message());
  EXPECT_THAT(faults, HasSubstr("--l1-capacity"));
  EXPECT_THAT(faults, HasSubstr("--rpc-threads"));
  EXPECT_THAT(faults, HasSubstr("--drain-timeout"));
  EXPECT_THAT(faults, HasSubstr("--socket-dir"));
}

TEST(ConfigTest, TcpIsEncryptedUnlessAskedForByName) {
  const Strings tls = {"--tls-cert=/c", "--tls-key=/k"};
  const auto exit_code = [](const Strings& flags) {
    const ConfigOutcome outcome = ParseConfig(flags, kHome);
    return outcome.run ? 0 : outcome.exit_code;
  };
  EXPECT_EQ(exit_code({"--tcp-address=127.0.0.1:7070"}), kExitConfig);
  EXPECT_EQ(exit_code({"--tcp-address=127.0.0.1:7070", "--insecure-tcp"}), 0);
  EXPECT_EQ(exit_code({"--tcp-address=[::]:7070", tls[0], tls[1]}), 0);
  EXPECT_EQ(exit_code({"--tcp-address=[::]:7070", tls[0], tls[1], "--tls-client-ca=/a"}), 0);
  EXPECT_EQ(exit_code({"--tcp-address=[::]:7070", tls[0]}), kExitConfig);
  EXPECT_EQ(exit_code({"--tcp-address=[::]:7070", tls[1], "--insecure-tcp"}), kExitConfig);
  EXPECT_EQ(exit_code({"--tcp-address=[::]:7070", tls[0], tls[1], "--insecure-tcp"}), kExitConfig);
  EXPECT_EQ(exit_code({"--tcp-address=[::]:7070", "--insecure-tcp", "--tls-client-ca=/a"}),
            kExitConfig);
  for (const char* alone : {"--tls-cert=/c", "--tls-key=/k", "--tls-client-ca=/a"}) {
    EXPECT_EQ(exit_code({alone}), kExitConfig) << alone;
  }
  EXPECT_EQ(exit_code({"--insecure-tcp"}), kExitConfig);
}

TEST(ConfigTest, WhatL1KeepsWhileIdleIsAPartOfIt) {
  const std::string after = "--l1-idle-after=10m";
  EXPECT_TRUE(Parse({after}).run);
  EXPECT_TRUE(Parse({after, "--l1-idle-capacity=1GiB"}).run);
  EXPECT_TRUE(Parse({after, "--l1-idle-capacity=2MiB"}).run);
  ExpectRefused(Parse({after, "--l1-idle-capacity=2GiB"}), kExitConfig,
                "embcached: --l1-idle-capacity: 2GiB; must be 0, or 2MiB to --l1-capacity, which "
                "is 1GiB\n");
  ExpectRefused(Parse({after, "--l1-idle-capacity=1MiB"}), kExitConfig, HasSubstr("2MiB to"));
  ExpectRefused(Parse({"--l1-idle-capacity=2MiB"}), kExitConfig,
                HasSubstr("only with --l1-idle-after"));
}

TEST(ConfigTest, AnAddressForTcpHasAHostAndAPort) {
  for (const char* bad :
       {"7070", ":7070", "host:", "host:port", "host:65536", "::1:7070", "[]:1"}) {
    EXPECT_EQ(ParseConfig({absl::StrCat("--tcp-address=", bad)}, kHome).exit_code, kExitUsage)
        << bad;
  }
}

TEST(ConfigTest, TiersAndSegmentsBelowAPageAreRefusedByFlagAndLimit) {
  ExpectRefused(Parse({"--l1-capacity=1KiB"}), kExitConfig,
                "embcached: --l1-capacity: \"1KiB\": must be 0 or at least 4KiB\n");
  ExpectRefused(Parse({"--l2-capacity=4095"}), kExitConfig,
                "embcached: --l2-capacity: \"4095\": must be 0 or at least 4KiB\n");
  ExpectRefused(Parse({"--segment-bytes=1KiB"}), kExitConfig,
                "embcached: --segment-bytes: \"1KiB\": must be 0 or at least 4KiB\n");
  EXPECT_EQ(Good({"--l1-capacity=4KiB", "--segment-bytes=4KiB"}).l1_capacity_bytes, 4096u);
}

TEST(ConfigTest, MoreSegmentsThanThereCanBeAreRefused) {
  ExpectRefused(Parse({"--l1-capacity=1GiB", "--segment-bytes=4KiB"}), kExitConfig,
                AllOf(HasSubstr("--segment-bytes: l1"), HasSubstr("must be at most 4096")));
}

TEST(ConfigTest, ACheckRefusesNamesThatNobodyHasAndFilesThatCannotBeRead) {
  ExpectRefused(Parse({"--check-config", "--socket-owner=no:such"}), kExitUsage,
                HasSubstr("no:such"));
  ExpectRefused(Parse({"--check-config", "--socket-owner=no-such-user"}), kExitConfig,
                "embcached: --socket-owner: no user \"no-such-user\"\n");
  ExpectRefused(Parse({"--check-config", "--socket-group=no-such-group",
                       "--tcp-address=127.0.0.1:0", "--tls-cert=/no/cert", "--tls-key=/no/key"}),
                kExitConfig,
                AllOf(HasSubstr("--socket-group: no group \"no-such-group\"\n"),
                      HasSubstr("--tls-cert: cannot read /no/cert: "),
                      HasSubstr("--tls-key: cannot read /no/key: ")));
  ExpectRefused(Parse({"--check-config", "--socket-owner=root", "--socket-group=0"}), 0,
                "the configuration is valid\n");
}

}  // namespace
}  // namespace embcache
