#include "storage/latency_histogram.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace embcache {
namespace {

TEST(LatencyHistogramTest, EveryTimeFallsIntoTheFirstBucketThatHoldsIt) {
  for (uint64_t ns = 0; ns < 5000; ++ns) {
    const size_t bucket = LatencyHistogram::BucketOf(ns);
    EXPECT_GE(LatencyHistogram::UpperBoundNs(bucket), ns);
    if (bucket > 0) {
      EXPECT_LT(LatencyHistogram::UpperBoundNs(bucket - 1), ns);
    }
  }
}

TEST(LatencyHistogramTest, BucketsGrowByAtMostAFifthPastTheFirstMicrosecond) {
  for (size_t i = 41; i < LatencyHistogram::kBuckets; ++i) {
    const double growth = static_cast<double>(LatencyHistogram::UpperBoundNs(i)) /
                          static_cast<double>(LatencyHistogram::UpperBoundNs(i - 1));
    EXPECT_LT(growth, 1.2);
    EXPECT_GT(growth, 1.18);
  }
}

TEST(LatencyHistogramTest, QuantilesAreUpperBoundsWithinOneBucket) {
  LatencyHistogram histogram;
  for (uint64_t us = 1; us <= 1000; ++us) histogram.Record(us * 1000);
  const LatencyHistogram::Snapshot snapshot = histogram.Take();
  EXPECT_EQ(snapshot.count, 1000u);
  EXPECT_EQ(snapshot.sum_ns, 500'500'000u);
  EXPECT_EQ(snapshot.max_ns, 1'000'000u);
  EXPECT_GE(snapshot.QuantileNs(0.5), 500'000u);
  EXPECT_LE(snapshot.QuantileNs(0.5), 600'000u);
  EXPECT_GE(snapshot.QuantileNs(0.99), 990'000u);
  EXPECT_LE(snapshot.QuantileNs(0.99), 1'000'000u);
  EXPECT_EQ(snapshot.QuantileNs(1.0), 1'000'000u);
}

TEST(LatencyHistogramTest, NothingRecordedGivesZeroes) {
  const LatencyHistogram::Snapshot snapshot = LatencyHistogram().Take();
  EXPECT_EQ(snapshot.count, 0u);
  EXPECT_EQ(snapshot.QuantileNs(0.99), 0u);
}

TEST(LatencyHistogramTest, TimesBeyondTheLastBucketReportTheMaximum) {
  LatencyHistogram histogram;
  const uint64_t day_ns = uint64_t{86400} * 1'000'000'000;
  histogram.Record(day_ns);
  EXPECT_EQ(histogram.Take().QuantileNs(0.5), day_ns);
}

TEST(LatencyHistogramTest, NothingIsLostWhenThreadsRecordAtOnce) {
  LatencyHistogram histogram;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&histogram] {
      for (uint64_t i = 1; i <= 10'000; ++i) histogram.Record(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LatencyHistogram::Snapshot snapshot = histogram.Take();
  EXPECT_EQ(snapshot.count, 40'000u);
  EXPECT_EQ(snapshot.sum_ns, uint64_t{4} * 10'000 * 10'001 / 2);
  EXPECT_EQ(snapshot.max_ns, 10'000u);
}

TEST(LatencyTimerTest, RecordsOnceHoweverItEnds) {
  LatencyHistogram histogram;
  {
    LatencyTimer timer(&histogram);
    LatencyTimer moved(std::move(timer));
    moved.Stop();
  }
  EXPECT_EQ(histogram.Take().count, 1u);
}

}  // namespace
}  // namespace embcache
