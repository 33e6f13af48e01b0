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
// What an operator asks for is what the tier is meant to have: chosen(). The daemon may take less
// for a while (ResizeForNow; see idle_shrinker.h), and gives way to an operator in that.
//
// Thread-safe.

#ifndef EMBCACHE_SERVER_RESIZER_H_
#define EMBCACHE_SERVER_RESIZER_H_

#include <array>
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

  // What an operator gave the tier last, or the start did. Each time it has another number.
  struct Choice {
    uint64_t capacity_bytes = 0;
    uint64_t number = 0;
  };
  Choice chosen(TierId tier) const;

  struct ForNow {
    uint64_t capacity_bytes = 0;
    uint64_t choice = 0;  // the number of chosen()
    absl::Time deadline;
    // Asked while pins are waited for; false ends the wait.
    absl::AnyInvocable<bool()> worth_waiting;
  };
  // The same without a choice. An operator's resize does not wait for its pins, and goes first.
  // ABORTED, too: an operator has chosen anew since.
  void ResizeForNow(TierId tier, ForNow wanted, Callback done);

  // Cuts the call under way short, refuses later ones, ends the thread. Idempotent.
  void Stop();

 private:
  struct Request {
    TierId tier;
    uint64_t capacity_bytes;
    absl::Time deadline;
    Callback done;
    std::optional<uint64_t> choice;  // of ResizeForNow
    absl::AnyInvocable<bool()> worth_waiting;
  };
  struct Taken {
    std::optional<Request> request;  // none: stopped
    absl::Status refused;
  };

  void Run();
  Taken Take();
  absl::StatusOr<Resized> Do(Request& request);
  void AwaitShrunk(Request& request);
  absl::Status CheckRequest(const Request& request, uint64_t previous);
  absl::Status Grow(const Request& request);

  TieredCache* const cache_;
  SegmentBoard* const board_;
  absl::AnyInvocable<absl::StatusOr<uint64_t>(TierId)> free_bytes_;  // of the thread

  mutable absl::Mutex mu_;
  std::optional<Request> next_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // with next_, or with the one before
  std::optional<Request> next_for_now_ ABSL_GUARDED_BY(mu_);
  bool busy_for_now_ ABSL_GUARDED_BY(mu_) = false;
  std::array<Choice, kMemoryTiers> chosen_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_RESIZER_H_
