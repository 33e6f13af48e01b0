#include "gpu/cuda_context.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu/gpu_device.h"

namespace embcache {
namespace {

std::string FormatUuid(const CUuuid& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

struct FoundDevice {
  CUdevice device = 0;
  std::string uuid;
};

absl::StatusOr<std::vector<FoundDevice>> FindDevices(const CudaDriver& driver) {
  int count = 0;
  absl::Status status = driver.ToStatus(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  std::vector<FoundDevice> devices;
  for (int i = 0; status.ok() && i < count; ++i) {
    FoundDevice found;
    CUuuid uuid{};
    status = driver.ToStatus(driver.cuDeviceGet(&found.device, i), "cuDeviceGet");
    if (!status.ok()) break;
    status = driver.ToStatus(driver.cuDeviceGetUuid_v2(&uuid, found.device), "cuDeviceGetUuid");
    found.uuid = FormatUuid(uuid);
    devices.push_back(std::move(found));
  }
  if (!status.ok()) return status;
  return devices;
}

absl::StatusOr<FoundDevice> Choose(const std::vector<FoundDevice>& devices,
                                   absl::string_view which) {
  uint64_t index = 0;
  const bool by_index = absl::SimpleAtoi(which, &index);
  for (size_t i = 0; i < devices.size(); ++i) {
    if (by_index ? i == index : SameDeviceUuid(devices[i].uuid, which)) return devices[i];
  }
  const std::string there = absl::StrJoin(
      devices, ", ", [](std::string* out, const FoundDevice& d) { out->append(d.uuid); });
  return absl::FailedPreconditionError(absl::StrCat("no CUDA device ", which, "; ", devices.size(),
                                                    " visible", devices.empty() ? "" : ": ", there,
                                                    " (CUDA_VISIBLE_DEVICES applies)"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaContext>> CudaContext::Open(
    std::shared_ptr<const CudaDriver> driver, absl::string_view which) {
  absl::StatusOr<std::vector<FoundDevice>> devices = FindDevices(*driver);
  if (!devices.ok()) return devices.status();
  absl::StatusOr<FoundDevice> found = Choose(*devices, which);
  if (!found.ok()) return found.status();
  char name[256] = {};
  absl::Status status = driver->ToStatus(
      driver->cuDeviceGetName(name, sizeof(name) - 1, found->device), "cuDeviceGetName");
  if (!status.ok()) return status;
  CUcontext context = nullptr;
  status = driver->ToStatus(driver->cuDevicePrimaryCtxRetain(&context, found->device),
                            "cuDevicePrimaryCtxRetain");
  if (!status.ok()) return status;
  return std::shared_ptr<CudaContext>(
      new CudaContext(std::move(driver), found->device, context, found->uuid, name));
}

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, CUdevice device,
                         CUcontext context, std::string uuid, std::string name)
    : driver_(std::move(driver)),
      device_(device),
      context_(context),
      uuid_(std::move(uuid)),
      name_(std::move(name)) {}

CudaContext::~CudaContext() {
  if (given_up()) return;  // it would wait for what does not end
  // Nobody is left to tell of a failure, and the end of the process releases it too.
  (void)driver_->cuDevicePrimaryCtxRelease_v2(device_);
}

absl::Status CudaContext::Check(CUresult result, absl::string_view call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  absl::Status status = driver_->ToStatus(result, call);
  if (CudaDriver::IsSticky(result)) MarkLost(status);
  return status;
}

void CudaContext::GiveUp(absl::string_view why) {
  given_up_.store(true, std::memory_order_release);
  MarkLost(absl::DeadlineExceededError(why));
}

absl::Status CudaContext::lost_status() const {
  absl::MutexLock lock(&mu_);
  return lost_status_;
}

void CudaContext::MarkLost(const absl::Status& why) {
  absl::AnyInvocable<void(const absl::Status&)> handler;
  absl::Status lost;
  {
    absl::MutexLock lock(&mu_);
    if (!lost_status_.ok()) return;
    lost = absl::UnavailableError(absl::StrCat("device ", uuid_, " is lost: ", why.message()));
    lost_status_ = lost;
    handler = std::exchange(on_lost_, nullptr);
    lost_.store(true, std::memory_order_release);
  }
  if (handler) handler(lost);
}

void CudaContext::OnLost(absl::AnyInvocable<void(const absl::Status&)> handler) {
  absl::Status lost;
  {
    absl::MutexLock lock(&mu_);
    lost = lost_status_;
    if (lost.ok()) on_lost_ = std::move(handler);
  }
  if (!lost.ok() && handler) handler(lost);
}

CudaContext::Current::Current(CudaContext* context) : context_(context) {
  status_ = context->lost_status();
  if (status_.ok()) {
    status_ = context->Check(context->driver_->cuCtxPushCurrent_v2(context->context_),
                             "cuCtxPushCurrent");
  }
}

CudaContext::Current::~Current() {
  CUcontext popped = nullptr;
  if (status_.ok()) (void)context_->driver_->cuCtxPopCurrent_v2(&popped);
}

}  // namespace embcache
