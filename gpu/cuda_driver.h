// CudaDriver: the entry points of the CUDA driver, found in libcuda.so.1 when the program starts,
// so that one binary serves machines with and without a device. Nothing links against CUDA.
//
// The library is never unloaded: the driver does not survive that. Immutable and thread-safe once
// loaded.

#ifndef EMBCACHE_GPU_CUDA_DRIVER_H_
#define EMBCACHE_GPU_CUDA_DRIVER_H_

#include <cuda.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

// Every function used, by the name under which the library exports it.
#define EMBCACHE_CUDA_FUNCTIONS(X) \
  X(cuInit)                        \
  X(cuDriverGetVersion)            \
  X(cuGetErrorName)                \
  X(cuGetErrorString)              \
  X(cuDeviceGetCount)              \
  X(cuDeviceGet)                   \
  X(cuDeviceGetName)               \
  X(cuDeviceGetUuid_v2)            \
  X(cuDevicePrimaryCtxRetain)      \
  X(cuDevicePrimaryCtxRelease_v2)  \
  X(cuCtxPushCurrent_v2)           \
  X(cuCtxPopCurrent_v2)            \
  X(cuMemGetInfo_v2)               \
  X(cuMemAlloc_v2)                 \
  X(cuMemFree_v2)                  \
  X(cuMemGetAddressRange_v2)       \
  X(cuMemHostRegister_v2)          \
  X(cuMemHostUnregister)           \
  X(cuIpcGetMemHandle)             \
  X(cuIpcOpenMemHandle_v2)         \
  X(cuIpcCloseMemHandle)           \
  X(cuMemcpyHtoDAsync_v2)          \
  X(cuMemcpyDtoHAsync_v2)          \
  X(cuMemcpyDtoDAsync_v2)          \
  X(cuStreamCreate)                \
  X(cuStreamSynchronize)           \
  X(cuStreamDestroy_v2)            \
  X(cuEventCreate)                 \
  X(cuEventRecord)                 \
  X(cuEventQuery)                  \
  X(cuEventSynchronize)            \
  X(cuEventDestroy_v2)

struct CudaDriver {
#define EMBCACHE_CUDA_MEMBER(function) decltype(&::function) function = nullptr;
  EMBCACHE_CUDA_FUNCTIONS(EMBCACHE_CUDA_MEMBER)
#undef EMBCACHE_CUDA_MEMBER

  // Loads `library` and initialises the driver. FAILED_PRECONDITION: there is none, it lacks a
  // function, or it finds no device.
  static absl::StatusOr<std::shared_ptr<const CudaDriver>> Load(const std::string& library);

  // OK for CUDA_SUCCESS; otherwise the call, and the driver's name and text for the code.
  absl::Status ToStatus(CUresult result, absl::string_view call) const;
  // Whether the error is the context's from now on: every later call gives it too, and what lies in
  // the context's memory cannot be relied on.
  static bool IsSticky(CUresult result);
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_DRIVER_H_
