// CudaMemory: segments of device memory, exported by CUDA IPC handle; and PinnedHostMemory:
// segments of host memory (gpu/host_memory.h) that the device copies from and to directly.

#ifndef EMBCACHE_GPU_CUDA_MEMORY_H_
#define EMBCACHE_GPU_CUDA_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpu/cuda_context.h"
#include "gpu/host_memory.h"
#include "storage/memory_resource.h"

namespace embcache {

// Where `segment` is for the device; 0 when it is not device memory of ours.
CUdeviceptr DevicePointer(const MemorySegment* segment);
// Whether the device copies from and to `segment` directly, if it is host memory.
bool IsPinned(const MemorySegment* segment);

struct CudaMemoryOptions {
  absl::Duration patience = absl::Seconds(10);
  std::function<void(absl::string_view)> log = [](absl::string_view) {};
  std::function<void(absl::Duration)> wait;  // between two attempts; by default it sleeps
};

// Thread-safe. Segments may outlive it.
class CudaMemory : public MemoryResource {
 public:
  // Whole blocks of the driver's, so that no neighbour's memory is exported along with ours.
  static constexpr uint64_t kGranularity = uint64_t{2} << 20;

  CudaMemory(std::shared_ptr<CudaContext> context, CudaMemoryOptions options);

  // Too little free memory is waited for, up to `patience`: that of a daemon that died is free only
  // when its clients have closed their mappings. What exceeds the device is refused at once.
  absl::StatusOr<std::unique_ptr<MemorySegment>> Allocate(absl::string_view label,
                                                          uint64_t bytes) override;
  uint64_t granularity() const override { return kGranularity; }
  std::string device_uuid() const override { return context_->uuid(); }

  absl::StatusOr<uint64_t> FreeBytes() const;
  // From now on destroyed segments leave their memory allocated.
  void KeepUntilExit() { keep_->store(true); }

 private:
  absl::StatusOr<CUdeviceptr> TryAllocate(absl::string_view label, uint64_t bytes) const;

  const std::shared_ptr<CudaContext> context_;
  const CudaMemoryOptions options_;
  const std::shared_ptr<std::atomic<bool>> keep_ = std::make_shared<std::atomic<bool>>(false);
};

// Thread-safe. Segments may outlive it.
class PinnedHostMemory : public MemoryResource {
 public:
  PinnedHostMemory(std::shared_ptr<CudaContext> context, HostMemoryOptions options,
                   std::function<void(absl::string_view)> log);

  // What cannot be pinned (RLIMIT_MEMLOCK, or the driver refuses) stays ordinary memory, which is
  // logged and counted: copies to the device then take a detour.
  absl::StatusOr<std::unique_ptr<MemorySegment>> Allocate(absl::string_view label,
                                                          uint64_t bytes) override;
  uint64_t granularity() const override { return host_.granularity(); }
  std::string device_uuid() const override { return ""; }

  uint64_t pinned_bytes() const { return pinned_bytes_->load(std::memory_order_relaxed); }
  uint64_t pageable_bytes() const { return pageable_bytes_->load(std::memory_order_relaxed); }

 private:
  const std::shared_ptr<CudaContext> context_;
  HostMemory host_;
  const std::function<void(absl::string_view)> log_;
  // Of the segments that there are.
  const std::shared_ptr<std::atomic<uint64_t>> pinned_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  const std::shared_ptr<std::atomic<uint64_t>> pageable_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_MEMORY_H_
