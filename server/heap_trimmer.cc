#include "server/heap_trimmer.h"

#include <malloc.h>
#include <pthread.h>

#include <algorithm>

#include "server/process_stats.h"

namespace embcache {
namespace {

uint64_t UnusedBytes() {
  const struct mallinfo2 heap = mallinfo2();
  const uint64_t resident = PrivateResidentBytes();
  return resident - std::min<uint64_t>(resident, heap.uordblks + heap.hblkhd);
}

}  // namespace

bool TrimRule::ShouldTrim(uint64_t unused) {
  not_ours_ = std::min(not_ours_, unused);
  return unused - not_ours_ > slack_bytes_;
}

HeapTrimmer::HeapTrimmer(HeapTrimmerOptions options) : thread_([this, options] { Run(options); }) {}

HeapTrimmer::~HeapTrimmer() {
  stop_.Notify();
  thread_.join();
}

void HeapTrimmer::Run(HeapTrimmerOptions options) {
  pthread_setname_np(pthread_self(), "heap-trimmer");
  TrimRule rule(options.slack_bytes);
  while (!stop_.WaitForNotificationWithTimeout(options.period)) {
    if (!rule.ShouldTrim(UnusedBytes())) continue;
    malloc_trim(0);
    rule.Trimmed(UnusedBytes());
  }
}

}  // namespace embcache
