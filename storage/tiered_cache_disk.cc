// The cache's side of L3: loads, writes in the background, durable removals. See tiered_cache.h.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

constexpr uint64_t kStagingPieceBytes = uint64_t{1} << 20;

}  // namespace

void TieredCache::RunOnDiskLocked(absl::AnyInvocable<void()> work,
                                  absl::AnyInvocable<void()> refused, AfterUnlock& after) {
  ++operations_;
  after.Add([this, work = std::move(work), refused = std::move(refused)]() mutable {
    const auto ended = [this] {
      absl::MutexLock lock(&mu_);
      OperationEndedLocked();
    };
    const bool scheduled = deps_.executor->Schedule([work = std::move(work), ended]() mutable {
      work();
      ended();
    });
    if (scheduled) return;
    if (refused) refused();
    ended();
  });
}

void TieredCache::RemoveStoredLocked(const CacheKey& key, uint64_t generation, StatusCallback done,
                                     AfterUnlock& after) {
  auto answer = std::make_shared<StatusCallback>(std::move(done));
  RunOnDiskLocked(
      [this, key, generation, answer] {
        absl::Status removed = deps_.store->Remove(key, generation);
        if (*answer) (*answer)(std::move(removed));
      },
      [answer] {
        if (*answer) (*answer)(absl::UnavailableError("too much disk work is queued"));
      },
      after);
}

// --- Loads --------------------------------------------------------------------------------------

void TieredCache::StartLoadLocked(const CacheKey& key, CacheModel* model, const StoredPlace& place,
                                  LookupWaiter waiter, AfterUnlock& after) {
  auto owned = std::make_unique<CacheEntry>();
  CacheEntry* entry = owned.get();
  entry->info = std::make_shared<EntryInfo>(
      EntryInfo{.key = key, .layout = {.tensors = {}, .payload_bytes = place.payload_bytes}});
  entry->model = ModelUse(model);
  entry->generation = place.generation;
  entry->model_epoch = place.model_epoch;
  entry->state = EntryState::kLoading;
  entry->load_bytes = place.payload_bytes + place.heap_bytes;
  const bool for_host = l1_on_device_ && waiter.place == Place::kHost &&
                        entry->load_bytes <= TierOf(TierId::kL2).memory.max_entry_bytes();
  entry->waiters.push_back(std::move(waiter));
  InsertLocked(std::move(owned));
  RequestLoadRoomLocked(entry, for_host ? TierId::kL2 : TierId::kL1, after);
}

void TieredCache::RequestLoadRoomLocked(CacheEntry* entry, TierId tier, AfterUnlock& after) {
  const uint64_t bytes = entry->load_bytes;
  if (tier == TierId::kL1 && bytes > TierOf(TierId::kL1).memory.max_entry_bytes()) {
    tier = TierId::kL2;
  }
  entry->tier = tier;
  if (bytes > TierOf(tier).memory.max_entry_bytes()) {
    FinishLoadLocked(entry,
                     absl::ResourceExhaustedError(
                         absl::StrCat("entry: ", entry->payload_bytes(), " bytes on disk, ", bytes,
                                      " with its metadata, fit no memory tier")),
                     after);
    return;
  }
  RequestRoomLocked(
      tier,
      RoomRequest{.bytes = bytes,
                  .replaces = {},
                  .granted =
                      [this, entry, tier](absl::StatusOr<MemoryRange> room, AfterUnlock& then) {
                        mu_.AssertHeld();
                        if (room.ok()) {
                          entry->range = *room;
                          OwnRangeLocked(tier, *room, entry);
                          ReadLocked(entry, then);
                        } else if (tier == TierId::kL1 && TierOf(TierId::kL2).memory.enabled()) {
                          RequestLoadRoomLocked(entry, TierId::kL2, then);
                        } else {
                          FinishLoadLocked(entry, room.status(), then);
                        }
                      }},
      after);
}

void TieredCache::ReadLocked(CacheEntry* entry, AfterUnlock& after) {
  const MemorySegment* segment = MemoryOfLocked(entry->tier, entry->range);
  const uint64_t offset = entry->range.offset;
  const auto read = [this, entry, segment, offset, generation = entry->generation,
                     bytes = entry->payload_bytes()] {
    const CacheKey& key = entry->info->key;  // fixed while it loads
    StepTimer timer(&work_.l3_read, bytes);
    if (segment->host_data() != nullptr) {
      auto record = deps_.store->Read(key, generation, segment->host_data() + offset);
      timer.Stop();
      FinishLoad(entry, std::move(record));
      return;
    }
    auto staged = std::make_unique_for_overwrite<char[]>(bytes);
    absl::StatusOr<StoredRecord> record = deps_.store->Read(key, generation, staged.get());
    timer.Stop();
    if (!record.ok()) return FinishLoad(entry, std::move(record));
    {
      absl::MutexLock lock(&mu_);
      ++operations_;
    }
    const char* from = staged.get();
    deps_.copier->Upload(segment, offset, from, bytes,
                         [this, entry, staged = std::move(staged),
                          record = std::move(record)](absl::Status copied) mutable {
                           if (!copied.ok()) record = std::move(copied);
                           FinishLoad(entry, std::move(record));
                           absl::MutexLock lock(&mu_);
                           OperationEndedLocked();
                         });
  };
  RunOnDiskLocked(
      read,
      [this, entry] { FinishLoad(entry, absl::UnavailableError("too much disk work is queued")); },
      after);
}

void TieredCache::FinishLoad(CacheEntry* entry, absl::StatusOr<StoredRecord> record) {
  AfterUnlock after;
  const uint64_t charge =
      record.ok() ? record->info->payload_bytes() + ChargedHeapBytes(*record->info) : 0;
  {
    absl::MutexLock lock(&mu_);
    if (charge > entry->range.bytes && !entry->doomed) {
      LoadAgainLocked(entry, charge, after);
    } else {
      FinishLoadLocked(entry, std::move(record), after);
    }
  }
  after.Run();
}

// The store did not know how much the record's metadata is charged. Room for it may have to be made
// first, and the tier may be full: so that what was read is given up.
void TieredCache::LoadAgainLocked(CacheEntry* entry, uint64_t bytes, AfterUnlock& after) {
  const TierId tier = entry->tier;
  entry->load_bytes = bytes;
  FreeRangeLocked(tier, entry->range);
  RequestLoadRoomLocked(entry, tier, after);
  PumpLocked(tier, after);
}

void TieredCache::FinishLoadLocked(CacheEntry* entry, absl::StatusOr<StoredRecord> record,
                                   AfterUnlock& after) {
  entry->state = EntryState::kResident;
  if (record.ok() && (record->info->key != entry->info->key ||
                      record->info->payload_bytes() != entry->payload_bytes())) {
    record = absl::DataLossError("the record on disk is another entry's");
  }
  if (entry->doomed) {
    RetryWaitersLocked(entry, after);
    FreeIfUnusedLocked(entry, after);
    return;
  }
  if (!record.ok()) {
    ++totals_.l3.load_failures;
    const bool no_room = absl::IsResourceExhausted(record.status());
    const MissReason reason =
        absl::IsDataLoss(record.status()) ? MissReason::kDamaged : MissReason::kAbsent;
    if (reason == MissReason::kDamaged) damaged_.insert(entry->info->key);
    FailWaitersLocked(entry, no_room ? absl::StatusOr<MissReason>(record.status()) : reason, after);
    DoomLocked(entry, RemoveReason::kDeleted, after);
    TellLostLocked(after);
    return;
  }
  entry->info = record->info;
  entry->saved = true;
  ++totals_.l3.loads;
  LinkLocked(entry);
  if (entry->info->expires != absl::InfiniteFuture()) {
    expiries_.insert({entry->info->expires, entry});
  }
  if (!IsLiveLocked(*entry)) {
    const bool expired = entry->model_epoch == entry->model->stats.model_epoch;
    FailWaitersLocked(entry, expired ? MissReason::kExpired : MissReason::kAbsent, after);
    if (expired) {
      const CacheKey key = entry->info->key;
      RemoveKeyLocked(key, RemoveReason::kExpired, {}, after);
    } else {
      DoomLocked(entry, RemoveReason::kEpoch, after);
    }
    return;
  }
  if (std::exchange(entry->told_gone, false)) {
    TellStoredLocked(*entry->info, entry->tier, entry->generation, after);
  } else {
    TellMovedLocked(entry->info->key, entry->generation, TierId::kL3, entry->tier, after);
  }
  AnswerWaitersLocked(entry, TierId::kL3, after);
}

// --- Writes -------------------------------------------------------------------------------------

void TieredCache::RequestedLocked(CacheEntry* entry, AfterUnlock& after) {
  if (entry->admitted || entry->saved || entry->doomed || deps_.store == nullptr) return;
  entry->admitted = true;
  if (options_.l3_write == L3WriteMode::kThrough) QueueForDiskLocked(entry, false, after);
}

void TieredCache::QueueForDiskLocked(CacheEntry* entry, bool replaces_stored, AfterUnlock& after) {
  if (deps_.store == nullptr) return;
  PersistItem item;
  item.record = {
      .info = entry->info, .generation = entry->generation, .model_epoch = entry->model_epoch};
  item.entry = entry;
  item.model = ModelUse(entry->model.get());
  item.replaces_stored = replaces_stored;
  entry->queued = queue_.Push(std::move(item));
  if (!entry->queued) {
    ++totals_.l3.dropped_writes;
    if (replaces_stored) {
      RemoveStoredLocked(entry->info->key, entry->generation - 1, {}, after);
    }
  }
  KickPersistLocked(after);
}

// A burst of puts goes first. The fuller the queue, the less: what does not fit would be dropped. A
// MiB every 2 ms is still 500 MB a second. Who waits for a flush has been patient enough.
absl::Duration TieredCache::PatienceLocked() const {
  const double used = std::max(
      static_cast<double>(queue_.bytes()) / static_cast<double>(options_.l3_queue_bytes),
      static_cast<double>(queue_.entries()) / static_cast<double>(options_.l3_queue_entries));
  if (!flushes_.empty() || used > 0.875) return absl::ZeroDuration();
  return used > 0.5 ? absl::Milliseconds(2) : absl::Milliseconds(10);
}

void TieredCache::SetGateLocked() {
  if (deps_.gate != nullptr) deps_.gate->Set(!reservations_.empty(), PatienceLocked());
}

void TieredCache::KickPersistLocked(AfterUnlock& after) {
  SetGateLocked();
  if (persisting_.has_value() || stopping_ || deps_.store == nullptr) return;
  persisting_ = queue_.TakeNext();
  if (!persisting_.has_value()) {
    AnswerFlushesLocked(after);
    return;
  }
  if (persisting_->payload != nullptr) {
    PutStagedLocked(after);
    return;
  }
  CacheEntry* entry = persisting_->entry;
  entry->queued = false;
  IoPinLocked(entry);
  ++operations_;
  auto staging =
      std::make_shared<Staging>(Staging{.segment = MemoryOfLocked(entry->tier, entry->range),
                                        .offset = entry->range.offset,
                                        .bytes = entry->payload_bytes(),
                                        .cancelled = persisting_->cancelled});
  after.Add([this, staging = std::move(staging)]() mutable {
    staging->payload = std::make_unique_for_overwrite<char[]>(staging->bytes);
    StagePiece(std::move(staging));
  });
}

// Between pieces puts go first. The bytes of a device do not come through the processor's memory
// bus twice: one piece.
void TieredCache::StagePiece(std::shared_ptr<Staging> staging) {
  const uint64_t at = staging->staged;
  const uint64_t bytes = staging->segment->host_data() == nullptr
                             ? staging->bytes
                             : std::min(kStagingPieceBytes, staging->bytes - at);
  staging->staged += bytes;
  char* const to = staging->payload.get() + at;
  const MemorySegment* const segment = staging->segment;
  const uint64_t from = staging->offset + at;
  deps_.copier->Download(to, segment, from, bytes,
                         [this, staging = std::move(staging)](absl::Status copied) mutable {
                           if (copied.ok() && *staging->cancelled) copied = absl::CancelledError();
                           if (!copied.ok() || staging->staged == staging->bytes) {
                             return FinishStaging(std::move(staging->payload), copied);
                           }
                           const bool scheduled = deps_.executor->Schedule([this, staging] {
                             if (deps_.gate != nullptr) deps_.gate->Wait();
                             StagePiece(staging);
                           });
                           if (!scheduled) StagePiece(std::move(staging));
                         });
}

void TieredCache::FinishStaging(std::unique_ptr<char[]> payload, const absl::Status& copied) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    IoUnpinLocked(std::exchange(persisting_->entry, nullptr), after);
    if (copied.ok()) {
      persisting_->payload = std::move(payload);
      PutStagedLocked(after);
    } else {
      FinishPersistLocked(copied, after);
    }
  }
  after.Run();
  absl::MutexLock lock(&mu_);
  OperationEndedLocked();
}

void TieredCache::PutStagedLocked(AfterUnlock& after) {
  RunOnDiskLocked([this] { PutCurrent(); },
                  [this] { FinishPersist(absl::UnavailableError("too much disk work is queued")); },
                  after);
}

void TieredCache::PutCurrent() {
  StoredRecord record;
  std::unique_ptr<char[]> payload;
  std::shared_ptr<std::atomic<bool>> cancelled;
  {
    absl::MutexLock lock(&mu_);
    record = persisting_->record;
    payload = std::move(persisting_->payload);
    cancelled = persisting_->cancelled;
  }
  StepTimer timer(&work_.l3_write, record.info->payload_bytes());
  const absl::Status put = deps_.store->Put(record, std::move(payload), *cancelled);
  timer.Stop();
  FinishPersist(put);
}

void TieredCache::FinishPersist(const absl::Status& put) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    FinishPersistLocked(put, after);
  }
  after.Run();
}

void TieredCache::FinishPersistLocked(const absl::Status& put, AfterUnlock& after) {
  const PersistItem item = *std::exchange(persisting_, std::nullopt);
  queue_.Finished();
  const CacheKey& key = item.record.info->key;
  if (put.ok()) {
    ++totals_.l3.writes;
    CacheEntry* entry = FindLocked(key.encoded());
    if (entry != nullptr && entry->generation == item.record.generation) entry->saved = true;
    if (entry == nullptr || !IsOfCurrentEpochLocked(*entry)) {
      // It left memory before it was on disk, and was told so.
      const std::optional<StoredPlace> stored = FindStoredLocked(key);
      if (stored.has_value() && stored->generation == item.record.generation) {
        TellStoredLocked(*item.record.info, TierId::kL3, stored->generation, after);
      }
    }
  } else if (!absl::IsCancelled(put)) {
    ++totals_.l3.write_failures;
    if (item.replaces_stored) RemoveStoredLocked(key, item.record.generation - 1, {}, after);
  }
  TellLostLocked(after);
  KickPersistLocked(after);
  AnswerFlushesLocked(after);
}

void TieredCache::Flush(StatusCallback done) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    if (deps_.store == nullptr) {
      after.Add([done = std::move(done)]() mutable {
        done(absl::FailedPreconditionError("there is no L3 to flush to"));
      });
    } else {
      flushes_.emplace_back(queue_.last_sequence(), std::move(done));
      SetGateLocked();
      AnswerFlushesLocked(after);
    }
  }
  after.Run();
}

void TieredCache::AnswerFlushesLocked(AfterUnlock& after) {
  for (auto it = flushes_.begin(); it != flushes_.end();) {
    if (!queue_.IdleUpTo(it->first)) {
      ++it;
      continue;
    }
    auto answer = std::make_shared<StatusCallback>(std::move(it->second));
    RunOnDiskLocked([this, answer] { (*answer)(deps_.store->Flush()); },
                    [answer] { (*answer)(absl::UnavailableError("too much disk work is queued")); },
                    after);
    it = flushes_.erase(it);
  }
}

}  // namespace embcache
