#include "client/cpp/cuda_driver.h"

#include <dlfcn.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace embcache::client::internal {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr int kInvalidContext = 201;
constexpr unsigned int kLazyEnablePeerAccess = 1;
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

// "GPU-01234567-89ab-..."
std::string FormatUuid(absl::string_view bytes) {
  const std::string hex = absl::BytesToHexString(bytes);
  const absl::string_view digits = hex;
  return absl::StrCat("GPU-", digits.substr(0, 8), "-", digits.substr(8, 4), "-",
                      digits.substr(12, 4), "-", digits.substr(16, 4), "-", digits.substr(20));
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  static auto* mutex = new absl::Mutex;
  static const CudaDriver* loaded = nullptr;
  {
    absl::MutexLock lock(mutex);
    if (loaded != nullptr) return loaded;
  }
  absl::StatusOr<CudaDriver*> driver = Load();
  if (!driver.ok()) return driver.status();
  absl::MutexLock lock(mutex);
  if (loaded == nullptr) {
    loaded = *driver;
  } else {
    delete *driver;  // another thread was faster
  }
  return loaded;
}

absl::StatusOr<CudaDriver*> CudaDriver::Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no CUDA driver: ", dlerror()));
  }
  auto driver = std::make_unique<CudaDriver>();
  const auto find = [&](const char* name, auto* function) -> absl::Status {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver is too old: ", kLibrary, " has no ", name));
  };
  absl::Status status;
  status.Update(find("cuInit", &driver->init_));
  status.Update(find("cuGetErrorName", &driver->error_name_));
  status.Update(find("cuGetErrorString", &driver->error_text_));
  status.Update(find("cuDeviceGetCount", &driver->device_count_));
  status.Update(find("cuDeviceGetUuid_v2", &driver->device_uuid_));
  status.Update(find("cuDevicePrimaryCtxRetain", &driver->retain_context_));
  status.Update(find("cuDevicePrimaryCtxRelease_v2", &driver->release_context_));
  status.Update(find("cuCtxPushCurrent_v2", &driver->push_context_));
  status.Update(find("cuCtxPopCurrent_v2", &driver->pop_context_));
  status.Update(find("cuIpcOpenMemHandle_v2", &driver->open_memory_));
  status.Update(find("cuIpcCloseMemHandle", &driver->close_memory_));
  status.Update(find("cuDevicePrimaryCtxGetState", &driver->context_state_));
  status.Update(find("cuPointerGetAttribute", &driver->pointer_attribute_));
  status.Update(find("cuMemGetAddressRange_v2", &driver->address_range_));
  status.Update(find("cuIpcGetMemHandle", &driver->export_memory_));
  status.Update(find("cuMemcpyDtoD_v2", &driver->copy_on_device_));
  status.Update(find("cuMemcpyDtoH_v2", &driver->copy_to_host_));
  status.Update(find("cuStreamSynchronize", &driver->synchronize_stream_));
  if (status.ok()) status = driver->Initialise();
  if (!status.ok()) return status;
  return driver.release();
}

absl::Status CudaDriver::Initialise() {
  absl::Status status = ToStatus(init_(0), "cuInit");
  int count = 0;
  if (status.ok()) status = ToStatus(device_count_(&count), "cuDeviceGetCount");
  for (int device = 0; device < count && status.ok(); ++device) {
    Uuid uuid;  // a device is its ordinal
    status = ToStatus(device_uuid_(&uuid, device), "cuDeviceGetUuid");
    device_uuids_.push_back(
        FormatUuid({reinterpret_cast<const char*>(uuid.bytes), sizeof(uuid.bytes)}));
  }
  return status;
}

absl::Status CudaDriver::ToStatus(int result, absl::string_view call) const {
  if (result == 0) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name_(result, &name) != 0) name = "unknown";
  if (error_text_(result, &text) != 0) text = "an error that the driver does not name";
  return absl::FailedPreconditionError(absl::StrCat(call, ": ", name, " (", result, "): ", text));
}

int CudaDriver::DeviceOf(absl::string_view uuid) const {
  for (size_t i = 0; i < device_uuids_.size(); ++i) {
    if (absl::EqualsIgnoreCase(device_uuids_[i], uuid)) return static_cast<int>(i);
  }
  return -1;
}

absl::StatusOr<CudaDriver::Context> CudaDriver::RetainContext(absl::string_view uuid) const {
  const int device = DeviceOf(uuid);
  if (device < 0) {
    return absl::NotFoundError(
        absl::StrCat("the cache's device ", uuid, " is none of those that this process sees"));
  }
  Context context = nullptr;
  absl::Status status = ToStatus(retain_context_(&context, device), "cuDevicePrimaryCtxRetain");
  if (!status.ok()) return status;
  return context;
}

void CudaDriver::ReleaseContext(absl::string_view uuid) const { release_context_(DeviceOf(uuid)); }

absl::StatusOr<uint64_t> CudaDriver::OpenMemory(Context context,
                                                const CudaIpcHandle& handle) const {
  absl::Status status = ToStatus(push_context_(context), "cuCtxPushCurrent");
  if (!status.ok()) return status;
  uint64_t address = 0;
  const int result = open_memory_(&address, handle, kLazyEnablePeerAccess);
  Context popped = nullptr;
  pop_context_(&popped);
  if (result == kInvalidContext) {
    return absl::FailedPreconditionError(
        "cuIpcOpenMemHandle: CUDA opens device memory only in another process than the one that "
        "exported it, and this process does both; run the client in a process of its own");
  }
  status = ToStatus(result, "cuIpcOpenMemHandle");
  if (!status.ok()) return status;
  return address;
}

void CudaDriver::CloseMemory(Context context, uint64_t address) const {
  if (push_context_(context) != 0) return;  // the process is ending, or its device is lost
  close_memory_(address);
  Context popped = nullptr;
  pop_context_(&popped);
}

// --- Memory of this process ----------------------------------------------------------------------

// A device's primary context, current in the calling thread.
class CudaDriver::Current {
 public:
  Current(const CudaDriver* driver, int device) : driver_(driver), device_(device) {
    Context context = nullptr;
    status_ =
        driver_->ToStatus(driver_->retain_context_(&context, device_), "cuDevicePrimaryCtxRetain");
    if (!status_.ok()) return;
    status_ = driver_->ToStatus(driver_->push_context_(context), "cuCtxPushCurrent");
    if (!status_.ok()) driver_->release_context_(device_);
  }
  ~Current() {
    if (!status_.ok()) return;
    Context popped = nullptr;
    driver_->pop_context_(&popped);
    driver_->release_context_(device_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const CudaDriver* const driver_;
  const int device_;
  absl::Status status_;
};

absl::StatusOr<int> CudaDriver::DeviceAt(uint64_t address) const {
  for (int device = 0; device < static_cast<int>(device_uuids_.size()); ++device) {
    // Where the process has memory it has a context; on other devices none shall be made.
    unsigned int flags = 0;
    int active = 0;
    absl::Status status =
        ToStatus(context_state_(device, &flags, &active), "cuDevicePrimaryCtxGetState");
    if (!status.ok()) return status;
    if (active == 0) continue;
    const Current current(this, device);
    if (!current.status().ok()) return current.status();
    int found = -1;
    if (pointer_attribute_(&found, kDeviceOrdinal, address) == 0) return found;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("0x", absl::Hex(address), " is no address of this process's device memory"));
}

absl::Status CudaDriver::CopyOnDevice(int device, uint64_t to, uint64_t from,
                                      uint64_t bytes) const {
  const Current current(this, device);
  absl::Status status = current.status();
  if (status.ok()) status = ToStatus(copy_on_device_(to, from, bytes), "cuMemcpyDtoD");
  // Such a copy returns before it has ended.
  if (status.ok()) status = ToStatus(synchronize_stream_(nullptr), "cuStreamSynchronize");
  return status;
}

absl::Status CudaDriver::CopyToHost(int device, void* to, uint64_t from, uint64_t bytes) const {
  const Current current(this, device);
  absl::Status status = current.status();
  if (status.ok()) status = ToStatus(copy_to_host_(to, from, bytes), "cuMemcpyDtoH");
  if (status.ok()) status = ToStatus(synchronize_stream_(nullptr), "cuStreamSynchronize");
  return status;
}

absl::StatusOr<CudaDriver::Exported> CudaDriver::Export(int device, uint64_t address) const {
  const Current current(this, device);
  if (!current.status().ok()) return current.status();
  Exported exported;
  uint64_t base = 0;
  size_t size = 0;
  absl::Status status = ToStatus(address_range_(&base, &size, address), "cuMemGetAddressRange");
  if (status.ok()) {
    status = ToStatus(export_memory_(&exported.handle, address), "cuIpcGetMemHandle");
  }
  if (!status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this memory cannot be handed to another process: it comes from a memory pool, or from "
        "PyTorch with expandable_segments; PutDevice copies it in this one (",
        status.message(), ")"));
  }
  exported.offset = address - base;
  return exported;
}

}  // namespace embcache::client::internal
