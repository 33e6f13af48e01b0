// CudaClientCopier: copies out of device memory that clients have allocated themselves and exported
// by CUDA IPC.
//
// One thread opens the handles, starts the copies, each client's on a stream of its own, and looks
// from time to time which of them are over: a copy that hangs with its client's device work delays
// that client alone. An allocation is opened once for all copies that need it at the same time, and
// closed when the last of them is over, never under a copy. Nothing stays open for later: the
// driver may give the same handle to other memory.

#ifndef EMBCACHE_GPU_CUDA_CLIENT_COPIER_H_
#define EMBCACHE_GPU_CUDA_CLIENT_COPIER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu/cuda_context.h"
#include "gpu/gpu_device.h"

namespace embcache {

class CudaClientCopier {
 public:
  CudaClientCopier(std::shared_ptr<CudaContext> context, absl::Duration timeout);
  // Ends when every copy has.
  ~CudaClientCopier();

  CudaClientCopier(const CudaClientCopier&) = delete;
  CudaClientCopier& operator=(const CudaClientCopier&) = delete;

  // Errors, through `done`: INVALID_ARGUMENT (the handle's size, a range outside the allocation),
  // FAILED_PRECONDITION (memory that cannot be opened here), RESOURCE_EXHAUSTED (too many copies
  // wait), UNAVAILABLE (the device is lost).
  void Copy(ClientCopy copy);

  // How long ago the oldest copy that is under way was started; zero: there is none. When the
  // context is given up, all of them fail.
  absl::Duration LongestWait() const;

  uint64_t copies() const { return copies_.load(std::memory_order_relaxed); }

 private:
  // An opened allocation.
  struct Mapping {
    CUdeviceptr pointer = 0;
    uint64_t bytes = 0;  // from `pointer` to the end of the allocation
    int users = 0;
  };
  struct Client {
    CUstream stream = nullptr;
    int copies = 0;
    absl::Duration idle_since;  // monotonic
  };
  struct Job {
    ClientCopy copy;
    absl::Duration deadline;  // monotonic
    absl::Duration started;   // monotonic
    CUevent end = nullptr;
    bool told_late = false;
  };

  void Run();
  // Waits for the next copy, at most `longest`; false when there is nothing left to do, ever.
  bool TakeQueued(absl::Duration longest, std::deque<Job>* jobs);
  void Start(Job job);
  absl::Status StartLocal(Job* job);
  absl::StatusOr<Mapping*> OpenMapping(const std::string& handle);
  void CloseMapping(const std::string& handle);
  absl::StatusOr<Client*> FindClient(const std::string& name);
  void CloseIdleClients();
  // Finishes the copies that are over, and tells of those that are late.
  bool Poll();
  void Finish(Job job, absl::Status result);

  const std::shared_ptr<CudaContext> context_;
  const absl::Duration timeout_;

  mutable absl::Mutex mu_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration oldest_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();  // start of running_[0]
  std::atomic<uint64_t> copies_ = 0;

  // The thread's own.
  std::list<Job> running_;
  absl::flat_hash_map<std::string, std::unique_ptr<Mapping>> mappings_;  // by handle
  absl::flat_hash_map<std::string, Client> clients_;

  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_CLIENT_COPIER_H_
