#include "storage/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace embcache {
namespace {

constexpr size_t kPerDoubling = 4;

// The upper bounds, floor(2^(i/4)). The lowest ones coincide; buckets that repeat one stay empty.
const std::array<uint64_t, LatencyHistogram::kBuckets>& Bounds() {
  static const auto bounds = [] {
    std::array<uint64_t, LatencyHistogram::kBuckets> made = {};
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] = static_cast<uint64_t>(std::exp2(static_cast<double>(i) / kPerDoubling));
    }
    return made;
  }();
  return bounds;
}

}  // namespace

size_t LatencyHistogram::BucketOf(uint64_t ns) {
  if (ns <= 1) return 0;
  // Within a doubling there are four bounds; start at the lowest that can hold `ns` and step up.
  const size_t doubling = static_cast<size_t>(std::bit_width(ns - 1)) - 1;
  size_t bucket = doubling * kPerDoubling;
  while (bucket < kBuckets - 1 && Bounds()[bucket] < ns) ++bucket;
  return std::min(bucket, kBuckets - 1);
}

uint64_t LatencyHistogram::UpperBoundNs(size_t bucket) { return Bounds()[bucket]; }

void LatencyHistogram::Record(uint64_t ns) {
  counts_[BucketOf(ns)].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  uint64_t max = max_ns_.load(std::memory_order_relaxed);
  while (ns > max && !max_ns_.compare_exchange_weak(max, ns, std::memory_order_relaxed)) {
  }
}

LatencyHistogram::Snapshot LatencyHistogram::Take() const {
  Snapshot snapshot;
  for (size_t i = 0; i < kBuckets; ++i) {
    snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
    snapshot.count += snapshot.counts[i];
  }
  snapshot.sum_ns = sum_ns_.load(std::memory_order_relaxed);
  snapshot.max_ns = max_ns_.load(std::memory_order_relaxed);
  return snapshot;
}

uint64_t LatencyHistogram::Snapshot::QuantileNs(double quantile) const {
  if (count == 0) return 0;
  const double wanted = std::ceil(std::clamp(quantile, 0.0, 1.0) * static_cast<double>(count));
  const uint64_t rank = std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += counts[i];
    // The last bucket has no upper bound of its own.
    if (seen >= rank && i < kBuckets - 1) return std::min(UpperBoundNs(i), max_ns);
  }
  return max_ns;
}

void LatencyTimer::Stop() {
  LatencyHistogram* histogram = std::exchange(histogram_, nullptr);
  if (histogram == nullptr) return;
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  histogram->Record(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()));
}

}  // namespace embcache
