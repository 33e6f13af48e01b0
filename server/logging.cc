#include "server/logging.h"

#include <unistd.h>

#include <chrono>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "server/log_filter.h"
#include "spdlog/details/log_msg.h"
#include "spdlog/sinks/sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

struct NamedLevel {
  absl::string_view name;
  spdlog::level::level_enum level;
};
constexpr NamedLevel kLevels[] = {
    {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug}, {"info", spdlog::level::info},
    {"warn", spdlog::level::warn},   {"error", spdlog::level::err},   {"off", spdlog::level::off},
};

const NamedLevel* FindLevel(absl::string_view name) {
  for (const NamedLevel& level : kLevels) {
    if (level.name == name) return &level;
  }
  return nullptr;
}

std::string LevelName(spdlog::level::level_enum level) {
  for (const NamedLevel& named : kLevels) {
    if (named.level == level) return std::string(named.name);
  }
  return "error";  // spdlog's "critical", which we do not use
}

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    const absl::Time time = absl::FromChrono(
        std::chrono::time_point_cast<std::chrono::system_clock::duration>(msg.time));
    nlohmann::ordered_json line;
    line["ts"] = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone());
    line["level"] = LevelName(msg.level);
    line["msg"] = std::string(msg.payload.data(), msg.payload.size());
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    dest.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return NewJsonFormatter(); }
};

// One line an event, whatever a message holds.
class TextFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    std::string text = absl::StrCat(
        absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::FromChrono(msg.time), absl::UTCTimeZone()),
        " ", LevelName(msg.level), " ");
    for (const char c : absl::string_view(msg.payload.data(), msg.payload.size())) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        absl::StrAppendFormat(&text, "\\x%02x", byte);
      } else {
        text += c;
      }
    }
    text += '\n';
    dest.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return NewTextFormatter(); }
};

// Longer ones are cut.
constexpr size_t kRecentMessageBytes = 1000;

class RecentSink : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& msg) override {
    LogLine line = {absl::FromChrono(msg.time), LevelName(msg.level),
                    std::string(msg.payload.data(), msg.payload.size())};
    if (line.message.size() > kRecentMessageBytes) line.message.resize(kRecentMessageBytes);
    absl::MutexLock lock(&mu_);
    if (lines_.size() == kRecentProblems) lines_.pop_front();
    lines_.push_back(std::move(line));
  }
  void flush() override {}
  void set_pattern(const std::string& pattern) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {}

  std::vector<LogLine> Lines() const {
    absl::MutexLock lock(&mu_);
    return {lines_.begin(), lines_.end()};
  }

 private:
  mutable absl::Mutex mu_;
  std::deque<LogLine> lines_ ABSL_GUARDED_BY(mu_);
};

const std::shared_ptr<RecentSink>& Recent() {
  static const auto& sink = *new std::shared_ptr<RecentSink>([] {
    auto made = std::make_shared<RecentSink>();
    made->set_level(spdlog::level::warn);
    return made;
  }());
  return sink;
}

}  // namespace

std::vector<LogLine> RecentProblems() { return Recent()->Lines(); }

std::unique_ptr<spdlog::formatter> NewTextFormatter() { return std::make_unique<TextFormatter>(); }

std::unique_ptr<spdlog::formatter> NewJsonFormatter() { return std::make_unique<JsonFormatter>(); }

absl::Status CheckLogLevel(absl::string_view level) {
  if (FindLevel(level) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("log level \"", level, "\": must be trace, debug, info, warn, error or off"));
}

void InitLogging(LogFormat format, absl::string_view level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  const bool json =
      format == LogFormat::kJson || (format == LogFormat::kAuto && isatty(STDERR_FILENO) == 0);
  sink->set_formatter(json ? NewJsonFormatter() : NewTextFormatter());
  auto filter = std::make_shared<RepeatFilter>(std::vector<spdlog::sink_ptr>{sink, Recent()});
  auto logger = std::make_shared<spdlog::logger>("embcached", std::move(filter));
  logger->set_level(FindLevel(level)->level);
  spdlog::set_default_logger(std::move(logger));
}

absl::Status SetLogLevel(absl::string_view level, std::string* previous) {
  if (absl::Status ok = CheckLogLevel(level); !ok.ok()) return ok;
  if (previous != nullptr) *previous = LevelName(spdlog::get_level());
  spdlog::set_level(FindLevel(level)->level);
  return absl::OkStatus();
}

std::optional<uint64_t> LogEvery::Next() {
  absl::MutexLock lock(&mu_);
  const absl::Duration now = clock_->MonotonicNow();
  if (now >= period_ends_) {
    period_ends_ = now + period_;
    passed_ = 0;
  }
  if (passed_ == burst_) {
    ++skipped_;
    return std::nullopt;
  }
  ++passed_;
  return std::exchange(skipped_, 0);
}

}  // namespace embcache
