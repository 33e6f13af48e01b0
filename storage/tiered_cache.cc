#include "storage/tiered_cache.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/lru_policy.h"

namespace embcache {
namespace {

// Lookups of what is not there do not fill more of the table of models.
constexpr size_t kMaxModelsByLookup = ModelTable::kMaxModels / 2;

constexpr int kSweepEntriesPerTick = 4096;

// What sorts before the encoded keys of `model`, and behind those of the models before it.
std::string BeforeFirstKey(absl::string_view model) {
  return absl::StrCat(std::string(1, static_cast<char>(model.size())), model);
}

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
  if (deps_.gate != nullptr) deps_.gate->Set(false);
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

// --- Lookup -------------------------------------------------------------------------------------

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

CacheModel* TieredCache::LookupModelLocked(const CacheKey& key) {
  if (models_.models().size() < kMaxModelsByLookup) return models_.Get(key.model());
  CacheModel* const known = models_.Find(key.model());
  return known != nullptr ? known : models_.other();
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

void TieredCache::AdvanceEpoch(absl::string_view model,
                               absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    const std::optional<uint64_t> advanced = models_.AdvanceEpoch(model);
    if (!advanced.has_value()) {
      after.Add([done = std::move(done)]() mutable {
        done(absl::ResourceExhaustedError(
            absl::StrCat("model: ", ModelTable::kMaxEpochs,
                         " others have an epoch, and that is the limit; a "
                         "restart forgets those that nothing on the SSD needs")));
      });
    } else {
      const uint64_t epoch = *advanced;
      const CacheModel* placed = models_.Find(model);
      if (fast_ != nullptr && placed != nullptr) fast_->SetModelEpoch(placed->fast_id, epoch);
      queue_.CancelModel(model, epoch);
      TellLocked(CacheEvent::Kind::kEpoch, model, after).generation = epoch;
      sweeps_.emplace_back(std::string(model), std::string());
      if (deps_.store == nullptr) {
        after.Add([epoch, done = std::move(done)]() mutable { done(epoch); });
      } else {
        auto answer = std::make_shared<decltype(done)>(std::move(done));
        RunOnDiskLocked(
            [this, name = std::string(model), epoch, answer] {
              absl::Status saved = deps_.store->SetModelEpoch(name, epoch);
              saved.ok() ? (*answer)(epoch) : (*answer)(std::move(saved));
            },
            [answer] { (*answer)(absl::UnavailableError("too much disk work is queued")); }, after);
      }
    }
  }
  after.Run();
}

std::vector<std::string> TieredCache::Models() const {
  absl::MutexLock lock(&mu_);
  std::set<std::string> names;
  for (const auto& [name, model] : models_.models()) names.insert(name);
  names.erase(std::string(ModelTable::kOther));
  if (deps_.store == nullptr) return {names.begin(), names.end()};
  // From the first key of one model to that of the next.
  std::string after;
  std::optional<std::string> found;
  do {
    found.reset();
    deps_.store->List(after, [&](const CacheKey& key, const StoredPlace&) {
      found = std::string(key.model());
      return false;
    });
    if (!found.has_value()) break;
    after = std::string(1, static_cast<char>(found->size())) + *found + std::string(1, '\xff');
    names.insert(*std::move(found));
  } while (true);
  return {names.begin(), names.end()};
}

void TieredCache::SweepModelLocked(AfterUnlock& after) {
  const auto [model, after_key] = sweeps_.front();
  std::string from = after_key;
  if (from.empty()) from = BeforeFirstKey(model);
  for (int visited = 0; visited < kSweepEntriesPerTick; ++visited) {
    // Looked up anew each time: the room that one entry leaves may make others move or go.
    auto it = ordered_.upper_bound(absl::string_view(from));
    if (it == ordered_.end() || (*it)->info->key.model() != model) {
      sweeps_.pop_front();
      return;
    }
    CacheEntry* entry = *it;
    from = std::string(entry->info->key.encoded());
    if (entry->model_epoch != entry->model->stats.model_epoch) {
      DoomLocked(entry, RemoveReason::kEpoch, after);
    }
  }
  sweeps_.front().second = std::move(from);
}

void TieredCache::TickModelsLocked(AfterUnlock& after) {
  int visited = 0;
  for (const std::string& model : models_.Tick(deps_.clock->MonotonicNow(), kModelRest)) {
    std::string from = BeforeFirstKey(model);
    // Looked up anew each time, as in SweepModelLocked.
    for (auto it = ordered_.upper_bound(absl::string_view(from));
         it != ordered_.end() && (*it)->info->key.model() == model;
         it = ordered_.upper_bound(absl::string_view(from))) {
      if (++visited > kSweepEntriesPerTick) return;
      CacheEntry* entry = *it;
      from = std::string(entry->info->key.encoded());
      if (IsEvictableLocked(*entry)) LeaveMemoryLocked(entry, after);
    }
  }
}

void TieredCache::TickLocked(AfterUnlock& after) {
  const absl::Duration monotonic = deps_.clock->MonotonicNow();
  for (auto& [id, reservation] : reservations_) {
    if (monotonic >= reservation.deadline) reservation.expired = true;
  }
  const absl::Time now = deps_.clock->Now();
  for (int i = 0; i < kSweepEntriesPerTick && !expiries_.empty(); ++i) {
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
