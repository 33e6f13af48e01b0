#include "server/logging.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/log_filter.h"
#include "spdlog/details/log_msg.h"
#include "spdlog/sinks/sink.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

std::string Format(const std::string& message, spdlog::level::level_enum level) {
  spdlog::details::log_msg line("logger", level, message);
  spdlog::memory_buf_t out;
  NewJsonFormatter()->clone()->format(line, out);
  return {out.data(), out.size()};
}

TEST(JsonFormatterTest, WritesOneObjectALine) {
  const std::string line = Format("hello", spdlog::level::warn);
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["msg"], "hello");
  EXPECT_EQ(parsed["level"], "warn");
  EXPECT_THAT(parsed["ts"].get<std::string>(),
              testing::MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9.]+Z"));
}

TEST(JsonFormatterTest, EscapesWhatWouldBreakTheLine) {
  const std::string nasty = "a \"quote\", a \\, a\nnewline, a \x01 and a tab\t";
  const std::string line = Format(nasty, spdlog::level::err);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(nlohmann::json::parse(line)["msg"], nasty);
  EXPECT_EQ(nlohmann::json::parse(line)["level"], "error");
}

TEST(JsonFormatterTest, SurvivesBytesThatAreNoUtf8) {
  EXPECT_NO_THROW({
    const auto parsed = nlohmann::json::parse(Format("a\xff\xfe z", spdlog::level::info));
    EXPECT_THAT(parsed["msg"].get<std::string>(), testing::EndsWith(" z"));
  });
}

TEST(TextFormatterTest, KeepsAnEventToOneLine) {
  spdlog::details::log_msg line("logger", spdlog::level::warn, "a\nb \x1b[2J caf\xc3\xa9");
  spdlog::memory_buf_t out;
  NewTextFormatter()->clone()->format(line, out);
  EXPECT_THAT(std::string(out.data(), out.size()),
              testing::MatchesRegex("[0-9T:.-]+Z warn a\\\\x0ab \\\\x1b\\[2J caf\xc3\xa9\n"));
}

class ListSink : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& msg) override {
    lines.emplace_back(msg.payload.data(), msg.payload.size());
  }
  void flush() override {}
  void set_pattern(const std::string& pattern) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {}

  std::vector<std::string> lines;
};

class RepeatFilterTest : public testing::Test {
 protected:
  void Log(const std::string& text, spdlog::level::level_enum level = spdlog::level::warn) {
    filter_.log(spdlog::details::log_msg("logger", level, text));
  }

  SimulatedClock clock_;
  std::shared_ptr<ListSink> list_ = std::make_shared<ListSink>();
  RepeatFilter filter_{{list_}, &clock_};
};

TEST_F(RepeatFilterTest, TheSameWarningComesOnceAMinuteAndSaysHowManyWereLeftOut) {
  for (int i = 0; i < 5; ++i) Log("disk full");
  Log("another");
  clock_.Advance(RepeatFilter::kPeriod);
  for (int i = 0; i < 2; ++i) Log("disk full");
  EXPECT_THAT(list_->lines, testing::ElementsAre("disk full", "another",
                                                 "disk full (4 more like it in between)"));
}

TEST_F(RepeatFilterTest, InformationIsNotHeldBack) {
  for (int i = 0; i < 3; ++i) Log("hello", spdlog::level::info);
  EXPECT_EQ(list_->lines.size(), 3u);
}

TEST_F(RepeatFilterTest, RemembersABoundedNumberOfSentences) {
  for (size_t i = 0; i < 10 * RepeatFilter::kRemembered; ++i) Log(std::to_string(i));
  EXPECT_EQ(list_->lines.size(), 10 * RepeatFilter::kRemembered);
  Log("0");
  EXPECT_EQ(list_->lines.back(), "0");
}

TEST(RecentProblemsTest, KeepsTheLastWarningsAndErrorsAndNothingElse) {
  InitLogging(LogFormat::kText, "info");
  spdlog::info("all is well");
  for (size_t i = 0; i < kRecentProblems; ++i) spdlog::warn("trouble {}", i);
  spdlog::error("{}", std::string(1500, 'x'));
  const std::vector<LogLine> lines = RecentProblems();
  ASSERT_EQ(lines.size(), kRecentProblems);
  EXPECT_EQ(lines.front().message, "trouble 1");
  EXPECT_EQ(lines.front().level, "warn");
  EXPECT_EQ(lines.back().level, "error");
  EXPECT_EQ(lines.back().message.size(), 1000u);
  EXPECT_LT(absl::Now() - lines.back().time, absl::Minutes(1));
}

TEST(LogLevelTest, ChangesAtRunTimeAndTellsTheOneBefore) {
  InitLogging(LogFormat::kText, "info");
  std::string previous;
  ASSERT_TRUE(SetLogLevel("debug", &previous).ok());
  EXPECT_EQ(previous, "info");
  EXPECT_TRUE(spdlog::should_log(spdlog::level::debug));
  ASSERT_TRUE(SetLogLevel("off", &previous).ok());
  EXPECT_EQ(previous, "debug");
  EXPECT_FALSE(spdlog::should_log(spdlog::level::err));
}

TEST(LogLevelTest, AnUnknownLevelChangesNothing) {
  InitLogging(LogFormat::kText, "warn");
  std::string previous = "untouched";
  EXPECT_EQ(SetLogLevel("verbose", &previous).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(previous, "untouched");
  EXPECT_EQ(spdlog::get_level(), spdlog::level::warn);
}

TEST(LogEveryTest, LetsOneLineAPeriodThroughAndCountsTheRest) {
  SimulatedClock clock;
  LogEvery limiter(absl::Seconds(1), &clock);
  EXPECT_EQ(limiter.Next(), 0u);
  EXPECT_EQ(limiter.Next(), std::nullopt);
  EXPECT_EQ(limiter.Next(), std::nullopt);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(limiter.Next(), 2u);
  EXPECT_EQ(limiter.Next(), std::nullopt);
  clock.JumpWall(absl::Hours(1));
  EXPECT_EQ(limiter.Next(), std::nullopt);
}

TEST(LogEveryTest, LetsABurstThrough) {
  SimulatedClock clock;
  LogEvery limiter(absl::Seconds(1), &clock, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.Next(), 0u);
  EXPECT_EQ(limiter.Next(), std::nullopt);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(limiter.Next(), 1u);
  EXPECT_EQ(limiter.Next(), 0u);
}

}  // namespace
}  // namespace embcache
