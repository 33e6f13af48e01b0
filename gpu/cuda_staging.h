// CudaStaging: copies between the device and ordinary memory, by way of a few pinned buffers: the
// device copies from and to pinned memory only, at least at full speed and without blocking.
//
// Two threads, one per direction, copy between the caller's memory and the buffers while the
// device copies the other half.

#ifndef EMBCACHE_GPU_CUDA_STAGING_H_
#define EMBCACHE_GPU_CUDA_STAGING_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "gpu/cuda_context.h"
#include "gpu/cuda_lane.h"
#include "gpu/cuda_memory.h"
#include "storage/copy_engine.h"
#include "storage/executor.h"
#include "storage/memory_resource.h"

namespace embcache {

class CudaStaging {
 public:
  static constexpr uint64_t kBufferBytes = uint64_t{4} << 20;

  // The lanes outlive this.
  static absl::StatusOr<std::unique_ptr<CudaStaging>> Create(
      std::shared_ptr<CudaContext> context, CudaLane* to_device, CudaLane* to_host,
      std::function<void(absl::string_view)> log);
  // Finishes what was queued.
  ~CudaStaging();

  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;

  // REQUIRES: bytes > 0. `done` runs on a thread of the staging's or a lane's.
  void Upload(CUdeviceptr to, const char* from, uint64_t bytes, CopyEngine::Done done);
  void Download(char* to, CUdeviceptr from, uint64_t bytes, CopyEngine::Done done);

 private:
  // Two buffers, used in turn: while the device works on one, the thread works on the other.
  class Buffers {
   public:
    explicit Buffers(std::unique_ptr<MemorySegment> memory) : memory_(std::move(memory)) {}
    char* data(uint64_t chunk) { return memory_->host_data() + chunk % 2 * kBufferBytes; }
    void Acquire(uint64_t chunk);  // waits until Release(chunk - 2)
    void Release(uint64_t chunk, const absl::Status& result);
    // Waits until all are free; the first error since the last call.
    absl::Status AwaitAll();

   private:
    const std::unique_ptr<MemorySegment> memory_;
    absl::Mutex mu_;
    std::array<bool, 2> busy_ ABSL_GUARDED_BY(mu_) = {};
    absl::Status result_ ABSL_GUARDED_BY(mu_);
  };

  CudaStaging(CudaLane* to_device, CudaLane* to_host, std::unique_ptr<MemorySegment> up,
              std::unique_ptr<MemorySegment> down);
  absl::Status RunUpload(CUdeviceptr to, const char* from, uint64_t bytes);
  absl::Status RunDownload(char* to, CUdeviceptr from, uint64_t bytes);

  CudaLane* const to_device_;
  CudaLane* const to_host_;
  Buffers up_;
  Buffers down_;
  ThreadPoolExecutor uploads_;
  ThreadPoolExecutor downloads_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_STAGING_H_
