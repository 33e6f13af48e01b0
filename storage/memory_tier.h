// MemoryTier: the segments of one memory tier, the arenas that cut them into ranges, and the byte
// bound. It knows ranges, not entries: TieredCache decides who gets one and who must leave.
//
// A tier is resized in whole segments, which come and go:
//
//   (none) --Add--> COMING --Open--> OPEN <--Close, Reopen--> CLOSING --Remove, when empty-->
//   (none)
//
// Ranges are handed out of open segments only.
//
// Not thread-safe: TieredCache guards it with its lock. Nothing here blocks or copies, but Create
// and AllocateSegments.

#ifndef EMBCACHE_STORAGE_MEMORY_TIER_H_
#define EMBCACHE_STORAGE_MEMORY_TIER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/entry.h"
#include "storage/memory_resource.h"
#include "storage/segment_arena.h"

namespace embcache {

struct MemoryTierOptions {
  uint64_t capacity_bytes = 0;  // 0 = the tier does not exist
  // A tier up to this size is one segment, a larger one several equal ones. An entry lies in one
  // segment, so this bounds the largest entry. 0 = see DefaultSegmentBytes.
  uint64_t segment_bytes = 0;
  // Entries that may be in the tier; 0 = no bound but the bytes.
  uint64_t max_entries = 0;
};

// Small enough that a tier can give some of its memory back and keep the rest: an eighth of it, at
// least 256 MiB and at most 16 GiB.
uint64_t DefaultSegmentBytes(uint64_t capacity_bytes);

// INVALID_ARGUMENT: memory that comes in granules of `granularity` cannot be cut so into segments.
absl::Status CheckSegments(TierId id, const MemoryTierOptions& options, uint64_t granularity);

using MemorySegments = std::vector<std::unique_ptr<MemorySegment>>;

// Segments of segment_bytes at most that have options.capacity_bytes together, as near as whole
// granules come. INVALID_ARGUMENT: less than one granule, or with the `others` more than 4096.
absl::StatusOr<MemorySegments> AllocateSegments(TierId id, const MemoryTierOptions& options,
                                                MemoryResource* resource, uint64_t others = 0);

// Where an entry lies in its tier.
struct MemoryRange {
  uint32_t segment = 0;  // index into segments()
  uint64_t offset = 0;
  uint64_t bytes = 0;  // allocated: a multiple of the arena's alignment
};

class MemoryTier {
 public:
  struct Segment {
    enum class State { kComing, kOpen, kClosing };

    uint32_t id = 0;
    std::shared_ptr<MemorySegment> memory;  // nullptr: there is none at this index any more
    SegmentArena arena{0};
    State state = State::kOpen;

    bool open() const { return memory != nullptr && state == State::kOpen; }
    bool closing() const { return memory != nullptr && state == State::kClosing; }
  };

  // RESOURCE_EXHAUSTED when the memory cannot be had. A capacity of 0 gives a tier without
  // segments. Its segments are named from `first_segment_id` on.
  static absl::StatusOr<MemoryTier> Create(TierId id, const MemoryTierOptions& options,
                                           MemoryResource* resource, uint32_t first_segment_id = 0);

  // Open or closing segments, of memory that is there.
  bool enabled() const { return capacity_bytes_ > 0 && !lost_; }
  bool lost() const { return lost_; }
  TierId id() const { return id_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::string& device_uuid() const { return device_uuid_; }
  uint64_t segment_count() const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }  // of open and closing segments
  uint64_t open_bytes() const { return open_bytes_; }          // of open ones
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t free_bytes() const;       // that Allocate has
  uint64_t max_entry_bytes() const;  // of the largest range there could be; 0 when not enabled
  // Within segments: 1 - the sum of each one's largest free range / free bytes. 0 when nothing is
  // free. That an entry cannot lie across segments is no fragmentation: more room would not help.
  double Fragmentation() const;

  // nullopt when no free range is large enough. REQUIRES: bytes > 0.
  std::optional<MemoryRange> Allocate(uint64_t bytes);
  // REQUIRES: `range` came from Allocate and was not freed.
  void Free(const MemoryRange& range);

  // The memory cannot be used any more: from now on there is no range to be had, and those handed
  // out can only be freed.
  void MarkLost() { lost_ = true; }

  // --- Resizing ---
  // The segments, by index, whose going leaves at most `open_bytes` open: the latest that came, as
  // far as they fit into what is too much, and one more if that is not enough.
  std::vector<uint32_t> ChooseClosing(uint64_t open_bytes) const;
  // REQUIRES: open; closing; closing and without ranges.
  void Close(uint32_t index);
  void Reopen(uint32_t index);
  std::shared_ptr<MemorySegment> Remove(uint32_t index);
  bool closing() const { return open_bytes_ < capacity_bytes_; }
  bool IsClosing(uint32_t index) const { return segments_[index].closing(); }
  bool IsEmptied(uint32_t index) const {
    return IsClosing(index) &&
           segments_[index].arena.free_bytes() == segments_[index].arena.capacity();
  }
  // Not handed out before Open.
  void Add(uint32_t id, std::unique_ptr<MemorySegment> memory);
  void Open();

  // What Allocate(bytes) would take from free_bytes().
  static uint64_t ChargedBytes(uint64_t bytes) { return SegmentArena::RoundUp(bytes); }

 private:
  explicit MemoryTier(TierId id) : id_(id) {}
  void SetState(uint32_t index, Segment::State state);

  TierId id_;
  std::string device_uuid_;
  std::vector<Segment> segments_;
  uint64_t capacity_bytes_ = 0;
  uint64_t open_bytes_ = 0;
  uint64_t max_entry_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  bool lost_ = false;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_MEMORY_TIER_H_
