#include "server/metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/prometheus_text.h"

namespace embcache {
namespace {

using testing::HasSubstr;
using testing::Not;

// The value of the sample that begins with `series`, or "" if there is none.
std::string Value(const std::string& page, const std::string& series) {
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (line.substr(0, series.size() + 1) == series + " ") {
      return std::string(line.substr(series.size() + 1));
    }
  }
  return "";
}

void AddModel(v1::StatsResponse* stats, const std::string& name, uint64_t hits, uint64_t misses) {
  v1::ModelStats* model = stats->add_models();
  model->set_model(name);
  model->set_gets(hits + misses);
  model->set_hits(hits);
  model->set_misses(misses);
  model->set_saved_us(hits * 1500);
}

TEST(MetricsTest, CountsAndGaugesComeFromStats) {
  MetricsInput input;
  input.stats.set_version("1.2.3");
  input.stats.set_misses(5);
  input.stats.set_mismatches(2);
  AddModel(&input.stats, "vit", 7, 5);
  v1::TierStats* tier = input.stats.add_tiers();
  tier->set_tier(v1::L1);
  tier->set_pinned_bytes(4096);
  tier->set_fragmentation(0.25);
  tier->set_evictions_expired(3);
  tier->set_given_back_bytes(8192);
  const std::string page = Metrics().Render(input);
  EXPECT_EQ(Value(page, "embcache_build_info{version=\"1.2.3\"}"), "1");
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"vit\",result=\"hit\"}"), "7");
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"vit\",result=\"miss\"}"), "5");
  EXPECT_EQ(Value(page, "embcache_misses_total{reason=\"absent\"}"), "3");
  EXPECT_EQ(Value(page, "embcache_misses_total{reason=\"mismatch\"}"), "2");
  EXPECT_EQ(Value(page, "embcache_encode_saved_seconds_total{model=\"vit\"}"), "0.0105");
  EXPECT_EQ(Value(page, "embcache_tier_pinned_bytes{tier=\"L1\"}"), "4096");
  EXPECT_EQ(Value(page, "embcache_tier_given_back_bytes{tier=\"L1\"}"), "8192");
  EXPECT_EQ(Value(page, "embcache_tier_fragmentation_ratio{tier=\"L1\"}"), "0.25");
  EXPECT_EQ(Value(page, "embcache_evictions_total{tier=\"L1\",reason=\"expired\"}"), "3");
}

TEST(MetricsTest, WithoutAnSsdThereAreNoCountersOfOne) {
  MetricsInput input;
  EXPECT_EQ(Value(Metrics().Render(input), "embcache_l3_enabled"), "0");
  EXPECT_THAT(Metrics().Render(input), Not(HasSubstr("embcache_l3_writable")));
  input.stats.mutable_l3()->set_enabled(true);
  EXPECT_EQ(Value(Metrics().Render(input), "embcache_l3_writable"), "0");
}

TEST(MetricsTest, ADeviceThatIsLostShows) {
  MetricsInput input;
  EXPECT_EQ(Value(Metrics().Render(input), "embcache_device_enabled"), "0");
  EXPECT_THAT(Metrics().Render(input), Not(HasSubstr("embcache_device_copies")));
  v1::DeviceStats* device = input.stats.mutable_device();
  device->set_uuid("GPU-1");
  device->set_copied_bytes(4096);
  EXPECT_EQ(Value(Metrics().Render(input), "embcache_device_lost"), "0");
  EXPECT_EQ(Value(Metrics().Render(input), "embcache_device_copied_bytes_total"), "4096");
  device->set_lost(true);
  EXPECT_EQ(Value(Metrics().Render(input), "embcache_device_lost"), "1");
}

TEST(MetricsTest, HistogramsAreCumulativeInBaseUnits) {
  LatencyHistogram histogram;
  histogram.Record(1000);  // 1 us
  histogram.Record(1024);  // the first bound itself
  histogram.Record(1500);
  histogram.Record(60'000'000'000);  // a minute: beyond the last bound
  MetricsInput input;
  input.durations.push_back({"get", histogram.Take()});
  const std::string page = Metrics().Render(input);
  const std::string name = "embcache_operation_duration_seconds";
  const auto bucket = [&](const std::string& le) {
    return Value(page, absl::StrCat(name, "_bucket{operation=\"get\",le=\"", le, "\"}"));
  };
  EXPECT_EQ(bucket("1.024e-06"), "2");
  EXPECT_EQ(bucket("2.048e-06"), "3");
  EXPECT_EQ(bucket("17.179869184"), "3");
  EXPECT_EQ(bucket("+Inf"), "4");
  EXPECT_EQ(Value(page, name + "_count{operation=\"get\"}"), "4");
  EXPECT_EQ(Value(page, name + "_sum{operation=\"get\"}"), "60.000003524");
}

TEST(MetricsTest, ModelsBeyondTheBoundAreCountedTogetherAndNothingIsLost) {
  MetricsInput input;
  for (size_t i = 0; i < Metrics::kMaxModels + 10; ++i) {
    AddModel(&input.stats, absl::StrCat("m", i), 1, 0);
  }
  const std::string page = Metrics().Render(input);
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"(other)\",result=\"hit\"}"), "10");
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"m0\",result=\"hit\"}"), "1");
}

TEST(MetricsTest, AModelKeepsItsLabelHoweverOthersGrow) {
  Metrics metrics;
  MetricsInput input;
  for (size_t i = 0; i < Metrics::kMaxModels; ++i) {
    AddModel(&input.stats, absl::StrCat("m", i), 1, 0);
  }
  metrics.Render(input);
  AddModel(&input.stats, "latecomer", 1000, 0);
  const std::string page = metrics.Render(input);
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"(other)\",result=\"hit\"}"), "1000");
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"m63\",result=\"hit\"}"), "1");
  EXPECT_EQ(Value(page, "embcache_gets_total{model=\"latecomer\",result=\"hit\"}"), "");
}

TEST(PrometheusTextTest, LabelsAreEscapedAndAlwaysUtf8) {
  PrometheusText page;
  page.Family("f", MetricType::kGauge, "Help.");
  page.Sample({{"a", "quote \" slash \\ line\n"}, {"b", "caf\xc3\xa9"}, {"c", "\xff\x01"}}, 0.1);
  EXPECT_EQ(page.Take(),
            "# HELP f Help.\n# TYPE f gauge\n"
            "f{a=\"quote \\\" slash \\\\ line\\n\",b=\"caf\xc3\xa9\",c=\"\\\\xff\\\\x01\"} 0.1\n");
}

TEST(PrometheusTextTest, WholeNumbersLoseNoDigit) {
  PrometheusText page;
  page.Family("f", MetricType::kCounter, "Help.");
  page.Sample({}, uint64_t{18446744073709551615u});
  EXPECT_THAT(page.Take(), HasSubstr("\nf 18446744073709551615\n"));
}

TEST(ProcessStatsTest, KnowsThisProcess) {
  const ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.start_unix_seconds, 1.5e9);
  EXPECT_GT(stats.resident_bytes, uint64_t{1} << 20);
  EXPECT_GT(stats.virtual_bytes, stats.resident_bytes);
  EXPECT_GE(stats.open_fds, 3u);
  EXPECT_GT(stats.max_fds, stats.open_fds);
  EXPECT_GE(stats.threads, 1u);
}

}  // namespace
}  // namespace embcache
