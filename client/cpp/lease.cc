#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/convert.h"
#include "client/cpp/held.h"
#include "client/cpp/releaser.h"
#include "client/cpp/stream_copy.h"
#include "client/fast/embcache_fast.h"

namespace embcache::client {
namespace internal {
namespace {

namespace v1 = embcache::v1;

absl::Time Expiry(absl::Time asked, uint64_t ttl_ms) {
  return ttl_ms == 0 ? absl::InfiniteFuture() : asked + absl::Milliseconds(ttl_ms);
}

// Fills what leases and reservations have in common; on success the session has one more hold.
absl::Status Hold(const std::shared_ptr<Session>& session, const v1::Location& location,
                  Held* held) {
  absl::StatusOr<Resolved> place = session->Resolve(location);
  if (!place.ok()) return place.status();
  held->place = *std::move(place);
  held->bytes = location.bytes();
  absl::Status status = CheckBounds(*held);
  if (!status.ok()) return status;
  if (!session->TakeHold(held->bytes)) {
    return absl::UnavailableError("the connection to the daemon was lost during the call");
  }
  held->session = session;
  return absl::OkStatus();
}

MutableBytes TensorData(const Held& held, size_t index) {
  const TensorSpec& tensor = held.tensors[index];
  if (tensor.absent || held.place.base == nullptr) return {};
  return {held.place.base + tensor.offset, tensor.bytes};
}

absl::StatusOr<uint64_t> TensorDevicePointer(const Held& held, size_t index) {
  const TensorSpec& tensor = held.tensors[index];
  if (held.place.device == nullptr) {
    return absl::FailedPreconditionError("the entry lies in host memory");
  }
  if (tensor.absent) {
    return absl::FailedPreconditionError(absl::StrCat("tensor ", tensor.name, " is absent"));
  }
  absl::StatusOr<uint64_t> segment = held.place.device->Address();
  if (!segment.ok()) return segment.status();
  return *segment + held.place.device_offset + tensor.offset;
}

std::string DeviceUuid(const Held& held) {
  return held.place.device == nullptr ? std::string() : held.place.device->device_uuid();
}

bool IsValid(const Held& held) {
  return held.session->connected() &&
         (held.expires == absl::InfiniteFuture() || absl::Now() < held.expires);
}

}  // namespace

absl::Status CheckBounds(const Held& held) {
  for (const TensorSpec& tensor : held.tensors) {
    if (tensor.offset > held.bytes || tensor.bytes > held.bytes - tensor.offset) {
      return absl::InternalError(absl::StrCat("tensor ", tensor.name, ": ", tensor.bytes,
                                              " bytes at ", tensor.offset,
                                              " lie outside its entry of ", held.bytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Lease> MakeLease(const std::shared_ptr<Session>& session, Key key,
                                const v1::GetResult& hit, absl::Time asked) {
  auto held = std::make_unique<HeldLease>();
  held->id = hit.lease();
  held->key = std::move(key);
  held->tensors.reserve(hit.entry().tensors_size());
  for (const v1::Tensor& tensor : hit.entry().tensors()) held->tensors.push_back(FromProto(tensor));
  for (const auto& [name, value] : hit.entry().metadata()) held->metadata[name] = value;
  held->encode_cost_us = hit.entry().encode_cost_us();
  held->source = FromProto(hit.source());
  held->generation = hit.generation();
  held->expires = Expiry(asked, session->limits().lease_ttl_ms());
  absl::Status status = Hold(session, hit.location(), held.get());
  if (!status.ok()) {
    session->releaser().Add(session, hit.lease(), hit.location().bytes());
    return status;
  }
  return Lease(std::move(held));
}

absl::StatusOr<Reservation> MakeReservation(const std::shared_ptr<Session>& session,
                                            const v1::PutItem& item,
                                            const v1::ReserveResult& result, absl::Time asked) {
  auto held = std::make_unique<HeldReservation>();
  held->id = result.reservation();
  held->key = FromProto(item.key());
  for (const v1::Tensor& tensor : result.tensors()) held->tensors.push_back(FromProto(tensor));
  for (const auto& [name, value] : item.metadata()) held->metadata[name] = value;
  held->encode_cost_us = item.encode_cost_us();
  held->expires = Expiry(asked, session->limits().reservation_ttl_ms());
  absl::Status status = Hold(session, result.location(), held.get());
  if (!status.ok()) {
    v1::AbortRequest request;
    request.add_reservations(result.reservation());
    v1::AbortResponse response;
    session->Call(&v1::Cache::Stub::Abort, request, &response).IgnoreError();
    return status;
  }
  return Reservation(std::move(held));
}

}  // namespace internal

Lease::Lease(std::unique_ptr<internal::HeldLease> held) : held_(std::move(held)) {}
Lease::Lease(Lease&&) noexcept = default;
Lease::~Lease() { End(); }

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    End();
    held_ = std::move(other.held_);
  }
  return *this;
}

void Lease::End() {
  if (held_ == nullptr) return;
  if (!held_->session->in_own_process()) {
    held_.release();  // the parent's, and gRPC objects must not be torn down in a fork
    return;
  }
  internal::Session* session = held_->session.get();
  if (held_->fast_pin.has_value()) embcache_fast_release(session->fast(), *held_->fast_pin);
  session->DropHold(held_->id != 0 ? held_->bytes : 0);
  if (held_->id != 0 && session->connected()) {
    session->releaser().Add(held_->session, held_->id, held_->bytes);
  }
  held_.reset();
}

const Key& Lease::key() const { return held_->key; }
const std::vector<TensorSpec>& Lease::tensors() const { return held_->tensors; }
Bytes Lease::data(size_t index) const { return internal::TensorData(*held_, index); }
const Metadata& Lease::metadata() const { return held_->metadata; }
uint64_t Lease::encode_cost_us() const { return held_->encode_cost_us; }
Tier Lease::source() const { return held_->source; }
uint64_t Lease::generation() const { return held_->generation; }
uint64_t Lease::bytes() const { return held_->bytes; }
bool Lease::mapped() const { return held_->place.base != nullptr; }
std::string Lease::device_uuid() const { return internal::DeviceUuid(*held_); }
absl::StatusOr<uint64_t> Lease::device_pointer(size_t index) const {
  return internal::TensorDevicePointer(*held_, index);
}
bool Lease::valid() const { return held_ != nullptr && internal::IsValid(*held_); }

Bytes Lease::Find(absl::string_view name) const {
  for (size_t i = 0; i < held_->tensors.size(); ++i) {
    if (held_->tensors[i].name == name) return data(i);
  }
  return {};
}

Reservation::Reservation(std::unique_ptr<internal::HeldReservation> held)
    : held_(std::move(held)) {}
Reservation::Reservation(Reservation&&) noexcept = default;
Reservation::~Reservation() { End(); }

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    End();
    held_ = std::move(other.held_);
  }
  return *this;
}

void Reservation::End() {
  if (held_ == nullptr) return;
  if (!held_->session->in_own_process()) {
    held_.release();  // as in Lease::End
    return;
  }
  if (held_->id != 0) Abort().IgnoreError();
  held_->session->DropHold(held_->bytes);
  held_.reset();
}

const std::vector<TensorSpec>& Reservation::tensors() const { return held_->tensors; }
bool Reservation::valid() const {
  return held_ != nullptr && held_->id != 0 && internal::IsValid(*held_);
}

MutableBytes Reservation::tensor(size_t index) { return internal::TensorData(*held_, index); }

std::string Reservation::device_uuid() const { return internal::DeviceUuid(*held_); }

absl::StatusOr<uint64_t> Reservation::device_pointer(size_t index) const {
  return internal::TensorDevicePointer(*held_, index);
}

absl::Status Reservation::Write(size_t index, Bytes data) {
  if (held_->place.device != nullptr) {
    return absl::FailedPreconditionError("the reservation is in device memory; see device_pointer");
  }
  const MutableBytes to = tensor(index);
  if (to.size() != data.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensors()[index].name, " has ",
                                                   to.size(), " bytes; ", data.size(), " given"));
  }
  if (!to.empty()) internal::StreamCopy(to.data(), data.data(), to.size());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Lease>> Reservation::Commit(bool keep_lease) {
  namespace v1 = embcache::v1;
  if (held_->id == 0) return absl::FailedPreconditionError("the reservation is already over");
  if (!held_->session->connected()) {
    return absl::FailedPreconditionError("the daemon that gave this reservation is gone");
  }
  v1::CommitRequest request;
  request.add_reservations(held_->id);
  request.set_keep_lease(keep_lease);
  v1::CommitResponse response;
  const absl::Time asked = absl::Now();
  absl::Status status = held_->session->Call(&v1::Cache::Stub::Commit, request, &response);
  if (!status.ok()) return status;
  held_->id = 0;
  if (response.results_size() != 1) return absl::InternalError("Commit: not one result");
  status = internal::FromProto(response.results(0).status());
  if (!status.ok()) return status;
  if (!keep_lease) return std::optional<Lease>();
  auto lease = std::make_unique<internal::HeldLease>();
  static_cast<internal::Held&>(*lease) = *held_;
  lease->id = response.results(0).lease();
  lease->generation = response.results(0).generation();
  lease->source = Tier::kL1;
  lease->expires = internal::Expiry(asked, held_->session->limits().lease_ttl_ms());
  if (!held_->session->TakeHold(held_->bytes)) {
    return absl::UnavailableError("committed, but the connection was lost with the lease");
  }
  return std::optional<Lease>(Lease(std::move(lease)));
}

absl::Status Reservation::Abort() {
  namespace v1 = embcache::v1;
  if (held_->id == 0) return absl::FailedPreconditionError("the reservation is already over");
  const uint64_t id = std::exchange(held_->id, 0);
  if (!held_->session->connected()) return absl::OkStatus();
  v1::AbortRequest request;
  request.add_reservations(id);
  v1::AbortResponse response;
  absl::Status status = held_->session->Call(&v1::Cache::Stub::Abort, request, &response);
  if (!status.ok() || response.results_size() != 1) return status;
  return internal::FromProto(response.results(0));
}

}  // namespace embcache::client
