// CopyEngine: the port that moves bytes between segments without blocking the caller.
//
// Implementations: HostCopyEngine (gpu/host_copy_engine.h: memcpy threads) and, for VRAM, CUDA
// streams. Thread-safe.

#ifndef EMBCACHE_STORAGE_COPY_ENGINE_H_
#define EMBCACHE_STORAGE_COPY_ENGINE_H_

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "storage/memory_resource.h"

namespace embcache {

class CopyEngine {
 public:
  // Called exactly once, on a thread of the engine's, never inside the call that started the copy.
  // After OK every reader, in any process, sees the copied bytes.
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~CopyEngine() = default;

  // Copies `bytes` from one place to another. Both ranges must stay untouched, and both segments
  // alive, until `done`. The ranges do not overlap.
  virtual void Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
                    uint64_t from_offset, uint64_t bytes, Done done) = 0;
  // The same from or to ordinary memory of this process.
  virtual void Upload(const MemorySegment* to, uint64_t to_offset, const char* from, uint64_t bytes,
                      Done done) = 0;
  virtual void Download(char* to, const MemorySegment* from, uint64_t from_offset, uint64_t bytes,
                        Done done) = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_COPY_ENGINE_H_
