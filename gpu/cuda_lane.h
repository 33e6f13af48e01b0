// CudaLane: copies in one direction, on a stream and a thread of their own.
//
// The thread submits what is queued, as one batch with one event at its end, and waits for the
// oldest batch's event; so small copies share a synchronisation, the next batch is on the device
// before the last one's callbacks run, and nobody else ever waits for the driver. The queue has no
// bound of its own: callers keep at most one copy per entry, or one per staging buffer, in flight.

#ifndef EMBCACHE_GPU_CUDA_LANE_H_
#define EMBCACHE_GPU_CUDA_LANE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu/cuda_context.h"
#include "storage/copy_engine.h"

namespace embcache {

enum class CopyDirection { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// Addresses are of the host or of the device, as the direction says.
struct DeviceCopy {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
  CopyEngine::Done done;
};

// Puts one copy into `stream`. REQUIRES: the context is current.
absl::Status StartCopy(CudaContext* context, CopyDirection direction, CUstream stream, uint64_t to,
                       uint64_t from, uint64_t bytes);

class CudaLane {
 public:
  static absl::StatusOr<std::unique_ptr<CudaLane>> Create(std::shared_ptr<CudaContext> context,
                                                          CopyDirection direction,
                                                          absl::string_view name);
  // Finishes what was queued.
  ~CudaLane();

  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  // `done` runs on the lane's thread. REQUIRES: bytes > 0.
  void Add(DeviceCopy copy);

  // For how long its thread has been waiting for the driver; zero: it is not.
  absl::Duration Waited() const;
  // Leaves the thread, and what it has put onto the device, to the end of the process. Another one
  // takes over all copies that are not over, and those to come, and fails them. REQUIRES: the
  // context is given up; called once at most.
  void Abandon();

  uint64_t copies() const { return counts_->copies.load(std::memory_order_relaxed); }
  uint64_t copied_bytes() const { return counts_->copied_bytes.load(std::memory_order_relaxed); }
  uint64_t failed_copies() const { return counts_->failed_copies.load(std::memory_order_relaxed); }

 private:
  class Worker;
  struct Counts {
    std::atomic<uint64_t> copies = 0;
    std::atomic<uint64_t> copied_bytes = 0;
    std::atomic<uint64_t> failed_copies = 0;
  };

  CudaLane(std::shared_ptr<CudaContext> context, CopyDirection direction, std::string name)
      : context_(std::move(context)), direction_(direction), name_(std::move(name)) {}

  const std::shared_ptr<CudaContext> context_;
  const CopyDirection direction_;
  const std::string name_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();

  mutable absl::Mutex mu_;  // before a worker's
  std::shared_ptr<Worker> worker_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_LANE_H_
