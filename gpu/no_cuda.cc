// Stands in for cuda_device.cc in a build without CUDA headers.

#include "gpu/gpu_device.h"

namespace embcache {

absl::StatusOr<std::unique_ptr<GpuDevice>> OpenGpuDevice(const GpuDeviceOptions& options) {
  return absl::FailedPreconditionError("this build of embcached has no CUDA support");
}

}  // namespace embcache
