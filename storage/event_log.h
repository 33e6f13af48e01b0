// EventLog: the last events of a cache, numbered without gaps.
//
// A ring of fixed size whose slots are used again, so that an event costs a copy of its key and no
// allocation once the ring is full. Readers keep their own positions; one that is too slow is told
// how much it missed.
//
// Not thread-safe: guarded by the cache's lock.

#ifndef EMBCACHE_STORAGE_EVENT_LOG_H_
#define EMBCACHE_STORAGE_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/entry.h"

namespace embcache {

// Why an entry is not reachable any more.
enum class RemoveReason : uint8_t {
  kReplaced,
  kDeleted,
  kCapacity,
  kExpired,
  kEpoch,
  kMismatch,
  kDamaged,
  kLost,  // with the device whose memory it was in
};

struct CacheEvent {
  enum class Kind : uint8_t {
    kStored,   // reachable from now on, in `tier`, instead of what was there under the key
    kRemoved,  // not reachable any more, in any tier
    kMoved,    // its fastest tier is `tier` now, no longer `from`
    kEpoch,    // every older entry of the model is unreachable
  };
  Kind kind = Kind::kStored;
  RemoveReason reason = RemoveReason::kDeleted;  // kRemoved
  TierId tier = TierId::kL1;
  TierId from = TierId::kL1;
  uint64_t sequence = 0;
  absl::Time time;
  std::string key;          // encoded; kEpoch: the model
  uint64_t generation = 0;  // kEpoch: the model's epoch
  uint64_t bytes = 0;       // kStored
  uint64_t encode_cost_us = 0;
};

class EventLog {
 public:
  explicit EventLog(size_t capacity) : capacity_(capacity) {}

  // The number of the newest event; 0 = none yet.
  uint64_t last() const { return next_ - 1; }
  // That of the oldest one still remembered; last() + 1 = none is.
  uint64_t first() const { return next_ - slots_.size(); }

  // A slot with the next number and this key, the rest as in a fresh event, to be filled in.
  CacheEvent& Append(CacheEvent::Kind kind, absl::string_view key, absl::Time time);

  // Something happened that events cannot tell: every reader misses one.
  void Forget();

  // Copies up to `limit` events that follow number `after`. Returns how many of them are forgotten.
  uint64_t Read(uint64_t after, size_t limit, std::vector<CacheEvent>* events) const;

 private:
  const size_t capacity_;
  uint64_t next_ = 1;
  uint64_t base_ = 1;  // number n is in slot (n - base_) % capacity_
  std::vector<CacheEvent> slots_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_EVENT_LOG_H_
