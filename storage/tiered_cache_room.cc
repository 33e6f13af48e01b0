// Room: who gets a range, who must leave for it, and the copies between the memory tiers.
//
// Requests for room in a tier are served in order. The one at the front takes a free range, or
// sends entries away until enough is free or on its way to become free. It only ever waits for
// things that end by themselves (copies), never for a client to release something and never for an
// entry that itself waits for room; so every request ends, by a range or by RESOURCE_EXHAUSTED.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

// How many of the next victims are tried as the seed of a run.
constexpr int kRunSeeds = 32;

}  // namespace

bool TieredCache::IsEvictableLocked(const CacheEntry& entry) const {
  return entry.state == EntryState::kResident && entry.hook.linked() && entry.pins == 0 &&
         entry.io_pins == 0 && !IsFastPinnedLocked(entry);
}

// --- Ranges -------------------------------------------------------------------------------------

const MemorySegment* TieredCache::MemoryOfLocked(TierId tier, const MemoryRange& range) const {
  return TierOf(tier).memory.segments()[range.segment].memory.get();
}

std::optional<MemoryRange> TieredCache::AllocateLocked(TierId id, uint64_t bytes) {
  Tier& tier = TierOf(id);
  if (tier.max_entries > 0 && tier.by_place.size() >= tier.max_entries) return std::nullopt;
  return tier.memory.Allocate(bytes);
}

void TieredCache::OwnRangeLocked(TierId tier, const MemoryRange& range, CacheEntry* owner) {
  EMB_CHECK(TierOf(tier).by_place.emplace(std::pair(range.segment, range.offset), owner).second);
}

void TieredCache::FreeRangeLocked(TierId tier, MemoryRange& range) {
  EMB_CHECK(TierOf(tier).by_place.erase({range.segment, range.offset}) == 1);
  TierOf(tier).memory.Free(range);
  RetireIfEmptiedLocked(tier, range.segment);
  range = {};
}

// --- Requests -----------------------------------------------------------------------------------

void TieredCache::RequestRoomLocked(TierId tier, RoomRequest request, AfterUnlock& after) {
  TierOf(tier).waiting.push_back(std::move(request));
  PumpLocked(tier, after);
}

void TieredCache::PumpLocked(TierId id, AfterUnlock& after) {
  Tier& tier = TierOf(id);
  if (tier.pumping) {
    tier.pump_again = true;
    return;
  }
  tier.pumping = true;
  while (!tier.waiting.empty()) {
    RoomRequest& request = tier.waiting.front();
    absl::StatusOr<MemoryRange> answer = absl::InternalError("");
    if (std::optional<MemoryRange> range = AllocateLocked(id, request.bytes)) {
      answer = *range;
    } else {
      tier.pump_again = false;
      const Room room = MakeRoomLocked(id, request, after);
      if (room == Room::kMade || tier.pump_again) continue;
      if (room == Room::kComing) break;
      answer = absl::ResourceExhaustedError(absl::StrCat(
          "no room for ", request.bytes, " bytes in ", TierName(id), ": ", tier.stats.pinned_bytes,
          " of ", tier.memory.capacity_bytes(), " bytes are pinned"));
    }
    Granted granted = std::move(request.granted);
    tier.waiting.pop_front();
    granted(std::move(answer), after);
  }
  tier.pumping = false;
}

TieredCache::Room TieredCache::MakeRoomLocked(TierId id, const RoomRequest& request,
                                              AfterUnlock& after) {
  DrainTouchesLocked();
  if (ReclaimLocked(after)) return Room::kMade;
  Tier& tier = TierOf(id);
  if (!tier.memory.enabled()) return Room::kImpossible;
  const uint64_t need = MemoryTier::ChargedBytes(request.bytes);
  if (tier.leaving > 0 && tier.memory.free_bytes() + tier.leaving_bytes >= need) {
    return Room::kComing;
  }
  if (!request.replaces.empty()) {
    CacheEntry* old = FindLocked(request.replaces);
    if (old != nullptr && old->tier == id && old->state == EntryState::kResident &&
        old->pins == 0 && !IsFastPinnedLocked(*old)) {
      if (old->io_pins > 0) return Room::kComing;
      DoomAndTellLocked(old, RemoveReason::kReplaced, after);
      return Room::kMade;
    }
  }
  const bool full_by_count = tier.max_entries > 0 && tier.by_place.size() >= tier.max_entries;
  if (tier.memory.free_bytes() >= need && !full_by_count) {
    const std::vector<CacheEntry*> run = FindRunLocked(id, need);
    for (CacheEntry* entry : run) EvictLocked(entry, after);
    if (!run.empty()) return Room::kMade;
  }
  CacheEntry* victim = nullptr;
  bool copying = false;
  tier.policy->VisitCandidates([&](PolicyHook* hook) {
    mu_.AssertHeld();
    CacheEntry* entry = CacheEntry::FromHook(hook);
    if (entry->pins > 0 || entry->state != EntryState::kResident || IsFastPinnedLocked(*entry)) {
      return true;
    }
    if (tier.memory.IsClosing(entry->range.segment)) return true;  // whose going makes no room
    // The next to leave is being copied out: wait for that, so that the order stays exact.
    copying = entry->io_pins > 0;
    if (!copying) victim = entry;
    return false;
  });
  if (victim != nullptr) {
    EvictLocked(victim, after);
    return Room::kMade;
  }
  return copying || tier.leaving > 0 || tier.io_pinned > 0 ? Room::kComing : Room::kImpossible;
}

// Enough bytes are free, but in pieces: the cheapest set of neighbours whose leaving makes one
// range of `bytes`. Grown around each of the next victims in turn, always towards the smaller
// neighbour.
std::vector<CacheEntry*> TieredCache::FindRunLocked(TierId id, uint64_t bytes) const {
  const Tier& tier = TierOf(id);
  const auto begin_of = [&](auto it) -> uint64_t {  // where the free space before `it` starts
    if (it == tier.by_place.begin()) return 0;
    auto previous = std::prev(it);
    if (previous->first.first != it->first.first) return 0;
    const CacheEntry& entry = *previous->second;
    const bool there = entry.tier == id && entry.range.segment == previous->first.first &&
                       entry.range.offset == previous->first.second;
    const MemoryRange& range = there ? entry.range : entry.target;
    return range.offset + range.bytes;
  };
  const auto end_of = [&](auto it) -> uint64_t {  // where the free space behind `it` ends
    auto next = std::next(it);
    if (next == tier.by_place.end() || next->first.first != it->first.first) {
      return tier.memory.segments()[it->first.first].arena.capacity();
    }
    return next->first.second;
  };
  std::vector<CacheEntry*> best;
  uint64_t best_cost = UINT64_MAX;
  int seeds = 0;
  tier.policy->VisitCandidates([&](PolicyHook* hook) {
    mu_.AssertHeld();
    CacheEntry* seed = CacheEntry::FromHook(hook);
    if (!IsEvictableLocked(*seed) || tier.memory.IsClosing(seed->range.segment)) return true;
    auto left = tier.by_place.find({seed->range.segment, seed->range.offset});
    auto right = left;
    std::vector<CacheEntry*> run = {seed};
    uint64_t cost = seed->range.bytes;
    while (end_of(right) - begin_of(left) < bytes && cost < best_cost) {
      const auto neighbour = [&](bool exists, auto it) -> CacheEntry* {
        mu_.AssertHeld();
        if (!exists || it->first.first != seed->range.segment) return nullptr;
        return IsEvictableLocked(*it->second) ? it->second : nullptr;
      };
      const bool has_left = left != tier.by_place.begin();
      const bool has_right = std::next(right) != tier.by_place.end();
      CacheEntry* before = has_left ? neighbour(true, std::prev(left)) : nullptr;
      CacheEntry* behind = has_right ? neighbour(true, std::next(right)) : nullptr;
      if (before == nullptr && behind == nullptr) break;
      const bool go_left =
          behind == nullptr || (before != nullptr && before->range.bytes < behind->range.bytes);
      run.push_back(go_left ? before : behind);
      cost += run.back()->range.bytes;
      go_left ? --left : ++right;
    }
    if (end_of(right) - begin_of(left) >= bytes && cost < best_cost) {
      best = std::move(run);
      best_cost = cost;
    }
    return ++seeds < kRunSeeds;
  });
  return best;
}

// --- Leaving ------------------------------------------------------------------------------------

void TieredCache::StartLeavingLocked(CacheEntry* entry) {
  Tier& tier = TierOf(entry->tier);
  ++tier.leaving;
  tier.leaving_bytes += entry->range.bytes;
}

void TieredCache::StopLeavingLocked(TierId id, uint64_t bytes) {
  Tier& tier = TierOf(id);
  EMB_CHECK(tier.leaving > 0 && tier.leaving_bytes >= bytes);
  --tier.leaving;
  tier.leaving_bytes -= bytes;
}

void TieredCache::IoPinLocked(CacheEntry* entry) {
  if (entry->io_pins++ == 0) ++TierOf(entry->tier).io_pinned;
}

void TieredCache::IoUnpinLocked(CacheEntry* entry, AfterUnlock& after) {
  EMB_CHECK(entry->io_pins > 0);
  if (--entry->io_pins > 0) return;
  const TierId tier = entry->tier;
  --TierOf(tier).io_pinned;
  if (entry->state == EntryState::kPromoting) {
    RequestPromotionRoomLocked(entry, after);
  } else if (entry->state == EntryState::kDemoting) {
    DemoteLocked(entry, after);
  } else {
    FreeIfUnusedLocked(entry, after);
  }
  PumpLocked(tier, after);
}

void TieredCache::EvictLocked(CacheEntry* entry, AfterUnlock& after) {
  const MemoryTier& l2 = TierOf(TierId::kL2).memory;
  if (entry->tier == TierId::kL1 && entry->range.bytes <= l2.max_entry_bytes()) {
    entry->called_off = false;
    entry->for_host = false;
    DemoteLocked(entry, after);
  } else {
    LeaveMemoryLocked(entry, after);
  }
}

void TieredCache::LeaveMemoryLocked(CacheEntry* entry, AfterUnlock& after) {
  // Not at rest any more: the queue leaves it to the copy below.
  entry->state = EntryState::kWritingBack;
  const bool being_written =
      persisting_.has_value() && persisting_->record.generation == entry->generation;
  if (options_.l3_write == L3WriteMode::kEvict && entry->admitted && !entry->saved &&
      !being_written) {
    QueueForDiskLocked(entry, false, after);
  }
  if (!entry->queued) {
    entry->state = EntryState::kResident;
    DoomAndTellLocked(entry, RemoveReason::kCapacity, after);
    return;
  }
  entry->called_off = false;
  StartLeavingLocked(entry);
  ++operations_;
  after.Add([this, entry, segment = MemoryOfLocked(entry->tier, entry->range),
             offset = entry->range.offset, bytes = entry->payload_bytes()] {
    auto payload = std::make_unique_for_overwrite<char[]>(bytes);
    char* to = payload.get();
    deps_.copier->Download(
        to, segment, offset, bytes,
        [this, entry, payload = std::move(payload)](absl::Status copied) mutable {
          FinishWriteBack(entry, std::move(payload), copied);
        });
  });
}

void TieredCache::FinishWriteBack(CacheEntry* entry, std::unique_ptr<char[]> payload,
                                  const absl::Status& copied) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    const TierId tier = entry->tier;
    StopLeavingLocked(tier, entry->range.bytes);
    entry->state = EntryState::kResident;
    if (!entry->doomed && !entry->called_off) {
      PersistItem* item = queue_.Find(entry->info->key.encoded(), entry->generation);
      if (item != nullptr && copied.ok()) {
        item->payload = std::move(payload);
        item->entry = nullptr;
        entry->queued = false;
      } else {
        ++totals_.l3.dropped_writes;
      }
      RetryWaitersLocked(entry, after);
      DoomAndTellLocked(entry, RemoveReason::kCapacity, after);
    } else {
      RetryWaitersLocked(entry, after);
      FreeIfUnusedLocked(entry, after);
    }
    KickPersistLocked(after);
    DrainClosingLocked(tier, after);
    PumpLocked(tier, after);
  }
  after.Run();
  absl::MutexLock lock(&mu_);
  OperationEndedLocked();
}

void TieredCache::CopyLater(CacheEntry* entry, TierId to,
                            void (TieredCache::*finish)(CacheEntry*, const absl::Status&),
                            AfterUnlock& after) {
  ++operations_;
  after.Add([this, entry, finish, to_segment = MemoryOfLocked(to, entry->target),
             to_offset = entry->target.offset,
             from_segment = MemoryOfLocked(entry->tier, entry->range),
             from_offset = entry->range.offset, bytes = entry->payload_bytes(),
             step = to == entry->tier   ? &work_.relocation
                    : to == TierId::kL1 ? &work_.promotion
                                        : &work_.demotion] {
    deps_.copier->Copy(
        to_segment, to_offset, from_segment, from_offset, bytes,
        [this, entry, finish, timer = StepTimer(step, bytes)](absl::Status copied) mutable {
          timer.Stop();
          (this->*finish)(entry, copied);
          absl::MutexLock lock(&mu_);
          OperationEndedLocked();
        });
  });
}

// --- Demotion: L1 -> L2
// ---------------------------------------------------------------------------

void TieredCache::DemoteLocked(CacheEntry* entry, AfterUnlock& after) {
  entry->state = EntryState::kDemoting;
  StartLeavingLocked(entry);
  RequestRoomLocked(
      TierId::kL2,
      RoomRequest{.bytes = entry->range.bytes,
                  .replaces = {},
                  .granted =
                      [this, entry](absl::StatusOr<MemoryRange> room, AfterUnlock& then) {
                        mu_.AssertHeld();
                        DemotionRoomLocked(entry, std::move(room), then);
                      }},
      after);
}

void TieredCache::DemotionRoomLocked(CacheEntry* entry, absl::StatusOr<MemoryRange> room,
                                     AfterUnlock& after) {
  const bool stays = entry->doomed || entry->called_off;
  if (room.ok()) {
    entry->target = *room;
    OwnRangeLocked(TierId::kL2, *room, entry);
    if (!stays) {
      CopyLater(entry, TierId::kL2, &TieredCache::FinishDemotion, after);
      return;
    }
    FreeRangeLocked(TierId::kL2, entry->target);
  }
  StopLeavingLocked(TierId::kL1, entry->range.bytes);
  entry->state = EntryState::kResident;
  if (stays) {
    RetryWaitersLocked(entry, after);
    FreeIfUnusedLocked(entry, after);
  } else {
    FailWaitersLocked(entry, room.status(), after);
    // Everything in L2 is pinned.
    if (!entry->for_host) LeaveMemoryLocked(entry, after);
  }
  KickPersistLocked(after);
  PumpLocked(TierId::kL1, after);
}

void TieredCache::FinishDemotion(CacheEntry* entry, const absl::Status& copied) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    StopLeavingLocked(TierId::kL1, entry->range.bytes);
    entry->state = EntryState::kResident;
    if (entry->doomed || entry->called_off || !copied.ok()) {
      FreeRangeLocked(TierId::kL2, entry->target);
      if (entry->doomed || entry->called_off) {
        RetryWaitersLocked(entry, after);
        FreeIfUnusedLocked(entry, after);
      } else {
        FailWaitersLocked(entry, copied, after);
        if (!entry->for_host) LeaveMemoryLocked(entry, after);
      }
    } else {
      VacateLocked(entry, UnlinkLocked(entry));
      entry->tier = TierId::kL2;
      entry->range = std::exchange(entry->target, {});
      LinkLocked(entry);
      if (!entry->for_host) ++TierOf(TierId::kL1).stats.evictions_capacity;
      ++totals_.demotions;
      if (IsOfCurrentEpochLocked(*entry)) {
        TellMovedLocked(entry->info->key, entry->generation, TierId::kL1, TierId::kL2, after);
      }
      AnswerWaitersLocked(entry, TierId::kL1, after);
    }
    KickPersistLocked(after);
    DrainClosingLocked(TierId::kL1, after);
    PumpLocked(TierId::kL2, after);
    PumpLocked(TierId::kL1, after);
  }
  after.Run();
}

// --- Promotion: L2 -> L1
// --------------------------------------------------------------------------

void TieredCache::StartPromotionLocked(CacheEntry* entry, AfterUnlock& after) {
  entry->state = EntryState::kPromoting;
  entry->called_off = false;
  // While its bytes are being copied out for L3 the entry cannot move; IoUnpinLocked goes on.
  if (entry->io_pins == 0) RequestPromotionRoomLocked(entry, after);
}

void TieredCache::RequestPromotionRoomLocked(CacheEntry* entry, AfterUnlock& after) {
  RequestRoomLocked(
      TierId::kL1,
      RoomRequest{.bytes = entry->range.bytes,
                  .replaces = {},
                  .granted =
                      [this, entry](absl::StatusOr<MemoryRange> room, AfterUnlock& then) {
                        mu_.AssertHeld();
                        PromotionRoomLocked(entry, std::move(room), then);
                      }},
      after);
}

void TieredCache::PromotionRoomLocked(CacheEntry* entry, absl::StatusOr<MemoryRange> room,
                                      AfterUnlock& after) {
  if (room.ok()) {
    entry->target = *room;
    OwnRangeLocked(TierId::kL1, *room, entry);
    if (!entry->doomed && !entry->called_off) {
      StartLeavingLocked(entry);
      CopyLater(entry, TierId::kL1, &TieredCache::FinishPromotion, after);
      return;
    }
    FreeRangeLocked(TierId::kL1, entry->target);
  }
  entry->state = EntryState::kResident;
  if (entry->doomed) {
    RetryWaitersLocked(entry, after);
    FreeIfUnusedLocked(entry, after);
  } else {
    AnswerWaitersLocked(entry, TierId::kL2, after);  // everything in L1 is pinned, or called off
    KickPersistLocked(after);
  }
  PumpLocked(TierId::kL2, after);
}

void TieredCache::FinishPromotion(CacheEntry* entry, const absl::Status& copied) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    StopLeavingLocked(TierId::kL2, entry->range.bytes);
    entry->state = EntryState::kResident;
    if (entry->doomed || entry->called_off || !copied.ok() ||
        !TierOf(TierId::kL1).memory.enabled()) {
      FreeRangeLocked(TierId::kL1, entry->target);
    } else {
      VacateLocked(entry, UnlinkLocked(entry));
      entry->tier = TierId::kL1;
      entry->range = std::exchange(entry->target, {});
      LinkLocked(entry);
      ++totals_.promotions;
      if (IsOfCurrentEpochLocked(*entry)) {
        TellMovedLocked(entry->info->key, entry->generation, TierId::kL2, TierId::kL1, after);
      }
    }
    if (entry->doomed) {
      RetryWaitersLocked(entry, after);
      FreeIfUnusedLocked(entry, after);
    } else {
      AnswerWaitersLocked(entry, TierId::kL2, after);
    }
    KickPersistLocked(after);
    PumpLocked(TierId::kL2, after);
    PumpLocked(TierId::kL1, after);
  }
  after.Run();
}

}  // namespace embcache
