// Finding entries, and waiting for those on their way. See tiered_cache.h.

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/tiered_cache.h"

namespace embcache {

void TieredCache::CountHitLocked(const CacheEntry& entry, TierId source) {
  ++totals_.gets;
  ++totals_.hits;
  totals_.saved_us += entry.info->encode_cost_us;
  ++(source == TierId::kL3 ? totals_.l3.hits : TierOf(source).stats.hits);
  ModelStats& model = entry.model->stats;
  ++model.gets;
  ++model.hits;
  model.saved_us += entry.info->encode_cost_us;
  models_.MarkUsed(entry.model.get());
  work_.hit_bytes.Record(entry.payload_bytes());
}

void TieredCache::CountMissLocked(CacheModel* model) {
  ++totals_.gets;
  ++totals_.misses;
  ++model->stats.gets;
  ++model->stats.misses;
}

void TieredCache::CountMiss(const CacheKey& key, MissReason reason) {
  absl::MutexLock lock(&mu_);
  if (reason == MissReason::kMismatch) ++totals_.mismatches;
  CountMissLocked(LookupModelLocked(key));
}

LookupResult TieredCache::HitLocked(CacheEntry* entry, TierId source, const LookupWaiter& waiter,
                                    AfterUnlock& after) {
  if (FindMismatch(entry->info->layout.tensors, waiter.expect).has_value()) {
    if (waiter.count == LookupCount::kAll) {
      ++totals_.mismatches;
      CountMissLocked(entry->model.get());
    }
    if (!entry->doomed) RemoveKeyLocked(entry->info->key, RemoveReason::kMismatch, {}, after);
    return LookupResult{.handle = {}, .source = source, .reason = MissReason::kMismatch};
  }
  if (entry->hook.linked()) {
    TierOf(entry->tier).policy->Touch(&entry->hook);
    PublishLocked(entry);  // if there was no room before
  }
  if (waiter.count != LookupCount::kNone) {
    CountHitLocked(*entry, source);
    RequestedLocked(entry, after);
  }
  return LookupResult{.handle = PinLocked(entry), .source = source};
}

std::optional<absl::StatusOr<LookupResult>> TieredCache::LookupLocked(const CacheKey& key,
                                                                      LookupWaiter& waiter,
                                                                      AfterUnlock& after) {
  CacheModel* model = LookupModelLocked(key);
  const auto miss = [&](MissReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (waiter.count == LookupCount::kAll) CountMissLocked(model);
    return LookupResult{.handle = {}, .source = TierId::kL1, .reason = reason};
  };
  CacheEntry* entry = FindLocked(key.encoded());
  if (entry != nullptr && !IsLiveLocked(*entry)) {
    const bool old_epoch = entry->model_epoch != entry->model->stats.model_epoch;
    if (!old_epoch) {
      RemoveKeyLocked(key, RemoveReason::kExpired, {}, after);
      return miss(MissReason::kExpired);
    }
    DoomLocked(entry, RemoveReason::kEpoch, after);
    entry = nullptr;
  }
  if (entry == nullptr) {
    const std::optional<StoredPlace> place = FindStoredLocked(key);
    const bool memory =
        TierOf(TierId::kL1).memory.enabled() || TierOf(TierId::kL2).memory.enabled();
    // What is loaded has to be its own model's, for that may have its epoch advanced.
    CacheModel* const own = place.has_value() && memory ? models_.Get(key.model()) : nullptr;
    if (own == nullptr) return miss(MissReason::kAbsent);
    StartLoadLocked(key, own, *place, std::move(waiter), after);
    return std::nullopt;
  }
  if (l1_on_device_ && waiter.place == Place::kHost) {
    return LookupForHostLocked(entry, waiter, after);
  }
  if (l1_on_device_ && waiter.place == Place::kDevice) {
    return LookupForDeviceLocked(entry, waiter, after);
  }
  if (entry->state == EntryState::kDemoting || entry->state == EntryState::kWritingBack) {
    entry->called_off = true;
    return HitLocked(entry, entry->tier, waiter, after);
  }
  if (entry->state == EntryState::kResident) {
    const MemoryTier& l1 = TierOf(TierId::kL1).memory;
    const bool promote = entry->tier == TierId::kL2 && entry->pins == 0 &&
                         entry->range.bytes <= l1.max_entry_bytes() &&
                         !FindMismatch(entry->info->layout.tensors, waiter.expect).has_value();
    if (!promote) return HitLocked(entry, entry->tier, waiter, after);
    entry->waiters.push_back(std::move(waiter));
    StartPromotionLocked(entry, after);
    return std::nullopt;
  }
  return AddWaiterLocked(entry, waiter);
}

std::optional<absl::StatusOr<LookupResult>> TieredCache::AddWaiterLocked(CacheEntry* entry,
                                                                         LookupWaiter& waiter) {
  if (entry->waiters.size() >= options_.max_waiters_per_entry) {
    if (waiter.count == LookupCount::kAll) CountMissLocked(entry->model.get());
    return absl::ResourceExhaustedError(absl::StrCat(
        "waiters: ", entry->waiters.size(), " lookups already wait for this entry; the limit is ",
        options_.max_waiters_per_entry));
  }
  entry->waiters.push_back(std::move(waiter));
  return std::nullopt;
}

void TieredCache::AnswerWaitersLocked(CacheEntry* entry, TierId source, AfterUnlock& after) {
  std::vector<LookupWaiter> waiters = std::exchange(entry->waiters, {});
  // A mismatch removes the entry; this pin keeps it until the last waiter has its answer.
  if (entry->pins++ == 0) TierOf(entry->tier).stats.pinned_bytes += entry->range.bytes;
  for (LookupWaiter& waiter : waiters) {
    if (!IsWhereWantedLocked(*entry, waiter.place)) {
      AnswerElsewhereLocked(entry, source, std::move(waiter), after);
      continue;
    }
    LookupResult result = HitLocked(entry, source, waiter, after);
    after.Add([done = std::move(waiter.done), result = std::move(result)]() mutable {
      done(std::move(result));
    });
  }
  UnpinLocked(entry, after);
}

void TieredCache::FailWaitersLocked(CacheEntry* entry, absl::StatusOr<MissReason> why,
                                    AfterUnlock& after) {
  for (LookupWaiter& waiter : std::exchange(entry->waiters, {})) {
    if (waiter.count == LookupCount::kAll) CountMissLocked(entry->model.get());
    absl::StatusOr<LookupResult> result = LookupResult{};
    if (why.ok()) {
      result->reason = *why;
    } else {
      result = why.status();
    }
    after.Add([done = std::move(waiter.done), result = std::move(result)]() mutable {
      done(std::move(result));
    });
  }
}

void TieredCache::RetryWaitersLocked(CacheEntry* entry, AfterUnlock& after) {
  for (LookupWaiter& waiter : std::exchange(entry->waiters, {})) {
    after.Add([this, key = entry->info->key, waiter = std::move(waiter)]() mutable {
      LookupWith(key, std::move(waiter));
    });
  }
}

void TieredCache::LookupWith(const CacheKey& key, LookupWaiter waiter) {
  AfterUnlock after;
  std::optional<absl::StatusOr<LookupResult>> answer;
  {
    absl::MutexLock lock(&mu_);
    answer = LookupLocked(key, waiter, after);
  }
  after.Run();
  if (answer.has_value()) waiter.done(*std::move(answer));
}

void TieredCache::Lookup(const CacheKey& key, std::vector<TensorExpectation> expect,
                         LookupCallback done, LookupCount count) {
  Lookup(key, std::move(expect), Place::kAny, std::move(done), count);
}

void TieredCache::Lookup(const CacheKey& key, std::vector<TensorExpectation> expect, Place place,
                         LookupCallback done, LookupCount count) {
  LookupWith(
      key,
      LookupWaiter{
          .expect = std::move(expect), .done = std::move(done), .count = count, .place = place});
}

ReadHandle TieredCache::PinInPlace(const CacheKey& key) {
  absl::MutexLock lock(&mu_);
  CacheEntry* entry = FindLocked(key.encoded());
  if (entry == nullptr || !IsLiveLocked(*entry)) return {};
  if (entry->state == EntryState::kLoading || entry->state == EntryState::kPromoting) return {};
  entry->called_off = true;
  return PinLocked(entry);
}

std::optional<TierId> TieredCache::Contains(const CacheKey& key) const {
  absl::MutexLock lock(&mu_);
  const CacheEntry* entry = FindLocked(key.encoded());
  if (entry != nullptr && IsLiveLocked(*entry)) {
    return entry->state == EntryState::kLoading ? TierId::kL3 : entry->tier;
  }
  if (entry == nullptr && FindStoredLocked(key).has_value()) return TierId::kL3;
  return std::nullopt;
}

}  // namespace embcache
