// CudaDevice: the parts of one CUDA device, put together. See gpu/gpu_device.h.

#ifndef EMBCACHE_GPU_CUDA_DEVICE_H_
#define EMBCACHE_GPU_CUDA_DEVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "gpu/cuda_client_copier.h"
#include "gpu/cuda_context.h"
#include "gpu/cuda_copy_engine.h"
#include "gpu/cuda_memory.h"
#include "gpu/gpu_device.h"

namespace embcache {

class CudaDevice : public GpuDevice {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const GpuDeviceOptions& options);

  const std::string& uuid() const override { return context_->uuid(); }
  const std::string& name() const override { return context_->name(); }
  absl::StatusOr<uint64_t> FreeBytes() const override { return device_memory_.FreeBytes(); }
  MemoryResource* device_memory() override { return &device_memory_; }
  MemoryResource* pinned_memory() override { return &pinned_memory_; }
  CopyEngine* copier() override { return copier_.get(); }
  void CopyFromClient(ClientCopy copy) override { client_copier_.Copy(std::move(copy)); }
  void OnLost(absl::AnyInvocable<void(const absl::Status&)> lost) override {
    context_->OnLost(std::move(lost));
  }
  void KeepMemoryUntilExit() override { device_memory_.KeepUntilExit(); }
  GpuStats GetStats() const override;
  absl::Duration LongestWait() const override;
  void GiveUp(absl::string_view why) override;

 private:
  CudaDevice(const GpuDeviceOptions& options, std::shared_ptr<CudaContext> context,
             std::unique_ptr<CudaCopyEngine> copier);

  const std::shared_ptr<CudaContext> context_;
  CudaMemory device_memory_;
  PinnedHostMemory pinned_memory_;
  const std::unique_ptr<CudaCopyEngine> copier_;
  CudaClientCopier client_copier_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_DEVICE_H_
