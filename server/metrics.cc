#include "server/metrics.h"

#include <algorithm>
#include <map>
#include <utility>

#include "server/prometheus_text.h"

namespace embcache {
namespace {

constexpr absl::string_view kOtherModels = "(other)";
// 1 us to 17 s, and 1 KiB to 16 GiB.
constexpr PrometheusText::Buckets kDurations = {.first = 10, .last = 34, .step = 1, .scale = 1e-9};
constexpr PrometheusText::Buckets kSizes = {.first = 10, .last = 34, .step = 2, .scale = 1};

using Labels = absl::Span<const PrometheusText::Label>;

double Seconds(uint64_t microseconds) { return static_cast<double>(microseconds) / 1e6; }

void Counter(PrometheusText& page, absl::string_view name, absl::string_view help, uint64_t value) {
  page.Family(name, MetricType::kCounter, help);
  page.Sample({}, value);
}

void Gauge(PrometheusText& page, absl::string_view name, absl::string_view help, uint64_t value) {
  page.Family(name, MetricType::kGauge, help);
  page.Sample({}, value);
}

absl::string_view TierLabel(v1::Tier tier) {
  switch (tier) {
    case v1::L1:
      return "L1";
    case v1::L2:
      return "L2";
    case v1::L3:
      return "L3";
    default:
      return "";
  }
}

// A family with one sample for each tier.
template <typename Get>
void ByTier(PrometheusText& page, const v1::StatsResponse& stats, absl::string_view name,
            MetricType type, absl::string_view help, Get get) {
  page.Family(name, type, help);
  for (const v1::TierStats& tier : stats.tiers()) {
    page.Sample({{"tier", TierLabel(tier.tier())}}, get(tier));
  }
}

template <typename Get>
void ByModel(PrometheusText& page, const std::vector<v1::ModelStats>& models,
             absl::string_view name, MetricType type, absl::string_view help, Get get) {
  page.Family(name, type, help);
  for (const v1::ModelStats& model : models) page.Sample({{"model", model.model()}}, get(model));
}

void WriteRequests(PrometheusText& page, const v1::StatsResponse& stats,
                   const std::vector<v1::ModelStats>& models) {
  page.Family("embcache_gets_total", MetricType::kCounter,
              "Keys looked up, by model and by whether they were found.");
  for (const v1::ModelStats& model : models) {
    page.Sample({{"model", model.model()}, {"result", "hit"}}, model.hits());
    page.Sample({{"model", model.model()}, {"result", "miss"}}, model.misses());
  }
  ByTier(page, stats, "embcache_hits_total", MetricType::kCounter,
         "Keys found, by the tier that had them.",
         [](const v1::TierStats& tier) { return tier.hits(); });
  page.Family("embcache_misses_total", MetricType::kCounter,
              "Keys not found: absent, or there but not as the caller expected (mismatch).");
  page.Sample({{"reason", "absent"}}, stats.misses() - stats.mismatches());
  page.Sample({{"reason", "mismatch"}}, stats.mismatches());
  Counter(page, "embcache_fast_hits_total", "Of the keys found: those that took no call.",
          stats.fast_hits());
  ByModel(page, models, "embcache_saves_total", MetricType::kCounter, "Entries stored, by model.",
          [](const v1::ModelStats& model) { return model.saves(); });
  Counter(page, "embcache_replaced_total", "Of the entries stored: those whose key was there.",
          stats.replaced());
  Counter(page, "embcache_rejected_puts_total", "Puts and reservations refused for want of room.",
          stats.rejected_puts());
  Counter(page, "embcache_deletes_total", "Entries removed by a caller.", stats.deletes());
  ByModel(page, models, "embcache_encode_saved_seconds_total", MetricType::kCounter,
          "Encode time that hits have saved, by model.",
          [](const v1::ModelStats& model) { return Seconds(model.saved_us()); });
}

void WriteTiers(PrometheusText& page, const v1::StatsResponse& stats,
                const std::vector<v1::ModelStats>& models) {
  const auto gauge = [&](absl::string_view name, absl::string_view help, auto get) {
    ByTier(page, stats, name, MetricType::kGauge, help, get);
  };
  gauge("embcache_tier_capacity_bytes", "Size of each tier.",
        [](const v1::TierStats& tier) { return tier.capacity_bytes(); });
  gauge("embcache_tier_given_back_bytes",
        "Beside its size: given back for want of use, and taken again at the next one.",
        [](const v1::TierStats& tier) { return tier.given_back_bytes(); });
  gauge("embcache_tier_used_bytes", "Bytes taken; of L3 everything in its directory.",
        [](const v1::TierStats& tier) { return tier.used_bytes(); });
  gauge("embcache_tier_pinned_bytes",
        "Of the bytes taken: under leases, reservations and in quarantine.",
        [](const v1::TierStats& tier) { return tier.pinned_bytes(); });
  gauge("embcache_tier_reserved_bytes", "Of the bytes pinned: reservations not yet committed.",
        [](const v1::TierStats& tier) { return tier.reserved_bytes(); });
  gauge("embcache_tier_entries", "Entries that can be found.",
        [](const v1::TierStats& tier) { return tier.entries(); });
  gauge("embcache_tier_fragmentation_ratio", "1 - largest free range of each segment / free bytes.",
        [](const v1::TierStats& tier) { return tier.fragmentation(); });
  page.Family("embcache_evictions_total", MetricType::kCounter,
              "Entries that left a tier, by why: to make room (capacity, demotions included), past "
              "their time to live (expired), of an old model epoch (epoch).");
  for (const v1::TierStats& tier : stats.tiers()) {
    const absl::string_view name = TierLabel(tier.tier());
    page.Sample({{"tier", name}, {"reason", "capacity"}}, tier.evictions_capacity());
    page.Sample({{"tier", name}, {"reason", "expired"}}, tier.evictions_expired());
    page.Sample({{"tier", name}, {"reason", "epoch"}}, tier.evictions_epoch());
  }
  Counter(page, "embcache_promotions_total", "Entries copied from L2 to L1.", stats.promotions());
  Counter(page, "embcache_demotions_total", "Entries copied from L1 to L2.", stats.demotions());
  ByModel(page, models, "embcache_model_entries", MetricType::kGauge,
          "Entries in memory, by model.",
          [](const v1::ModelStats& model) { return model.entries(); });
  ByModel(page, models, "embcache_model_bytes", MetricType::kGauge, "Bytes in memory, by model.",
          [](const v1::ModelStats& model) { return model.bytes(); });
}

void WriteL3(PrometheusText& page, const v1::L3Stats& l3) {
  Gauge(page, "embcache_l3_enabled", "Whether there is an SSD tier.", l3.enabled());
  if (!l3.enabled()) return;
  Gauge(page, "embcache_l3_writable", "0 while the disk refuses writes.", l3.writable());
  Counter(page, "embcache_l3_loads_total", "Entries read back into memory.", l3.loads());
  Counter(page, "embcache_l3_load_failures_total", "Reads that failed; each was a miss.",
          l3.load_failures());
  Counter(page, "embcache_l3_writes_total", "Entries stored on the SSD.", l3.writes());
  Counter(page, "embcache_l3_write_failures_total", "Entries that the disk refused.",
          l3.write_failures());
  Counter(page, "embcache_l3_dropped_writes_total",
          "Entries not written because the queue was full or they left before their turn.",
          l3.dropped_writes());
  Gauge(page, "embcache_l3_queue_entries", "Entries waiting to be written.", l3.queued_writes());
  Gauge(page, "embcache_l3_queue_bytes", "Bytes waiting to be written.", l3.queued_bytes());
  Counter(page, "embcache_l3_corruptions_total", "Records or files that failed their check.",
          l3.corruptions());
  Counter(page, "embcache_l3_io_errors_total", "Disk operations that failed.", l3.io_errors());
  Counter(page, "embcache_l3_written_bytes_total", "Bytes written to the SSD, for its wear.",
          l3.disk_bytes_written());
  Gauge(page, "embcache_l3_files", "Segment files.", l3.files());
  Gauge(page, "embcache_l3_payload_bytes", "Bytes of the entries on the SSD that can be found.",
        l3.payload_bytes());
}

void WriteShared(PrometheusText& page, const std::optional<SharedTierStats>& stats) {
  Gauge(page, "embcache_shared_enabled", "Whether there is a tier shared with other nodes.",
        stats.has_value());
  if (!stats.has_value()) return;
  page.Family("embcache_shared_gets_total", MetricType::kCounter,
              "Keys not found here, by what the shared tier had.");
  const std::pair<absl::string_view, uint64_t> results[] = {
      {"hit", stats->hits},           {"absent", stats->absent}, {"damaged", stats->damaged},
      {"failed", stats->failed},      {"late", stats->late},     {"not_kept", stats->not_kept},
      {"not_asked", stats->not_asked}};
  for (const auto& [result, count] : results) page.Sample({{"result", result}}, count);
  Counter(page, "embcache_shared_writes_total", "Entries written there.", stats->writes);
  Counter(page, "embcache_shared_write_failures_total", "Entries that could not be.",
          stats->write_failures);
  Counter(page, "embcache_shared_dropped_writes_total",
          "Entries not written since the queue was full, they are too large or left before their "
          "turn.",
          stats->dropped_writes);
  Counter(page, "embcache_shared_removals_total", "Entries removed there.", stats->removals);
  Counter(page, "embcache_shared_lost_removals_total",
          "Removals refused there, or more than can wait.", stats->lost_removals);
  Counter(page, "embcache_shared_read_bytes_total", "Bytes of the entries it had.",
          stats->read_bytes);
  Counter(page, "embcache_shared_written_bytes_total", "Bytes written there.",
          stats->written_bytes);
  Gauge(page, "embcache_shared_queue_entries", "Entries waiting to be written there.",
        stats->queued_writes);
  Gauge(page, "embcache_shared_queue_bytes", "Bytes waiting to be written there.",
        stats->queued_bytes);
  Gauge(page, "embcache_shared_queue_removals", "Removals waiting.", stats->queued_removals);
  Gauge(page, "embcache_shared_closed_models",
        "Models not shared any more, since their epoch was advanced.", stats->closed_models);
  Gauge(page, "embcache_shared_left_alone",
        "1 while it has failed and is asked only now and then whether it is back.",
        stats->left_alone);
}

void WriteDevice(PrometheusText& page, const v1::DeviceStats& device) {
  Gauge(page, "embcache_device_enabled", "Whether L1 is memory of a CUDA device.",
        !device.uuid().empty());
  Gauge(page, "embcache_device_lost",
        "1 after an error of the device that only a restart ends: L1 is gone, L2 and L3 serve on.",
        device.lost());
  if (device.uuid().empty()) return;
  Counter(page, "embcache_device_copies_total", "Copies to, from and within its memory.",
          device.copies());
  Counter(page, "embcache_device_copied_bytes_total", "Bytes of those copies.",
          device.copied_bytes());
  Counter(page, "embcache_device_copy_failures_total", "Copies that failed.",
          device.failed_copies());
  Counter(page, "embcache_device_client_copies_total", "Copies out of clients' own device memory.",
          device.client_copies());
  Gauge(page, "embcache_device_pageable_host_bytes",
        "Host memory that could not be pinned, so that copies take a detour.",
        device.pageable_host_bytes());
}

void WriteSessions(PrometheusText& page, const v1::StatsResponse& stats) {
  Gauge(page, "embcache_sessions", "Sessions, those in quarantine included.", stats.sessions());
  Gauge(page, "embcache_leases", "Leases held.", stats.leases());
  Gauge(page, "embcache_reservations", "Reservations not yet committed.", stats.reservations());
  Gauge(page, "embcache_quarantined_bytes", "Bytes pinned by sessions whose connection has ended.",
        stats.quarantined_bytes());
  Gauge(page, "embcache_claims", "Keys that somebody has undertaken to encode.", stats.claims());
  Counter(page, "embcache_claims_granted_total", "Claims given out.", stats.claims_granted());
  Counter(page, "embcache_claims_failed_total",
          "Claims that ended without a value: given up, expired, or with their session.",
          stats.claims_failed());
  Counter(page, "embcache_claim_waits_total", "Gets that waited for another's claim.",
          stats.claim_waits());
}

void WriteListeners(PrometheusText& page, const std::vector<MetricsInput::Listener>& listeners) {
  page.Family("embcache_connections", MetricType::kGauge, "gRPC connections, by listener.");
  for (const MetricsInput::Listener& listener : listeners) {
    page.Sample({{"listener", listener.name}}, listener.connections);
  }
  page.Family("embcache_unread_answer_bytes", MetricType::kGauge,
              "Answers that callers have not read yet, by listener.");
  for (const MetricsInput::Listener& listener : listeners) {
    page.Sample({{"listener", listener.name}}, listener.unread_bytes);
  }
}

void WriteOperations(PrometheusText& page, const MetricsInput& input) {
  page.Family(
      "embcache_operation_duration_seconds", MetricType::kHistogram,
      "Time inside the daemon: of each call, of each copy between tiers and of each read or "
      "write of an entry on the SSD.");
  for (const auto& [name, histogram] : input.durations) {
    page.Histogram({"operation", name}, histogram, kDurations);
  }
  page.Family("embcache_operation_bytes", MetricType::kHistogram,
              "Sizes of the entries found (get), stored (put), copied between tiers, and read from "
              "or written to the SSD.");
  for (const auto& [name, histogram] : input.sizes) {
    page.Histogram({"operation", name}, histogram, kSizes);
  }
}

void WriteProcess(PrometheusText& page, const ProcessStats& process) {
  page.Family("process_cpu_seconds_total", MetricType::kCounter, "User and system time.");
  page.Sample({}, process.cpu_seconds);
  page.Family("process_start_time_seconds", MetricType::kGauge, "Start, in Unix time.");
  page.Sample({}, process.start_unix_seconds);
  Gauge(page, "process_resident_memory_bytes", "Resident memory.", process.resident_bytes);
  Gauge(page, "process_virtual_memory_bytes", "Address space.", process.virtual_bytes);
  Gauge(page, "process_open_fds", "Open file descriptors.", process.open_fds);
  Gauge(page, "process_max_fds", "The most there may be.", process.max_fds);
  Gauge(page, "process_threads", "Threads.", process.threads);
}

void Add(const v1::ModelStats& model, v1::ModelStats* to) {
  to->set_gets(to->gets() + model.gets());
  to->set_hits(to->hits() + model.hits());
  to->set_misses(to->misses() + model.misses());
  to->set_saves(to->saves() + model.saves());
  to->set_entries(to->entries() + model.entries());
  to->set_bytes(to->bytes() + model.bytes());
  to->set_saved_us(to->saved_us() + model.saved_us());
}

}  // namespace

std::vector<v1::ModelStats> Metrics::LabelledModels(const v1::StatsResponse& stats) {
  std::vector<const v1::ModelStats*> by_gets;
  for (const v1::ModelStats& model : stats.models()) by_gets.push_back(&model);
  std::stable_sort(by_gets.begin(), by_gets.end(),
                   [](const auto* a, const auto* b) { return a->gets() > b->gets(); });
  std::map<std::string, v1::ModelStats> sums;
  for (const v1::ModelStats* model : by_gets) {
    std::string label = ReadableLabel(model->model());
    if (label != kOtherModels && labelled_.size() < kMaxModels) labelled_.insert(label);
    if (labelled_.count(label) == 0) label = std::string(kOtherModels);
    v1::ModelStats& sum = sums[label];
    sum.set_model(label);
    Add(*model, &sum);
  }
  std::vector<v1::ModelStats> models;
  for (auto& [label, sum] : sums) models.push_back(std::move(sum));
  return models;
}

std::string Metrics::Render(const MetricsInput& input) {
  PrometheusText page;
  const v1::StatsResponse& stats = input.stats;
  page.Family("embcache_build_info", MetricType::kGauge, "1, with the daemon's version.");
  page.Sample({{"version", stats.version()}}, uint64_t{1});
  page.Family("embcache_uptime_seconds", MetricType::kGauge, "Time since start.");
  page.Sample({}, static_cast<double>(stats.uptime_ms()) / 1e3);
  Gauge(page, "embcache_draining", "1 while nothing new is admitted.", stats.draining());
  const std::vector<v1::ModelStats> models = LabelledModels(stats);
  WriteRequests(page, stats, models);
  WriteTiers(page, stats, models);
  WriteL3(page, stats.l3());
  WriteShared(page, input.shared);
  WriteDevice(page, stats.device());
  WriteSessions(page, stats);
  WriteListeners(page, input.listeners);
  WriteOperations(page, input);
  WriteProcess(page, input.process);
  return page.Take();
}

}  // namespace embcache
