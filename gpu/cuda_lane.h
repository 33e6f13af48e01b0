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
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
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

  uint64_t copies() const { return copies_.load(std::memory_order_relaxed); }
  uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }
  uint64_t failed_copies() const { return failed_copies_.load(std::memory_order_relaxed); }

 private:
  struct Batch {
    CUevent end = nullptr;
    std::vector<DeviceCopy> copies;
    std::vector<absl::Status> results;  // of the copies
  };

  CudaLane(std::shared_ptr<CudaContext> context, CopyDirection direction)
      : context_(std::move(context)), direction_(direction) {}
  absl::Status SetUp();

  void Run();
  std::vector<DeviceCopy> Take(bool wait);
  Batch Submit(std::vector<DeviceCopy> copies);
  // Waits until the batch is over.
  void Await(Batch* batch);
  void Answer(Batch batch);

  const std::shared_ptr<CudaContext> context_;
  const CopyDirection direction_;
  CUstream stream_ = nullptr;
  std::vector<CUevent> events_;       // all of them
  std::vector<CUevent> free_events_;  // the thread's

  absl::Mutex mu_;
  std::deque<DeviceCopy> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::atomic<uint64_t> copies_ = 0;
  std::atomic<uint64_t> copied_bytes_ = 0;
  std::atomic<uint64_t> failed_copies_ = 0;
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_LANE_H_
