#include "server/cache_service.h"

#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/batch_call.h"
#include "server/proto_convert.h"
#include "storage/memory_resource.h"

namespace embcache {

absl::string_view OperationName(Operation operation) {
  static constexpr absl::string_view kNames[kOperations] = {
      "get",   "put",      "reserve", "commit", "abort",         "release", "share",
      "adopt", "contains", "delete",  "pop",    "advance_epoch", "list",    "abandon"};
  return kNames[static_cast<size_t>(operation)];
}

CacheService::CacheService(CacheServiceDeps deps)
    : deps_(std::move(deps)),
      started_(deps_.clock->MonotonicNow()),
      claims_(deps_.claims, deps_.clock),
      hub_(deps_.cache, deps_.max_watchers) {
  deps_.registry->OnSessionEnd([this](const Token& session) {
    const ClaimTable::Wakes wakes = claims_.EndSession(session);
  });
}

CacheService::~CacheService() { deps_.registry->OnSessionEnd(nullptr); }

absl::Status CacheService::RefuseIfDraining() const {
  if (draining()) return absl::UnavailableError("the daemon is draining");
  return absl::OkStatus();
}

absl::Status CacheService::RequireSession(const CallContext& context, bool need_writer) const {
  if (!context.session.has_value()) {
    return absl::UnauthenticatedError(
        "this call needs a session: send its token in the metadata \"embcache-session\"");
  }
  return deps_.registry->Check(*context.session, need_writer);
}

absl::Status CacheService::RequireWriter(const CallContext& context) const {
  if (context.session.has_value()) {
    return deps_.registry->Check(*context.session, /*need_writer=*/true);
  }
  switch (context.caller) {
    case Caller::kAdmin:
      return absl::OkStatus();
    case Caller::kLocal:
      return absl::UnauthenticatedError(
          "this call changes the cache: it needs the session of a writer, or an administrator");
    case Caller::kNetwork:
      break;
  }
  return absl::PermissionDeniedError("this call changes the cache: not over TCP");
}

absl::Status CacheService::CheckOptionalSession(const CallContext& context) const {
  if (!context.session.has_value()) return absl::OkStatus();
  return deps_.registry->Check(*context.session, /*need_writer=*/false);
}

absl::Status CacheService::CheckExpectations(const CallContext& context,
                                             const v1::GetRequest& request) const {
  if (context.session.has_value()) return absl::OkStatus();
  for (int i = 0; i < request.items_size(); ++i) {
    if (request.items(i).expect().empty()) continue;
    // One that is not met removes the entry.
    absl::Status allowed = RequireWriter(context);
    if (!allowed.ok()) return InField("items", i, "expect", allowed);
  }
  return absl::OkStatus();
}

absl::Status CacheService::CheckBatch(absl::string_view field, int size) const {
  if (static_cast<uint32_t>(size) > deps_.limits.max_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", size, " given; must be at most ", deps_.limits.max_batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<Place> CacheService::PlaceFor(const CallContext& context, v1::Place place) const {
  const bool on_device = deps_.cache->l1_on_device();
  const bool sees_device =
      on_device && context.session.has_value() && deps_.registry->SeesDevice(*context.session);
  switch (place) {
    case v1::PLACE_ANY:
      return on_device && context.session.has_value() && !sees_device ? Place::kHost : Place::kAny;
    case v1::PLACE_HOST:
      return on_device ? Place::kHost : Place::kAny;
    case v1::PLACE_DEVICE:
      if (!on_device) {
        return absl::FailedPreconditionError("place: DEVICE, but L1 is host memory here");
      }
      if (context.session.has_value() && !sees_device) {
        return absl::FailedPreconditionError(absl::StrCat(
            "place: DEVICE, but this session's Hello did not name the daemon's device, ",
            deps_.device->uuid()));
      }
      return Place::kDevice;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("place: ", static_cast<int>(place), " is unknown"));
  }
}

bool CacheService::CanUse(const CallContext& context, const Location& location) const {
  if (!deps_.cache->l1_on_device() || location.tier != TierId::kL1) return true;
  return context.session.has_value() && deps_.registry->SeesDevice(*context.session) &&
         deps_.cache->TierUsable(TierId::kL1);
}

uint64_t CacheService::FillHit(const CallContext& context, ReadHandle handle, TierId source,
                               uint64_t inline_limit, std::string staged, v1::GetResult* result) {
  const EntryInfo& info = *handle.info();
  const Location& location = handle.location();
  result->set_verdict(v1::GetResult::HIT);
  result->set_source(TierToProto(source));
  result->set_generation(handle.generation());
  EntryToProto(info, result->mutable_entry());
  // Who has a session looks for speed and knows what it asked for.
  if (!context.session.has_value()) KeyToProto(info.key, result->mutable_entry()->mutable_key());
  uint64_t inlined = 0;
  if (info.payload_bytes() <= inline_limit) {
    const char* data = handle.memory().host_data();  // nullptr: this process cannot read it
    if (!staged.empty()) {
      inlined = staged.size();
      result->set_inline_(std::move(staged));
    } else if (data != nullptr) {
      inlined = info.payload_bytes();
      result->set_inline_(data + location.offset, inlined);
    }
  }
  if (!context.session.has_value()) return inlined;
  LocationToProto(location, result->mutable_location());
  absl::StatusOr<LeaseId> lease = deps_.registry->AddLease(*context.session, std::move(handle));
  if (lease.ok()) {
    result->set_lease(*lease);
    return inlined;
  }
  result->Clear();
  result->set_verdict(v1::GetResult::ERROR);
  StatusToProto(lease.status(), result->mutable_status());
  return 0;
}

// --- Get -----------------------------------------------------------------------------------------

// Collects what the lookups find and translates it at the end, in the order of the items: so the
// inline bytes of an answer do not depend on which lookup had to wait.
class CacheService::GetCall final : public BatchCall {
 public:
  GetCall(CacheService* service, const CallContext& context, Place place,
          const v1::GetRequest& request, v1::GetResponse* response, LatencyTimer timer, Done done)
      : BatchCall(std::move(timer), std::move(done)),
        service_(service),
        context_(context),
        place_(place),
        request_(request),
        response_(response),
        claiming_(request.on_miss() != v1::ON_MISS_RETURN),
        found_(static_cast<size_t>(request.items_size())),
        staged_(static_cast<size_t>(request.items_size())),
        claims_(claiming_ ? found_.size() : 0) {}

  void StartItem(int i) {
    const v1::GetItem& item = request_.items(i);
    absl::StatusOr<CacheKey> key = KeyFromProto(item.key());
    if (!key.ok()) return Found(i, InField("items", i, "key", key.status()));
    auto expect = ExpectationsFromProto(item.expect());
    if (!expect.ok()) return Found(i, InField("items", i, "", expect.status()));
    if (claiming_ || service_->SharedFor(context_) != nullptr) {
      return service_->StartClaimingLookup(context_, request_, *std::move(key), *std::move(expect),
                                           place_, [this, i](ClaimingLookup::Answer answer) {
                                             auto found = std::move(answer.found);
                                             if (claiming_) {
                                               claims_[static_cast<size_t>(i)] = std::move(answer);
                                             }
                                             Found(i, std::move(found));
                                           });
    }
    service_->deps_.cache->Lookup(
        *key, *std::move(expect), place_,
        [this, i](absl::StatusOr<LookupResult> result) { Found(i, std::move(result)); });
  }

 private:
  void Found(int i, absl::StatusOr<LookupResult> result) {
    absl::StatusOr<LookupResult>& found = found_[static_cast<size_t>(i)];
    found = std::move(result);
    if (found.ok() && found->hit() && NeedsStaging(found->handle)) {
      std::string& bytes = staged_[static_cast<size_t>(i)];
      bytes.resize(found->handle.info()->payload_bytes());
      service_->deps_.cache->ReadPinned(found->handle, bytes.data(),
                                        [this, &found](absl::Status read) {
                                          if (!read.ok()) found = std::move(read);
                                          ItemDone();
                                        });
      return;
    }
    ItemDone();
  }

  // Whether the entry is to be inlined but the CPU cannot read it. What one call reads this way is
  // bounded like what it answers, and comes in whatever order the lookups end.
  bool NeedsStaging(const ReadHandle& handle) {
    const uint64_t bytes = handle.info()->payload_bytes();
    if (bytes > request_.inline_limit() || handle.memory().host_data() != nullptr) return false;
    return staged_bytes_.fetch_add(bytes) + bytes <= service_->deps_.limits.inline_limit;
  }

  void AllDone() override {
    const uint64_t per_value = request_.inline_limit();
    uint64_t answer_left = per_value == 0 ? 0 : service_->deps_.limits.inline_limit;
    response_->mutable_results()->Reserve(static_cast<int>(found_.size()));
    for (size_t i = 0; i < found_.size(); ++i) {
      absl::StatusOr<LookupResult>& found = found_[i];
      v1::GetResult* result = response_->add_results();
      if (!found.ok()) {
        result->set_verdict(v1::GetResult::ERROR);
        StatusToProto(found.status(), result->mutable_status());
      } else if (!found->hit()) {
        result->set_verdict(v1::GetResult::MISS);
        result->set_reason(MissReasonToProto(found->reason));
        if (claiming_) FillClaim(claims_[i], result);
      } else {
        answer_left -=
            service_->FillHit(context_, std::move(found->handle), found->source,
                              std::min(per_value, answer_left), std::move(staged_[i]), result);
      }
    }
    // A pin must not outlive the call: whoever has the answer may release and destroy.
    found_.clear();
  }

  static void FillClaim(const ClaimingLookup::Answer& answer, v1::GetResult* result) {
    if (answer.claim != 0) {
      result->set_verdict(v1::GetResult::CLAIMED);
      result->set_claim(answer.claim);
    } else if (answer.pending != nullptr) {
      result->set_verdict(v1::GetResult::PENDING);
      EntryToProto(*answer.pending, result->mutable_entry());
    } else if (answer.claimed_elsewhere) {
      result->set_reason(v1::GetResult::CLAIMED_ELSEWHERE);
    }
  }

  CacheService* const service_;
  const CallContext context_;
  const Place place_;
  const v1::GetRequest& request_;
  v1::GetResponse* const response_;
  const bool claiming_;
  absl::InlinedVector<absl::StatusOr<LookupResult>, 1> found_;
  absl::InlinedVector<std::string, 1> staged_;
  std::atomic<uint64_t> staged_bytes_ = 0;
  std::vector<ClaimingLookup::Answer> claims_;  // of each item, but for what was found
};

void CacheService::Get(const CallContext& context, const v1::GetRequest& request,
                       v1::GetResponse* response, Done done) {
  LatencyTimer timer = Timer(Operation::kGet);
  absl::Status status = RefuseIfDraining();
  if (status.ok()) status = CheckBatch("items", request.items_size());
  if (status.ok() && request.inline_limit() > deps_.limits.inline_limit) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "inline_limit: ", request.inline_limit(), "; must be at most ", deps_.limits.inline_limit));
  }
  if (status.ok() && !v1::OnMiss_IsValid(request.on_miss())) {
    status = absl::InvalidArgumentError(
        absl::StrCat("on_miss: ", static_cast<int>(request.on_miss()), " is unknown"));
  }
  if (status.ok()) {
    status = request.on_miss() == v1::ON_MISS_CLAIM ? RequireSession(context, /*need_writer=*/true)
                                                    : CheckOptionalSession(context);
  }
  if (status.ok()) status = CheckExpectations(context, request);
  if (!status.ok()) return done(std::move(status));
  absl::StatusOr<Place> place = PlaceFor(context, request.place());
  if (!place.ok()) return done(place.status());
  BatchCall::Begin(std::make_unique<GetCall>(this, context, *place, request, response,
                                             std::move(timer), std::move(done)),
                   request.items_size());
}

void CacheService::Pop(const CallContext& context, const v1::PopRequest& request,
                       v1::PopResponse* response, Done done) {
  LatencyTimer timer = Timer(Operation::kPop);
  absl::Status status = RefuseIfDraining();
  if (status.ok()) status = RequireSession(context, /*need_writer=*/true);
  if (!status.ok()) return done(std::move(status));
  absl::StatusOr<CacheKey> key = KeyFromProto(request.key());
  if (!key.ok()) return done(InField("key", key.status()));
  absl::StatusOr<Place> place = PlaceFor(context, v1::PLACE_ANY);
  if (!place.ok()) return done(place.status());
  deps_.cache->Pop(
      *key,
      [this, context, key = *key, result = response->mutable_result()](LookupResult found) {
        if (found.hit()) {
          FillHit(context, std::move(found.handle), found.source, /*inline_limit=*/0, "", result);
        } else {
          result->set_verdict(v1::GetResult::MISS);
          result->set_reason(MissReasonToProto(found.reason));
        }
        // Over its quota the session gets an error, and the entry stays.
        const bool taken = result->verdict() == v1::GetResult::HIT;
        if (taken && deps_.shared != nullptr) deps_.shared->Removing(key);
        return taken;
      },
      [timer = std::move(timer), done = std::move(done)](absl::Status status) mutable {
        timer.Stop();
        done(std::move(status));
      },
      *place);
}

void CacheService::Contains(const CallContext& context, const v1::ContainsRequest& request,
                            v1::ContainsResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kContains);
  absl::Status status = CheckBatch("keys", request.keys_size());
  if (status.ok() && request.lease()) status = RefuseIfDraining();
  if (status.ok() && request.lease()) status = RequireSession(context, /*need_writer=*/false);
  if (!status.ok()) return done(std::move(status));
  for (int i = 0; i < request.keys_size(); ++i) {
    v1::ContainsResult* result = response->add_results();
    absl::StatusOr<CacheKey> key = KeyFromProto(request.keys(i));
    if (!key.ok()) {
      StatusToProto(InField("keys", i, "", key.status()), result->mutable_status());
      continue;
    }
    ReadHandle handle;
    if (request.lease()) handle = deps_.cache->PinInPlace(*key);
    if (handle && !CanUse(context, handle.location())) handle.Reset();
    if (handle) {
      const TierId tier = handle.location().tier;
      result->set_present(true);
      result->set_tier(TierToProto(tier));
      FillHit(context, std::move(handle), tier, /*inline_limit=*/0, "", result->mutable_hit());
      continue;
    }
    const std::optional<TierId> tier = deps_.cache->Contains(*key);
    result->set_present(tier.has_value());
    if (tier.has_value()) result->set_tier(TierToProto(*tier));
  }
  done(absl::OkStatus());
}

// --- Removing ------------------------------------------------------------------------------------

class CacheService::DeleteCall final : public BatchCall {
 public:
  DeleteCall(TieredCache* cache, SharedTier* shared, const v1::DeleteRequest& request,
             v1::DeleteResponse* response, LatencyTimer timer, Done done)
      : BatchCall(std::move(timer), std::move(done)),
        cache_(cache),
        shared_(shared),
        request_(request),
        response_(response) {
    for (int i = 0; i < request.keys_size(); ++i) response->add_results();
  }

  void StartItem(int i) {
    absl::StatusOr<CacheKey> key = KeyFromProto(request_.keys(i));
    if (!key.ok()) return Deleted(i, InField("keys", i, "", key.status()));
    if (shared_ != nullptr) shared_->Removing(*key);
    cache_->Delete(*key, [this, i](absl::StatusOr<bool> existed) { Deleted(i, existed); });
  }

 private:
  void Deleted(int i, const absl::StatusOr<bool>& existed) {
    v1::DeleteResult* result = response_->mutable_results(i);
    if (existed.ok()) {
      result->set_existed(*existed);
    } else {
      StatusToProto(existed.status(), result->mutable_status());
    }
    ItemDone();
  }

  TieredCache* const cache_;
  SharedTier* const shared_;
  const v1::DeleteRequest& request_;
  v1::DeleteResponse* const response_;
};

void CacheService::Delete(const CallContext& context, const v1::DeleteRequest& request,
                          v1::DeleteResponse* response, Done done) {
  LatencyTimer timer = Timer(Operation::kDelete);
  absl::Status status = CheckBatch("keys", request.keys_size());
  if (status.ok()) status = RequireWriter(context);
  if (!status.ok()) return done(std::move(status));
  BatchCall::Begin(std::make_unique<DeleteCall>(deps_.cache, deps_.shared, request, response,
                                                std::move(timer), std::move(done)),
                   request.keys_size());
}

void CacheService::AdvanceEpoch(const CallContext& context, const v1::AdvanceEpochRequest& request,
                                v1::AdvanceEpochResponse* response, Done done) {
  LatencyTimer timer = Timer(Operation::kAdvanceEpoch);
  if (absl::Status allowed = RequireWriter(context); !allowed.ok()) return done(std::move(allowed));
  if (request.model().empty() || request.model().size() > kMaxModelBytes) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("model: ", request.model().size(), " bytes; must be 1 to ", kMaxModelBytes)));
  }
  const std::string model = request.model();  // the request may go with the answer
  EpochAdvancing(model);
  deps_.cache->AdvanceEpoch(model, [response, timer = std::move(timer), done = std::move(done)](
                                       absl::StatusOr<uint64_t> epoch) mutable {
    if (epoch.ok()) response->set_model_epoch(*epoch);
    timer.Stop();
    done(epoch.status());
  });
  EpochAdvanced(model);
}

}  // namespace embcache
