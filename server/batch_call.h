// BatchCall: a call whose items are answered one by one, in any order and from any thread, and
// which is answered as a whole after the last. It owns itself from Begin to that answer.

#ifndef EMBCACHE_SERVER_BATCH_CALL_H_
#define EMBCACHE_SERVER_BATCH_CALL_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/call_context.h"
#include "storage/latency_histogram.h"

namespace embcache {

class BatchCall {
 public:
  BatchCall(LatencyTimer timer, Done done) : timer_(std::move(timer)), done_(std::move(done)) {}
  virtual ~BatchCall() = default;

  BatchCall(const BatchCall&) = delete;
  BatchCall& operator=(const BatchCall&) = delete;

  // Calls StartItem(0), ... of `call`; each must be followed by one ItemDone, at once or later.
  template <class Call>
  static void Begin(std::unique_ptr<Call> call, int items) {
    Call* const running = call.release();
    // One more than there are items, so that the call cannot end while they are being started.
    static_cast<BatchCall*>(running)->remaining_.store(items + 1, std::memory_order_relaxed);
    for (int i = 0; i < items; ++i) running->StartItem(i);
    running->ItemDone();
  }

  void ItemDone() {
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::unique_ptr<BatchCall> self(this);
    AllDone();
    timer_.Stop();
    done_(absl::OkStatus());
  }

 private:
  // Runs after the last item, before the answer.
  virtual void AllDone() {}

  std::atomic<int> remaining_ = 0;
  LatencyTimer timer_;
  Done done_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_BATCH_CALL_H_
