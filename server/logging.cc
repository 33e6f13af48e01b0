#include "server/logging.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "spdlog/details/log_msg.h"
#include "spdlog/pattern_formatter.h"
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

}  // namespace

std::unique_ptr<spdlog::formatter> NewJsonFormatter() { return std::make_unique<JsonFormatter>(); }

absl::Status CheckLogLevel(absl::string_view level) {
  if (FindLevel(level) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("log level \"", level, "\": must be trace, debug, info, warn, error or off"));
}

void InitLogging(LogFormat format, absl::string_view level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("embcached", std::move(sink));
  const bool json =
      format == LogFormat::kJson || (format == LogFormat::kAuto && isatty(STDERR_FILENO) == 0);
  if (json) {
    logger->set_formatter(NewJsonFormatter());
  } else {
    logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc));
  }
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
  if (now < quiet_until_) {
    ++skipped_;
    return std::nullopt;
  }
  quiet_until_ = now + period_;
  return std::exchange(skipped_, 0);
}

}  // namespace embcache
