#include "server/claiming_lookup.h"

#include <utility>

namespace embcache {

void ClaimingLookup::Start(const Deps& deps, ClaimTable::Request request,
                           std::vector<TensorExpectation> expect, Place place, Callback done) {
  auto* const lookup =
      new ClaimingLookup(deps, std::move(request), std::move(expect), place, std::move(done));
  lookup->Look();
}

void ClaimingLookup::Look() {
  deps_.cache->Lookup(
      request_.key, expect_, place_,
      [this](absl::StatusOr<LookupResult> found) { Found(std::move(found)); }, LookupCount::kHits);
}

void ClaimingLookup::Found(absl::StatusOr<LookupResult> found) {
  if (!found.ok()) {
    ClaimTable::Wakes wakes;
    if (claim_ != 0) deps_.claims->Fail(claim_, *request_.session, &wakes);
    return Missed({.found = std::move(found)});
  }
  if (found->hit()) {
    // With a claim: somebody stored it between the first look and the claim. From the shared tier:
    // nobody else says that it is stored.
    if (claim_ != 0 || shared_asked_) {
      const ClaimTable::Wakes wakes = deps_.claims->Stored(request_.key);
    }
    return Finish({.found = std::move(found)});
  }
  const bool mismatch = found->reason == MissReason::kMismatch;
  if (mismatch && deps_.shared != nullptr) deps_.shared->Removing(request_.key);
  if (claim_ != 0) return Missed({.found = std::move(found), .claim = claim_});
  reason_ = found->reason;
  if (!mismatch && AskShared()) return;
  // Before, for once joined the call may be answered at any time.
  if (deps_.long_wait != nullptr) deps_.long_wait->Begin();
  auto outcome =
      deps_.claims->Join(request_, [this](ClaimTable::Outcome later) { Joined(std::move(later)); });
  if (outcome.has_value()) Joined(*std::move(outcome));
}

bool ClaimingLookup::AskShared() {
  if (deps_.shared == nullptr || std::exchange(shared_asked_, true)) return false;
  if (deps_.claims->IsClaimed(request_.key)) return false;  // it is being encoded here
  if (deps_.shared_wait != nullptr) deps_.shared_wait->Begin();
  return deps_.shared->Ask(request_.key, [this] { Look(); });
}

void ClaimingLookup::Joined(ClaimTable::Outcome outcome) {
  LookupResult miss{.handle = {}, .source = TierId::kL1, .reason = reason_};
  switch (outcome.verdict) {
    case ClaimTable::Verdict::kLookAgain:
      return Look();
    case ClaimTable::Verdict::kClaimed:
      claim_ = outcome.claim;
      // A session that ended before its claim was entered has not taken it along.
      if (absl::Status alive = deps_.registry->Check(*request_.session, /*need_writer=*/true);
          !alive.ok()) {
        ClaimTable::Wakes wakes;
        deps_.claims->Fail(claim_, *request_.session, &wakes);
        return Missed({.found = std::move(alive)});
      }
      return Look();
    case ClaimTable::Verdict::kPending:
      return Missed({.found = std::move(miss), .pending = std::move(outcome.pending)});
    case ClaimTable::Verdict::kTimedOut:
      return Missed({.found = std::move(miss), .claimed_elsewhere = outcome.claimed});
    case ClaimTable::Verdict::kRefused:
      return Missed({.found = std::move(outcome.status)});
  }
}

void ClaimingLookup::Missed(Answer answer) {
  deps_.cache->CountMiss(request_.key, reason_);
  Finish(std::move(answer));
}

void ClaimingLookup::Finish(Answer answer) {
  const std::unique_ptr<ClaimingLookup> self(this);
  done_(std::move(answer));
}

}  // namespace embcache
