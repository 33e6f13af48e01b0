#include "client/cpp/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace embcache::client::internal {
namespace {

TEST(StreamCopyTest, CopiesExactlyTheBytesAtEverySizeAndAlignment) {
  constexpr size_t kMiB = size_t{1} << 20;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, kMiB - 1, kMiB, kMiB + 1, kMiB + 63,
                             kMiB + 64, 2 * kMiB + 17}) {
    for (const size_t shift : {0, 1, 16, 63}) {
      std::vector<uint8_t> from(bytes + 64);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 131 + i / 251);
      std::vector<uint8_t> memory(bytes + 512, 0xEE);
      uint8_t* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
      uint8_t* to = aligned + shift;
      StreamCopy(to, from.data() + shift, bytes);
      ASSERT_TRUE(std::equal(to, to + bytes, from.data() + shift)) << bytes << " at " << shift;
      ASSERT_EQ(to[-1], 0xEE);
      ASSERT_EQ(to[bytes], 0xEE);
    }
  }
}

}  // namespace
}  // namespace embcache::client::internal
