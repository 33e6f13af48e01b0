// The leases' half of CacheService: Release, Share, Adopt, and what becomes of undelivered answers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache_service.h"
#include "server/proto_convert.h"

namespace embcache {
namespace {

constexpr absl::Duration kDefaultShareTtl = absl::Seconds(30);
constexpr uint64_t kMaxShareTtlMs = 10 * 60 * 1000;

std::string TokenToBytes(const Token& token) { return std::string(token.begin(), token.end()); }

}  // namespace

void CacheService::Release(const CallContext& context, const v1::ReleaseRequest& request,
                           v1::ReleaseResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kRelease);
  absl::Status status = CheckBatch("leases", request.leases_size());
  if (status.ok()) status = RequireSession(context, /*need_writer=*/false);
  if (!status.ok()) return done(std::move(status));
  absl::StatusOr<uint32_t> released = deps_.registry->Release(*context.session, request.leases());
  if (!released.ok()) return done(released.status());
  response->set_released(*released);
  response->set_unknown(static_cast<uint32_t>(request.leases_size()) - *released);
  done(absl::OkStatus());
}

void CacheService::Share(const CallContext& context, const v1::ShareRequest& request,
                         v1::ShareResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kShare);
  absl::Status status = CheckBatch("leases", request.leases_size());
  if (status.ok() && request.leases().empty()) {
    status = absl::InvalidArgumentError("leases: none given");
  }
  if (status.ok() && request.ttl_ms() > kMaxShareTtlMs) {
    status = absl::InvalidArgumentError(
        absl::StrCat("ttl_ms: ", request.ttl_ms(), "; must be at most ", kMaxShareTtlMs));
  }
  if (status.ok()) status = RequireSession(context, /*need_writer=*/false);
  if (!status.ok()) return done(std::move(status));
  const absl::Duration ttl = request.ttl_ms() == 0
                                 ? kDefaultShareTtl
                                 : absl::Milliseconds(static_cast<int64_t>(request.ttl_ms()));
  absl::StatusOr<Token> token = deps_.registry->Share(*context.session, request.leases(), ttl);
  if (!token.ok()) return done(token.status());
  response->set_token(TokenToBytes(*token));
  response->set_expires_unix_ms(absl::ToUnixMillis(deps_.clock->Now() + ttl));
  done(absl::OkStatus());
}

void CacheService::Adopt(const CallContext& context, const v1::AdoptRequest& request,
                         v1::AdoptResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kAdopt);
  absl::Status status = RefuseIfDraining();
  if (status.ok()) status = RequireSession(context, /*need_writer=*/false);
  Token token;
  if (status.ok() && request.token().size() != token.size()) {
    status = absl::InvalidArgumentError(
        absl::StrCat("token: ", request.token().size(), " bytes; must be ", token.size()));
  }
  if (!status.ok()) return done(std::move(status));
  std::copy(request.token().begin(), request.token().end(), token.begin());
  auto adopted = deps_.registry->Adopt(*context.session, token);
  if (!adopted.ok()) return done(adopted.status());
  for (const SessionRegistry::AdoptedLease& lease : *adopted) {
    if (CanUse(context, lease.location)) continue;
    std::vector<LeaseId> all;
    for (const SessionRegistry::AdoptedLease& held : *adopted) all.push_back(held.id);
    ReleaseUndelivered(context, all);
    return done(absl::FailedPreconditionError(
        "token: it shares device memory, which is lost or which this session does not see"));
  }
  for (const SessionRegistry::AdoptedLease& lease : *adopted) {
    v1::GetResult* result = response->add_results();
    result->set_verdict(v1::GetResult::HIT);
    result->set_source(TierToProto(lease.location.tier));
    result->set_generation(lease.generation);
    result->set_lease(lease.id);
    EntryToProto(*lease.info, result->mutable_entry());
    KeyToProto(lease.info->key, result->mutable_entry()->mutable_key());
    LocationToProto(lease.location, result->mutable_location());
  }
  done(absl::OkStatus());
}

// --- Undelivered answers -------------------------------------------------------------------------

void CacheService::ReleaseUndelivered(const CallContext& context,
                                      const std::vector<LeaseId>& leases) {
  if (!context.session.has_value() || leases.empty()) return;
  // A session that ended meanwhile has lost its leases anyway.
  deps_.registry->Release(*context.session, leases).IgnoreError();
}

void CacheService::Undelivered(const CallContext& context, const v1::GetResponse& response) {
  std::vector<LeaseId> leases;
  for (const v1::GetResult& result : response.results()) {
    if (result.lease() != 0) leases.push_back(result.lease());
  }
  ReleaseUndelivered(context, leases);
}

void CacheService::Undelivered(const CallContext& context, const v1::AdoptResponse& response) {
  std::vector<LeaseId> leases;
  for (const v1::GetResult& result : response.results()) leases.push_back(result.lease());
  ReleaseUndelivered(context, leases);
}

void CacheService::Undelivered(const CallContext& context, const v1::ContainsResponse& response) {
  std::vector<LeaseId> leases;
  for (const v1::ContainsResult& result : response.results()) {
    if (result.hit().lease() != 0) leases.push_back(result.hit().lease());
  }
  ReleaseUndelivered(context, leases);
}

void CacheService::Undelivered(const CallContext& context, const v1::PopResponse& response) {
  if (response.result().lease() != 0) ReleaseUndelivered(context, {response.result().lease()});
}

void CacheService::Undelivered(const CallContext& context, const v1::CommitResponse& response) {
  std::vector<LeaseId> leases;
  for (const v1::CommitResult& result : response.results()) {
    if (result.lease() != 0) leases.push_back(result.lease());
  }
  ReleaseUndelivered(context, leases);
}

void CacheService::Undelivered(const CallContext& context, const v1::ReserveResponse& response) {
  if (!context.session.has_value()) return;
  for (const v1::ReserveResult& result : response.results()) {
    if (result.reservation() == 0) continue;
    // Nobody knows the range, so nobody writes into it.
    if (deps_.registry->TakeReservation(*context.session, result.reservation()).ok()) {
      deps_.cache->Abort(result.reservation()).IgnoreError();
    }
  }
}

}  // namespace embcache
