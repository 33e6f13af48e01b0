// Resizer: changes the capacity of L1 and L2 while the daemon serves. One call at a time, on a
// thread of its own, since taking memory and waiting for pins both last.
//
//   shrink: segments leave the cache -> sessions unmap them -> they are freed
//   grow:   segments are allocated -> sessions are told of them -> the cache uses them
//
// A tier shrinks by whole segments; if that is more than was asked for, what is missing comes back
// as a smaller one, once the memory is free. So there is never more allocated than the larger of
// the old and the new capacity.
//
// Thread-safe.

#ifndef EMBCACHE_SERVER_RESIZER_H_
#define EMBCACHE_SERVER_RESIZER_H_

#include <cstdint>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/segment_board.h"
#include "storage/tiered_cache.h"

namespace embcache {

class Resizer {
 public:
  struct Resized {
    uint64_t previous_bytes = 0;
    uint64_t capacity_bytes = 0;
  };
  using Callback = absl::AnyInvocable<void(absl::StatusOr<Resized>)>;

  // `free_bytes` says what a tier's memory has left. The pointers outlive the resizer.
  Resizer(TieredCache* cache, SegmentBoard* board,
          absl::AnyInvocable<absl::StatusOr<uint64_t>(TierId)> free_bytes);
  ~Resizer();

  Resizer(const Resizer&) = delete;
  Resizer& operator=(const Resizer&) = delete;

  // See Admin.Resize. `done` is called once, on the resizer's thread or inside this call.
  void Resize(TierId tier, uint64_t capacity_bytes, absl::Time deadline, Callback done);

  // Cuts the call under way short, refuses later ones, ends the thread. Idempotent.
  void Stop();

 private:
  struct Request {
    TierId tier;
    uint64_t capacity_bytes;
    absl::Time deadline;
    Callback done;
  };

  void Run();
  absl::StatusOr<Resized> Do(const Request& request);
  absl::Status CheckRequest(const Request& request, uint64_t previous);
  absl::Status Grow(const Request& request);

  TieredCache* const cache_;
  SegmentBoard* const board_;
  absl::AnyInvocable<absl::StatusOr<uint64_t>(TierId)> free_bytes_;  // of the thread

  absl::Mutex mu_;
  std::optional<Request> next_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // with next_, or with the one before
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_RESIZER_H_
