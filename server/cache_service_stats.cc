// What CacheService tells about itself: Segments, List, Stats, Ping.

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache_service.h"
#include "server/proto_convert.h"

namespace embcache {
namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;

absl::StatusOr<ListQuery> ListQueryFromProto(const v1::ListRequest& request) {
  if (request.model().size() > kMaxModelBytes) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", request.model().size(),
                                                   " bytes; must be at most ", kMaxModelBytes));
  }
  if (request.page_size() > kMaxPage) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: ", request.page_size(), "; must be at most ", kMaxPage));
  }
  const std::string& prefix = request.content_hash_hex_prefix();
  if (prefix.size() > 2 * kMaxContentHashBytes) {
    return absl::InvalidArgumentError(absl::StrCat("content_hash_hex_prefix: ", prefix.size(),
                                                   " digits; must be at most ",
                                                   2 * kMaxContentHashBytes));
  }
  absl::StatusOr<std::string> raw_prefix = BytesFromHex(prefix);
  if (!raw_prefix.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("content_hash_hex_prefix: ", raw_prefix.status().message()));
  }
  if (!request.page_token().empty() && !CacheKey::Decode(request.page_token()).ok()) {
    return absl::InvalidArgumentError("page_token: not one of an earlier answer");
  }
  return ListQuery{.model = request.model(),
                   .content_hash_prefix = *std::move(raw_prefix),
                   .after = request.page_token(),
                   .limit = request.page_size() == 0 ? kDefaultPage : request.page_size()};
}

void MemoryTierToProto(TierId id, const TierStats& tier, v1::TierStats* to) {
  to->set_tier(TierToProto(id));
  to->set_capacity_bytes(tier.capacity_bytes);
  to->set_used_bytes(tier.used_bytes);
  to->set_pinned_bytes(tier.pinned_bytes);
  to->set_reserved_bytes(tier.reserved_bytes);
  to->set_entries(tier.entries);
  to->set_hits(tier.hits);
  to->set_fragmentation(tier.fragmentation);
  to->set_evictions_capacity(tier.evictions_capacity);
  to->set_evictions_expired(tier.evictions_expired);
  to->set_evictions_epoch(tier.evictions_epoch);
}

void L3ToProto(const CacheStats& stats, v1::StatsResponse* to) {
  v1::TierStats* tier = to->add_tiers();
  tier->set_tier(v1::L3);
  tier->set_capacity_bytes(stats.store.capacity_bytes);
  tier->set_used_bytes(stats.store.disk_bytes);
  tier->set_entries(stats.store.entries);
  tier->set_hits(stats.l3.hits);
  tier->set_evictions_capacity(stats.store.evictions);
  v1::L3Stats* l3 = to->mutable_l3();
  l3->set_enabled(true);
  l3->set_writable(stats.store.writable);
  l3->set_loads(stats.l3.loads);
  l3->set_load_failures(stats.l3.load_failures);
  l3->set_writes(stats.l3.writes);
  l3->set_write_failures(stats.l3.write_failures);
  l3->set_dropped_writes(stats.l3.dropped_writes);
  l3->set_queued_writes(stats.l3.queued_writes);
  l3->set_queued_bytes(stats.l3.queued_bytes);
  l3->set_corruptions(stats.store.corruptions);
  l3->set_io_errors(stats.store.io_errors);
  l3->set_disk_bytes_written(stats.store.bytes_written);
  l3->set_files(stats.store.files);
  l3->set_payload_bytes(stats.store.payload_bytes);
}

void CacheStatsToProto(const CacheStats& stats, v1::StatsResponse* to) {
  to->set_gets(stats.gets);
  to->set_hits(stats.hits);
  to->set_misses(stats.misses);
  to->set_mismatches(stats.mismatches);
  to->set_saves(stats.saves);
  to->set_replaced(stats.replaced);
  to->set_deletes(stats.deletes);
  to->set_promotions(stats.promotions);
  to->set_demotions(stats.demotions);
  to->set_rejected_puts(stats.rejected_puts);
  to->set_saved_us(stats.saved_us);
  to->set_fast_hits(stats.fast_hits);
  to->set_reservations(stats.reservations);
  for (const TierId id : {TierId::kL1, TierId::kL2}) {
    const TierStats& tier = stats.memory[static_cast<size_t>(id)];
    // One that has been resized away keeps what it has counted.
    const bool counted = tier.hits + tier.evictions_capacity + tier.evictions_expired > 0;
    if (tier.capacity_bytes > 0 || counted) MemoryTierToProto(id, tier, to->add_tiers());
  }
  if (stats.has_l3) L3ToProto(stats, to);
  for (const ModelStats& model : stats.models) {
    v1::ModelStats* added = to->add_models();
    added->set_model(model.model);
    added->set_model_epoch(model.model_epoch);
    added->set_gets(model.gets);
    added->set_hits(model.hits);
    added->set_misses(model.misses);
    added->set_saves(model.saves);
    added->set_entries(model.entries);
    added->set_bytes(model.bytes);
    added->set_saved_us(model.saved_us);
  }
}

void DeviceToProto(const GpuDevice& device, bool usable, v1::DeviceStats* to) {
  const GpuStats stats = device.GetStats();
  to->set_uuid(device.uuid());
  to->set_name(device.name());
  to->set_lost(!usable);
  to->set_copies(stats.copies);
  to->set_copied_bytes(stats.copied_bytes);
  to->set_failed_copies(stats.failed_copies);
  to->set_client_copies(stats.client_copies);
  to->set_pinned_host_bytes(stats.pinned_bytes);
  to->set_pageable_host_bytes(stats.pageable_bytes);
}

void LatencyToProto(absl::string_view name, const LatencyHistogram& histogram,
                    v1::StatsResponse* to) {
  const LatencyHistogram::Snapshot snapshot = histogram.Take();
  if (snapshot.count == 0) return;
  v1::LatencyStats* added = to->add_latencies();
  added->set_operation(name.data(), name.size());
  added->set_count(snapshot.count);
  added->set_sum_ns(snapshot.sum_ns);
  added->set_p50_ns(snapshot.QuantileNs(0.5));
  added->set_p99_ns(snapshot.QuantileNs(0.99));
  added->set_max_ns(snapshot.max_ns);
}

}  // namespace

void CacheService::Segments(const CallContext& context, const v1::SegmentsRequest& request,
                            v1::SegmentsResponse* response, Done done) {
  response->set_epoch(deps_.epoch.data(), deps_.epoch.size());
  for (const TieredCache::SegmentInfo& segment : deps_.cache->Segments()) {
    v1::Segment* added = response->add_segments();
    added->set_id(segment.id);
    added->set_generation(segment.generation);
    added->set_tier(TierToProto(segment.tier));
    added->set_bytes(segment.memory->bytes());
    // Without the handle: who maps device memory is known by its session.
    added->set_device_uuid(segment.device_uuid);
  }
  done(absl::OkStatus());
}

void CacheService::List(const CallContext& context, const v1::ListRequest& request,
                        v1::ListResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kList);
  absl::StatusOr<ListQuery> query = ListQueryFromProto(request);
  if (!query.ok()) return done(query.status());
  ListPage page = deps_.cache->List(*query);
  for (const ListedEntry& entry : page.entries) {
    v1::ListedEntry* added = response->add_entries();
    KeyToProto(entry.key, added->mutable_key());
    added->set_tier(TierToProto(entry.tier));
    added->set_bytes(entry.payload_bytes);
    added->set_generation(entry.generation);
    added->set_on_disk(entry.on_disk);
    added->set_pins(entry.pins);
    if (entry.tier == TierId::kL3) continue;  // the rest is known of memory tiers only
    added->set_created_unix_ms(absl::ToUnixMillis(entry.created));
    added->set_encode_cost_us(entry.encode_cost_us);
  }
  response->set_next_page_token(std::move(page.next));
  done(absl::OkStatus());
}

void CacheService::Stats(const CallContext& context, const v1::StatsRequest& request,
                         v1::StatsResponse* response, Done done) {
  response->set_version(deps_.version);
  response->set_epoch(deps_.epoch.data(), deps_.epoch.size());
  response->set_uptime_ms(
      static_cast<uint64_t>(absl::ToInt64Milliseconds(deps_.clock->MonotonicNow() - started_)));
  response->set_draining(draining());
  CacheStatsToProto(deps_.cache->GetStats(request.per_model()), response);
  if (deps_.device != nullptr) {
    DeviceToProto(*deps_.device, deps_.cache->TierUsable(TierId::kL1), response->mutable_device());
  }
  if (deps_.idle != nullptr) {
    for (v1::TierStats& tier : *response->mutable_tiers()) {
      if (tier.tier() == v1::L1) tier.set_given_back_bytes(deps_.idle->given_back_bytes());
    }
  }
  const RegistryStats sessions = deps_.registry->GetStats();
  response->set_sessions(sessions.sessions);
  response->set_leases(sessions.leases);
  response->set_quarantined_bytes(sessions.quarantined_bytes);
  const ClaimStats claims = claims_.GetStats();
  response->set_claims(claims.claims);
  response->set_claims_granted(claims.granted);
  response->set_claims_failed(claims.failed);
  response->set_claim_waits(claims.waits);
  if (request.latencies()) {
    for (int i = 0; i < kOperations; ++i) {
      const auto operation = static_cast<Operation>(i);
      LatencyToProto(OperationName(operation), latency(operation), response);
    }
    for (const auto& [name, step] : deps_.cache->work().Steps()) {
      LatencyToProto(name, step->duration, response);
    }
  }
  done(absl::OkStatus());
}

absl::StatusOr<std::unique_ptr<EventStream>> CacheService::Watch(const v1::WatchRequest& request,
                                                                 std::weak_ptr<Watcher> watcher) {
  if (request.model().size() > kMaxModelBytes) {
    return absl::InvalidArgumentError(absl::StrCat("model: ", request.model().size(),
                                                   " bytes; must be at most ", kMaxModelBytes));
  }
  absl::Status added = hub_.Add(std::move(watcher));
  if (!added.ok()) return added;
  return std::make_unique<EventStream>(deps_.cache, deps_.clock, deps_.epoch, request);
}

void CacheService::Ping(const CallContext& context, const v1::PingRequest& request,
                        v1::PingResponse* response, Done done) {
  done(CheckOptionalSession(context));
}

}  // namespace embcache
