// Events: what becomes reachable, unreachable, or faster or slower to reach. See tiered_cache.h.
//
// What watchers know of a key is what List shows: it is in the fastest tier that has it, or
// nowhere. Each change of that is told once, by whoever makes it, under the lock that makes it.
// Only what the store drops by itself is told later: it is asked after whatever may have made it
// drop something, and with every tick.

#include <utility>

#include "storage/tiered_cache.h"

namespace embcache {

uint64_t TieredCache::last_event() const {
  absl::MutexLock lock(&mu_);
  return events_.last();
}

bool TieredCache::RemembersEventsAfter(uint64_t after) const {
  absl::MutexLock lock(&mu_);
  return after + 1 >= events_.first() && after <= events_.last();
}

TieredCache::EventPage TieredCache::Events(uint64_t after, size_t limit) {
  EventPage page;
  absl::MutexLock lock(&mu_);
  page.lost = events_.Read(after, limit, &page.events);
  if (page.events.empty() && event_listener_ != nullptr) event_awaited_ = true;
  return page;
}

void TieredCache::OnEvent(std::shared_ptr<absl::AnyInvocable<void()>> listener) {
  absl::MutexLock lock(&mu_);
  event_listener_ = std::move(listener);
  event_awaited_ = false;
}

CacheEvent& TieredCache::TellLocked(CacheEvent::Kind kind, absl::string_view key,
                                    AfterUnlock& after) {
  if (std::exchange(event_awaited_, false)) {
    after.Add([listener = event_listener_] { (*listener)(); });
  }
  return events_.Append(kind, key, deps_.clock->Now());
}

void TieredCache::TellStoredLocked(const EntryInfo& info, TierId tier, uint64_t generation,
                                   AfterUnlock& after) {
  CacheEvent& event = TellLocked(CacheEvent::Kind::kStored, info.key.encoded(), after);
  event.tier = tier;
  event.generation = generation;
  event.bytes = info.payload_bytes();
  event.encode_cost_us = info.encode_cost_us;
}

void TieredCache::TellMovedLocked(const CacheKey& key, uint64_t generation, TierId from, TierId to,
                                  AfterUnlock& after) {
  CacheEvent& event = TellLocked(CacheEvent::Kind::kMoved, key.encoded(), after);
  event.from = from;
  event.tier = to;
  event.generation = generation;
}

void TieredCache::TellRemovedLocked(const CacheKey& key, uint64_t generation, RemoveReason reason,
                                    AfterUnlock& after) {
  CacheEvent& event = TellLocked(CacheEvent::Kind::kRemoved, key.encoded(), after);
  event.reason = reason;
  event.generation = generation;
}

bool TieredCache::IsOfCurrentEpochLocked(const CacheEntry& entry) const {
  return entry.model_epoch == entry.model->stats.model_epoch;
}

void TieredCache::DoomAndTellLocked(CacheEntry* entry, RemoveReason reason, AfterUnlock& after) {
  const bool told = IsOfCurrentEpochLocked(*entry);
  const std::shared_ptr<const EntryInfo> info = entry->info;
  const TierId from = entry->tier;
  const uint64_t generation = entry->generation;
  if (told) {
    const std::optional<StoredPlace> stored = FindStoredLocked(info->key);
    if (stored.has_value()) {
      TellMovedLocked(info->key, stored->generation, from, TierId::kL3, after);
    } else {
      TellRemovedLocked(info->key, generation, reason, after);
    }
  }
  DoomLocked(entry, reason, after);
}

void TieredCache::TellLost() {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    TellLostLocked(after);
  }
  after.Run();
}

void TieredCache::TellLostLocked(AfterUnlock& after) {
  if (deps_.store == nullptr) return;
  bool overflowed = false;
  for (const CacheKey& key : deps_.store->TakeLost(&overflowed)) {
    const RemoveReason reason =
        damaged_.contains(key) ? RemoveReason::kDamaged : RemoveReason::kCapacity;
    if (FindStoredLocked(key).has_value()) continue;
    CacheEntry* entry = FindLocked(key.encoded());
    if (entry != nullptr && IsOfCurrentEpochLocked(*entry)) {
      if (entry->state != EntryState::kLoading) continue;
      // It may have been read all the same; then it is told as new.
      entry->told_gone = true;
    }
    TellRemovedLocked(key, 0, reason, after);
  }
  damaged_.clear();
  if (!overflowed) return;
  events_.Forget();
  if (std::exchange(event_awaited_, false)) {
    after.Add([listener = event_listener_] { (*listener)(); });
  }
}

}  // namespace embcache
