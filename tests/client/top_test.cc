#include "client/cli/top.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TopSample Sample(int second, uint64_t gets, uint64_t hits) {
  TopSample sample;
  sample.time = absl::FromUnixSeconds(1'000'000 + second);
  sample.stats.set_version("1.2.3");
  sample.stats.set_epoch("epoch");
  sample.stats.set_uptime_ms(100'000);
  sample.stats.set_gets(gets);
  sample.stats.set_hits(hits);
  v1::ModelStats* model = sample.stats.add_models();
  model->set_model("vit");
  model->set_gets(gets);
  model->set_hits(hits);
  v1::TierStats* tier = sample.stats.add_tiers();
  tier->set_tier(v1::L1);
  tier->set_capacity_bytes(1000);
  tier->set_used_bytes(500);
  tier->set_pinned_bytes(250);
  return sample;
}

std::string Text(const std::optional<TopSample>& before, const TopSample& now,
                 const TopSize& size = {.columns = 1000}) {
  std::string text;
  for (const TopLine& line : TopFrame(before, now, size)) absl::StrAppend(&text, line.text, "\n");
  return text;
}

TEST(TopTest, RatesAreThoseBetweenTwoSamples) {
  const std::string text = Text(Sample(0, 100, 0), Sample(2, 200, 75));
  EXPECT_THAT(text, HasSubstr("hits 75.0% (37.5% since start), gets 50/s"));
}

TEST(TopTest, WithOneSampleTheyAreAveragesSinceStart) {
  EXPECT_THAT(Text(std::nullopt, Sample(0, 100, 25)), HasSubstr("hits 25.0%"));
  EXPECT_THAT(Text(std::nullopt, Sample(0, 100, 25)), HasSubstr("gets 1.0/s"));
}

TEST(TopTest, ARestartedDaemonCountsFromZero) {
  TopSample now = Sample(2, 50, 50);
  now.stats.set_epoch("another");
  EXPECT_THAT(Text(Sample(0, 100, 0), now), HasSubstr("hits 100.0%"));
}

TEST(TopTest, ABarShowsWhatIsPinnedAndWhatIsInUse) {
  EXPECT_THAT(Text(std::nullopt, Sample(0, 0, 0)),
              HasSubstr("L1 [######======............] 50.0%"));
}

TEST(TopTest, FitsTheScreenAndCutsWithinNoCharacter) {
  TopSample now = Sample(0, 10, 10);
  now.stats.mutable_models(0)->set_model("caf\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9");
  for (size_t columns = 1; columns < 40; ++columns) {
    const auto lines = TopFrame(std::nullopt, now, {.columns = columns, .lines = 7});
    EXPECT_LE(lines.size(), 7u);
    for (const TopLine& line : lines) {
      EXPECT_TRUE(IsPrintable(line.text)) << line.text;
      EXPECT_EQ(Shorten(line.text, columns), line.text);
    }
  }
}

// A daemon at work, with long numbers everywhere.
TopSample Busy() {
  TopSample sample = Sample(0, 123'456'789, 98'765'432);
  v1::StatsResponse& stats = sample.stats;
  stats.set_saves(12'345'678);
  stats.set_saved_us(uint64_t{98'765'432} * 61'000);
  stats.set_uptime_ms(86'400'000);
  stats.set_sessions(200);
  stats.set_leases(51'200);
  stats.set_quarantined_bytes(uint64_t{123} << 20);
  for (v1::Tier tier : {v1::L1, v1::L2, v1::L3}) {
    v1::TierStats* const added = tier == v1::L1 ? stats.mutable_tiers(0) : stats.add_tiers();
    added->set_tier(tier);
    added->set_capacity_bytes(uint64_t{200} << 30);
    added->set_used_bytes(uint64_t{123} << 30);
    added->set_pinned_bytes(uint64_t{12} << 30);
    added->set_entries(1'234'567);
    added->set_hits(98'765'432);
    added->set_evictions_capacity(7'654'321);
  }
  v1::ModelStats* const model = stats.mutable_models(0);
  model->set_model("Qwen/Qwen2.5-VL-72B-Instruct@0123456789abcdef");
  model->set_saves(12'345'678);
  model->set_entries(1'234'567);
  model->set_bytes(uint64_t{123} << 30);
  v1::SessionInfo* const session = sample.sessions.add_sessions();
  session->set_name("encoder-of-the-first-replica-on-the-left");
  session->set_state("quarantined");
  session->set_pid(1'234'567);
  session->set_leases(51'200);
  session->set_pinned_bytes(uint64_t{12} << 30);
  session->set_age_ms(86'400'000);
  return sample;
}

// Only names are cut: "~" stands where something else would be missing.
void ExpectWhole(const std::vector<TopLine>& lines, size_t columns) {
  for (const TopLine& line : lines) {
    EXPECT_LE(Width(line.text), columns) << line.text;
    const bool name = line.text.find("Qwen") == 0 || line.text.find("encoder") == 0;
    EXPECT_TRUE(name || line.text.find('~') == std::string::npos) << line.text;
  }
}

TEST(TopTest, OnEightyColumnsLinesAreWholeAndOnlyWhatMattersLessIsLeftOut) {
  const auto lines = TopFrame(std::nullopt, Busy(), {.columns = 80});
  ExpectWhole(lines, 80);
  const std::string text = Text(std::nullopt, Busy(), {.columns = 80});
  for (const char* shown :
       {"hits 80.0%, gets 1429/s, puts 143/s, saved 69.73 s/s", "sessions 200", "leases 51200",
        "L3 [#=====....] 61.5% of 200.0 GiB, NOT WRITABLE, 1234567 entries, hits 1143/s"}) {
    EXPECT_THAT(text, HasSubstr(shown));
  }
  for (const char* column : {"GETS", "HITS", "BYTES", "SESSION", "PID", "STATE", "PINNED"}) {
    EXPECT_THAT(text, HasSubstr(column));
  }
}

TEST(TopTest, OnSixtyColumnsLinesAreWholeToo) {
  const auto lines = TopFrame(std::nullopt, Busy(), {.columns = 60});
  ExpectWhole(lines, 60);
  const std::string text = Text(std::nullopt, Busy(), {.columns = 60});
  for (const char* shown :
       {"hits 80.0%, gets 1429/s, puts 143/s", "sessions 200", "NOT WRITABLE", "1234567 entries",
        "Qwen/Qwen2.5-VL", "GETS", "HITS", "encoder-of-the", "PID", "PINNED"}) {
    EXPECT_THAT(text, HasSubstr(shown));
  }
}

TEST(TopTest, WhereThereIsRoomNothingIsLeftOut) {
  const std::string text = Text(std::nullopt, Busy());
  for (const char* shown : {"of encoding a second", "fragmented", "queued", "SAVED A SECOND",
                            "RESERVATIONS", "Qwen/Qwen2.5-VL-72B-Instruct@0123456789abcdef"}) {
    EXPECT_THAT(text, HasSubstr(shown));
  }
}

TEST(TopTest, NamesCannotSteerTheTerminal) {
  TopSample now = Sample(0, 10, 10);
  now.stats.mutable_models(0)->set_model("m\033[2J\xc2\x9b\xff");
  now.sessions.add_sessions()->set_name("s\r\n\a");
  const std::string text = Text(std::nullopt, now);
  EXPECT_THAT(text, HasSubstr("m\\x1b[2J\\xc2\\x9b\\xff"));
  EXPECT_THAT(text, HasSubstr("s\\x0d\\x0a\\x07"));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
}

TEST(TerminalTextTest, LeavesOrdinaryTextOfAnyScriptAlone) {
  const std::string text =
      "Qwen2.5-VL \xe6\x96\x87\xe5\xad\x97 caf\xc3\xa9 \xf0\x9f\x98\x80 \xc2\xa0";
  EXPECT_EQ(TerminalText(text), text);
}

TEST(ShortenTest, CountsCharactersNotBytes) {
  EXPECT_EQ(Shorten("caf\xc3\xa9", 4), "caf\xc3\xa9");
  EXPECT_EQ(Shorten("caf\xc3\xa9s", 4), "caf~");
  EXPECT_EQ(Shorten("\xc3\xa9\xc3\xa9\xc3\xa9", 2), "\xc3\xa9~");
  EXPECT_EQ(Shorten("abc", 0), "");
}

}  // namespace
}  // namespace embcache::cli
