// PrometheusText: writes metrics in Prometheus' text format, version 0.0.4.
//
//   PrometheusText page;
//   page.Family("embcache_saves_total", MetricType::kCounter, "Entries stored.");
//   page.Sample({{"model", name}}, 12);
//
// Samples belong to the family before them. It is a page's text and nothing more: the counters live
// in the cache, and a library that keeps its own would be a second truth.

#ifndef EMBCACHE_SERVER_PROMETHEUS_TEXT_H_
#define EMBCACHE_SERVER_PROMETHEUS_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "storage/latency_histogram.h"

namespace embcache {

enum class MetricType { kCounter, kGauge, kHistogram };

class PrometheusText {
 public:
  using Label = std::pair<absl::string_view, absl::string_view>;

  void Family(absl::string_view name, MetricType type, absl::string_view help);

  // Values of labels may be any bytes: those that are no UTF-8 are written as \x escapes.
  void Sample(absl::Span<const Label> labels, uint64_t value);
  void Sample(absl::Span<const Label> labels, double value);

  // One bucket for each bound 2^`first`, 2^(`first` + `step`), ... up to 2^`last`, in units
  // of the histogram multiplied by `scale`.
  struct Buckets {
    int first = 0;
    int last = 0;
    int step = 1;
    double scale = 1;
  };
  void Histogram(const Label& label, const LatencyHistogram::Snapshot& snapshot,
                 const Buckets& buckets);

  std::string Take() { return std::move(text_); }

 private:
  void Line(absl::string_view suffix, absl::Span<const Label> labels, absl::string_view value);

  std::string text_;
  std::string family_;
};

// `text` if it is UTF-8, otherwise with everything but printable ASCII as \x escapes.
std::string ReadableLabel(absl::string_view text);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_PROMETHEUS_TEXT_H_
