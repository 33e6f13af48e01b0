// HeapTrimmer: gives memory that was freed back to the system.
//
// malloc keeps what is freed for whoever asks next, page faults being dear, and does so for each of
// its arenas apart: after a burst (many clients that did not read their answers, say) the daemon
// would hold the burst's memory for ever. So a thread looks now and then how much lies unused, and
// when that is a lot has malloc give it back.

#ifndef EMBCACHE_SERVER_HEAP_TRIMMER_H_
#define EMBCACHE_SERVER_HEAP_TRIMMER_H_

#include <cstdint>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace embcache {

struct HeapTrimmerOptions {
  absl::Duration period = absl::Seconds(10);
  // What may lie unused. The buffers of L3's reads and writes are needed again at once.
  uint64_t slack_bytes = uint64_t{128} << 20;
};

// When to trim, given how much of the process's own memory malloc has not given out.
class TrimRule {
 public:
  explicit TrimRule(uint64_t slack_bytes) : slack_bytes_(slack_bytes) {}

  bool ShouldTrim(uint64_t unused);
  // `unused`: what is left. It is not malloc's to give back: a driver's, or stacks.
  void Trimmed(uint64_t unused) { not_ours_ = unused; }

 private:
  const uint64_t slack_bytes_;
  uint64_t not_ours_ = 0;
};

class HeapTrimmer {
 public:
  explicit HeapTrimmer(HeapTrimmerOptions options = {});
  ~HeapTrimmer();

  HeapTrimmer(const HeapTrimmer&) = delete;
  HeapTrimmer& operator=(const HeapTrimmer&) = delete;

 private:
  void Run(HeapTrimmerOptions options);

  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_HEAP_TRIMMER_H_
