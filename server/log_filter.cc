#include "server/log_filter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/details/log_msg.h"

namespace embcache {

std::optional<uint64_t> RepeatFilter::Admit(const std::string& text) {
  const absl::Duration now = clock_->MonotonicNow();
  absl::MutexLock lock(&mu_);
  if (seen_.size() >= kRemembered && !seen_.contains(text)) seen_.clear();
  const auto [it, is_new] = seen_.try_emplace(text, Seen{now + kPeriod});
  Seen& seen = it->second;
  if (is_new) return 0;
  if (now < seen.quiet_until) {
    ++seen.skipped;
    return std::nullopt;
  }
  seen.quiet_until = now + kPeriod;
  return std::exchange(seen.skipped, 0);
}

void RepeatFilter::Pass(const spdlog::details::log_msg& msg) {
  for (const spdlog::sink_ptr& sink : sinks_) {
    if (sink->should_log(msg.level)) sink->log(msg);
  }
}

void RepeatFilter::log(const spdlog::details::log_msg& msg) {
  if (msg.level < spdlog::level::warn) return Pass(msg);
  const std::string text(msg.payload.data(), msg.payload.size());
  const std::optional<uint64_t> skipped = Admit(text);
  if (!skipped.has_value()) return;
  if (*skipped == 0) return Pass(msg);
  const std::string counted = absl::StrCat(text, " (", *skipped, " more like it in between)");
  spdlog::details::log_msg longer = msg;
  longer.payload = counted;
  Pass(longer);
}

void RepeatFilter::flush() {
  for (const spdlog::sink_ptr& sink : sinks_) sink->flush();
}

void RepeatFilter::set_pattern(const std::string& pattern) {
  for (const spdlog::sink_ptr& sink : sinks_) sink->set_pattern(pattern);
}

void RepeatFilter::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  for (const spdlog::sink_ptr& sink : sinks_) sink->set_formatter(formatter->clone());
}

}  // namespace embcache
