// HostCopyEngine: a CopyEngine for memory that the CPU sees: memcpy on a few threads of its own.
//
// A copy of many MiB is split over the threads. The queue has no bound of its own, since a copy
// must not be refused half way through a move: callers keep at most one copy per entry in flight,
// so it holds at most one part per entry and thread. Copies may end in another order than they were
// given.

#ifndef EMBCACHE_GPU_HOST_COPY_ENGINE_H_
#define EMBCACHE_GPU_HOST_COPY_ENGINE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "storage/copy_engine.h"
#include "storage/executor.h"

namespace embcache {

class HostCopyEngine : public CopyEngine {
 public:
  // REQUIRES: threads > 0. `name` (at most 12 characters) is the threads' name prefix.
  explicit HostCopyEngine(absl::string_view name = "copy", int threads = 2);
  // Finishes what was queued. REQUIRES: no copy is started meanwhile, not even by a `done`.
  ~HostCopyEngine() override = default;

  // FAILED_PRECONDITION, through `done`, when the CPU does not see one of the segments.
  // REQUIRES: the ranges lie within the segments.
  void Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
            uint64_t from_offset, uint64_t bytes, Done done) override;
  void Upload(const MemorySegment* to, uint64_t to_offset, const char* from, uint64_t bytes,
              Done done) override;
  void Download(char* to, const MemorySegment* from, uint64_t from_offset, uint64_t bytes,
                Done done) override;

 private:
  // Either pointer may be nullptr: not visible to the CPU.
  void Enqueue(char* to, const char* from, uint64_t bytes, Done done);
  void Run(Executor::Task task);

  const uint64_t thread_count_;
  ThreadPoolExecutor threads_;
};

}  // namespace embcache

#endif  // EMBCACHE_GPU_HOST_COPY_ENGINE_H_
