// HostSegment: one of the cache's segments in host memory, mapped in this process. Unmapped by the
// last who has it: the session while the daemon has the segment, and whatever was got from it.
// Internal to the client.

#ifndef EMBCACHE_CLIENT_CPP_HOST_SEGMENT_H_
#define EMBCACHE_CLIENT_CPP_HOST_SEGMENT_H_

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>

namespace embcache::client::internal {

class HostSegment {
 public:
  HostSegment(uint8_t* base, uint64_t bytes) : base_(base), bytes_(bytes), pid_(getpid()) {}
  ~HostSegment() {
    if (getpid() == pid_) munmap(base_, bytes_);  // in a fork it is the parent's business
  }
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  uint8_t* base() const { return base_; }

 private:
  uint8_t* const base_;
  const uint64_t bytes_;
  const pid_t pid_;
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_HOST_SEGMENT_H_
