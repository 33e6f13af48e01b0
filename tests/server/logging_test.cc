#include "server/logging.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "spdlog/details/log_msg.h"
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

}  // namespace
}  // namespace embcache
