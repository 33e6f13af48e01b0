// CudaContext: one device and its primary context in this process, held while anything of it lives;
// and the knowledge whether the context still works.
//
// Driver calls need the context current in the calling thread: `CudaContext::Current` is the scope
// in which it is. After a sticky error the context is *lost*: nobody calls the driver any more.
// Thread-safe.

#ifndef EMBCACHE_GPU_CUDA_CONTEXT_H_
#define EMBCACHE_GPU_CUDA_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "gpu/cuda_driver.h"

namespace embcache {

class CudaContext {
 public:
  // `which`: an index as the driver counts, or a UUID. FAILED_PRECONDITION names what is there.
  static absl::StatusOr<std::shared_ptr<CudaContext>> Open(std::shared_ptr<const CudaDriver> driver,
                                                           absl::string_view which);
  ~CudaContext();

  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  const std::string& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }

  // The result of a driver call made in this context. A sticky error makes the context lost, which
  // calls the handler: so no lock may be held here that the handler takes.
  absl::Status Check(CUresult result, absl::string_view call);
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  absl::Status lost_status() const;  // OK unless lost
  // Says that the context is lost although the driver does not: something on the device does not
  // end. What was started there may still touch its memory and pinned memory, so both stay as they
  // are to the end of the process.
  void GiveUp(absl::string_view why);
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }
  // Called once, when the context is lost; at once if it is.
  void OnLost(absl::AnyInvocable<void(const absl::Status&)> handler);

  class Current {
   public:
    explicit Current(CudaContext* context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

    // Unless OK no call may be made: the context is lost or cannot be made current.
    const absl::Status& status() const { return status_; }

   private:
    CudaContext* const context_;
    absl::Status status_;
  };

 private:
  CudaContext(std::shared_ptr<const CudaDriver> driver, CUdevice device, CUcontext context,
              std::string uuid, std::string name);
  void MarkLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<const CudaDriver> driver_;
  const CUdevice device_;
  const CUcontext context_;
  const std::string uuid_;
  const std::string name_;
  std::atomic<bool> lost_ = false;
  std::atomic<bool> given_up_ = false;
  mutable absl::Mutex mu_;
  absl::Status lost_status_ ABSL_GUARDED_BY(mu_);
  absl::AnyInvocable<void(const absl::Status&)> on_lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_CUDA_CONTEXT_H_
