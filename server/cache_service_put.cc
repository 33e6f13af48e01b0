// The writing half of CacheService: Put, and Reserve, Commit, Abort.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/batch_call.h"
#include "server/cache_service.h"
#include "server/proto_convert.h"
#include "storage/check.h"

namespace embcache {
namespace {

// The inline bytes of an item must be its tensors' bytes, one after another.
absl::Status CheckInline(const v1::PutItem& item, const TensorLayout& layout, uint64_t limit) {
  const uint64_t given = item.inline_().size();
  if (given > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("inline: ", given, " bytes; must be at most ", limit, "; use Reserve"));
  }
  uint64_t wanted = 0;
  for (const TensorSpec& tensor : layout.tensors) wanted += tensor.bytes;
  if (given != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("inline: ", given, " bytes, but the tensors take ", wanted));
  }
  return absl::OkStatus();
}

absl::Status CheckCudaSource(const v1::PutItem& item, const TensorLayout& layout,
                             const GpuDevice* device) {
  const v1::CudaSource& source = item.cuda();
  if (!item.inline_().empty()) return absl::InvalidArgumentError("cuda: and inline; give one");
  if (device == nullptr) {
    return absl::FailedPreconditionError("cuda: L1 is host memory here, and no device is used");
  }
  if (!SameDeviceUuid(source.device_uuid(), device->uuid())) {
    return absl::FailedPreconditionError(absl::StrCat("cuda.device_uuid: \"", source.device_uuid(),
                                                      "\", but this daemon uses ", device->uuid()));
  }
  if (source.ipc_handle().size() != GpuDevice::kIpcHandleBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cuda.ipc_handle: ", source.ipc_handle().size(),
                                                   " bytes; must be ", GpuDevice::kIpcHandleBytes));
  }
  if (source.offset() + source.bytes() < source.offset()) {
    return absl::InvalidArgumentError(absl::StrCat("cuda.offset: ", source.offset(), " + ",
                                                   source.bytes(), " bytes is more than 2^64"));
  }
  uint64_t wanted = 0;
  for (const TensorSpec& tensor : layout.tensors) wanted += tensor.absent ? 0 : tensor.bytes;
  if (source.bytes() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda.bytes: ", source.bytes(), ", but the tensors take ", wanted));
  }
  return absl::OkStatus();
}

}  // namespace

void CacheService::UnshareTooLarge(const embcache::ReserveRequest& request) {
  if (deps_.shared == nullptr) return;
  const uint64_t charge = request.layout.payload_bytes +
                          ChargedHeapBytes(request.key, request.layout, request.metadata);
  if (charge > deps_.cache->max_entry_bytes()) deps_.shared->Removing(request.key);
}

// --- Put -----------------------------------------------------------------------------------------

class CacheService::PutCall final : public BatchCall {
 public:
  PutCall(CacheService* service, const CallContext& context, const v1::PutRequest& request,
          v1::PutResponse* response, LatencyTimer timer, Done done)
      : BatchCall(std::move(timer), std::move(done)),
        service_(service),
        context_(context),
        request_(request),
        response_(response) {
    for (int i = 0; i < request.items_size(); ++i) response->add_results();
  }

  void StartItem(int i);
  // Commits what has been written and answers for the item, or answers with the failed write.
  void Finish(int i, ReservationId id, const absl::Status& written);

  void Failed(int i, const absl::Status& status) {
    service_->FailClaim(context_, request_.items(i).claim());
    Refused(i, status);
  }
  void Stored(int i, const CacheKey& key, uint64_t generation) {
    const ClaimTable::Wakes wakes = service_->claims_.Stored(key);  // told after the answer
    response_->mutable_results(i)->set_generation(generation);
    ItemDone();
  }

 private:
  void StartImport(int i, ReserveRequest reserve);
  // Failed, but for a claim that it must not end.
  void Refused(int i, const absl::Status& status) {
    StatusToProto(status, response_->mutable_results(i)->mutable_status());
    ItemDone();
  }

  CacheService* const service_;
  const CallContext context_;
  const v1::PutRequest& request_;
  v1::PutResponse* const response_;
};

// One item of a Put after its range is reserved: writes the tensors one after another, then
// commits. Owns itself until it has told the call.
class CacheService::PutItemWrite {
 public:
  PutItemWrite(PutCall* call, int index, TieredCache* cache, ReservationId id,
               std::vector<TensorSpec> tensors, absl::string_view bytes)
      : call_(call),
        index_(index),
        cache_(cache),
        id_(id),
        tensors_(std::move(tensors)),
        bytes_(bytes) {}

  void WriteNext(absl::Status written) {
    while (written.ok() && next_ < tensors_.size() && tensors_[next_].absent) ++next_;
    if (!written.ok() || next_ == tensors_.size()) return Finish(std::move(written));
    const TensorSpec& tensor = tensors_[next_++];
    const absl::string_view part = bytes_.substr(0, tensor.bytes);
    bytes_.remove_prefix(tensor.bytes);
    cache_->WriteReserved(id_, tensor.offset, part,
                          [this](absl::Status status) { WriteNext(std::move(status)); });
  }

 private:
  void Finish(absl::Status written) {
    const std::unique_ptr<PutItemWrite> self(this);
    call_->Finish(index_, id_, written);
  }

  PutCall* const call_;
  const int index_;
  TieredCache* const cache_;
  const ReservationId id_;
  const std::vector<TensorSpec> tensors_;
  absl::string_view bytes_;  // of the request: what is still to be written
  size_t next_ = 0;
};

// One item of a Put whose bytes are in the client's own device memory, after its range is reserved.
// Owns itself until its copy is over, which may be after the call was answered.
class CacheService::PutItemImport {
 public:
  PutItemImport(PutCall* call, int index, TieredCache* cache, ReservationId id)
      : call_(call), index_(index), cache_(cache), id_(id) {}

  void Late() {
    PutCall* const call = std::exchange(call_, nullptr);
    call->Failed(index_, absl::DeadlineExceededError(
                             "cuda: the copy waits for the device for too long; was the client's "
                             "work on the memory over?"));
  }

  void Finish(const absl::Status& copied) {
    const std::unique_ptr<PutItemImport> self(this);
    if (call_ != nullptr) return call_->Finish(index_, id_, copied);
    cache_->Abort(id_).IgnoreError();
  }

 private:
  PutCall* call_;  // nullptr: answered
  const int index_;
  TieredCache* const cache_;
  const ReservationId id_;
};

void CacheService::PutCall::Finish(int i, ReservationId id, const absl::Status& written) {
  TieredCache* const cache = service_->deps_.cache;
  if (!written.ok()) {
    // It may be gone by itself, past its time; the failed write is the news.
    cache->Abort(id).IgnoreError();
    return Failed(i, written);
  }
  absl::StatusOr<ReadHandle> committed = cache->Commit(id);
  if (!committed.ok()) return Failed(i, committed.status());
  const std::shared_ptr<const EntryInfo> info = committed->info();
  const uint64_t generation = committed->generation();
  committed->Reset();  // a pin must not outlive the call
  service_->ShareStored(*info, generation);
  Stored(i, info->key, generation);
}

void CacheService::PutCall::StartImport(int i, ReserveRequest reserve) {
  const v1::CudaSource& source = request_.items(i).cuda();
  const CacheServiceDeps& deps = service_->deps_;
  absl::Status good = service_->RequireSession(context_, /*need_writer=*/true);
  if (good.ok()) good = CheckCudaSource(request_.items(i), reserve.layout, deps.device);
  if (!good.ok()) return Failed(i, InField("items", i, "", good));
  auto copy = std::make_shared<ClientCopy>();
  copy->client.assign(context_.session->begin(), context_.session->end());
  copy->ipc_handle = source.ipc_handle();
  copy->offset = source.offset();
  copy->bytes = source.bytes();
  uint64_t from = 0;
  for (const TensorSpec& tensor : reserve.layout.tensors) {
    if (tensor.absent) continue;
    copy->parts.push_back({.from = from, .to = tensor.offset, .bytes = tensor.bytes});
    from += tensor.bytes;
  }
  const uint64_t payload = reserve.layout.payload_bytes;
  service_->UnshareTooLarge(reserve);
  deps.cache->Reserve(std::move(reserve), [this, i, copy, payload, cache = deps.cache,
                                           device =
                                               deps.device](absl::StatusOr<ReservedPlace> place) {
    if (!place.ok()) return Failed(i, place.status());
    auto* import = new PutItemImport(this, i, cache, place->id);
    cache->FillReserved(
        place->id, 0, payload,
        [copy, device, import](const MemorySegment* to, uint64_t to_offset, CopyEngine::Done done) {
          copy->to = to;
          copy->to_offset = to_offset;
          copy->done = std::move(done);
          copy->late = [import] { import->Late(); };
          device->CopyFromClient(std::move(*copy));
        },
        [import](absl::Status copied) { import->Finish(copied); });
  });
}

void CacheService::PutCall::StartItem(int i) {
  const v1::PutItem& item = request_.items(i);
  absl::StatusOr<ReserveRequest> reserve = ReserveRequestFromProto(item);
  if (!reserve.ok()) return Failed(i, InField("items", i, "", reserve.status()));
  if (item.claim() != 0) {
    absl::Status claim = service_->claims_.CheckPut(item.claim(), context_.session, reserve->key);
    if (!claim.ok()) return Refused(i, InField("items", i, "", claim));
  }
  if (item.has_cuda()) return StartImport(i, *std::move(reserve));
  absl::Status fits = CheckInline(item, reserve->layout, service_->deps_.limits.inline_limit);
  if (!fits.ok()) return Failed(i, InField("items", i, "", fits));
  TieredCache* const cache = service_->deps_.cache;
  service_->UnshareTooLarge(*reserve);
  std::vector<TensorSpec> tensors = reserve->layout.tensors;
  cache->Reserve(*std::move(reserve), [this, i, cache, tensors = std::move(tensors)](
                                          absl::StatusOr<ReservedPlace> place) mutable {
    if (!place.ok()) return Failed(i, place.status());
    auto* write = new PutItemWrite(this, i, cache, place->id, std::move(tensors),
                                   request_.items(i).inline_());
    write->WriteNext(absl::OkStatus());
  });
}

void CacheService::Put(const CallContext& context, const v1::PutRequest& request,
                       v1::PutResponse* response, Done done) {
  LatencyTimer timer = Timer(Operation::kPut);
  absl::Status status = RefuseIfDraining();
  if (status.ok()) status = CheckBatch("items", request.items_size());
  if (status.ok()) status = RequireWriter(context);
  if (!status.ok()) return done(std::move(status));
  BatchCall::Begin(std::make_unique<PutCall>(this, context, request, response, std::move(timer),
                                             std::move(done)),
                   request.items_size());
}

// --- Reserve, Commit, Abort ----------------------------------------------------------------------

class CacheService::ReserveCall final : public BatchCall {
 public:
  ReserveCall(CacheService* service, const CallContext& context, Place place,
              const v1::ReserveRequest& request, v1::ReserveResponse* response, LatencyTimer timer,
              Done done)
      : BatchCall(std::move(timer), std::move(done)),
        service_(service),
        context_(context),
        cache_(service->deps_.cache),
        registry_(service->deps_.registry),
        session_(*context.session),
        place_(place),
        request_(request),
        response_(response) {
    for (int i = 0; i < request.items_size(); ++i) response->add_results();
  }

  void StartItem(int i) {
    const v1::PutItem& item = request_.items(i);
    if (!item.inline_().empty() || item.has_cuda()) {
      const absl::string_view field = item.has_cuda() ? "cuda" : "inline";
      return Failed(i, absl::InvalidArgumentError(absl::StrCat(
                           "items[", i, "].", field, ": only Put takes ", field, " bytes")));
    }
    absl::StatusOr<ReserveRequest> reserve = ReserveRequestFromProto(item);
    if (!reserve.ok()) return Failed(i, InField("items", i, "", reserve.status()));
    reserve->place = place_;
    std::shared_ptr<const EntryInfo> announced;
    if (item.claim() != 0) {
      absl::Status claim = service_->claims_.CheckPut(item.claim(), session_, reserve->key);
      if (!claim.ok()) return Refused(i, InField("items", i, "", claim));
      announced = std::make_shared<EntryInfo>(EntryInfo{.key = reserve->key,
                                                        .layout = reserve->layout,
                                                        .metadata = reserve->metadata,
                                                        .encode_cost_us = reserve->encode_cost_us});
    }
    service_->UnshareTooLarge(*reserve);
    const uint64_t bytes = reserve->layout.payload_bytes;
    if (bytes > cache_->max_entry_bytes()) {
      // Takes no range, so no quota: the cache refuses it, and drops the value it was to replace.
      return cache_->Reserve(*std::move(reserve), [this, i](absl::StatusOr<ReservedPlace> place) {
        EMB_CHECK(!place.ok());
        Failed(i, place.status());
      });
    }
    absl::Status charged = registry_->BeginReservation(session_, bytes);
    if (!charged.ok()) return Failed(i, charged);
    TensorsToProto(reserve->layout, response_->mutable_results(i)->mutable_tensors());
    cache_->Reserve(*std::move(reserve), [this, i, bytes, announced = std::move(announced)](
                                             absl::StatusOr<ReservedPlace> place) {
      Reserved(i, bytes, announced, place);
    });
  }

 private:
  void Reserved(int i, uint64_t bytes, const std::shared_ptr<const EntryInfo>& announced,
                const absl::StatusOr<ReservedPlace>& place) {
    if (!place.ok()) {
      registry_->CancelReservation(session_, bytes);
      return Failed(i, place.status());
    }
    absl::Status owned = registry_->FinishReservation(session_, place->id, bytes);
    if (!owned.ok()) {
      // The session ended meanwhile: nobody has heard of this range, so it can go.
      cache_->Abort(place->id).IgnoreError();
      return Failed(i, owned);
    }
    v1::ReserveResult* result = response_->mutable_results(i);
    result->set_reservation(place->id);
    LocationToProto(place->location, result->mutable_location());
    ClaimTable::Wakes wakes;  // told after the answer
    if (announced != nullptr) {
      wakes = service_->claims_.Reserved(request_.items(i).claim(), place->id, announced);
    }
    ItemDone();
  }

  void Failed(int i, const absl::Status& status) {
    service_->FailClaim(context_, request_.items(i).claim());
    Refused(i, status);
  }

  // Failed, but for a claim that it must not end.
  void Refused(int i, const absl::Status& status) {
    v1::ReserveResult* result = response_->mutable_results(i);
    result->Clear();
    StatusToProto(status, result->mutable_status());
    ItemDone();
  }

  CacheService* const service_;
  const CallContext context_;
  TieredCache* const cache_;
  SessionRegistry* const registry_;
  const Token session_;
  const Place place_;
  const v1::ReserveRequest& request_;
  v1::ReserveResponse* const response_;
};

void CacheService::Reserve(const CallContext& context, const v1::ReserveRequest& request,
                           v1::ReserveResponse* response, Done done) {
  LatencyTimer timer = Timer(Operation::kReserve);
  absl::Status status = RefuseIfDraining();
  if (status.ok()) status = CheckBatch("items", request.items_size());
  if (status.ok()) status = RequireSession(context, /*need_writer=*/true);
  if (!status.ok()) return done(std::move(status));
  absl::StatusOr<Place> place = PlaceFor(context, request.place());
  if (!place.ok()) return done(place.status());
  BatchCall::Begin(std::make_unique<ReserveCall>(this, context, *place, request, response,
                                                 std::move(timer), std::move(done)),
                   request.items_size());
}

void CacheService::Commit(const CallContext& context, const v1::CommitRequest& request,
                          v1::CommitResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kCommit);
  absl::Status status = CheckBatch("reservations", request.reservations_size());
  if (status.ok()) status = RequireSession(context, /*need_writer=*/true);
  if (!status.ok()) return done(std::move(status));
  std::vector<ClaimTable::Wakes> wakes;  // told after the answer
  for (const ReservationId id : request.reservations()) {
    v1::CommitResult* result = response->add_results();
    absl::Status taken = deps_.registry->TakeReservation(*context.session, id);
    if (!taken.ok()) {
      StatusToProto(taken, result->mutable_status());
      continue;
    }
    absl::StatusOr<ReadHandle> handle = deps_.cache->Commit(id);
    if (!handle.ok()) {
      wakes.push_back(claims_.ReservationFailed(id));
      StatusToProto(handle.status(), result->mutable_status());
      continue;
    }
    ShareStored(*handle->info(), handle->generation());
    wakes.push_back(claims_.Stored(handle->info()->key));
    result->set_generation(handle->generation());
    if (!request.keep_lease()) continue;
    absl::StatusOr<LeaseId> lease = deps_.registry->AddLease(*context.session, *std::move(handle));
    if (lease.ok()) {
      result->set_lease(*lease);
    } else {
      StatusToProto(absl::Status(lease.status().code(), absl::StrCat("committed, but not leased: ",
                                                                     lease.status().message())),
                    result->mutable_status());
    }
  }
  done(absl::OkStatus());
}

void CacheService::Abort(const CallContext& context, const v1::AbortRequest& request,
                         v1::AbortResponse* response, Done done) {
  const LatencyTimer timer = Timer(Operation::kAbort);
  absl::Status status = CheckBatch("reservations", request.reservations_size());
  if (status.ok()) status = RequireSession(context, /*need_writer=*/false);
  if (!status.ok()) return done(std::move(status));
  std::vector<ClaimTable::Wakes> wakes;  // told after the answer
  for (const ReservationId id : request.reservations()) {
    absl::Status aborted = deps_.registry->TakeReservation(*context.session, id);
    if (aborted.ok()) {
      aborted = deps_.cache->Abort(id);
      wakes.push_back(claims_.ReservationFailed(id));
    }
    StatusToProto(aborted, response->add_results());
  }
  done(absl::OkStatus());
}

}  // namespace embcache
