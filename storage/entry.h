// EntryInfo: everything about an entry but its bytes and its place. Immutable once committed and
// shared by the index, leases, responses and disk records, so that handing it out copies a pointer.

#ifndef EMBCACHE_STORAGE_ENTRY_H_
#define EMBCACHE_STORAGE_ENTRY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "storage/cache_key.h"
#include "storage/tensor_spec.h"

namespace embcache {

inline constexpr size_t kMaxMetadataBytes = 64 * 1024;  // names and values together

// Small opaque facts that travel with an entry (grid_thw, token counts, position ids), in the order
// given, names unique.
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct EntryInfo {
  CacheKey key;
  TensorLayout layout;
  Metadata metadata;
  uint64_t encode_cost_us = 0;  // what a miss costs the encoder; 0 = unknown
  absl::Time created;           // wall clock
  absl::Time expires = absl::InfiniteFuture();

  uint64_t payload_bytes() const { return layout.payload_bytes; }
};

// What an entry's key, metadata and tensor list take of the heap beyond the KiB that every entry
// may have, in bytes (an estimate from above). It is charged to the entry's tier like its payload,
// so that the bound on the tier bounds the heap too.
uint64_t ChargedHeapBytes(const CacheKey& key, const TensorLayout& layout,
                          const Metadata& metadata);
uint64_t ChargedHeapBytes(const EntryInfo& info);

// INVALID_ARGUMENT when names and values exceed kMaxMetadataBytes or a name is empty or used twice.
absl::Status ValidateMetadata(const Metadata& metadata);

// The tiers an entry can be in. kL1 and kL2 are memory; kL3 is the SSD.
enum class TierId : uint8_t { kL1 = 0, kL2 = 1, kL3 = 2 };
inline constexpr int kMemoryTiers = 2;

absl::string_view TierName(TierId tier);  // "l1", "l2", "l3"

// Which memory a caller can use, where L1 is device memory; it makes no difference where it is not.
enum class Place : uint8_t {
  kAny,     // the fastest tier
  kDevice,  // device memory only
  kHost,    // host memory only
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_ENTRY_H_
