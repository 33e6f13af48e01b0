#include "client/cpp/stream_copy.h"

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include <cstring>

namespace embcache::client::internal {

#ifdef __x86_64__

namespace {

constexpr size_t kLine = 64;
constexpr size_t kWorthwhile = size_t{1} << 20;

}  // namespace

void StreamCopy(uint8_t* to, const uint8_t* from, size_t bytes) {
  if (bytes < kWorthwhile || reinterpret_cast<uintptr_t>(to) % kLine != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t whole = bytes / kLine * kLine;
  for (size_t i = 0; i < whole; i += kLine) {
    const auto* line = reinterpret_cast<const __m128i*>(from + i);
    auto* into = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(into, a);
    _mm_stream_si128(into + 1, b);
    _mm_stream_si128(into + 2, c);
    _mm_stream_si128(into + 3, d);
  }
  _mm_sfence();  // streamed stores are not ordered with what publishes them
  std::memcpy(to + whole, from + whole, bytes - whole);
}

#else

void StreamCopy(uint8_t* to, const uint8_t* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace embcache::client::internal
