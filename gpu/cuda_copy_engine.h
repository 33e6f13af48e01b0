// CudaCopyEngine: a CopyEngine over device memory, pinned and ordinary host memory.
//
// One lane (gpu/cuda_lane.h) per direction; what is not pinned goes by way of staging buffers
// (gpu/cuda_staging.h), and copies that the device has no part in are made by a HostCopyEngine. A
// copy's `done` comes only after the device has finished it, so whoever is told of the bytes then,
// in any process, needs no synchronisation of its own. After a sticky error every copy that has the
// device in it fails with UNAVAILABLE.

#ifndef EMBCACHE_GPU_CUDA_COPY_ENGINE_H_
#define EMBCACHE_GPU_CUDA_COPY_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpu/cuda_context.h"
#include "gpu/cuda_lane.h"
#include "gpu/cuda_staging.h"
#include "gpu/host_copy_engine.h"
#include "storage/copy_engine.h"

namespace embcache {

class CudaCopyEngine : public CopyEngine {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCopyEngine>> Create(
      std::shared_ptr<CudaContext> context, int host_threads,
      std::function<void(absl::string_view)> log);
  // Finishes what was queued. REQUIRES: no copy is started meanwhile, not even by a `done`.
  ~CudaCopyEngine() override;

  void Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
            uint64_t from_offset, uint64_t bytes, Done done) override;
  void Upload(const MemorySegment* to, uint64_t to_offset, const char* from, uint64_t bytes,
              Done done) override;
  void Download(char* to, const MemorySegment* from, uint64_t from_offset, uint64_t bytes,
                Done done) override;

  // For how long a copy has been keeping its thread from anything else; zero: none does.
  absl::Duration LongestWait() const;
  // Every copy that is not over, or started from now on, fails, those without the device included:
  // what a copy that does not end was to write may be given to another. REQUIRES: the context is
  // given up; called once at most.
  void Abandon();

  uint64_t copies() const;  // those that had the device in them and ended well
  uint64_t copied_bytes() const;
  uint64_t failed_copies() const;

 private:
  CudaCopyEngine(std::shared_ptr<CudaContext> context, std::unique_ptr<CudaLane> to_device,
                 std::unique_ptr<CudaLane> to_host, std::unique_ptr<CudaLane> on_device,
                 std::unique_ptr<CudaStaging> staging, int host_threads);
  // Whether a copy without the device is not to be made any more; it fails then.
  bool Fails(uint64_t bytes, Done* done);

  const std::shared_ptr<CudaContext> context_;
  const std::unique_ptr<CudaLane> to_device_;
  const std::unique_ptr<CudaLane> to_host_;
  const std::unique_ptr<CudaLane> on_device_;
  const std::unique_ptr<CudaStaging> staging_;  // uses the lanes
  HostCopyEngine host_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_COPY_ENGINE_H_
