// Tiers that grow and shrink while they serve. See tiered_cache.h.
//
// A segment that has to go gets nothing new. First the tier's least recently used entries leave it,
// wherever they are, until the rest fits into the segments that stay; then what is left in those
// that go is copied there. An entry that somebody has pinned leaves when the last pin ends; one
// that a reader holds without a call is copied at once, and only its old range waits.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

// Entries of a tier that are on their way at a time: enough to keep the copies busy, and few enough
// that puts, whose requests for room stand in the same queue, hardly notice.
constexpr uint64_t kMaxOnTheWay = 16;
// Entries that are dropped at a time, without a copy.
constexpr int kMaxDropped = 1024;
// Segments smaller than this part of the usual size are not worth having.
constexpr uint64_t kLeastPartOfSegment = 64;

// Bytes that are too many for the segments that stay, beside those that leave already.
uint64_t Surplus(const MemoryTier& memory, uint64_t leaving_bytes) {
  const uint64_t stays = memory.used_bytes() - leaving_bytes;
  return stays - std::min(stays, memory.open_bytes());
}

}  // namespace

// --- Shrinking ----------------------------------------------------------------------------------

void TieredCache::StartShrink(TierId id, uint64_t capacity_bytes) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    Tier& tier = TierOf(id);
    for (const uint32_t segment : tier.memory.ChooseClosing(capacity_bytes)) {
      tier.memory.Close(segment);
      RetireIfEmptiedLocked(id, segment);
    }
    tier.drained_up_to.reset();
    DrainClosingLocked(id, after);
    PumpLocked(id, after);  // who waits for more room than there will be has to hear of it
  }
  after.Run();
}

void TieredCache::RetireIfEmptiedLocked(TierId id, uint32_t segment) {
  MemoryTier& memory = TierOf(id).memory;
  if (!memory.IsEmptied(segment)) return;
  retired_.push_back(memory.Remove(segment));
  ++segments_version_;
}

bool TieredCache::AwaitShrunk(TierId id, absl::Time deadline) const {
  absl::MutexLock lock(&mu_);
  const auto shrunk = [this, id]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !TierOf(id).memory.closing() || resizing_stopped_;
  };
  mu_.AwaitWithDeadline(absl::Condition(&shrunk), deadline);
  return !TierOf(id).memory.closing();
}

TieredCache::Shrunk TieredCache::EndShrink(TierId id) {
  AfterUnlock after;
  Shrunk shrunk;
  {
    absl::MutexLock lock(&mu_);
    Tier& tier = TierOf(id);
    for (const auto& [place, entry] : tier.by_place) {
      if (!tier.memory.IsClosing(place.first)) continue;
      ++shrunk.pinned_entries;
      const bool there = entry->tier == id && entry->range.segment == place.first &&
                         entry->range.offset == place.second;
      shrunk.pinned_bytes += there ? entry->range.bytes : entry->target.bytes;
    }
    for (uint32_t i = 0; i < tier.memory.segments().size(); ++i) {
      if (tier.memory.IsClosing(i)) tier.memory.Reopen(i);
    }
    shrunk.gone = std::exchange(retired_, {});
    PumpLocked(id, after);
  }
  after.Run();
  return shrunk;
}

void TieredCache::StopResizing() {
  absl::MutexLock lock(&mu_);
  resizing_stopped_ = true;
}

void TieredCache::DrainClosingLocked(TierId id, AfterUnlock& after) {
  Tier& tier = TierOf(id);
  if (!tier.memory.closing()) return;
  DrainTouchesLocked();
  ReclaimLocked(after);
  EvictSurplusLocked(id, after);
  // What may still have to leave altogether is not moved before; unless nothing else can leave.
  if (Surplus(tier.memory, tier.leaving_bytes) > 0 && tier.leaving > 0) return;
  // Looked up anew each time: what one entry sets off may take others along.
  auto it = tier.drained_up_to.has_value() ? tier.by_place.upper_bound(*tier.drained_up_to)
                                           : tier.by_place.begin();
  while (it != tier.by_place.end() && tier.relocating < kMaxOnTheWay) {
    const auto place = it->first;
    CacheEntry* entry = it->second;
    if (!tier.memory.IsClosing(place.first)) {
      it = tier.by_place.lower_bound({place.first + 1, 0});
      continue;
    }
    tier.drained_up_to = place;
    if (IsMovableLocked(*entry)) StartRelocationLocked(entry, after);
    it = tier.by_place.upper_bound(place);
  }
}

void TieredCache::EvictSurplusLocked(TierId id, AfterUnlock& after) {
  Tier& tier = TierOf(id);
  for (int dropped = 0; dropped < kMaxDropped && tier.leaving < kMaxOnTheWay; ++dropped) {
    if (Surplus(tier.memory, tier.leaving_bytes) == 0) return;
    CacheEntry* victim = nullptr;
    tier.policy->VisitCandidates([&](PolicyHook* hook) {
      mu_.AssertHeld();
      CacheEntry* entry = CacheEntry::FromHook(hook);
      if (IsEvictableLocked(*entry)) victim = entry;
      return victim == nullptr;
    });
    if (victim == nullptr) return;
    EvictLocked(victim, after);
  }
}

bool TieredCache::IsMovableLocked(const CacheEntry& entry) const {
  // A reader that asked nobody does not mind: it goes on reading the old range.
  return entry.state == EntryState::kResident && entry.hook.linked() && entry.pins == 0 &&
         entry.io_pins == 0 && TierOf(entry.tier).memory.IsClosing(entry.range.segment);
}

void TieredCache::LeaveClosingLocked(CacheEntry* entry, AfterUnlock& after) {
  const Tier& tier = TierOf(entry->tier);
  if (!tier.memory.closing() || !IsMovableLocked(*entry)) return;
  if (Surplus(tier.memory, tier.leaving_bytes) > 0) {
    DrainClosingLocked(entry->tier, after);  // `entry` may be what goes
  } else {
    StartRelocationLocked(entry, after);
  }
}

void TieredCache::StartRelocationLocked(CacheEntry* entry, AfterUnlock& after) {
  entry->state = EntryState::kRelocating;
  entry->called_off = false;
  ++TierOf(entry->tier).relocating;
  RequestRoomLocked(
      entry->tier,
      RoomRequest{.bytes = entry->range.bytes,
                  .replaces = {},
                  .granted =
                      [this, entry](absl::StatusOr<MemoryRange> room, AfterUnlock& then) {
                        mu_.AssertHeld();
                        RelocationRoomLocked(entry, std::move(room), then);
                      }},
      after);
}

void TieredCache::RelocationRoomLocked(CacheEntry* entry, absl::StatusOr<MemoryRange> room,
                                       AfterUnlock& after) {
  const TierId id = entry->tier;
  const bool stays = entry->doomed || entry->called_off;
  if (room.ok()) {
    entry->target = *room;
    OwnRangeLocked(id, *room, entry);
    if (!stays) {
      StartLeavingLocked(entry);
      CopyLater(entry, id, &TieredCache::FinishRelocation, after);
      return;
    }
    FreeRangeLocked(id, entry->target);
  }
  --TierOf(id).relocating;
  entry->state = EntryState::kResident;
  if (entry->doomed) {
    RetryWaitersLocked(entry, after);
    FreeIfUnusedLocked(entry, after);
  } else {
    if (!entry->waiters.empty()) {
      AnswerWaitersLocked(entry, id, after);
    } else if (!room.ok() && IsEvictableLocked(*entry)) {
      EvictLocked(entry, after);  // all that could make room for it is pinned
    }
    KickPersistLocked(after);
  }
  PumpLocked(id, after);
}

void TieredCache::FinishRelocation(CacheEntry* entry, const absl::Status& copied) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    const TierId id = entry->tier;
    StopLeavingLocked(id, entry->range.bytes);
    --TierOf(id).relocating;
    entry->state = EntryState::kResident;
    if (entry->doomed || entry->called_off || !copied.ok() || !TierOf(id).memory.enabled()) {
      FreeRangeLocked(id, entry->target);
    } else {
      VacateLocked(entry, RetireLocked(entry));
      entry->range = std::exchange(entry->target, {});
      PublishLocked(entry);
    }
    if (entry->doomed) {
      RetryWaitersLocked(entry, after);
      FreeIfUnusedLocked(entry, after);
    } else if (!entry->waiters.empty()) {
      AnswerWaitersLocked(entry, id, after);
    }
    KickPersistLocked(after);
    DrainClosingLocked(id, after);
    PumpLocked(id, after);
  }
  after.Run();
}

// --- Growing ------------------------------------------------------------------------------------

absl::Status TieredCache::AddSegments(TierId id, uint64_t capacity_bytes) {
  MemoryTierOptions wanted;
  uint64_t others = 0;
  MemoryResource* const resource = id == TierId::kL1 ? deps_.l1_memory : deps_.l2_memory;
  {
    absl::MutexLock lock(&mu_);
    const Tier& tier = TierOf(id);
    if (tier.memory.lost()) {
      return absl::FailedPreconditionError(
          absl::StrCat(TierName(id), ": its device is lost; restart the daemon"));
    }
    const uint64_t have = tier.memory.capacity_bytes();
    wanted.capacity_bytes = capacity_bytes - std::min(capacity_bytes, have);
    wanted.segment_bytes =
        tier.segment_bytes > 0 ? tier.segment_bytes : DefaultSegmentBytes(capacity_bytes);
    others = tier.memory.segment_count();
  }
  const uint64_t least = others == 0 ? 1 : wanted.segment_bytes / kLeastPartOfSegment;
  if (wanted.capacity_bytes < std::max(least, resource->granularity())) return absl::OkStatus();
  absl::StatusOr<MemorySegments> segments = AllocateSegments(id, wanted, resource, others);
  if (!segments.ok()) return segments.status();
  absl::MutexLock lock(&mu_);
  Tier& tier = TierOf(id);
  tier.segment_bytes = wanted.segment_bytes;
  for (std::unique_ptr<MemorySegment>& memory : *segments) {
    tier.memory.Add(next_segment_id_++, std::move(memory));
  }
  ++segments_version_;
  return absl::OkStatus();
}

void TieredCache::OpenSegments(TierId id) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    TierOf(id).memory.Open();
    PumpLocked(id, after);
  }
  after.Run();
}

uint64_t TieredCache::granularity(TierId id) const {
  return (id == TierId::kL1 ? deps_.l1_memory : deps_.l2_memory)->granularity();
}

uint64_t TieredCache::segment_bytes(TierId id) const {
  absl::MutexLock lock(&mu_);
  return TierOf(id).segment_bytes;
}

uint64_t TieredCache::capacity_bytes(TierId id) const {
  absl::MutexLock lock(&mu_);
  return TierOf(id).memory.capacity_bytes();
}

uint64_t TieredCache::segments_version() const {
  absl::MutexLock lock(&mu_);
  return segments_version_;
}

}  // namespace embcache
