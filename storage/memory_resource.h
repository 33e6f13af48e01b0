// MemoryResource: the port through which a memory tier gets its segments.
//
// A segment is one large allocation, made once, exported once, cut into entries by a SegmentArena.
// Implementations: HostMemory (gpu/host_memory.h: memfd, passed to clients as a file descriptor)
// and, for VRAM, CUDA memory passed as an IPC handle.

#ifndef EMBCACHE_STORAGE_MEMORY_RESOURCE_H_
#define EMBCACHE_STORAGE_MEMORY_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

// One allocation; freed by the destructor. Const methods are thread-safe.
class MemorySegment {
 public:
  virtual ~MemorySegment() = default;

  virtual uint64_t bytes() const = 0;
  // Where this process sees the bytes; nullptr when the CPU cannot (VRAM).
  virtual char* host_data() const = 0;
  // A descriptor that another process can mmap, valid while the segment lives and owned by it; -1
  // when the segment is not passed by descriptor. Through the read-only one nothing can be written.
  virtual int writable_fd() const = 0;
  virtual int read_only_fd() const = 0;
  // The exported CUDA IPC handle; empty when the segment is not passed by handle.
  virtual std::string cuda_ipc_handle() const = 0;
};

class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  // A segment of exactly `bytes`, all of it reserved, so that touching it later cannot fail.
  // `label` names it in /proc and logs. RESOURCE_EXHAUSTED says what was asked and what is free;
  // nothing stays allocated on failure. INVALID_ARGUMENT when bytes is no multiple of
  // granularity().
  virtual absl::StatusOr<std::unique_ptr<MemorySegment>> Allocate(absl::string_view label,
                                                                  uint64_t bytes) = 0;
  // Segment sizes are multiples of this many bytes.
  virtual uint64_t granularity() const = 0;
  // UUID of the device whose memory this is; empty for host memory.
  virtual std::string device_uuid() const = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_MEMORY_RESOURCE_H_
