// Puts out of the caller's own device memory.

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "client/cpp/cuda_driver.h"
#include "client/cpp/held.h"
#include "client/cpp/session.h"

namespace embcache::client {

namespace v1 = embcache::v1;
using internal::CudaDriver;

namespace {

// With what it is about in front.
absl::Status In(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

}  // namespace

absl::Status Reservation::WriteDevice(size_t index, DeviceBytes data) {
  const TensorSpec& tensor = tensors()[index];
  const uint64_t wanted = tensor.absent ? 0 : tensor.bytes;
  if (data.bytes != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, " has ", wanted, " bytes; ", data.bytes, " given"));
  }
  if (wanted == 0) return absl::OkStatus();
  const std::string what = absl::StrCat("tensor ", tensor.name);
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return In(what, driver.status());
  const absl::StatusOr<int> device = (*driver)->DeviceAt(data.pointer);
  if (!device.ok()) return In(what, device.status());
  if (device_uuid().empty()) {
    return In(what,
              (*driver)->CopyToHost(*device, this->tensor(index).data(), data.pointer, data.bytes));
  }
  const std::string& there = (*driver)->device_uuids()[*device];
  if (!absl::EqualsIgnoreCase(there, device_uuid())) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": its bytes are on device ", there,
                                                      ", the cache's memory on ", device_uuid(),
                                                      "; copy them there first"));
  }
  const absl::StatusOr<uint64_t> to = device_pointer(index);
  if (!to.ok()) return In(what, to.status());
  return In(what, (*driver)->CopyOnDevice(*device, *to, data.pointer, data.bytes));
}

absl::Status Client::PutDevice(const Key& key, const std::vector<TensorSpec>& tensors,
                               absl::Span<const DeviceBytes> data, const PutOptions& options) {
  if (data.size() != tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", data.size(), " ranges for ", tensors.size(), " tensors"));
  }
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  PutOptions placed = options;
  placed.place = (*session)->has_device() ? Place::kDevice : Place::kHost;
  absl::StatusOr<Reservation> reservation =
      internal::ReserveFor(*session, key, tensors, placed, /*claim=*/0);
  if (!reservation.ok()) return reservation.status();
  for (size_t i = 0; i < data.size(); ++i) {
    absl::Status written = reservation->WriteDevice(i, data[i]);
    if (!written.ok()) return written;
  }
  return reservation->Commit().status();
}

absl::Status Client::PutExported(const Key& key, const std::vector<TensorSpec>& tensors,
                                 DeviceBytes data, const PutOptions& options) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  if (!(*session)->writer()) {
    return absl::PermissionDeniedError("this client was connected as a reader");
  }
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  const absl::StatusOr<int> device = (*driver)->DeviceAt(data.pointer);
  if (!device.ok()) return In("data", device.status());
  const absl::StatusOr<CudaDriver::Exported> exported = (*driver)->Export(*device, data.pointer);
  if (!exported.ok()) return In("data", exported.status());
  v1::PutRequest request;
  v1::PutItem* item = request.add_items();
  internal::ToProto(key, tensors, options, item);
  v1::CudaSource* source = item->mutable_cuda();
  source->set_ipc_handle(exported->handle.bytes, sizeof(exported->handle.bytes));
  source->set_offset(exported->offset);
  source->set_bytes(data.bytes);
  source->set_device_uuid((*driver)->device_uuids()[*device]);
  v1::PutResponse response;
  absl::Status status = (*session)->Call(&v1::Cache::Stub::Put, request, &response);
  if (!status.ok()) return status;
  if (response.results_size() != 1) return absl::InternalError("Put: not one result");
  return internal::FromProto(response.results(0).status());
}

}  // namespace embcache::client
