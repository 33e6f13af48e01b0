#include "server/claim_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

// Waiters without a session share the bound of one.
constexpr Token kNobody = {};

}  // namespace

ClaimTable::ClaimTable(const ClaimLimits& limits, const Clock* clock)
    : limits_(limits), clock_(clock) {}

// --- Joining ------------------------------------------------------------------------------------

std::optional<ClaimTable::Outcome> ClaimTable::Join(const Request& request, Callback callback) {
  EMB_CHECK(!request.may_claim || request.session.has_value());
  const absl::Duration now = clock_->MonotonicNow();
  Wakes pushed_out;
  absl::MutexLock lock(&mu_);
  if (closed_) {
    return Outcome{.verdict = Verdict::kRefused,
                   .status = absl::UnavailableError("the daemon is draining")};
  }
  auto found = keys_.find(request.key);
  KeyState* state = found == keys_.end() ? nullptr : found->second.get();
  if (state != nullptr && state->claim != 0) {
    Claim& claim = claims_.at(state->claim);
    if (request.may_claim && claim.session == *request.session) {
      ++claim.answers;
      return Outcome{.verdict = Verdict::kClaimed, .claim = state->claim};
    }
    if (request.accept_pending && claim.announced != nullptr) {
      return Outcome{.verdict = Verdict::kPending, .pending = claim.announced};
    }
  } else if (request.may_claim) {
    if (!MayGrantLocked(*request.session)) {
      return Outcome{.verdict = Verdict::kRefused, .status = NoMoreClaimsLocked(*request.session)};
    }
    if (state == nullptr) {
      found = keys_.emplace(request.key, std::make_unique<KeyState>(request.key)).first;
      state = found->second.get();
    }
    return Outcome{.verdict = Verdict::kClaimed, .claim = GrantLocked(state, *request.session)};
  }
  const bool claimed = state != nullptr && state->claim != 0;
  if (request.until <= now) return Outcome{.verdict = Verdict::kTimedOut, .claimed = claimed};
  if (wait_deadlines_.size() >= limits_.max_waiters) {
    absl::Status no_room = PushOutLocked(request.session.value_or(kNobody), &pushed_out);
    if (!no_room.ok()) return Outcome{.verdict = Verdict::kRefused, .status = std::move(no_room)};
  }
  // Looked up anew: the one that was pushed out may have been the last of this key.
  std::unique_ptr<KeyState>& joined = keys_[request.key];
  if (joined == nullptr) joined = std::make_unique<KeyState>(request.key);
  WaitLocked(joined.get(), request, std::move(callback));
  return std::nullopt;
}

bool ClaimTable::IsClaimed(const CacheKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto found = keys_.find(key);
  return found != keys_.end() && found->second->claim != 0;
}

uint64_t ClaimTable::ClaimsOfLocked(const Token& session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? 0 : it->second.claims.size();
}

bool ClaimTable::MayGrantLocked(const Token& session) const {
  return claims_.size() < limits_.max_claims &&
         ClaimsOfLocked(session) < limits_.max_claims_per_session;
}

absl::Status ClaimTable::NoMoreClaimsLocked(const Token& session) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "claims: ", ClaimsOfLocked(session), " held by this session of ",
      limits_.max_claims_per_session, ", ", claims_.size(), " in all of ", limits_.max_claims));
}

ClaimId ClaimTable::GrantLocked(KeyState* state, const Token& session) {
  EMB_CHECK(state->claim == 0);
  const ClaimId id = next_claim_++;
  const absl::Duration deadline = clock_->MonotonicNow() + limits_.ttl;
  claims_.emplace(id, Claim{.state = state,
                            .key = state->key,
                            .session = session,
                            .deadline = deadline,
                            .announced = nullptr,
                            .answers = 1});
  state->claim = id;
  sessions_[session].claims.insert(id);
  claim_deadlines_.emplace(deadline, id);
  if (NextDeadlineLocked() == deadline) earlier_deadline_.Signal();
  ++stats_.granted;
  return id;
}

void ClaimTable::WaitLocked(KeyState* state, const Request& request, Callback callback) {
  const WaiterId id = next_waiter_++;
  state->waiters.emplace_hint(state->waiters.end(), id,
                              Waiter{.session = request.session,
                                     .may_claim = request.may_claim,
                                     .accept_pending = request.accept_pending,
                                     .until = request.until,
                                     .callback = std::move(callback)});
  const Token session = request.session.value_or(kNobody);
  auto& of_session = sessions_[session].waiters;
  most_waits_.erase({of_session.size(), session});
  of_session.emplace(id, state);
  most_waits_.emplace(of_session.size(), session);
  wait_deadlines_.emplace(std::pair(request.until, id), state);
  if (NextDeadlineLocked() == request.until) earlier_deadline_.Signal();
  ++stats_.waits;
}

absl::Status ClaimTable::PushOutLocked(const Token& session, Wakes* wakes) {
  const auto comer = sessions_.find(session);
  const uint64_t of_comer = comer == sessions_.end() ? 0 : comer->second.waiters.size();
  const auto [most, holder] = *most_waits_.rbegin();
  const auto refusal = [&](uint64_t of_session) {
    return absl::ResourceExhaustedError(
        absl::StrCat("waits for claims: all of max-waiters = ", limits_.max_waiters, " are taken, ",
                     of_session, " by this session, and no other session has more"));
  };
  if (of_comer + 2 > most) return refusal(of_comer);
  const auto [last, state] = *sessions_.at(holder).waiters.rbegin();
  WakeLocked(state, state->waiters.find(last),
             {.verdict = Verdict::kRefused, .status = refusal(most)}, wakes);
  if (state->claim == 0) PromoteLocked(state, wakes);
  return absl::OkStatus();
}

// --- The end of waits and claims ----------------------------------------------------------------

void ClaimTable::WakeLocked(KeyState* state, absl::btree_map<WaiterId, Waiter>::iterator waiter,
                            Outcome outcome, Wakes* wakes) {
  const WaiterId id = waiter->first;
  wait_deadlines_.erase({waiter->second.until, id});
  const auto session = sessions_.find(waiter->second.session.value_or(kNobody));
  auto& of_session = session->second.waiters;
  most_waits_.erase({of_session.size(), session->first});
  of_session.erase(id);
  if (!of_session.empty()) most_waits_.emplace(of_session.size(), session->first);
  if (session->second.waiters.empty() && session->second.claims.empty()) sessions_.erase(session);
  wakes->Add(std::move(waiter->second.callback), std::move(outcome));
  state->waiters.erase(waiter);
}

ClaimTable::KeyState* ClaimTable::EraseClaimLocked(ClaimId id) {
  const auto claim = claims_.find(id);
  KeyState* const state = claim->second.state;
  if (state != nullptr) state->claim = 0;
  claim_deadlines_.erase({claim->second.deadline, id});
  if (claim->second.reservation != 0) reservations_.erase(claim->second.reservation);
  const auto session = sessions_.find(claim->second.session);
  session->second.claims.erase(id);
  if (session->second.waiters.empty() && session->second.claims.empty()) sessions_.erase(session);
  claims_.erase(claim);
  return state;
}

void ClaimTable::FailLocked(ClaimId claim, Wakes* wakes) {
  ++stats_.failed;
  KeyState* const state = EraseClaimLocked(claim);
  if (state != nullptr) PromoteLocked(state, wakes);
}

void ClaimTable::PromoteLocked(KeyState* state, Wakes* wakes) {
  EMB_CHECK(state->claim == 0);
  const absl::Duration now = clock_->MonotonicNow();
  for (auto waiter = state->waiters.begin(); waiter != state->waiters.end(); ++waiter) {
    if (!waiter->second.may_claim || waiter->second.until <= now) continue;
    const Token session = *waiter->second.session;
    if (!MayGrantLocked(session)) continue;
    const ClaimId claim = GrantLocked(state, session);
    WakeLocked(state, waiter, {.verdict = Verdict::kClaimed, .claim = claim}, wakes);
    return;
  }
  // Nobody may encode it: those who would are told so, like whoever asks now. If they waited for
  // their session's claims to end, they might wait for the very call that they are part of.
  for (auto waiter = state->waiters.begin(); waiter != state->waiters.end();) {
    const auto refused = waiter++;
    if (!refused->second.may_claim || refused->second.until <= now) continue;
    const WaiterId next = waiter == state->waiters.end() ? 0 : waiter->first;
    absl::Status why = NoMoreClaimsLocked(*refused->second.session);
    WakeLocked(state, refused, {.verdict = Verdict::kRefused, .status = std::move(why)}, wakes);
    waiter = next == 0 ? state->waiters.end() : state->waiters.find(next);  // the map is a B-tree
  }
  if (state->waiters.empty()) {
    const CacheKey key = state->key;  // the state's own goes with it
    keys_.erase(key);
  }
}

ClaimTable::Wakes ClaimTable::Stored(const CacheKey& key) {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  const auto found = keys_.find(key);
  if (found == keys_.end()) return wakes;
  KeyState* const state = found->second.get();
  if (state->claim != 0) EraseClaimLocked(state->claim);
  while (!state->waiters.empty()) {
    WakeLocked(state, state->waiters.begin(), {.verdict = Verdict::kLookAgain}, &wakes);
  }
  keys_.erase(found);
  return wakes;
}

// --- Claims -------------------------------------------------------------------------------------

bool ClaimTable::OwnsLocked(ClaimId claim, const Token& session) const {
  const auto it = claims_.find(claim);
  return it != claims_.end() && it->second.session == session;
}

absl::Status ClaimTable::CheckPut(ClaimId id, const std::optional<Token>& session,
                                  const CacheKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = claims_.find(id);
  if (it == claims_.end()) return absl::OkStatus();
  const Claim& claim = it->second;
  if (!session.has_value() || claim.session != *session || claim.key != key) {
    return absl::InvalidArgumentError(
        absl::StrCat("claim: ", id, " is not this session's claim of this key"));
  }
  if (claim.state == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("claim: ", id, ": the epoch of model \"",
                                                      key.model(),
                                                      "\" was advanced since it was given"));
  }
  return absl::OkStatus();
}

ClaimTable::Wakes ClaimTable::Reserved(ClaimId id, ReservationId reservation,
                                       std::shared_ptr<const EntryInfo> announced) {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  const auto it = claims_.find(id);
  if (it == claims_.end()) return wakes;
  Claim& claim = it->second;
  if (claim.reservation != 0) reservations_.erase(claim.reservation);
  claim.reservation = reservation;
  claim.announced = std::move(announced);
  reservations_[reservation] = id;
  if (claim.state == nullptr) return wakes;
  auto& waiters = claim.state->waiters;
  for (auto waiter = waiters.begin(); waiter != waiters.end();) {
    const auto next = std::next(waiter);
    const WaiterId next_id = next == waiters.end() ? 0 : next->first;
    if (waiter->second.accept_pending) {
      WakeLocked(claim.state, waiter, {.verdict = Verdict::kPending, .pending = claim.announced},
                 &wakes);
    }
    waiter = next_id == 0 ? waiters.end() : waiters.find(next_id);
  }
  return wakes;
}

ClaimTable::Wakes ClaimTable::ReservationFailed(ReservationId reservation) {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  const auto it = reservations_.find(reservation);
  if (it != reservations_.end()) FailLocked(it->second, &wakes);
  return wakes;
}

bool ClaimTable::Fail(ClaimId claim, const Token& session, Wakes* wakes) {
  absl::MutexLock lock(&mu_);
  if (!OwnsLocked(claim, session)) return false;
  FailLocked(claim, wakes);
  return true;
}

ClaimTable::Wakes ClaimTable::Undelivered(ClaimId claim, const Token& session) {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  if (OwnsLocked(claim, session) && --claims_.at(claim).answers == 0) FailLocked(claim, &wakes);
  return wakes;
}

ClaimTable::Wakes ClaimTable::EndSession(const Token& session) {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return wakes;
  // The waiters first, so that none of them is given what its session loses.
  const std::vector<std::pair<WaiterId, KeyState*>> waiters(it->second.waiters.begin(),
                                                            it->second.waiters.end());
  const std::vector<ClaimId> claims(it->second.claims.begin(), it->second.claims.end());
  std::vector<CacheKey> keys;
  for (const auto& [id, state] : waiters) {
    keys.push_back(state->key);
    WakeLocked(state, state->waiters.find(id),
               {.verdict = Verdict::kRefused,
                .status = absl::NotFoundError("the session ended during the wait")},
               &wakes);
  }
  for (const ClaimId claim : claims) FailLocked(claim, &wakes);
  for (const CacheKey& key : keys) {
    const auto state = keys_.find(key);
    if (state != keys_.end() && state->second->claim == 0) {
      PromoteLocked(state->second.get(), &wakes);
    }
  }
  return wakes;
}

ClaimTable::Wakes ClaimTable::AdvanceEpoch(absl::string_view model) {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  std::vector<KeyState*> freed;
  for (auto& [id, claim] : claims_) {
    if (claim.state == nullptr || claim.key.model() != model) continue;
    claim.state->claim = 0;
    freed.push_back(std::exchange(claim.state, nullptr));
  }
  for (KeyState* state : freed) PromoteLocked(state, &wakes);
  return wakes;
}

// --- Time ---------------------------------------------------------------------------------------

absl::Duration ClaimTable::NextDeadlineLocked() const {
  absl::Duration next = absl::InfiniteDuration();
  if (!claim_deadlines_.empty()) next = claim_deadlines_.begin()->first;
  if (!wait_deadlines_.empty()) next = std::min(next, wait_deadlines_.begin()->first.first);
  return next;
}

void ClaimTable::ExpireLocked(absl::Duration now, Wakes* wakes) {
  while (!claim_deadlines_.empty() && claim_deadlines_.begin()->first <= now) {
    FailLocked(claim_deadlines_.begin()->second, wakes);
  }
  while (!wait_deadlines_.empty() && wait_deadlines_.begin()->first.first <= now) {
    const auto [deadline, state] = *wait_deadlines_.begin();
    WakeLocked(state, state->waiters.find(deadline.second),
               {.verdict = Verdict::kTimedOut, .claimed = state->claim != 0}, wakes);
    if (state->claim == 0) PromoteLocked(state, wakes);
  }
}

ClaimTable::Wakes ClaimTable::Expire() {
  Wakes wakes;
  const absl::Duration now = clock_->MonotonicNow();
  absl::MutexLock lock(&mu_);
  ExpireLocked(now, &wakes);
  return wakes;
}

std::optional<ClaimTable::Wakes> ClaimTable::AwaitExpired() {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  while (!closed_) {
    const absl::Duration now = clock_->MonotonicNow();
    const absl::Duration next = NextDeadlineLocked();
    if (next <= now) {
      ExpireLocked(now, &wakes);
      return std::optional<Wakes>(std::move(wakes));
    }
    earlier_deadline_.WaitWithTimeout(&mu_, next - now);
  }
  return std::nullopt;
}

ClaimTable::Wakes ClaimTable::Close() {
  Wakes wakes;
  absl::MutexLock lock(&mu_);
  closed_ = true;
  earlier_deadline_.SignalAll();
  for (auto& [key, state] : keys_) {
    while (!state->waiters.empty()) {
      WakeLocked(state.get(), state->waiters.begin(),
                 {.verdict = Verdict::kRefused,
                  .status = absl::UnavailableError("the daemon is draining")},
                 &wakes);
    }
  }
  return wakes;
}

ClaimStats ClaimTable::GetStats() const {
  absl::MutexLock lock(&mu_);
  ClaimStats stats = stats_;
  stats.claims = claims_.size();
  stats.waiters = wait_deadlines_.size();
  return stats;
}

}  // namespace embcache
