// The daemon's log: spdlog's default logger to stderr, as text or as one JSON object a line
// ({"ts": RFC 3339 in UTC, "level": ..., "msg": ...}). Thread-safe, but for InitLogging, which main
// calls once before it starts a thread.

#ifndef EMBCACHE_SERVER_LOGGING_H_
#define EMBCACHE_SERVER_LOGGING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "spdlog/formatter.h"
#include "storage/clock.h"

namespace embcache {

enum class LogFormat {
  kAuto,  // text on a terminal, else JSON
  kText,
  kJson,
};

// "trace", "debug", "info", "warn", "error" or "off"; INVALID_ARGUMENT lists them.
absl::Status CheckLogLevel(absl::string_view level);

// REQUIRES: `level` is one of those.
void InitLogging(LogFormat format, absl::string_view level);
// Changes the level of the running daemon; `previous` (may be nullptr) receives the one before.
absl::Status SetLogLevel(absl::string_view level, std::string* previous);

// The last warnings and errors that were logged, oldest first, for the status page.
struct LogLine {
  absl::Time time;
  std::string level;
  std::string message;
};
inline constexpr size_t kRecentProblems = 50;
std::vector<LogLine> RecentProblems();

// Control characters become \x escapes.
std::unique_ptr<spdlog::formatter> NewTextFormatter();
// Escapes for real: a message may hold quotes, newlines or bytes that are no UTF-8.
std::unique_ptr<spdlog::formatter> NewJsonFormatter();

// Keeps lines that could come for ever, and differ, to `burst` per period (RepeatFilter does it for
// those that are the same):
//   if (auto skipped = limiter.Next()) spdlog::warn("... ({} like it not logged)", *skipped);
class LogEvery {
 public:
  explicit LogEvery(absl::Duration period, Clock* clock = SystemClock(), uint32_t burst = 1)
      : period_(period), burst_(burst), clock_(clock) {}

  // How many were skipped since the last line, when it is time for one; nullopt: skip this one too.
  std::optional<uint64_t> Next();

 private:
  const absl::Duration period_;
  const uint32_t burst_;
  Clock* const clock_;
  absl::Mutex mu_;
  absl::Duration period_ends_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  uint32_t passed_ ABSL_GUARDED_BY(mu_) = 0;  // in this period
  uint64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_LOGGING_H_
