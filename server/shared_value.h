// What the shared tier keeps for an entry: one string that can be checked by itself.
//
//   "EMS1" | u32 (little endian) bytes of the header | header | payload
//
// The header is that of an L3 record (storage/record_format.h), with generation and model epoch 0:
// both mean something on their own node only. It ends in a hash of itself and holds one of the
// payload, so any damage is found. Bytes between tensors are zeros. Pure functions, thread-safe.

#ifndef EMBCACHE_SERVER_SHARED_VALUE_H_
#define EMBCACHE_SERVER_SHARED_VALUE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/entry.h"

namespace embcache {

struct SharedValue {
  std::unique_ptr<char[]> bytes;
  uint64_t size = 0;
  uint64_t payload_at = 0;

  char* payload() const { return bytes.get() + payload_at; }
  absl::string_view view() const { return {bytes.get(), size}; }
};

// What the value of such an entry takes.
uint64_t SharedValueBytes(const EntryInfo& info);
// Room for it: write the payload, then seal.
SharedValue MakeSharedValue(const EntryInfo& info);
void SealSharedValue(const EntryInfo& info, SharedValue* value);

struct CheckedSharedValue {
  std::shared_ptr<const EntryInfo> info;
  absl::string_view payload;
};
// DATA_LOSS: damaged, or not the value of `key`. OUT_OF_RANGE: `bytes` is the begin of a longer
// one.
absl::StatusOr<CheckedSharedValue> CheckSharedValue(const CacheKey& key, absl::string_view bytes);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SHARED_VALUE_H_
