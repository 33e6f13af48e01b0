// Reservations: how bytes get in. See tiered_cache.h.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

absl::Status NoSuchReservation(ReservationId id) {
  return absl::NotFoundError(absl::StrCat("reservation: ", id, " is not open"));
}

uint64_t ChargeOf(const ReserveRequest& request) {
  return request.layout.payload_bytes +
         ChargedHeapBytes(request.key, request.layout, request.metadata);
}

// The end of a sentence.
std::string LargestEntry(Place place, const MemoryTier& l1, const MemoryTier& l2) {
  switch (place) {
    case Place::kHost:
      return absl::StrCat("L2, for place HOST, is ", l2.max_entry_bytes());
    case Place::kDevice:
      return absl::StrCat("L1, for place DEVICE, is ", l1.max_entry_bytes());
    case Place::kAny:
      break;
  }
  return absl::StrCat("is ", std::max(l1.max_entry_bytes(), l2.max_entry_bytes()));
}

}  // namespace

void TieredCache::Reserve(ReserveRequest request, ReserveCallback done) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    const uint64_t bytes = ChargeOf(request);
    CacheModel* const model = models_.Get(request.key.model());
    if (model == nullptr) {
      ++totals_.rejected_puts;
      after.Add([done = std::move(done)]() mutable {
        done(absl::ResourceExhaustedError(absl::StrCat(
            "key.model: a new name, and all of ", ModelTable::kMaxModels,
            " are in use; those not used for ", absl::FormatDuration(kModelRest), " make room")));
      });
    } else if (bytes <= TierOf(TierId::kL1).memory.max_entry_bytes() &&
               !(l1_on_device_ && request.place == Place::kHost)) {
      ReserveLocked(std::move(request), ModelUse(model), TierId::kL1, std::move(done), after);
    } else if (bytes <= TierOf(TierId::kL2).memory.max_entry_bytes() &&
               request.place != Place::kDevice) {
      ReserveLocked(std::move(request), ModelUse(model), TierId::kL2, std::move(done), after);
    } else {
      // What the caller wanted to replace must not go on being served.
      RemoveKeyLocked(request.key, RemoveReason::kReplaced, {}, after);
      ++totals_.rejected_puts;
      absl::Status refused = absl::ResourceExhaustedError(
          absl::StrCat("tensors: ", bytes, " bytes; the largest entry that fits ",
                       LargestEntry(l1_on_device_ ? request.place : Place::kAny,
                                    TierOf(TierId::kL1).memory, TierOf(TierId::kL2).memory)));
      after.Add([refused = std::move(refused), done = std::move(done)]() mutable {
        done(std::move(refused));
      });
    }
  }
  after.Run();
}

void TieredCache::ReserveLocked(ReserveRequest request, ModelUse model, TierId tier,
                                ReserveCallback done, AfterUnlock& after) {
  models_.MarkUsed(model.get());
  RoomRequest room{.bytes = ChargeOf(request), .replaces = std::string(request.key.encoded())};
  room.granted = [this, tier, request = std::move(request), model = std::move(model),
                  done = std::move(done)](absl::StatusOr<MemoryRange> range,
                                          AfterUnlock& after) mutable {
    mu_.AssertHeld();
    if (!range.ok()) {
      const uint64_t l2_largest = TierOf(TierId::kL2).memory.max_entry_bytes();
      if (tier == TierId::kL1 && ChargeOf(request) <= l2_largest &&
          request.place != Place::kDevice) {
        return ReserveLocked(std::move(request), std::move(model), TierId::kL2, std::move(done),
                             after);
      }
      ++totals_.rejected_puts;
      after.Add([done = std::move(done), why = range.status()]() mutable { done(std::move(why)); });
      return;
    }
    Reservation reservation;
    reservation.info =
        std::make_shared<EntryInfo>(EntryInfo{.key = std::move(request.key),
                                              .layout = std::move(request.layout),
                                              .metadata = std::move(request.metadata),
                                              .encode_cost_us = request.encode_cost_us});
    reservation.ttl = request.ttl;
    reservation.cancelled = std::move(request.cancelled);
    reservation.deadline = deps_.clock->MonotonicNow() + options_.reservation_ttl;
    reservation.entry = std::make_unique<CacheEntry>();
    CacheEntry* entry = reservation.entry.get();
    entry->info = reservation.info;
    entry->model = std::move(model);
    entry->model_epoch = entry->model->stats.model_epoch;
    entry->tier = tier;
    entry->range = *range;
    OwnRangeLocked(tier, *range, entry);
    TierOf(tier).stats.reserved_bytes += range->bytes;
    TierOf(tier).stats.pinned_bytes += range->bytes;
    const ReservationId id = next_reservation_++;
    const ReservedPlace place{.id = id, .location = LocationLocked(*entry)};
    reservations_.emplace(id, std::move(reservation));
    SetGateLocked();
    after.Add([done = std::move(done), place]() mutable { done(place); });
  };
  RequestRoomLocked(tier, std::move(room), after);
}

void TieredCache::WriteReserved(ReservationId id, uint64_t offset, absl::string_view bytes,
                                StatusCallback done) {
  FillReserved(
      id, offset, bytes.size(),
      [this, bytes](const MemorySegment* to, uint64_t to_offset, CopyEngine::Done copied) {
        deps_.copier->Upload(to, to_offset, bytes.data(), bytes.size(), std::move(copied));
      },
      std::move(done));
}

void TieredCache::FillReserved(ReservationId id, uint64_t offset, uint64_t bytes, Writer write,
                               StatusCallback done) {
  const MemorySegment* segment = nullptr;
  uint64_t at = 0;
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    auto it = reservations_.find(id);
    if (it == reservations_.end() || it->second.aborted) {
      refused = NoSuchReservation(id);
    } else if (const uint64_t size = it->second.info->payload_bytes();
               bytes > size || offset > size - bytes) {
      refused = absl::OutOfRangeError(
          absl::StrCat("offset ", offset, " + ", bytes, " bytes; the reservation has ", size));
    } else {
      CacheEntry* entry = it->second.entry.get();
      ++entry->io_pins;
      ++operations_;
      segment = MemoryOfLocked(entry->tier, entry->range);
      at = entry->range.offset + offset;
    }
  }
  if (!refused.ok()) return done(std::move(refused));
  write(segment, at, [this, id, done = std::move(done)](absl::Status copied) mutable {
    AfterUnlock after;
    {
      absl::MutexLock lock(&mu_);
      Reservation& reservation = reservations_.at(id);
      if (--reservation.entry->io_pins == 0 && reservation.aborted) {
        DropReservationLocked(id, after);
      }
      after.Add([done = std::move(done), copied]() mutable { done(copied); });
    }
    after.Run();
    absl::MutexLock lock(&mu_);
    OperationEndedLocked();
  });
}

absl::StatusOr<ReadHandle> TieredCache::Commit(ReservationId id) {
  AfterUnlock after;
  absl::StatusOr<ReadHandle> answer = NoSuchReservation(id);
  {
    absl::MutexLock lock(&mu_);
    auto it = reservations_.find(id);
    if (it != reservations_.end() && !it->second.aborted) {
      answer = CommitLocked(id, it->second, after);
    }
  }
  after.Run();
  return answer;
}

absl::StatusOr<ReadHandle> TieredCache::CommitLocked(ReservationId id, Reservation& reservation,
                                                     AfterUnlock& after) {
  CacheEntry* entry = reservation.entry.get();
  absl::Status refused;
  if (entry->io_pins > 0) {
    refused =
        absl::FailedPreconditionError(absl::StrCat("reservation: ", id, " is still being written"));
  } else if (!TierOf(entry->tier).memory.enabled()) {
    refused = absl::UnavailableError(
        absl::StrCat("reservation: ", id, " is in ", TierName(entry->tier), ", which is lost"));
  } else if (reservation.expired) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("reservation: ", id, " was not committed within ",
                     absl::FormatDuration(options_.reservation_ttl)));
  } else if (entry->model_epoch != entry->model->stats.model_epoch) {
    refused = absl::FailedPreconditionError(absl::StrCat(
        "reservation: the epoch of model \"", entry->model->stats.model, "\" was advanced from ",
        entry->model_epoch, " to ", entry->model->stats.model_epoch));
  } else if (reservation.cancelled != nullptr) {
    const CacheEntry* there = FindLocked(entry->info->key.encoded());
    if (reservation.cancelled->load() || (there != nullptr && IsLiveLocked(*there))) {
      refused = absl::AbortedError(absl::StrCat("reservation: ", id, " was overtaken"));
    }
  }
  if (!refused.ok()) {
    DropReservationLocked(id, after);
    return refused;
  }
  reservation.info->created = deps_.clock->Now();
  reservation.info->expires = reservation.info->created + reservation.ttl;
  TierStats& stats = TierOf(entry->tier).stats;
  stats.reserved_bytes -= entry->range.bytes;
  stats.pinned_bytes -= entry->range.bytes;
  std::unique_ptr<CacheEntry> owned = std::move(reservation.entry);
  reservations_.erase(id);
  SetGateLocked();

  const CacheKey& key = entry->info->key;
  entry->generation = next_generation_++;
  queue_.Cancel(key.encoded());
  if (CacheEntry* old = FindLocked(key.encoded())) {
    DoomLocked(old, RemoveReason::kReplaced, after);
  }
  const bool replaces_stored = deps_.store != nullptr && deps_.store->Find(key).has_value();
  if (replaces_stored) deps_.store->Forget(key, entry->generation - 1);
  entry->state = EntryState::kResident;
  InsertLocked(std::move(owned));
  LinkLocked(entry);
  if (entry->info->expires != absl::InfiniteFuture()) {
    expiries_.insert({entry->info->expires, entry});
  }
  TellStoredLocked(*entry->info, entry->tier, entry->generation, after);
  ++totals_.saves;
  ++entry->model->stats.saves;
  work_.saved_bytes.Record(entry->payload_bytes());
  ReadHandle handle = PinLocked(entry);
  entry->admitted =
      options_.l3_admit == L3Admit::kAlways || put_before_.See(entry->info->key.encoded());
  if (options_.l3_write == L3WriteMode::kThrough && entry->admitted) {
    QueueForDiskLocked(entry, replaces_stored, after);
  } else if (replaces_stored) {
    RemoveStoredLocked(key, entry->generation - 1, {}, after);
  }
  return handle;
}

absl::Status TieredCache::Abort(ReservationId id) {
  AfterUnlock after;
  absl::Status answer;
  {
    absl::MutexLock lock(&mu_);
    auto it = reservations_.find(id);
    if (it == reservations_.end() || it->second.aborted) {
      answer = NoSuchReservation(id);
    } else {
      DropReservationLocked(id, after);
    }
  }
  after.Run();
  return answer;
}

void TieredCache::DropReservationLocked(ReservationId id, AfterUnlock& after) {
  auto it = reservations_.find(id);
  CacheEntry* entry = it->second.entry.get();
  it->second.aborted = true;
  if (entry->io_pins > 0) return;
  const TierId tier = entry->tier;
  TierOf(tier).stats.reserved_bytes -= entry->range.bytes;
  TierOf(tier).stats.pinned_bytes -= entry->range.bytes;
  FreeRangeLocked(tier, entry->range);
  reservations_.erase(it);
  SetGateLocked();
  PumpLocked(tier, after);
}

}  // namespace embcache
