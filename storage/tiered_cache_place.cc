// Lookups by callers who cannot use all memory, and the loss of a tier's. See tiered_cache.h.
//
// Where L1 is device memory, a caller without the device needs entries in L2, one that reads device
// memory only needs them in L1. An entry in the other tier is moved, unless it is pinned there.

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {

// --- Place --------------------------------------------------------------------------------------

bool TieredCache::IsWhereWantedLocked(const CacheEntry& entry, Place place) const {
  if (!l1_on_device_ || place == Place::kAny) return true;
  return (place == Place::kDevice) == (entry.tier == TierId::kL1);
}

absl::Status TieredCache::RefusePlaceLocked(const CacheEntry& entry, LookupWaiter& waiter,
                                            absl::string_view why) {
  if (waiter.count == LookupCount::kAll) CountMissLocked(entry.model.get());
  return absl::FailedPreconditionError(
      absl::StrCat("place: the entry is in ", TierName(entry.tier),
                   entry.tier == TierId::kL1 ? ", device memory" : ", host memory", ", and ", why));
}

std::optional<absl::StatusOr<LookupResult>> TieredCache::LookupForHostLocked(CacheEntry* entry,
                                                                             LookupWaiter& waiter,
                                                                             AfterUnlock& after) {
  switch (entry->state) {
    case EntryState::kReserved:
      break;  // in no index
    case EntryState::kLoading:
      return AddWaiterLocked(entry, waiter);
    case EntryState::kPromoting:
      entry->called_off = true;  // it is whole in L2, and stays there
      return HitLocked(entry, entry->tier, waiter, after);
    case EntryState::kDemoting:
    case EntryState::kRelocating:
      return AddWaiterLocked(entry, waiter);
    case EntryState::kWritingBack:
      entry->called_off = true;
      if (entry->tier == TierId::kL2) return HitLocked(entry, entry->tier, waiter, after);
      return AddWaiterLocked(entry, waiter);
    case EntryState::kResident:
      if (entry->tier == TierId::kL2 ||
          FindMismatch(entry->info->layout.tensors, waiter.expect).has_value()) {
        return HitLocked(entry, entry->tier, waiter, after);
      }
      if (entry->pins > 0) {
        return RefusePlaceLocked(*entry, waiter,
                                 absl::StrCat("cannot be moved: it has ", entry->pins, " pins"));
      }
      if (entry->range.bytes > TierOf(TierId::kL2).memory.max_entry_bytes()) {
        return RefusePlaceLocked(*entry, waiter, "L2 is missing or too small for it");
      }
      entry->waiters.push_back(std::move(waiter));
      entry->called_off = false;
      entry->for_host = true;
      entry->state = EntryState::kDemoting;
      // While its bytes are being copied out for L3 the entry cannot move; IoUnpinLocked goes on.
      if (entry->io_pins == 0) DemoteLocked(entry, after);
      return std::nullopt;
  }
  EMB_CHECK(false);
  return std::nullopt;
}

std::optional<absl::StatusOr<LookupResult>> TieredCache::LookupForDeviceLocked(CacheEntry* entry,
                                                                               LookupWaiter& waiter,
                                                                               AfterUnlock& after) {
  switch (entry->state) {
    case EntryState::kReserved:
      break;  // in no index
    case EntryState::kLoading:
    case EntryState::kPromoting:
    case EntryState::kRelocating:
      return AddWaiterLocked(entry, waiter);
    case EntryState::kDemoting:
      entry->called_off = true;
      return HitLocked(entry, entry->tier, waiter, after);
    case EntryState::kWritingBack:
      entry->called_off = true;
      if (entry->tier == TierId::kL1) return HitLocked(entry, entry->tier, waiter, after);
      return AddWaiterLocked(entry, waiter);
    case EntryState::kResident:
      if (entry->tier == TierId::kL1 ||
          FindMismatch(entry->info->layout.tensors, waiter.expect).has_value()) {
        return HitLocked(entry, entry->tier, waiter, after);
      }
      if (entry->pins > 0) {
        return RefusePlaceLocked(*entry, waiter,
                                 absl::StrCat("cannot be moved: it has ", entry->pins, " pins"));
      }
      if (entry->range.bytes > TierOf(TierId::kL1).memory.max_entry_bytes()) {
        return RefusePlaceLocked(*entry, waiter, "L1 is lost or too small for it");
      }
      entry->waiters.push_back(std::move(waiter));
      StartPromotionLocked(entry, after);
      return std::nullopt;
  }
  EMB_CHECK(false);
  return std::nullopt;
}

// The entry has arrived in the memory that this waiter cannot use.
void TieredCache::AnswerElsewhereLocked(CacheEntry* entry, TierId source, LookupWaiter waiter,
                                        AfterUnlock& after) {
  if (source == TierId::kL3 || waiter.place == Place::kHost) {
    after.Add([this, key = entry->info->key, waiter = std::move(waiter)]() mutable {
      LookupWith(key, std::move(waiter));
    });
    return;
  }
  // It was to be promoted and was not; another attempt would end the same way.
  absl::Status refused =
      RefusePlaceLocked(*entry, waiter, "could not be brought to L1: there is no room");
  after.Add([done = std::move(waiter.done), refused = std::move(refused)]() mutable {
    done(std::move(refused));
  });
}

void TieredCache::ReadPinned(const ReadHandle& handle, char* to, StatusCallback done) {
  EMB_CHECK(static_cast<bool>(handle));
  const MemorySegment* segment = nullptr;
  {
    absl::MutexLock lock(&mu_);
    segment = MemoryOfLocked(handle.entry_->tier, handle.entry_->range);
    ++operations_;
  }
  deps_.copier->Download(to, segment, handle.location().offset, handle.location().bytes,
                         [this, done = std::move(done)](absl::Status copied) mutable {
                           done(std::move(copied));
                           absl::MutexLock lock(&mu_);
                           OperationEndedLocked();
                         });
}

// --- Loss ---------------------------------------------------------------------------------------

void TieredCache::LoseTier(TierId id) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    TierOf(id).memory.MarkLost();
    ++segments_version_;
    PumpLocked(id, after);  // refuses whoever waits for room there
    std::vector<std::string> keys;
    for (const auto& entry : index_) {
      if (entry->tier == id) keys.emplace_back(entry->info->key.encoded());
    }
    // Looked up anew each time: one that goes may take others with it.
    for (const std::string& key : keys) {
      CacheEntry* entry = FindLocked(key);
      if (entry != nullptr && entry->tier == id)
        DoomAndTellLocked(entry, RemoveReason::kLost, after);
    }
  }
  after.Run();
}

bool TieredCache::TierUsable(TierId tier) const {
  absl::MutexLock lock(&mu_);
  return TierOf(tier).memory.enabled();
}

}  // namespace embcache
