// Metrics: the daemon's counters as a page for Prometheus. docs/operations.md lists the names; they
// are part of the contract.
//
// All numbers come from the answer to Stats and from the histograms behind it, so that metrics,
// the status page and `embcachectl stat` agree. Not thread-safe.

#ifndef EMBCACHE_SERVER_METRICS_H_
#define EMBCACHE_SERVER_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "embcache/v1/embcache.pb.h"
#include "server/process_stats.h"
#include "server/shared_tier.h"
#include "storage/latency_histogram.h"

namespace embcache {

struct MetricsInput {
  struct Operation {
    std::string name;  // "get", ...
    LatencyHistogram::Snapshot histogram;
  };

  struct Listener {
    std::string name;  // "unix" or "tcp"
    uint64_t connections = 0;
    uint64_t unread_bytes = 0;
  };

  v1::StatsResponse stats;  // with models
  std::vector<Listener> listeners;
  std::vector<Operation> durations;  // nanoseconds
  std::vector<Operation> sizes;      // bytes
  ProcessStats process;
  std::optional<SharedTierStats> shared;  // nullopt: there is none
};

class Metrics {
 public:
  // Models with a label of their own; the others are counted together as "(other)".
  static constexpr size_t kMaxModels = 64;

  std::string Render(const MetricsInput& input);

 private:
  std::vector<v1::ModelStats> LabelledModels(const v1::StatsResponse& stats);

  // Whoever has a label keeps it: a counter that moved between labels would run backwards.
  std::set<std::string> labelled_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_METRICS_H_
