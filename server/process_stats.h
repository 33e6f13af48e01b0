// What the kernel says about this process, for metrics.

#ifndef EMBCACHE_SERVER_PROCESS_STATS_H_
#define EMBCACHE_SERVER_PROCESS_STATS_H_

#include <cstdint>

namespace embcache {

// 0: could not be read.
struct ProcessStats {
  double cpu_seconds = 0;  // user and system
  double start_unix_seconds = 0;
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;
  uint64_t threads = 0;
};

ProcessStats ReadProcessStats();

// Of the resident memory what is neither a file's nor shared: heap and stacks. 0: could not be
// read.
uint64_t PrivateResidentBytes();

}  // namespace embcache

#endif  // EMBCACHE_SERVER_PROCESS_STATS_H_
