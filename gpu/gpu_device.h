// GpuDevice: one device and everything the daemon does with it: memory for L1, pinned host memory
// for L2, copies between and within them, and copies out of clients' own device memory.
//
// This header needs no CUDA: it is what the rest of the program sees. Implemented by CudaDevice
// (gpu/cuda_device.h) over the driver found when the program starts; a build without CUDA headers
// knows no device.

#ifndef EMBCACHE_GPU_GPU_DEVICE_H_
#define EMBCACHE_GPU_GPU_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpu/host_memory.h"
#include "storage/copy_engine.h"
#include "storage/memory_resource.h"

namespace embcache {

struct GpuDeviceOptions {
  // "0", "1", ... as the driver counts (CUDA_VISIBLE_DEVICES applies), or a UUID as nvidia-smi
  // prints it.
  std::string which = "0";
  std::string driver_library = "libcuda.so.1";
  HostMemoryOptions host_memory;
  int copy_threads = 2;  // for copies between host memory and host memory
  // How long an allocation that finds too little free memory is tried again: the memory of a daemon
  // that died is not free before its clients have closed their mappings.
  absl::Duration allocation_patience = absl::Seconds(10);
  // What a client's own memory may take to be copied.
  absl::Duration client_copy_timeout = absl::Seconds(10);
  // For what happens on the way and is no error. May be called from any thread.
  std::function<void(absl::string_view)> log = [](absl::string_view) {};
};

// A copy out of device memory that a client has allocated and exported.
struct ClientCopy {
  struct Part {
    uint64_t from = 0;  // from `offset`
    uint64_t to = 0;    // from `to_offset`
    uint64_t bytes = 0;
  };
  std::string client;      // copies of one client are made in order, on a stream of their own
  std::string ipc_handle;  // 64 bytes
  uint64_t offset = 0;     // in the exported allocation
  uint64_t bytes = 0;      // that the parts read
  std::vector<Part> parts;
  const MemorySegment* to = nullptr;
  uint64_t to_offset = 0;
  // Called exactly once, on a thread of the device's, when nothing touches source or target any
  // more.
  CopyEngine::Done done;
  // Called at most once, before `done`: the copy did not end in time, but may still be under way.
  absl::AnyInvocable<void()> late;
};

struct GpuStats {
  uint64_t copies = 0;  // that ended well, staging included
  uint64_t copied_bytes = 0;
  uint64_t failed_copies = 0;
  uint64_t client_copies = 0;   // out of clients' own memory
  uint64_t pinned_bytes = 0;    // host memory that the device copies from and to directly
  uint64_t pageable_bytes = 0;  // host memory that should be pinned but could not be
};

// Thread-safe. Segments may outlive it; copies must have ended.
class GpuDevice {
 public:
  static constexpr size_t kIpcHandleBytes = 64;

  virtual ~GpuDevice() = default;

  virtual const std::string& uuid() const = 0;  // "GPU-..." as nvidia-smi prints it
  virtual const std::string& name() const = 0;
  virtual absl::StatusOr<uint64_t> FreeBytes() const = 0;

  virtual MemoryResource* device_memory() = 0;
  virtual MemoryResource* pinned_memory() = 0;
  virtual CopyEngine* copier() = 0;
  virtual void CopyFromClient(ClientCopy copy) = 0;

  // `lost` is called once, from any thread, after an error that makes the device useless until the
  // process is started anew; at once if that has happened. From then on every copy fails.
  virtual void OnLost(absl::AnyInvocable<void(const absl::Status&)> lost) = 0;
  // Device memory is left to the end of the process instead of being freed with its segments:
  // freeing what another process has mapped is undefined.
  virtual void KeepMemoryUntilExit() = 0;
  virtual GpuStats GetStats() const = 0;

  // For how long the oldest copy on the device has been there, while others may be waiting behind
  // it: milliseconds, unless the device has stopped. Zero: there is none.
  virtual absl::Duration LongestWait() const = 0;
  // For a process that is to end and cannot wait for such a copy: the device is lost (OnLost), all
  // copies that are not over fail, and so do all from now on, those between host memory included.
  // Memory that the device may still touch is left to the end of the process, which the driver may
  // delay: _exit(). Called once at most.
  virtual void GiveUp(absl::string_view why) = 0;
};

// FAILED_PRECONDITION: this build or this machine has no such device; the message says what is
// missing.
absl::StatusOr<std::unique_ptr<GpuDevice>> OpenGpuDevice(const GpuDeviceOptions& options);

// Whether two UUIDs name the same device: case and the prefixes "GPU-" and "MIG-" do not matter.
bool SameDeviceUuid(absl::string_view a, absl::string_view b);

}  // namespace embcache

#endif  // EMBCACHE_GPU_GPU_DEVICE_H_
