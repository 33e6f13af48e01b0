// StreamCopy: memcpy for large values that this process will not read again. It writes past the
// caches: faster by a third into shared memory, and the encoder keeps what it has in them. When it
// returns the bytes may be published to other processes as after memcpy.

#ifndef EMBCACHE_CLIENT_CPP_STREAM_COPY_H_
#define EMBCACHE_CLIENT_CPP_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>

namespace embcache::client::internal {

// The ranges do not overlap. Small or unaligned ones, and other processors than x86-64, get memcpy.
void StreamCopy(uint8_t* to, const uint8_t* from, size_t bytes);

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_STREAM_COPY_H_
