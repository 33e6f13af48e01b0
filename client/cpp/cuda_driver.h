// CudaDriver: the few entry points of the CUDA driver that a client needs, found in libcuda.so.1
// when they are first asked for. Internal to the client.
//
// Declared here, after the driver's stable binary interface, so that the client builds, and its
// users build, without CUDA. The library is never unloaded: the driver does not survive that.
// Thread-safe.

#ifndef EMBCACHE_CLIENT_CPP_CUDA_DRIVER_H_
#define EMBCACHE_CLIENT_CPP_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache::client::internal {

struct CudaIpcHandle {
  char bytes[64];
};

class CudaDriver {
 public:
  using Context = void*;

  // The process's driver, initialised. FAILED_PRECONDITION, naming what is missing: this process
  // sees no device. Only a success is remembered.
  static absl::StatusOr<const CudaDriver*> Get();

  // Of the devices that this process sees, in the driver's order, as nvidia-smi prints them.
  const std::vector<std::string>& device_uuids() const { return device_uuids_; }

  // Keeps the primary context of a device, which is the one that frameworks and the runtime library
  // use, alive until released. NOT_FOUND: no such device here.
  absl::StatusOr<Context> RetainContext(absl::string_view device_uuid) const;
  void ReleaseContext(absl::string_view device_uuid) const;

  // Memory of another process. FAILED_PRECONDITION when it is this process that exported it.
  absl::StatusOr<uint64_t> OpenMemory(Context context, const CudaIpcHandle& handle) const;
  void CloseMemory(Context context, uint64_t address) const;

  // Memory of this process's own, allocated by anybody in it. A device is its place in
  // device_uuids().
  //
  // INVALID_ARGUMENT: it is nowhere on a device.
  absl::StatusOr<int> DeviceAt(uint64_t address) const;
  // Complete when they return. Both addresses are of `device`; or `to` is host memory.
  absl::Status CopyOnDevice(int device, uint64_t to, uint64_t from, uint64_t bytes) const;
  absl::Status CopyToHost(int device, void* to, uint64_t from, uint64_t bytes) const;
  // For another process. FAILED_PRECONDITION: memory that cannot be exported; says what can.
  struct Exported {
    CudaIpcHandle handle;  // of the allocation
    uint64_t offset = 0;   // of the address in it
  };
  absl::StatusOr<Exported> Export(int device, uint64_t address) const;

 private:
  class Current;
  struct Uuid {
    unsigned char bytes[16];
  };

  static absl::StatusOr<CudaDriver*> Load();
  absl::Status Initialise();
  absl::Status ToStatus(int result, absl::string_view call) const;
  int DeviceOf(absl::string_view uuid) const;  // -1: not here

  std::vector<std::string> device_uuids_;

  int (*init_)(unsigned int) = nullptr;
  int (*error_name_)(int, const char**) = nullptr;
  int (*error_text_)(int, const char**) = nullptr;
  int (*device_count_)(int*) = nullptr;
  int (*device_uuid_)(Uuid*, int) = nullptr;
  int (*retain_context_)(Context*, int) = nullptr;
  int (*release_context_)(int) = nullptr;
  int (*push_context_)(Context) = nullptr;
  int (*pop_context_)(Context*) = nullptr;
  int (*open_memory_)(uint64_t*, CudaIpcHandle, unsigned int) = nullptr;
  int (*close_memory_)(uint64_t) = nullptr;
  int (*context_state_)(int, unsigned int*, int*) = nullptr;
  int (*pointer_attribute_)(void*, int, uint64_t) = nullptr;
  int (*address_range_)(uint64_t*, size_t*, uint64_t) = nullptr;
  int (*export_memory_)(CudaIpcHandle*, uint64_t) = nullptr;
  int (*copy_on_device_)(uint64_t, uint64_t, size_t) = nullptr;
  int (*copy_to_host_)(void*, uint64_t, size_t) = nullptr;
  int (*synchronize_stream_)(void*) = nullptr;
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_CUDA_DRIVER_H_
