#include "storage/segment_layout.h"

#include <algorithm>

namespace embcache {
namespace {

// Of RocksDB's block format: keys carry a sequence number and a type, share their beginnings with
// the key before except at every 16th of a block, and a block ends with the offsets of those, their
// number and a trailer of type and checksum.
constexpr uint64_t kKeySuffixBytes = 8;
constexpr int kRestartInterval = 16;
constexpr uint64_t kBlockEndBytes = 4 + 4 + 5;
constexpr uint64_t kKeyBytes = 16;  // of ours

uint64_t VarintBytes(uint64_t value) {
  uint64_t bytes = 1;
  for (; value >= 128; value >>= 7) ++bytes;
  return bytes;
}

}  // namespace

uint64_t LaterChunkGap(uint64_t bytes) {
  return kBlockEndBytes + 1 + 1 + VarintBytes(bytes) + kKeyBytes + kKeySuffixBytes;
}

uint64_t SegmentLayout::Add(absl::string_view key, uint64_t value_bytes, uint64_t file_size) {
  if (file_size != block_) {  // the block before was closed first
    block_ = file_size;
    block_bytes_ = 0;
    since_restart_ = 0;
  }
  uint64_t shared = 0;
  if (since_restart_ == kRestartInterval) {
    since_restart_ = 0;
  } else if (since_restart_ > 0) {
    const auto differs = std::mismatch(key.begin(), key.end(), last_key_.begin(), last_key_.end());
    shared = static_cast<uint64_t>(differs.first - key.begin());
  }
  ++since_restart_;
  last_key_.assign(key.data(), key.size());
  const uint64_t own = key.size() + kKeySuffixBytes - shared;
  block_bytes_ += VarintBytes(shared) + VarintBytes(own) + VarintBytes(value_bytes) + own;
  const uint64_t value = block_ + block_bytes_;
  block_bytes_ += value_bytes;
  return value;
}

}  // namespace embcache
