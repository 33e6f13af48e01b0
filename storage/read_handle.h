// ReadHandle: a pin on one entry. While it lives, the entry's bytes neither change nor move,
// whatever is evicted, replaced or deleted meanwhile. Move-only; unpins when destroyed. A handle
// may be used from one thread at a time, and must be gone before its TieredCache is.

#ifndef EMBCACHE_STORAGE_READ_HANDLE_H_
#define EMBCACHE_STORAGE_READ_HANDLE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "storage/entry.h"

namespace embcache {

class MemorySegment;
class TieredCache;
struct CacheEntry;

// A place inside a memory tier.
struct Location {
  TierId tier = TierId::kL1;
  uint32_t segment = 0;  // unique in the daemon's life
  uint64_t segment_generation = 0;
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;   // payload bytes

  friend bool operator==(const Location&, const Location&) = default;
};

class ReadHandle {
 public:
  ReadHandle() = default;
  ReadHandle(ReadHandle&& other) noexcept { *this = std::move(other); }
  ReadHandle& operator=(ReadHandle&& other) noexcept {
    if (this != &other) {
      Reset();
      cache_ = std::exchange(other.cache_, nullptr);
      entry_ = std::exchange(other.entry_, nullptr);
      info_ = std::move(other.info_);
      memory_ = other.memory_;
      location_ = other.location_;
      generation_ = other.generation_;
    }
    return *this;
  }
  ~ReadHandle() { Reset(); }

  explicit operator bool() const { return entry_ != nullptr; }
  // The rest REQUIRES: the handle is not empty.
  const std::shared_ptr<const EntryInfo>& info() const { return info_; }
  const Location& location() const { return location_; }
  // What location() is a place in.
  const MemorySegment& memory() const { return *memory_; }
  uint64_t generation() const { return generation_; }

  // A second pin on the same bytes.
  ReadHandle Duplicate() const;
  // Unpins; the handle is empty afterwards.
  void Reset();

 private:
  friend class TieredCache;

  TieredCache* cache_ = nullptr;
  CacheEntry* entry_ = nullptr;
  std::shared_ptr<const EntryInfo> info_;
  const MemorySegment* memory_ = nullptr;
  Location location_;
  uint64_t generation_ = 0;
};

enum class MissReason { kAbsent, kMismatch, kExpired, kDamaged };

// What a lookup gives: a pin on the entry and the tier it was found in, or why there is none.
struct LookupResult {
  ReadHandle handle;  // empty on a miss
  TierId source = TierId::kL1;
  MissReason reason = MissReason::kAbsent;

  bool hit() const { return static_cast<bool>(handle); }
};

// What a lookup counts: a hit or a miss; a hit only, for callers that may look again and count the
// miss themselves (TieredCache::CountMiss); or nothing.
enum class LookupCount : uint8_t { kAll, kHits, kNone };

using LookupCallback = absl::AnyInvocable<void(absl::StatusOr<LookupResult>)>;

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_READ_HANDLE_H_
