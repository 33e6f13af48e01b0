// Claims, as CacheService offers them: gets that claim or wait, Abandon, and the ends of claims.

#include <algorithm>
#include <utility>

#include "server/cache_service.h"
#include "server/claiming_lookup.h"

namespace embcache {

void CacheService::StartClaimingLookup(const CallContext& context, const v1::GetRequest& request,
                                       CacheKey key, std::vector<TensorExpectation> expect,
                                       Place place, ClaimingLookup::Callback done) {
  // Not longer than the caller listens.
  const absl::Duration listens = context.deadline == absl::InfiniteFuture()
                                     ? absl::InfiniteDuration()
                                     : context.deadline - deps_.clock->Now();
  const uint64_t wanted_ms = request.on_miss() == v1::ON_MISS_RETURN ? 0 : request.wait_ms();
  const auto wait_ms = static_cast<int64_t>(
      std::min<uint64_t>(wanted_ms, absl::ToInt64Milliseconds(absl::Hours(24))));
  const absl::Duration wait =
      std::min({absl::Milliseconds(wait_ms), claims_.limits().max_wait, listens});
  ClaimingLookup::Start({.cache = deps_.cache,
                         .registry = deps_.registry,
                         .claims = &claims_,
                         .long_wait = wait > absl::ZeroDuration() ? context.long_wait : nullptr,
                         .shared = SharedFor(context),
                         .shared_wait = context.long_wait},
                        {.key = std::move(key),
                         .session = context.session,
                         .may_claim = request.on_miss() == v1::ON_MISS_CLAIM,
                         .accept_pending = request.accept_pending(),
                         .until = deps_.clock->MonotonicNow() + wait},
                        std::move(expect), place, std::move(done));
}

void CacheService::Abandon(const CallContext& context, const v1::AbandonRequest& request,
                           v1::AbandonResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kAbandon);
  absl::Status status = CheckBatch("claims", request.claims_size());
  if (status.ok()) status = RequireSession(context, /*need_writer=*/false);
  if (!status.ok()) return done(std::move(status));
  ClaimTable::Wakes wakes;  // told after the answer
  uint32_t abandoned = 0;
  for (const ClaimId claim : request.claims()) {
    if (claims_.Fail(claim, *context.session, &wakes)) ++abandoned;
  }
  response->set_abandoned(abandoned);
  response->set_unknown(static_cast<uint32_t>(request.claims_size()) - abandoned);
  done(absl::OkStatus());
}

void CacheService::FailClaim(const CallContext& context, ClaimId claim) {
  if (claim == 0 || !context.session.has_value()) return;
  ClaimTable::Wakes wakes;
  claims_.Fail(claim, *context.session, &wakes);
}

SharedTier* CacheService::SharedFor(const CallContext& context) const {
  return context.caller == Caller::kNetwork ? nullptr : deps_.shared;
}

void CacheService::EpochAdvancing(absl::string_view model) {
  if (deps_.shared != nullptr) deps_.shared->CloseModel(model);
}

void CacheService::EpochAdvanced(absl::string_view model) {
  const ClaimTable::Wakes wakes = claims_.AdvanceEpoch(model);
}

void CacheService::Drain() {
  draining_.store(true, std::memory_order_relaxed);
  const ClaimTable::Wakes wakes = claims_.Close();
}

void CacheService::ExpireClaims() {
  while (claims_.AwaitExpired().has_value()) {
  }
}

}  // namespace embcache
