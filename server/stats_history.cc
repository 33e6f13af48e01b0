#include "server/stats_history.h"

namespace embcache {

void StatsHistory::Tick() {
  const absl::Duration now = clock_->MonotonicNow();
  {
    absl::MutexLock lock(&mu_);
    if (now < next_) return;
    next_ = now + kPeriod;
  }
  const CacheStats stats = cache_->GetStats(/*per_model=*/false);
  const int64_t unix_ms = absl::ToUnixMillis(clock_->Now());
  absl::MutexLock lock(&mu_);
  if (points_.size() == kPoints) points_.pop_front();
  points_.push_back({unix_ms, stats.gets, stats.hits, stats.saved_us});
}

std::vector<StatsHistory::Point> StatsHistory::Points() const {
  absl::MutexLock lock(&mu_);
  return {points_.begin(), points_.end()};
}

}  // namespace embcache
