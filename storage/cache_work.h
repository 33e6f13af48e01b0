// CacheWork: how long the cache's own copies and disk operations take, and how large the values are
// that pass through it. Recorded without the cache's lock. Thread-safe.

#ifndef EMBCACHE_STORAGE_CACHE_WORK_H_
#define EMBCACHE_STORAGE_CACHE_WORK_H_

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "storage/latency_histogram.h"

namespace embcache {

// The same buckets count nanoseconds and bytes.
struct CacheWork {
  struct Step {
    LatencyHistogram duration;
    LatencyHistogram bytes;
  };

  Step promotion;   // the copy from L2 to L1
  Step demotion;    // the copy from L1 to L2
  Step relocation;  // the copy within a tier, out of a segment that goes
  Step l3_read;     // of one entry, successful or not
  Step l3_write;
  LatencyHistogram hit_bytes;    // of each entry found
  LatencyHistogram saved_bytes;  // of each entry committed

  std::array<std::pair<absl::string_view, const Step*>, 5> Steps() const {
    return {{{"promote", &promotion},
             {"demote", &demotion},
             {"relocate", &relocation},
             {"l3_read", &l3_read},
             {"l3_write", &l3_write}}};
  }
};

// Times one step from its construction to Stop or its end.
class StepTimer {
 public:
  StepTimer(CacheWork::Step* step, uint64_t bytes) : timer_(&step->duration) {
    step->bytes.Record(bytes);
  }
  void Stop() { timer_.Stop(); }

 private:
  LatencyTimer timer_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_CACHE_WORK_H_
