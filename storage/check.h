// EMB_CHECK: ends the process with file, line and condition when an invariant of ours is broken.
// Kept on in release builds: a cache that has lost count of its memory must not go on serving. What
// the outside can cause (input, disk, network, device) is an absl::Status instead.

#ifndef EMBCACHE_STORAGE_CHECK_H_
#define EMBCACHE_STORAGE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define EMB_CHECK(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: invariant broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#endif  // EMBCACHE_STORAGE_CHECK_H_
