// What can be seen of the cache from outside: pages of keys, counters, segments, its invariants.

#include <algorithm>
#include <utility>

#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

// Keys a page looks at before it ends, so that a filter that matches little holds no lock for long.
constexpr size_t kMaxScannedPerPage = 8192;

bool Matches(const CacheKey& key, const ListQuery& query) {
  return (query.model.empty() || key.model() == query.model) &&
         key.content_hash().substr(0, query.content_hash_prefix.size()) ==
             query.content_hash_prefix;
}

}  // namespace

ListPage TieredCache::List(const ListQuery& query) const {
  std::string after = query.after;
  if (after.empty() && !query.model.empty()) {
    after.push_back(static_cast<char>(query.model.size()));
    after.append(query.model);  // sorts just before the model's first key
  }
  absl::MutexLock lock(&mu_);
  // Both sources in key order, merged: a key that is in memory and on disk is one row.
  std::vector<std::pair<CacheKey, StoredPlace>> stored;
  bool stored_ended = true;
  if (deps_.store != nullptr) {
    deps_.store->List(after, [&](const CacheKey& key, const StoredPlace& place) {
      if (stored.size() >= std::min(query.limit + 1, kMaxScannedPerPage)) {
        stored_ended = false;
        return false;
      }
      stored.emplace_back(key, place);
      return true;
    });
  }
  ListPage page;
  auto memory = ordered_.upper_bound(absl::string_view(after));
  auto disk = stored.begin();
  size_t scanned = 0;
  std::string last = after;
  while (memory != ordered_.end() || disk != stored.end()) {
    if (page.entries.size() >= query.limit || ++scanned > kMaxScannedPerPage) {
      page.next = last;
      return page;
    }
    const bool from_memory =
        disk == stored.end() ||
        (memory != ordered_.end() && (*memory)->info->key.encoded() <= disk->first.encoded());
    const CacheKey key = from_memory ? (*memory)->info->key : disk->first;
    const bool on_disk = disk != stored.end() && disk->first == key;
    if (disk == stored.end() && !stored_ended) break;  // what follows on disk is not known
    ListedEntry row{.key = key, .tier = TierId::kL3, .on_disk = on_disk};
    bool shown = Matches(key, query);
    if (from_memory) {
      const CacheEntry& entry = **memory;
      row.tier = entry.state == EntryState::kLoading ? TierId::kL3 : entry.tier;
      row.payload_bytes = entry.payload_bytes();
      row.generation = entry.generation;
      row.pins = entry.pins;
      if (entry.publication != 0) row.pins += fast_->CountPins(entry.publication);
      row.created = entry.info->created;
      row.encode_cost_us = entry.info->encode_cost_us;
      shown = shown && IsLiveLocked(entry);
      ++memory;
    } else {
      row.payload_bytes = disk->second.payload_bytes;
      row.generation = disk->second.generation;
      shown = shown && disk->second.model_epoch == models_.EpochOf(key.model());
    }
    if (on_disk) ++disk;
    last = std::string(key.encoded());
    const bool past_model = !query.model.empty() && key.model() != query.model;
    if (past_model) return page;
    if (shown) page.entries.push_back(std::move(row));
  }
  if (!stored_ended) page.next = last;
  return page;
}

CacheStats TieredCache::GetStats(bool per_model) {
  AfterUnlock after;
  CacheStats stats;
  {
    absl::MutexLock lock(&mu_);
    DrainTouchesLocked(FastPath::Drain::kAll);  // so that the counters agree
    ReclaimLocked(after);
    stats = GetStatsLocked(per_model);
  }
  after.Run();
  return stats;
}

CacheStats TieredCache::GetStatsLocked(bool per_model) const {
  CacheStats stats = totals_;
  stats.doomed_entries = doomed_.size();
  stats.reservations = reservations_.size();
  for (int i = 0; i < kMemoryTiers; ++i) {
    const Tier& tier = tiers_[i];
    stats.memory[i] = tier.stats;
    stats.memory[i].capacity_bytes = tier.memory.capacity_bytes();
    stats.memory[i].used_bytes = tier.memory.used_bytes();
    stats.memory[i].fragmentation = tier.memory.Fragmentation();
  }
  if (fast_ != nullptr) {
    fast_->VisitPinned([&](const CacheEntry* entry) {
      if (entry->pins > 0) return;  // counted as pinned already
      stats.memory[static_cast<int>(entry->tier)].pinned_bytes += entry->range.bytes;
    });
  }
  stats.has_l3 = deps_.store != nullptr;
  stats.l3.queued_writes = queue_.entries();
  stats.l3.queued_bytes = queue_.bytes();
  if (stats.has_l3) stats.store = deps_.store->GetStats();
  if (per_model) {
    for (const auto& [name, model] : models_.models()) stats.models.push_back(model->stats);
  }
  return stats;
}

std::vector<TieredCache::SegmentInfo> TieredCache::Segments() const {
  absl::MutexLock lock(&mu_);
  std::vector<SegmentInfo> segments;
  for (const Tier& tier : tiers_) {
    if (tier.memory.lost()) continue;
    for (const MemoryTier::Segment& segment : tier.memory.segments()) {
      if (segment.memory == nullptr) continue;
      segments.push_back({.id = segment.id,
                          .generation = 1,
                          .tier = tier.memory.id(),
                          .memory = segment.memory,
                          .device_uuid = tier.memory.device_uuid()});
    }
  }
  return segments;
}

uint64_t TieredCache::uses() const {
  absl::MutexLock lock(&mu_);
  return totals_.gets + next_reservation_ + totals_.rejected_puts;
}

uint64_t TieredCache::max_entry_bytes() const {
  absl::MutexLock lock(&mu_);
  return std::max(tiers_[0].memory.max_entry_bytes(), tiers_[1].memory.max_entry_bytes());
}

void TieredCache::CheckInvariants() const {
  absl::MutexLock lock(&mu_);
  EMB_CHECK(index_.size() == ordered_.size());
  std::array<TierStats, kMemoryTiers> found;
  std::array<uint64_t, kMemoryTiers> ranges{};
  std::array<uint64_t, kMemoryTiers> used{};
  const auto see = [&](const CacheEntry& entry, bool reachable) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const int tier = static_cast<int>(entry.tier);
    if (entry.range.bytes > 0) {
      ++ranges[tier];
      used[tier] += entry.range.bytes;
      EMB_CHECK(entry.range.bytes >= entry.payload_bytes() + ChargedHeapBytes(*entry.info));
      auto place = tiers_[tier].by_place.find({entry.range.segment, entry.range.offset});
      EMB_CHECK(place != tiers_[tier].by_place.end() && place->second == &entry);
    }
    if (entry.target.bytes > 0) {
      const int target_tier = entry.state == EntryState::kRelocating ? tier : 1 - tier;
      ++ranges[target_tier];
      used[target_tier] += entry.target.bytes;
    }
    if (entry.pins > 0 || entry.state == EntryState::kReserved) {
      found[tier].pinned_bytes += entry.range.bytes;
    }
    if (entry.hook.linked()) ++found[tier].entries;
    EMB_CHECK(reachable == !entry.doomed);
    EMB_CHECK(!entry.doomed || !entry.hook.linked());
    EMB_CHECK(entry.publication == 0 || entry.hook.linked() || (entry.doomed && entry.pins > 0));
  };
  for (const auto& entry : index_) see(*entry, true);
  for (const auto& [raw, entry] : doomed_) {
    see(*entry, false);
    EMB_CHECK(entry->pins > 0 || entry->io_pins > 0 || entry->state != EntryState::kResident);
  }
  for (const auto& [id, reservation] : reservations_) see(*reservation.entry, true);
  for (int i = 0; i < kMemoryTiers; ++i) {
    const Tier& tier = tiers_[i];
    EMB_CHECK(tier.memory.used_bytes() == used[i]);
    EMB_CHECK(tier.by_place.size() == ranges[i]);
    EMB_CHECK(tier.memory.used_bytes() <= tier.memory.capacity_bytes());
    EMB_CHECK(tier.stats.pinned_bytes == found[i].pinned_bytes);
    EMB_CHECK(tier.stats.entries == found[i].entries);
    EMB_CHECK(tier.max_entries == 0 || ranges[i] <= tier.max_entries);
    for (const MemoryTier::Segment& segment : tier.memory.segments()) {
      segment.arena.CheckInvariants();
    }
  }
  uint64_t gets = 0;
  uint64_t hits = 0;
  for (const auto& [name, model] : models_.models()) {
    EMB_CHECK(model->stats.gets == model->stats.hits + model->stats.misses);
    gets += model->stats.gets;
    hits += model->stats.hits;
  }
  EMB_CHECK(totals_.gets == totals_.hits + totals_.misses);
  EMB_CHECK(totals_.gets == gets && totals_.hits == hits);
  EMB_CHECK(totals_.hits == tiers_[0].stats.hits + tiers_[1].stats.hits + totals_.l3.hits);
}

}  // namespace embcache
