// SegmentBoard: what the control thread tells those who change the cache's segments: how far its
// sessions follow. Thread-safe.

#ifndef EMBCACHE_SERVER_SEGMENT_BOARD_H_
#define EMBCACHE_SERVER_SEGMENT_BOARD_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace embcache {

class SegmentBoard {
 public:
  // Every session has been told of the segments as of `version` (TieredCache::segments_version),
  // and `awaited` sets of segments that went are still waited for, in time. `held`: with those that
  // are late, and may be mapped somewhere.
  void Report(uint64_t version, size_t awaited, size_t held) {
    absl::MutexLock lock(&mu_);
    version_ = version;
    awaited_ = awaited;
    held_ = held;
  }

  bool held() const {
    absl::MutexLock lock(&mu_);
    return held_ > 0;
  }

  // Both return when it is so, or after Stop.
  void AwaitTold(uint64_t version) {
    absl::MutexLock lock(&mu_);
    const auto told = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return version_ >= version || stopped_;
    };
    mu_.Await(absl::Condition(&told));
  }
  // Whatever went until `version` is given up by all, or their time is over.
  void AwaitReleased(uint64_t version) {
    absl::MutexLock lock(&mu_);
    const auto released = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return (version_ >= version && awaited_ == 0) || stopped_;
    };
    mu_.Await(absl::Condition(&released));
  }

  void Stop() {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }

 private:
  mutable absl::Mutex mu_;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  size_t awaited_ ABSL_GUARDED_BY(mu_) = 0;
  size_t held_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SEGMENT_BOARD_H_
