// PendingSegment: the records of one L3 file that is not on disk yet.
//
// Its records are shared and immutable, so that a reader can copy one without a lock while the file
// is being written or given up. The segment itself is guarded by the store's lock until it is
// sealed and does not change from then on.

#ifndef EMBCACHE_STORAGE_PENDING_SEGMENT_H_
#define EMBCACHE_STORAGE_PENDING_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "storage/record_format.h"

namespace embcache {

struct PendingRecord {
  StoredRecord record;
  PayloadHash hash;
  std::string header;  // encoded
  std::unique_ptr<char[]> payload;
  absl::Time last_access;

  const CacheKey& key() const { return record.info->key; }
  uint64_t payload_bytes() const { return record.info->payload_bytes(); }
  uint32_t heap_bytes() const { return static_cast<uint32_t>(ChargedHeapBytes(*record.info)); }
  // An upper bound of what it adds to its file: header, chunks, the two footers, RocksDB's index.
  uint64_t FileBytes() const;
};

struct PendingSegment {
  explicit PendingSegment(uint64_t file_number) : number(file_number) {}

  const uint64_t number;
  // By entry number; nullptr where the record was removed or replaced before it was written.
  std::vector<std::shared_ptr<const PendingRecord>> records;
  uint64_t file_bytes = 0;  // upper bound, of the records alone
  uint64_t live = 0;
  absl::Duration since;  // monotonic time of the first record

  uint32_t Add(std::shared_ptr<const PendingRecord> record);
  void Release(uint32_t entry);
  bool empty() const { return live == 0; }
};

// What has become of one.
struct WrittenSegment {
  uint64_t bytes = 0;
  std::vector<RecordPosition> positions;  // by entry number
};

// An upper bound of what a file takes beside its records.
inline constexpr uint64_t kFileOverheadBytes = 32 * 1024;
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_PENDING_SEGMENT_H_
