// Where a record's bytes lie in its segment file, so that they can be read without RocksDB, from
// the file straight into their place.
//
// RocksDB does not say where it puts a value. SegmentLayout follows its block format while a file
// is written. Nothing depends on its being right: a header and a payload that are not found where
// it says fail their checksums, and are then read by key.
//
// Not thread-safe.

#ifndef EMBCACHE_STORAGE_SEGMENT_LAYOUT_H_
#define EMBCACHE_STORAGE_SEGMENT_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace embcache {

// A payload follows its header, in chunks with a few bytes of RocksDB's before each.
struct RecordPosition {
  uint64_t header = 0;  // offset in the file; 0: not known
  uint32_t header_bytes = 0;
  // Bytes before the first and the second chunk. Before a later one there are LaterChunkGap().
  uint8_t first_gap = 0;
  uint8_t second_gap = 0;

  bool known() const { return header != 0; }

  friend bool operator==(const RecordPosition&, const RecordPosition&) = default;
};

// Bytes between a chunk and the next one, of `bytes`, when each is alone in its block.
uint64_t LaterChunkGap(uint64_t bytes);

class SegmentLayout {
 public:
  // To be told of every pair in turn, with the size that the table builder reports after taking it
  // (SstFileWriter::FileSize). Returns the offset of the value in the file.
  uint64_t Add(absl::string_view key, uint64_t value_bytes, uint64_t file_size);

 private:
  uint64_t block_ = 0;        // offset of the block that is being filled
  uint64_t block_bytes_ = 0;  // what is in it
  int since_restart_ = 0;
  std::string last_key_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_SEGMENT_LAYOUT_H_
