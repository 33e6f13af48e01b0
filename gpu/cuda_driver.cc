#include "gpu/cuda_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace embcache {
namespace {

// The interface that the functions are asked for in: later drivers keep it.
constexpr int kInterfaceVersion = 12000;

using GetProcAddress = CUresult (*)(const char* symbol, void** function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult* status);

// By cuGetProcAddress, which is how the driver wants to be asked, else as an ordinary symbol.
void* FindFunction(void* library, GetProcAddress get_proc_address, absl::string_view exported) {
  const std::string base(absl::StripSuffix(exported, "_v2"));
  if (get_proc_address != nullptr) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found{};
    if (get_proc_address(base.c_str(), &function, kInterfaceVersion, CU_GET_PROC_ADDRESS_DEFAULT,
                         &found) == CUDA_SUCCESS &&
        function != nullptr) {
      return function;
    }
  }
  void* function = dlsym(library, std::string(exported).c_str());
  // Drivers before 11.4 have only the older of these two, which differs for MIG alone.
  if (function == nullptr && exported == "cuDeviceGetUuid_v2") {
    function = dlsym(library, base.c_str());
  }
  return function;
}

absl::StatusCode CodeFor(CUresult result) {
  if (CudaDriver::IsSticky(result)) return absl::StatusCode::kUnavailable;
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudaDriver>> CudaDriver::Load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no CUDA driver: ", dlerror()));
  }
  auto driver = std::make_shared<CudaDriver>();
  const auto get_proc_address =
      reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
  std::string missing;
#define EMBCACHE_CUDA_FIND(function)                               \
  driver->function = reinterpret_cast<decltype(driver->function)>( \
      FindFunction(handle, get_proc_address, #function));          \
  if (driver->function == nullptr) absl::StrAppend(&missing, " ", #function);
  EMBCACHE_CUDA_FUNCTIONS(EMBCACHE_CUDA_FIND)
#undef EMBCACHE_CUDA_FIND
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver in ", library, " is too old: it lacks", missing));
  }
  if (absl::Status ready = driver->ToStatus(driver->cuInit(0), "cuInit"); !ready.ok()) {
    return absl::FailedPreconditionError(ready.message());
  }
  return driver;
}

absl::Status CudaDriver::ToStatus(CUresult result, absl::string_view call) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  return absl::Status(CodeFor(result),
                      absl::StrCat(call, ": ", name, " (", static_cast<int>(result), "): ", text));
}

bool CudaDriver::IsSticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

}  // namespace embcache
