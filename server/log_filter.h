// RepeatFilter: a sink in front of others that lets the same warning or error through once a
// minute. A disk that fails or a client that misbehaves would otherwise fill the log with one
// sentence; the next one through says how many were left out. Other levels pass as they come.
// Thread-safe.

#ifndef EMBCACHE_SERVER_LOG_FILTER_H_
#define EMBCACHE_SERVER_LOG_FILTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "spdlog/sinks/sink.h"
#include "storage/clock.h"

namespace embcache {

class RepeatFilter : public spdlog::sinks::sink {
 public:
  static constexpr absl::Duration kPeriod = absl::Minutes(1);
  // Different sentences remembered; with more, all are forgotten and may come once more.
  static constexpr size_t kRemembered = 256;

  explicit RepeatFilter(std::vector<spdlog::sink_ptr> sinks, Clock* clock = SystemClock())
      : sinks_(std::move(sinks)), clock_(clock) {}

  void log(const spdlog::details::log_msg& msg) override;
  void flush() override;
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

 private:
  struct Seen {
    absl::Duration quiet_until;
    uint64_t skipped = 0;
  };

  // How many were left out before this one; nullopt: leave this one out too.
  std::optional<uint64_t> Admit(const std::string& text);
  void Pass(const spdlog::details::log_msg& msg);

  const std::vector<spdlog::sink_ptr> sinks_;
  Clock* const clock_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Seen> seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_LOG_FILTER_H_
