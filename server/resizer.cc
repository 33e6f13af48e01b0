#include "server/resizer.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

// For a caller without a deadline.
constexpr absl::Duration kLongestWait = absl::Minutes(10);
// What is kept of a caller's time for all that comes after the wait for pins: so much at most, and
// a quarter.
constexpr absl::Duration kTimeForTheRest = absl::Seconds(2);
constexpr int kPartForTheRest = 4;
// How often a wait that may turn out not to be worth it is looked at.
constexpr absl::Duration kGlance = absl::Milliseconds(100);

absl::Time WaitForPinsUntil(absl::Time deadline) {
  const absl::Time now = absl::Now();
  const absl::Duration left =
      std::clamp(deadline - now, absl::ZeroDuration(), kLongestWait + kTimeForTheRest);
  return now + left - std::min(kTimeForTheRest, left / kPartForTheRest);
}

}  // namespace

Resizer::Resizer(TieredCache* cache, SegmentBoard* board,
                 absl::AnyInvocable<absl::StatusOr<uint64_t>(TierId)> free_bytes)
    : cache_(cache),
      board_(board),
      free_bytes_(std::move(free_bytes)),
      chosen_{Choice{cache->capacity_bytes(TierId::kL1)},
              Choice{cache->capacity_bytes(TierId::kL2)}},
      thread_([this] { Run(); }) {}

Resizer::~Resizer() { Stop(); }

void Resizer::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  board_->Stop();
  cache_->StopResizing();
  if (thread_.joinable()) thread_.join();
}

void Resizer::Resize(TierId tier, uint64_t capacity_bytes, absl::Time deadline, Callback done) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) {
      refused = absl::UnavailableError("the daemon is stopping");
    } else if (busy_) {
      refused = absl::AbortedError("another resize is under way");
    } else {
      busy_ = true;
      next_ = Request{tier, capacity_bytes, deadline, std::move(done), std::nullopt, {}};
    }
  }
  if (!refused.ok()) done(std::move(refused));
}

void Resizer::ResizeForNow(TierId tier, ForNow wanted, Callback done) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) {
      refused = absl::UnavailableError("the daemon is stopping");
    } else if (busy_ || busy_for_now_) {
      refused = absl::AbortedError("another resize is under way");
    } else {
      busy_for_now_ = true;
      next_for_now_ =
          Request{tier,          wanted.capacity_bytes,          wanted.deadline, std::move(done),
                  wanted.choice, std::move(wanted.worth_waiting)};
    }
  }
  if (!refused.ok()) done(std::move(refused));
}

Resizer::Choice Resizer::chosen(TierId tier) const {
  absl::MutexLock lock(&mu_);
  return chosen_[static_cast<size_t>(tier)];
}

Resizer::Taken Resizer::Take() {
  absl::MutexLock lock(&mu_);
  const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_.has_value() || next_for_now_.has_value() || stopped_;
  };
  mu_.Await(absl::Condition(&something));
  Taken taken;
  taken.request.swap(next_.has_value() ? next_ : next_for_now_);
  if (stopped_) {
    taken.refused = absl::UnavailableError("the daemon is stopping");
  } else if (taken.request->choice.has_value() &&
             chosen_[static_cast<size_t>(taken.request->tier)].number != *taken.request->choice) {
    taken.refused = absl::AbortedError("an operator has chosen another capacity");
  }
  return taken;
}

void Resizer::Run() {
  pthread_setname_np(pthread_self(), "resize");
  while (true) {
    Taken taken = Take();
    if (!taken.request.has_value()) return;
    Request& request = *taken.request;
    const uint64_t before = cache_->capacity_bytes(request.tier);
    absl::StatusOr<Resized> resized =
        taken.refused.ok() ? Do(request) : absl::StatusOr<Resized>(taken.refused);
    const uint64_t after = cache_->capacity_bytes(request.tier);
    {
      absl::MutexLock lock(&mu_);
      if (request.choice.has_value()) {
        busy_for_now_ = false;
      } else {
        busy_ = false;
        Choice& chosen = chosen_[static_cast<size_t>(request.tier)];
        if (resized.ok() || after != before) chosen = {after, chosen.number + 1};
      }
    }
    request.done(std::move(resized));
  }
}

absl::Status Resizer::CheckRequest(const Request& request, uint64_t previous) {
  const TierId other = request.tier == TierId::kL1 ? TierId::kL2 : TierId::kL1;
  if (request.capacity_bytes == 0 && cache_->capacity_bytes(other) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("capacity_bytes: 0, and ", TierName(other),
                     " has no memory either; one of them needs some"));
  }
  const uint64_t least = cache_->granularity(request.tier);
  if (request.capacity_bytes > 0 && request.capacity_bytes < least) {
    return absl::InvalidArgumentError(absl::StrCat("capacity_bytes: ", request.capacity_bytes,
                                                   "; must be 0 or at least ", least));
  }
  if (request.capacity_bytes <= previous) return absl::OkStatus();
  const absl::StatusOr<uint64_t> free = free_bytes_(request.tier);
  if (!free.ok()) return free.status();
  const uint64_t more = request.capacity_bytes - previous;
  if (more <= *free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(TierName(request.tier), ": ", more, " bytes more are asked for (", previous,
                   " to ", request.capacity_bytes, "), but only ", *free, " are available"));
}

absl::Status Resizer::Grow(const Request& request) {
  absl::Status added = cache_->AddSegments(request.tier, request.capacity_bytes);
  if (!added.ok()) return added;
  board_->AwaitTold(cache_->segments_version());
  cache_->OpenSegments(request.tier);
  return absl::OkStatus();
}

void Resizer::AwaitShrunk(Request& request) {
  const absl::Time until = WaitForPinsUntil(request.deadline);
  if (!request.choice.has_value()) {
    cache_->AwaitShrunk(request.tier, until);
    return;
  }
  while (!cache_->AwaitShrunk(request.tier, std::min(until, absl::Now() + kGlance))) {
    if (absl::Now() >= until || !request.worth_waiting()) return;
    absl::MutexLock lock(&mu_);
    if (next_.has_value() || stopped_) return;
  }
}

absl::StatusOr<Resizer::Resized> Resizer::Do(Request& request) {
  const TierId tier = request.tier;
  Resized resized;
  resized.previous_bytes = cache_->capacity_bytes(tier);
  absl::Status possible = CheckRequest(request, resized.previous_bytes);
  if (!possible.ok()) return possible;
  TieredCache::Shrunk shrunk;
  if (request.capacity_bytes < resized.previous_bytes) {
    cache_->StartShrink(tier, request.capacity_bytes);
    AwaitShrunk(request);
    shrunk = cache_->EndShrink(tier);
    board_->AwaitReleased(cache_->segments_version());
    shrunk.gone.clear();
  }
  absl::Status grown;
  if (request.capacity_bytes > cache_->capacity_bytes(tier)) grown = Grow(request);
  resized.capacity_bytes = cache_->capacity_bytes(tier);
  if (resized.capacity_bytes != resized.previous_bytes) {
    spdlog::log(request.choice.has_value() ? spdlog::level::debug : spdlog::level::info,
                "{}: resized from {} to {} bytes; {} were asked for", std::string(TierName(tier)),
                resized.previous_bytes, resized.capacity_bytes, request.capacity_bytes);
  }
  if (shrunk.pinned_entries > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(TierName(tier), ": has ", resized.capacity_bytes, " bytes instead of ",
                     request.capacity_bytes, ", and had ", resized.previous_bytes, ": ",
                     shrunk.pinned_entries, " entries of ", shrunk.pinned_bytes,
                     " bytes did not leave in time, most likely because they are pinned"));
  }
  if (!grown.ok() && resized.capacity_bytes < resized.previous_bytes) {
    return absl::Status(
        grown.code(), absl::StrCat(TierName(tier), ": shrunk from ", resized.previous_bytes, " to ",
                                   resized.capacity_bytes, " bytes instead of ",
                                   request.capacity_bytes, ": ", grown.message()));
  }
  if (!grown.ok()) return grown;
  return resized;
}

}  // namespace embcache
