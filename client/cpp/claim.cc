// Claims: GetOrClaim, GetOrEncode, and what keeps the threads of one client apart.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/claim_queue.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "client/cpp/held.h"
#include "client/cpp/session.h"

namespace embcache::client {

namespace v1 = embcache::v1;
using internal::ClaimQueue;
using internal::FromProto;
using internal::Session;
using internal::ToProto;
using Stub = v1::Cache::Stub;

namespace internal {

ClaimQueue::Turn ClaimQueue::Enter(const Key& key, absl::Time deadline) {
  const Name name = NameOf(key);
  absl::MutexLock lock(&mutex_);
  const auto [at, inserted] = slots_.try_emplace(name);
  if (inserted) {
    at->second = std::make_unique<Slot>();
    return Turn::kMine;
  }
  Slot* const slot = at->second.get();
  const uint64_t turn = slot->turn;
  ++slot->waiting;
  while (slot->taken && slot->turn == turn) {
    if (slot->left.WaitWithDeadline(&mutex_, deadline)) break;
  }
  --slot->waiting;
  Turn answer = Turn::kTimedOut;
  if (slot->turn != turn && slot->stored) {
    answer = Turn::kStored;
  } else if (!slot->taken) {
    slot->taken = true;
    answer = Turn::kMine;
  } else if (slot->turn != turn && absl::Now() < deadline) {
    answer = Turn::kStored;  // the next one has it already: ask again
  }
  if (slot->waiting == 0 && !slot->taken) slots_.erase(name);
  return answer;
}

void ClaimQueue::Leave(const Key& key, bool stored) {
  absl::MutexLock lock(&mutex_);
  const auto at = slots_.find(NameOf(key));
  Slot* const slot = at->second.get();
  slot->taken = false;
  slot->stored = stored;
  ++slot->turn;
  if (slot->waiting == 0) {
    slots_.erase(at);
  } else {
    slot->left.SignalAll();
  }
}

// The turn of a key in this process, and the daemon's claim if there is one.
struct HeldClaim {
  HeldClaim(std::shared_ptr<Session> of, std::shared_ptr<ClaimQueue> in, Key claimed)
      : session(std::move(of)), queue(std::move(in)), key(std::move(claimed)) {}
  ~HeldClaim() {
    if (!session->in_own_process()) {
      static_cast<void>(new std::shared_ptr<Session>(std::move(session)));  // as in Lease::End
      return;
    }
    if (id != 0 && !stored) GiveUp().IgnoreError();
    if (queue != nullptr) queue->Leave(key, stored);
  }

  absl::Status GiveUp() {
    v1::AbandonRequest request;
    request.add_claims(std::exchange(id, 0));
    if (!session->connected()) return absl::OkStatus();
    v1::AbandonResponse response;
    return session->Call(&Stub::Abandon, request, &response);
  }

  std::shared_ptr<Session> session;
  std::shared_ptr<ClaimQueue> queue;  // null: nobody's turn
  Key key;
  uint64_t id = 0;
  bool stored = false;
};

}  // namespace internal

Claim::Claim(std::unique_ptr<internal::HeldClaim> held) : held_(std::move(held)) {}
Claim::Claim(Claim&&) noexcept = default;
Claim& Claim::operator=(Claim&&) noexcept = default;
Claim::~Claim() = default;

const Key& Claim::key() const { return held_->key; }
bool Claim::held() const { return held_->id != 0; }

absl::StatusOr<Reservation> Claim::Reserve(const std::vector<TensorSpec>& tensors,
                                           const PutOptions& options) {
  return internal::ReserveFor(held_->session, held_->key, tensors, options, held_->id);
}

absl::Status Claim::Abandon() {
  return held() ? held_->GiveUp()
                : absl::FailedPreconditionError("the claim is already over, or was never given");
}

namespace {

absl::Status CheckOneResult(const v1::GetResponse& response) {
  if (response.results_size() == 1) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Get: ", response.results_size(), " results for 1 item"));
}

// What a Get without a claim is answered.
absl::Status ReadAnswer(const std::shared_ptr<Session>& session, const Key& key,
                        const v1::GetResult& result, absl::Time asked, ClaimResult* out) {
  switch (result.verdict()) {
    case v1::GetResult::HIT: {
      absl::StatusOr<Lease> lease = internal::MakeLease(session, key, result, asked);
      if (!lease.ok()) return lease.status();
      out->lease = *std::move(lease);
      return absl::OkStatus();
    }
    case v1::GetResult::MISS:
      out->reason = FromProto(result.reason());
      return absl::OkStatus();
    case v1::GetResult::PENDING: {
      PendingEntry pending;
      for (const v1::Tensor& tensor : result.entry().tensors()) {
        pending.tensors.push_back(FromProto(tensor));
      }
      for (const auto& [name, value] : result.entry().metadata()) pending.metadata[name] = value;
      out->pending = std::move(pending);
      return absl::OkStatus();
    }
    default:
      return result.status().code() == 0 ? absl::InternalError("a result without verdict")
                                         : FromProto(result.status());
  }
}

v1::GetRequest MakeRequest(const Key& key, const ClaimOptions& options, absl::Duration wait) {
  v1::GetRequest request;
  v1::GetItem* item = request.add_items();
  ToProto(key, item->mutable_key());
  for (const Expectation& expectation : options.expect) {
    ToProto(expectation, item->add_expect());
  }
  request.set_on_miss(options.may_claim ? v1::ON_MISS_CLAIM : v1::ON_MISS_WAIT);
  request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(wait)));
  request.set_accept_pending(options.accept_pending);
  return request;
}

}  // namespace

absl::StatusOr<ClaimResult> Client::GetOrClaim(const Key& key, const ClaimOptions& options) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  if (options.may_claim && !(*session)->writer()) {
    return absl::PermissionDeniedError("this client was connected as a reader");
  }
  const absl::Time deadline =
      absl::Now() + std::clamp(options.wait, absl::ZeroDuration(), absl::Hours(24));
  std::unique_ptr<internal::HeldClaim> claim;
  ClaimOptions asked_for = options;
  if (options.may_claim) {
    switch (claims_->Enter(key, deadline)) {
      case ClaimQueue::Turn::kMine:
        claim = std::make_unique<internal::HeldClaim>(*session, claims_, key);
        break;
      case ClaimQueue::Turn::kStored:
        // Most likely a hit, in which all threads that waited are served side by side.
        asked_for.may_claim = false;
        asked_for.wait = absl::ZeroDuration();
        break;
      case ClaimQueue::Turn::kTimedOut:
        return ClaimResult{.reason = MissReason::kClaimedElsewhere};
    }
  }
  const bool look_only = options.may_claim && claim == nullptr;
  const absl::Duration wait =
      look_only ? absl::ZeroDuration() : std::max(deadline - absl::Now(), absl::ZeroDuration());
  const v1::GetRequest request = MakeRequest(key, asked_for, wait);
  v1::GetResponse response;
  const absl::Time asked = absl::Now();
  absl::Status status = (*session)->CallWaiting(&Stub::Get, request, &response, wait);
  if (status.ok()) status = CheckOneResult(response);
  if (!status.ok()) return status;
  ClaimResult out;
  if (response.results(0).verdict() == v1::GetResult::CLAIMED) {
    if (claim == nullptr) return absl::InternalError("Get: a claim that was not asked for");
    claim->id = response.results(0).claim();
    out.claim = Claim(std::move(claim));
    return out;
  }
  status = ReadAnswer(*session, key, response.results(0), asked, &out);
  if (!status.ok()) return status;
  if (claim != nullptr) claim->stored = out.lease.has_value();
  claim.reset();
  if (look_only && !out.lease.has_value()) {
    // The other thread's value is not there (any more).
    ClaimOptions rest = options;
    rest.wait = std::max(deadline - absl::Now(), absl::ZeroDuration());
    return GetOrClaim(key, rest);
  }
  return out;
}

absl::StatusOr<Lease> Client::GetOrEncode(const Key& key, EncodeFunction encode,
                                          const ClaimOptions& options) {
  ClaimOptions claiming = options;
  claiming.may_claim = true;
  claiming.accept_pending = false;
  absl::StatusOr<ClaimResult> found = GetOrClaim(key, claiming);
  if (!found.ok()) return found.status();
  if (found->lease.has_value()) return *std::move(found->lease);
  if (!found->claim.has_value()) {  // whoever encodes it takes too long
    auto session = connection_->session();
    if (!session.ok()) return session.status();
    found->claim = Claim(std::make_unique<internal::HeldClaim>(*session, nullptr, key));
  }
  Claim& claim = *found->claim;
  absl::StatusOr<Reservation> encoded = encode(claim);
  if (!encoded.ok()) return encoded.status();
  absl::StatusOr<std::optional<Lease>> committed = encoded->Commit(/*keep_lease=*/true);
  if (!committed.ok()) return committed.status();
  claim.held_->stored = true;
  return **std::move(committed);
}

}  // namespace embcache::client
