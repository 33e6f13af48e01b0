// The cache's side of the fast path: what is published when, and what becomes of ranges that
// readers still hold after their entry has left. See fast_path.h.
//
// Every entry that is reachable and whole in a memory tier is published, as long as there is room;
// LinkLocked and UnlinkLocked are the only places where that changes. A range that is still held
// when its entry leaves is kept by a doomed entry with one more pin, so that all that holds for
// leases holds for it: it counts as used and as pinned, and nobody gets it.

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

// Entries of which Tick remembers that they were hit; more are as if their hit had come later.
constexpr size_t kMaxRequested = 4096;

}  // namespace

// --- Publishing ---------------------------------------------------------------------------------

FastEntry TieredCache::FastEntryLocked(const CacheEntry& entry) const {
  return FastEntry{.info = entry.info.get(),
                   .location = LocationLocked(entry),
                   .generation = entry.generation,
                   .model_epoch = entry.model_epoch,
                   .model = entry.model->fast_id};
}

void TieredCache::PublishLocked(CacheEntry* entry) {
  if (fast_ == nullptr || entry->publication != 0) return;
  fast_->SetModelEpoch(entry->model->fast_id, entry->model->stats.model_epoch);
  entry->publication = fast_->Publish(FastEntryLocked(*entry), entry);
}

bool TieredCache::RetireLocked(CacheEntry* entry) {
  if (entry->publication == 0) return false;
  DrainTouchesLocked();  // while it is known whose they are
  const bool held = fast_->Retire(entry->publication);
  if (!held) entry->publication = 0;
  return held;
}

// --- Limbo --------------------------------------------------------------------------------------

void TieredCache::EnterLimboLocked(CacheEntry* entry) {
  EMB_CHECK(entry->doomed);
  fast_->SetOwner(entry->publication, entry);
  if (entry->pins++ == 0) TierOf(entry->tier).stats.pinned_bytes += entry->range.bytes;
}

void TieredCache::VacateLocked(CacheEntry* entry, bool held) {
  if (!held) return FreeRangeLocked(entry->tier, entry->range);
  auto owned = std::make_unique<CacheEntry>();
  CacheEntry* left = owned.get();
  left->info = entry->info;
  left->model = ModelUse(entry->model.get());
  left->generation = entry->generation;
  left->model_epoch = entry->model_epoch;
  left->publication = std::exchange(entry->publication, 0);
  left->tier = entry->tier;
  left->range = std::exchange(entry->range, {});
  left->state = EntryState::kResident;
  left->doomed = true;
  TierOf(left->tier).by_place.at({left->range.segment, left->range.offset}) = left;
  doomed_.emplace(left, std::move(owned));
  EnterLimboLocked(left);
}

bool TieredCache::ReclaimLocked(AfterUnlock& after) {
  if (fast_ == nullptr) return false;
  const std::vector<CacheEntry*> free = fast_->Reclaim();
  for (CacheEntry* entry : free) {
    entry->publication = 0;
    UnpinLocked(entry, after);
  }
  return !free.empty();
}

// --- Hits ---------------------------------------------------------------------------------------

void TieredCache::DrainTouchesLocked(FastPath::Drain how) {
  if (fast_ == nullptr) return;
  fast_->DrainTouches(how, [this](CacheEntry* entry, uint64_t hits) {
    mu_.AssertHeld();
    CountFastHitsLocked(entry, hits);
  });
}

void TieredCache::CountFastHitsLocked(CacheEntry* entry, uint64_t hits) {
  CacheModel* model = entry == nullptr ? models_.other() : entry->model.get();
  Tier& tier = TierOf(entry == nullptr ? TierId::kL1 : entry->tier);
  totals_.gets += hits;
  totals_.hits += hits;
  totals_.fast_hits += hits;
  tier.stats.hits += hits;
  model->stats.gets += hits;
  model->stats.hits += hits;
  if (entry == nullptr) return;
  models_.MarkUsed(model);
  totals_.saved_us += hits * entry->info->encode_cost_us;
  model->stats.saved_us += hits * entry->info->encode_cost_us;
  if (!entry->hook.linked()) return;
  tier.policy->Touch(&entry->hook);
  if (entry->state == EntryState::kDemoting || entry->state == EntryState::kWritingBack) {
    entry->called_off = true;
  }
  const bool admits = deps_.store != nullptr && !entry->admitted && !entry->saved;
  if ((admits || entry->tier == TierId::kL2) && fast_requested_.size() < kMaxRequested) {
    fast_requested_.insert(entry->info->key);
  }
}

void TieredCache::FastTickLocked(AfterUnlock& after) {
  DrainTouchesLocked(FastPath::Drain::kTick);
  ReclaimLocked(after);
  if (fast_ != nullptr) fast_->WeighTables();
  for (const CacheKey& key : std::exchange(fast_requested_, {})) {
    CacheEntry* entry = FindLocked(key.encoded());
    if (entry == nullptr || !IsLiveLocked(*entry) || !entry->hook.linked()) continue;
    RequestedLocked(entry, after);
    const MemoryTier& l1 = TierOf(TierId::kL1).memory;
    if (entry->tier == TierId::kL2 && IsEvictableLocked(*entry) &&
        entry->range.bytes <= l1.max_entry_bytes()) {
      StartPromotionLocked(entry, after);
    }
  }
}

// --- The index and the tables -------------------------------------------------------------------

void TieredCache::GrowFastIndex() {
  uint64_t wanted = 0;
  {
    absl::MutexLock lock(&mu_);
    if (fast_ != nullptr) wanted = fast_->WantedEntries();
  }
  if (wanted == 0) return;
  // Taking the memory may last; only Tick comes here, so nobody else grows it meanwhile.
  auto index = FastIndex::Create(deps_.fast_memory, wanted);
  absl::MutexLock lock(&mu_);
  if (!index.ok()) {
    fast_->GiveUpGrowing();
    return;
  }
  fast_->Replace(*std::move(index));
  for (const auto& entry : index_) {
    if (!entry->hook.linked()) continue;
    fast_->SetModelEpoch(entry->model->fast_id, entry->model->stats.model_epoch);
    if (entry->publication != 0) fast_->Republish(entry->publication, FastEntryLocked(*entry));
  }
  for (const auto& entry : index_) {
    if (entry->hook.linked()) PublishLocked(entry.get());
  }
}

std::shared_ptr<const MemorySegment> TieredCache::FastIndexMemory() const {
  absl::MutexLock lock(&mu_);
  return fast_ == nullptr ? nullptr : fast_->memory();
}

absl::StatusOr<std::shared_ptr<const FastTable>> TieredCache::OpenFastTable(
    uint64_t max_pinned_bytes) {
  if (options_.fast_index_entries == 0) return absl::FailedPreconditionError("no fast path");
  auto table = FastTable::Create(deps_.fast_memory, max_pinned_bytes);
  if (!table.ok()) return table.status();
  absl::MutexLock lock(&mu_);
  fast_->AddTable(*table);
  return *table;
}

void TieredCache::CloseFastTable(const FastTable& table) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    DrainTouchesLocked();
    fast_->RemoveTable(&table);
    ReclaimLocked(after);
  }
  after.Run();
}

void TieredCache::MeasureFastPins() {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    ReclaimLocked(after);
  }
  after.Run();
}

void TieredCache::StopFastPath() {
  absl::MutexLock lock(&mu_);
  if (fast_ != nullptr) fast_->Stop();
}

}  // namespace embcache
