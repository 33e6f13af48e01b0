// MemoryTier: the segments of one memory tier, the arenas that cut them into ranges, and the byte
// bound. It knows ranges, not entries: TieredCache decides who gets one and who must leave.
//
// Not thread-safe: TieredCache guards it with its lock. Nothing here blocks or copies, but Create.

#ifndef EMBCACHE_STORAGE_MEMORY_TIER_H_
#define EMBCACHE_STORAGE_MEMORY_TIER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/entry.h"
#include "storage/memory_resource.h"
#include "storage/segment_arena.h"

namespace embcache {

struct MemoryTierOptions {
  uint64_t capacity_bytes = 0;  // 0 = the tier does not exist
  // A tier up to this size is one segment, a larger one several equal ones. An entry lies in one
  // segment, so this bounds the largest entry.
  uint64_t segment_bytes = uint64_t{16} << 30;
  // Entries that may be in the tier; 0 = no bound but the bytes.
  uint64_t max_entries = 0;
};

// Where an entry lies in its tier.
struct MemoryRange {
  uint32_t segment = 0;  // index into segments()
  uint64_t offset = 0;
  uint64_t bytes = 0;  // allocated: a multiple of the arena's alignment
};

class MemoryTier {
 public:
  struct Segment {
    std::unique_ptr<MemorySegment> memory;
    SegmentArena arena;
  };

  // RESOURCE_EXHAUSTED when the memory cannot be had. A capacity of 0 gives a tier without
  // segments.
  static absl::StatusOr<MemoryTier> Create(TierId id, const MemoryTierOptions& options,
                                           MemoryResource* resource);

  bool enabled() const { return !segments_.empty() && !lost_; }
  TierId id() const { return id_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::string& device_uuid() const { return device_uuid_; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t free_bytes() const { return capacity_bytes_ - used_bytes_; }
  uint64_t max_entry_bytes() const;  // of the largest range there could be; 0 when not enabled
  double Fragmentation() const;

  // nullopt when no free range is large enough. REQUIRES: bytes > 0.
  std::optional<MemoryRange> Allocate(uint64_t bytes);
  // REQUIRES: `range` came from Allocate and was not freed.
  void Free(const MemoryRange& range);

  // The memory cannot be used any more: from now on there is no range to be had, and those handed
  // out can only be freed.
  void MarkLost() { lost_ = true; }

  // What Allocate(bytes) would take from free_bytes().
  static uint64_t ChargedBytes(uint64_t bytes) { return SegmentArena::RoundUp(bytes); }

 private:
  explicit MemoryTier(TierId id) : id_(id) {}

  TierId id_;
  std::string device_uuid_;
  std::vector<Segment> segments_;
  uint64_t capacity_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  bool lost_ = false;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_MEMORY_TIER_H_
