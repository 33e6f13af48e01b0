// StatsHistory: a few counters of the last hour, one point every ten seconds, for the status page's
// curves. Thread-safe.

#ifndef EMBCACHE_SERVER_STATS_HISTORY_H_
#define EMBCACHE_SERVER_STATS_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/clock.h"
#include "storage/tiered_cache.h"

namespace embcache {

class StatsHistory {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(10);
  static constexpr size_t kPoints = 361;

  struct Point {
    int64_t unix_ms = 0;
    // Since start.
    uint64_t gets = 0;
    uint64_t hits = 0;
    uint64_t saved_us = 0;
  };

  // Not owned; they outlive the history.
  StatsHistory(TieredCache* cache, Clock* clock) : cache_(cache), clock_(clock) {}

  // Takes a point if it is time for one. Call it more often than that.
  void Tick();
  std::vector<Point> Points() const;  // oldest first

 private:
  TieredCache* const cache_;
  Clock* const clock_;
  mutable absl::Mutex mu_;
  absl::Duration next_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  std::deque<Point> points_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_STATS_HISTORY_H_
