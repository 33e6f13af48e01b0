// FastIndex: the daemon's side of one shared index (storage/fast_layout.h): what is inserted here
// can be found, and read in place, by every process that maps the memory, without a call.
//
// It only publishes. Whether a reader holds what has been erased is FastPath's business, and until
// then the blob stays. Not thread-safe but for its readers: guarded by the cache's lock.

#ifndef EMBCACHE_STORAGE_FAST_INDEX_H_
#define EMBCACHE_STORAGE_FAST_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/entry.h"
#include "storage/fast_layout.h"
#include "storage/memory_resource.h"
#include "storage/read_handle.h"
#include "storage/segment_arena.h"

namespace embcache {

// XXH3-128 of an encoded key.
struct FastHash {
  uint64_t low = 0;
  uint64_t high = 0;
};
FastHash HashForFastIndex(absl::string_view encoded_key);

// What is published of an entry: all but its payload.
struct FastEntry {
  const EntryInfo* info = nullptr;
  Location location;
  uint64_t generation = 0;
  uint64_t model_epoch = 0;  // of the entry
  uint32_t model = 0;
};

class FastIndex {
 public:
  // Blob bytes for each entry there may be, on average.
  static constexpr uint64_t kBlobBytesPerEntry = 512;

  // For at most `entries` entries. RESOURCE_EXHAUSTED when the memory cannot be had.
  static absl::StatusOr<std::unique_ptr<FastIndex>> Create(MemoryResource* memory,
                                                           uint64_t entries);

  uint64_t max_entries() const { return max_entries_; }
  // What clients map; it outlives the index for those who hold it.
  const std::shared_ptr<const MemorySegment>& memory() const { return memory_; }

  struct Blob {
    uint64_t at = 0;
    uint64_t bytes = 0;
  };
  // Where its blob went, or nullopt: no room. REQUIRES: nothing is inserted under this hash.
  std::optional<Blob> Insert(const FastHash& hash, uint64_t publication, const FastEntry& entry);
  // Nobody finds the entry any more. The blob stays until it is freed.
  void Erase(const FastHash& hash, uint64_t publication);
  void FreeBlob(const Blob& blob) { blobs_.Free(blob.at - blobs_at_, blob.bytes); }

  // Entries of the model that were put in another epoch are not served from now on.
  void SetModelEpoch(uint32_t model, uint64_t epoch);
  // Whatever but EMBCACHE_FAST_LIVE is for good: no new pin is taken by way of this index.
  void SetState(embcache_fast_state state);

 private:
  FastIndex(std::shared_ptr<const MemorySegment> memory, uint64_t max_entries, uint64_t slots,
            uint64_t slots_at, uint64_t blobs_at);

  // Changes a slot under its sequence number.
  static void WriteSlot(embcache_fast_slot* slot, const embcache_fast_slot& value);

  const std::shared_ptr<const MemorySegment> memory_;
  const uint64_t max_entries_;
  const uint64_t slot_mask_;
  const uint64_t blobs_at_;
  embcache_fast_header* const header_;
  uint64_t* const model_epochs_;
  embcache_fast_slot* const slots_;
  SegmentArena blobs_;
  uint64_t entries_ = 0;
};

// The blob of an entry, all but its publication.
std::string EncodeFastBlob(const FastEntry& entry);

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_FAST_INDEX_H_
