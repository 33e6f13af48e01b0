#include "server/prometheus_text.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "proto/message_json.h"

namespace embcache {
namespace {

absl::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// Enough digits to read the same number back, where "%.17g" would write 0.10000000000000001.
std::string Number(double value) {
  std::string text;
  for (const int digits : {6, 12, 17}) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::stod(text) == value) break;
  }
  return text;
}

}  // namespace

std::string ReadableLabel(absl::string_view text) {
  return IsUtf8(text) ? std::string(text) : absl::CHexEscape(text);
}

void PrometheusText::Family(absl::string_view name, MetricType type, absl::string_view help) {
  family_ = std::string(name);
  absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", TypeName(type), "\n");
}

void PrometheusText::Line(absl::string_view suffix, absl::Span<const Label> labels,
                          absl::string_view value) {
  absl::StrAppend(&text_, family_, suffix);
  absl::string_view before = "{";
  for (const auto& [name, text] : labels) {
    const std::string escaped =
        absl::StrReplaceAll(ReadableLabel(text), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
    absl::StrAppend(&text_, before, name, "=\"", escaped, "\"");
    before = ",";
  }
  absl::StrAppend(&text_, labels.empty() ? "" : "}", " ", value, "\n");
}

void PrometheusText::Sample(absl::Span<const Label> labels, uint64_t value) {
  Line("", labels, absl::StrCat(value));
}

void PrometheusText::Sample(absl::Span<const Label> labels, double value) {
  Line("", labels, Number(value));
}

void PrometheusText::Histogram(const Label& label, const LatencyHistogram::Snapshot& snapshot,
                               const Buckets& buckets) {
  uint64_t below = 0;
  size_t next = 0;
  for (int power = buckets.first; power <= buckets.last; power += buckets.step) {
    const uint64_t bound = uint64_t{1} << power;
    for (; LatencyHistogram::UpperBoundNs(next) <= bound; ++next) below += snapshot.counts[next];
    const std::string le = Number(static_cast<double>(bound) * buckets.scale);
    Line("_bucket", {label, {"le", le}}, absl::StrCat(below));
  }
  Line("_bucket", {label, {"le", "+Inf"}}, absl::StrCat(snapshot.count));
  Line("_sum", {label}, Number(static_cast<double>(snapshot.sum_ns) * buckets.scale));
  Line("_count", {label}, absl::StrCat(snapshot.count));
}

}  // namespace embcache
