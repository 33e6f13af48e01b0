#include "storage/tiered_cache.h"

#include <utility>

#include "storage/check.h"
#include "storage/lru_policy.h"

namespace embcache {
namespace {

constexpr int kExpiriesPerTick = 4096;

}  // namespace

// --- Life ---------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<TieredCache>> TieredCache::Create(const TieredCacheOptions& options,
                                                                 const TieredCacheDeps& deps) {
  EMB_CHECK(deps.clock != nullptr && deps.copier != nullptr);
  EMB_CHECK(deps.store == nullptr || deps.executor != nullptr);
  absl::StatusOr<MemoryTier> l1 = MemoryTier::Create(TierId::kL1, options.l1, deps.l1_memory);
  if (!l1.ok()) return l1.status();
  absl::StatusOr<MemoryTier> l2 = MemoryTier::Create(TierId::kL2, options.l2, deps.l2_memory,
                                                     static_cast<uint32_t>(l1->segments().size()));
  if (!l2.ok()) return l2.status();
  if (!l1->enabled() && !l2->enabled()) {
    return absl::InvalidArgumentError("l1 and l2 capacity_bytes: at least one must not be 0");
  }
  std::unique_ptr<FastPath> fast;
  if (options.fast_index_entries > 0) {
    auto made = FastPath::Create(deps.fast_memory, options.fast_index_entries);
    if (!made.ok()) return made.status();
    fast = *std::move(made);
  }
  return std::unique_ptr<TieredCache>(
      new TieredCache(options, deps, *std::move(l1), *std::move(l2), std::move(fast)));
}

TieredCache::TieredCache(const TieredCacheOptions& options, const TieredCacheDeps& deps,
                         MemoryTier l1, MemoryTier l2, std::unique_ptr<FastPath> fast)
    : options_(options),
      deps_(deps),
      l1_on_device_(!l1.device_uuid().empty()),
      models_(/*keeps_epochs=*/deps.store != nullptr),
      tiers_{Tier(std::move(l1)), Tier(std::move(l2))},
      queue_(options.l3_queue_entries, options.l3_queue_bytes),
      fast_(std::move(fast)) {
  absl::MutexLock lock(&mu_);
  tiers_[0].max_entries = options.l1.max_entries;
  tiers_[1].max_entries = options.l2.max_entries;
  tiers_[0].segment_bytes = options.l1.segment_bytes;
  tiers_[1].segment_bytes = options.l2.segment_bytes;
  for (Tier& tier : tiers_) {
    tier.policy = NewLruPolicy();
    // The size of the segments that come later is that of those there are from the start.
    const uint64_t capacity = tier.memory.capacity_bytes();
    if (tier.segment_bytes == 0 && capacity > 0) tier.segment_bytes = DefaultSegmentBytes(capacity);
    next_segment_id_ += static_cast<uint32_t>(tier.memory.segments().size());
  }
  if (deps_.store == nullptr) return;
  next_generation_ = deps_.store->max_generation() + 1;
  for (const auto& [model, epoch] : deps_.store->ModelEpochs()) models_.LoadEpoch(model, epoch);
}

TieredCache::~TieredCache() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  const auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; };
  mu_.Await(absl::Condition(&quiet));
  if (deps_.gate != nullptr) deps_.gate->Set(false, absl::ZeroDuration());
  for (Tier& tier : tiers_) {
    EMB_CHECK(tier.waiting.empty());
    tier.policy.reset();  // before the entries that it links
  }
}

void TieredCache::OperationEndedLocked() {
  EMB_CHECK(operations_ > 0);
  --operations_;
}

// --- Index --------------------------------------------------------------------------------------

CacheEntry* TieredCache::FindLocked(absl::string_view key) const {
  auto it = index_.find(key);
  return it == index_.end() ? nullptr : it->get();
}

bool TieredCache::IsLiveLocked(const CacheEntry& entry) const {
  if (entry.model_epoch != entry.model->stats.model_epoch) return false;
  const absl::Time expires = entry.info->expires;
  return expires == absl::InfiniteFuture() || expires > deps_.clock->Now();
}

std::optional<StoredPlace> TieredCache::FindStoredLocked(const CacheKey& key) const {
  if (deps_.store == nullptr) return std::nullopt;
  std::optional<StoredPlace> place = deps_.store->Find(key);
  if (!place.has_value()) return std::nullopt;
  if (place->model_epoch != models_.EpochOf(key.model())) return std::nullopt;
  return place;
}

void TieredCache::InsertLocked(std::unique_ptr<CacheEntry> entry) {
  CacheEntry* raw = entry.get();
  EMB_CHECK(index_.insert(std::move(entry)).second);
  EMB_CHECK(ordered_.insert(raw).second);
}

void TieredCache::LinkLocked(CacheEntry* entry) {
  Tier& tier = TierOf(entry->tier);
  tier.policy->Insert(&entry->hook);
  ++tier.stats.entries;
  ++entry->model->stats.entries;
  entry->model->stats.bytes += entry->payload_bytes();
  PublishLocked(entry);
}

bool TieredCache::UnlinkLocked(CacheEntry* entry) {
  const bool held = RetireLocked(entry);
  Tier& tier = TierOf(entry->tier);
  tier.policy->Remove(&entry->hook);
  --tier.stats.entries;
  --entry->model->stats.entries;
  entry->model->stats.bytes -= entry->payload_bytes();
  return held;
}

void TieredCache::DoomLocked(CacheEntry* entry, RemoveReason reason, AfterUnlock& after) {
  EMB_CHECK(!entry->doomed);
  const absl::string_view key = entry->info->key.encoded();
  if (entry->queued) queue_.Cancel(key);
  if (entry->info->expires != absl::InfiniteFuture()) {
    expiries_.erase({entry->info->expires, entry});
  }
  const bool held = entry->hook.linked() && UnlinkLocked(entry);
  ordered_.erase(entry);
  auto node = index_.extract(index_.find(key));
  doomed_.emplace(entry, std::move(node.value()));
  entry->doomed = true;
  TierStats& stats = TierOf(entry->tier).stats;
  if (reason == RemoveReason::kCapacity) ++stats.evictions_capacity;
  if (reason == RemoveReason::kExpired) ++stats.evictions_expired;
  if (reason == RemoveReason::kEpoch) ++stats.evictions_epoch;
  if (reason == RemoveReason::kReplaced) ++totals_.replaced;
  if (held) EnterLimboLocked(entry);
  FreeIfUnusedLocked(entry, after);
}

void TieredCache::FreeIfUnusedLocked(CacheEntry* entry, AfterUnlock& after) {
  if (!entry->doomed || entry->pins > 0 || entry->io_pins > 0 ||
      entry->state != EntryState::kResident) {
    return;
  }
  const TierId tier = entry->tier;
  EMB_CHECK(entry->target.bytes == 0 && entry->waiters.empty());
  if (entry->range.bytes > 0) FreeRangeLocked(tier, entry->range);
  doomed_.erase(entry);
  PumpLocked(tier, after);
}

bool TieredCache::RemoveKeyLocked(CacheKey key, RemoveReason reason, StatusCallback removed,
                                  AfterUnlock& after) {
  CacheEntry* entry = FindLocked(key.encoded());
  const std::optional<StoredPlace> stored = FindStoredLocked(key);
  const bool existed = stored.has_value() || (entry != nullptr && IsLiveLocked(*entry));
  const bool being_written = persisting_.has_value() && persisting_->record.info->key == key;
  queue_.Cancel(key.encoded());
  const bool told = entry != nullptr && IsOfCurrentEpochLocked(*entry) && !entry->told_gone;
  if (told || stored.has_value()) {
    TellRemovedLocked(key, told ? entry->generation : stored->generation, reason, after);
  }
  if (entry != nullptr) DoomLocked(entry, reason, after);
  // A put that has not reached the disk may have forgotten an older record, which is still there.
  const bool forgotten = deps_.store != nullptr && deps_.store->Forget(key, next_generation_ - 1);
  if (stored.has_value() || being_written || forgotten) {
    RemoveStoredLocked(key, next_generation_ - 1, std::move(removed), after);
  } else if (removed) {
    after.Add([removed = std::move(removed)]() mutable { removed(absl::OkStatus()); });
  }
  return existed;
}

// --- Pins ---------------------------------------------------------------------------------------

Location TieredCache::LocationLocked(const CacheEntry& entry) const {
  const Tier& tier = TierOf(entry.tier);
  return Location{.tier = entry.tier,
                  .segment = tier.memory.segments()[entry.range.segment].id,
                  .segment_generation = 1,
                  .offset = entry.range.offset,
                  .bytes = entry.payload_bytes()};
}

ReadHandle TieredCache::PinLocked(CacheEntry* entry) {
  if (entry->pins++ == 0) TierOf(entry->tier).stats.pinned_bytes += entry->range.bytes;
  ReadHandle handle;
  handle.cache_ = this;
  handle.entry_ = entry;
  handle.info_ = entry->info;
  handle.memory_ = MemoryOfLocked(entry->tier, entry->range);
  handle.location_ = LocationLocked(*entry);
  handle.generation_ = entry->generation;
  return handle;
}

void TieredCache::UnpinLocked(CacheEntry* entry, AfterUnlock& after) {
  EMB_CHECK(entry->pins > 0);
  if (--entry->pins > 0) return;
  TierOf(entry->tier).stats.pinned_bytes -= entry->range.bytes;
  FreeIfUnusedLocked(entry, after);
}

void TieredCache::Unpin(CacheEntry* entry) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    const bool last = entry->pins == 1 && !entry->doomed;
    UnpinLocked(entry, after);
    if (last) LeaveClosingLocked(entry, after);
  }
  after.Run();
}

ReadHandle ReadHandle::Duplicate() const {
  if (entry_ == nullptr) return {};
  absl::MutexLock lock(&cache_->mu_);
  return cache_->PinLocked(entry_);
}

void ReadHandle::Reset() {
  if (entry_ != nullptr) cache_->Unpin(std::exchange(entry_, nullptr));
  cache_ = nullptr;
  info_.reset();
}

// --- Removal ------------------------------------------------------------------------------------

void TieredCache::Delete(const CacheKey& key, absl::AnyInvocable<void(absl::StatusOr<bool>)> done) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    auto existed = std::make_shared<bool>(false);
    *existed = RemoveKeyLocked(
        key, RemoveReason::kDeleted,
        [existed, done = std::move(done)](absl::Status status) mutable {
          status.ok() ? done(*existed) : done(std::move(status));
        },
        after);
    if (*existed) ++totals_.deletes;
  }
  after.Run();
}

void TieredCache::Pop(const CacheKey& key, absl::AnyInvocable<bool(LookupResult)> take,
                      StatusCallback done, Place place) {
  LookupWaiter waiter;
  waiter.place = place;
  waiter.count = LookupCount::kNone;
  waiter.done = [this, key, take = std::move(take),
                 done = std::move(done)](absl::StatusOr<LookupResult> found) mutable {
    if (!found.ok()) return done(found.status());
    if (!take(*std::move(found))) return done(absl::OkStatus());
    Delete(key, [done = std::move(done)](absl::StatusOr<bool> deleted) mutable {
      done(deleted.status());
    });
  };
  LookupWith(key, std::move(waiter));
}

void TieredCache::TickLocked(AfterUnlock& after) {
  const absl::Duration monotonic = deps_.clock->MonotonicNow();
  for (auto& [id, reservation] : reservations_) {
    if (monotonic >= reservation.deadline) reservation.expired = true;
  }
  const absl::Time now = deps_.clock->Now();
  for (int i = 0; i < kExpiriesPerTick && !expiries_.empty(); ++i) {
    const auto [expires, entry] = *expiries_.begin();
    if (expires > now) break;
    const CacheKey key = entry->info->key;
    RemoveKeyLocked(key, RemoveReason::kExpired, {}, after);
  }
  if (!sweeps_.empty()) SweepModelLocked(after);
  FastTickLocked(after);
  TickModelsLocked(after);
  for (Tier& tier : tiers_) {
    tier.drained_up_to.reset();
    DrainClosingLocked(tier.memory.id(), after);
  }
  TellLostLocked(after);
  KickPersistLocked(after);
}

void TieredCache::Tick() {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    TickLocked(after);
  }
  after.Run();
  GrowFastIndex();
}

}  // namespace embcache
