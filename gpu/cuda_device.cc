#include "gpu/cuda_device.h"

#include <algorithm>

namespace embcache {

absl::StatusOr<std::unique_ptr<GpuDevice>> OpenGpuDevice(const GpuDeviceOptions& options) {
  return CudaDevice::Open(options);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const GpuDeviceOptions& options) {
  auto driver = CudaDriver::Load(options.driver_library);
  if (!driver.ok()) return driver.status();
  auto context = CudaContext::Open(*std::move(driver), options.which);
  if (!context.ok()) return context.status();
  auto copier = CudaCopyEngine::Create(*context, options.copy_threads, options.log);
  if (!copier.ok()) return copier.status();
  return std::unique_ptr<CudaDevice>(
      new CudaDevice(options, *std::move(context), *std::move(copier)));
}

CudaDevice::CudaDevice(const GpuDeviceOptions& options, std::shared_ptr<CudaContext> context,
                       std::unique_ptr<CudaCopyEngine> copier)
    : context_(std::move(context)),
      device_memory_(
          context_, CudaMemoryOptions{.patience = options.allocation_patience, .log = options.log}),
      pinned_memory_(context_, options.host_memory, options.log),
      copier_(std::move(copier)),
      client_copier_(context_, options.client_copy_timeout) {}

GpuStats CudaDevice::GetStats() const {
  return {.copies = copier_->copies(),
          .copied_bytes = copier_->copied_bytes(),
          .failed_copies = copier_->failed_copies(),
          .client_copies = client_copier_.copies(),
          .pinned_bytes = pinned_memory_.pinned_bytes(),
          .pageable_bytes = pinned_memory_.pageable_bytes()};
}

absl::Duration CudaDevice::LongestWait() const {
  return std::max(copier_->LongestWait(), client_copier_.LongestWait());
}

void CudaDevice::GiveUp(absl::string_view why) {
  context_->GiveUp(why);
  copier_->Abandon();
}

}  // namespace embcache
