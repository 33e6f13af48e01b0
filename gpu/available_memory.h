// How much host memory this process can still take without waking the kernel's OOM killer.

#ifndef EMBCACHE_GPU_AVAILABLE_MEMORY_H_
#define EMBCACHE_GPU_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"

namespace embcache {

struct AvailableMemory {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  // What sets the bound, for error messages ("MemAvailable in /proc/meminfo").
  std::string source = "nothing that says how much";
};

// The smaller of MemAvailable and the room under every cgroup v2 memory.max from this process's
// group up to the root. Page cache that the kernel would give back counts as available in both.
// What cannot be read is no bound. `root` stands before /proc and /sys, for tests.
AvailableMemory ReadAvailableMemory(absl::string_view root = "");

}  // namespace embcache

#endif  // EMBCACHE_GPU_AVAILABLE_MEMORY_H_
