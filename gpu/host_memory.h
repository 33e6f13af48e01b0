// HostMemory: segments of ordinary memory that other processes can map.
//
// Each segment is a memfd: it has no name that anybody could guess or that could be left behind,
// and goes when its last descriptor and mapping go, also after kill -9. Its size is sealed, so that
// no client can shrink it under the others, and every page is reserved before Allocate returns, so
// that touching it cannot end in SIGBUS. The bytes are zero at first.

#ifndef EMBCACHE_GPU_HOST_MEMORY_H_
#define EMBCACHE_GPU_HOST_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/memory_resource.h"

namespace embcache {

struct HostMemoryOptions {
  // Ask for transparent huge pages. Whether they come is the kernel's choice
  // (/sys/kernel/mm/transparent_hugepage/shmem_enabled must be `advise` or more).
  bool huge_pages = false;
};

// Thread-safe. Segments may outlive it.
class HostMemory : public MemoryResource {
 public:
  static constexpr uint64_t kGranularity = 4096;

  explicit HostMemory(HostMemoryOptions options = {}) : options_(options) {}

  // Refuses, before it takes anything, what exceeds the memory available to this process
  // (gpu/available_memory.h): the kernel would rather kill a process than fail the reservation.
  absl::StatusOr<std::unique_ptr<MemorySegment>> Allocate(absl::string_view label,
                                                          uint64_t bytes) override;
  uint64_t granularity() const override { return kGranularity; }
  std::string device_uuid() const override { return ""; }

 private:
  const HostMemoryOptions options_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_HOST_MEMORY_H_
