// RecordAssembler: puts a record together from the bytes of its place in a segment file, as they
// come: header, and payload in chunks with a few bytes of RocksDB's before each.
//
// Not thread-safe.

#ifndef EMBCACHE_STORAGE_RECORD_ASSEMBLER_H_
#define EMBCACHE_STORAGE_RECORD_ASSEMBLER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/record_format.h"
#include "storage/store_index.h"

namespace embcache {

// For messages.
std::string RecordName(const IndexEntry& at);

// DATA_LOSS when the header is another record's than the index says.
absl::Status IsRecord(const RecordHeader& header, const CacheKey& key, const IndexEntry& at);

class RecordAssembler {
 public:
  // REQUIRES: a known position. `to` is where the payload goes.
  RecordAssembler(const CacheKey& key, const IndexEntry& at, char* to)
      : key_(key), at_(at), to_(to) {}

  // Of the bytes from at.position.header on, those that make up the record.
  uint64_t bytes() const;
  // To be given all of them, in order.
  absl::Status Add(absl::string_view piece);
  // DATA_LOSS when the payload is not the header's.
  absl::StatusOr<StoredRecord> Finish();

 private:
  uint64_t GapBeforeChunk() const;

  const CacheKey& key_;
  const IndexEntry& at_;
  char* const to_;
  std::string header_bytes_;
  std::optional<RecordHeader> header_;
  uint64_t gap_left_ = 0;
  uint64_t chunk_left_ = 0;
  uint64_t done_ = 0;  // of the payload
  PayloadHasher hasher_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_RECORD_ASSEMBLER_H_
