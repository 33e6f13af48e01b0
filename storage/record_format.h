// The bytes of an L3 record's header and of a segment file's footer, format version 3. The whole
// format, with its versions, is in docs/l3_format.md.
//
// Both end in an XXH3-64 of everything before it, and decoding believes nothing else: any number of
// damaged bytes gives DATA_LOSS, never a wrong value. Pure functions, thread-safe.

#ifndef EMBCACHE_STORAGE_RECORD_FORMAT_H_
#define EMBCACHE_STORAGE_RECORD_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/persistent_store.h"
#include "storage/segment_layout.h"

struct XXH3_state_s;

namespace embcache {

// Written to the directory's FORMAT file. Raise it with every change of what is described here.
inline constexpr int kL3FormatVersion = 3;
// Older versions differ only in their footers, which are read: 2 does not tell heap_bytes, 1 no
// positions either.
inline constexpr int kOldestL3FormatVersion = 1;

// A footer is padded to this size, which makes each copy a disk block of its own: one damaged block
// cannot take both.
inline constexpr size_t kFooterMinBytes = 8 * 1024;

// XXH3-128 of a payload.
struct PayloadHash {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const PayloadHash&, const PayloadHash&) = default;
};

PayloadHash HashPayload(const char* data, uint64_t bytes);

// The same of a payload that comes in pieces.
class PayloadHasher {
 public:
  PayloadHasher();
  ~PayloadHasher();
  PayloadHasher(const PayloadHasher&) = delete;
  PayloadHasher& operator=(const PayloadHasher&) = delete;

  void Add(const char* data, uint64_t bytes);
  PayloadHash Finish() const;

 private:
  XXH3_state_s* const state_;
};

struct RecordHeader {
  StoredRecord record;
  PayloadHash hash;
};

// REQUIRES: the record's layout and metadata are valid.
std::string EncodeHeader(const StoredRecord& record, const PayloadHash& hash);
absl::StatusOr<RecordHeader> DecodeHeader(absl::string_view bytes);

// What a footer tells of each record in its file: enough to rebuild the index.
struct FooterEntry {
  CacheKey key;
  uint32_t entry = 0;  // its number in the file
  uint64_t payload_bytes = 0;
  uint64_t generation = 0;
  uint64_t model_epoch = 0;
  absl::Time created;
  absl::Time expires = absl::InfiniteFuture();
  absl::Time last_access;
  RecordPosition position;
  uint32_t heap_bytes = 0;  // ChargedHeapBytes; 0 in files of older versions
};

std::string EncodeFooter(uint64_t file, const std::vector<FooterEntry>& entries);
// DATA_LOSS also for the footer of another file than `file`.
absl::StatusOr<std::vector<FooterEntry>> DecodeFooter(uint64_t file, absl::string_view bytes);
// What one record adds to a footer.
uint64_t FooterEntryBytes(const CacheKey& key);

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_RECORD_FORMAT_H_
