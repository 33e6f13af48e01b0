// LatencyHistogram: how long something took, in buckets that grow by 2^(1/4), so that a percentile
// is known to within 19%. Recording is a few relaxed atomic additions. Thread-safe.

#ifndef EMBCACHE_STORAGE_LATENCY_HISTOGRAM_H_
#define EMBCACHE_STORAGE_LATENCY_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace embcache {

class LatencyHistogram {
 public:
  // The last bucket ends at about 2^40 ns (18 minutes); longer ones are counted in it.
  static constexpr size_t kBuckets = 40 * 4 + 1;

  struct Snapshot {
    std::array<uint64_t, kBuckets> counts = {};
    uint64_t count = 0;  // the sum of counts
    uint64_t sum_ns = 0;
    uint64_t max_ns = 0;

    // An upper bound on the time that the fraction `quantile` (0 to 1) did not exceed; 0 when
    // nothing was recorded. Never above max_ns.
    uint64_t QuantileNs(double quantile) const;
  };

  void Record(uint64_t ns);
  Snapshot Take() const;

  static size_t BucketOf(uint64_t ns);
  // The largest time that falls into `bucket`.
  static uint64_t UpperBoundNs(size_t bucket);

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_ = {};
  std::atomic<uint64_t> sum_ns_ = 0;
  std::atomic<uint64_t> max_ns_ = 0;
};

// Records the time from its construction to its end. Move-only.
class LatencyTimer {
 public:
  explicit LatencyTimer(LatencyHistogram* histogram)
      : histogram_(histogram), start_(std::chrono::steady_clock::now()) {}
  LatencyTimer(LatencyTimer&& other) noexcept
      : histogram_(std::exchange(other.histogram_, nullptr)), start_(other.start_) {}
  LatencyTimer& operator=(LatencyTimer&&) = delete;
  ~LatencyTimer() { Stop(); }

  // Records now instead of at the end.
  void Stop();

 private:
  LatencyHistogram* histogram_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_LATENCY_HISTOGRAM_H_
