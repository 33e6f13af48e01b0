// GhostSet: remembers that a key was seen, and nothing else of it, for the last `capacity` keys. By
// a hash: rarely, one that was never seen passes for one that was. Not thread-safe.

#ifndef EMBCACHE_STORAGE_GHOST_SET_H_
#define EMBCACHE_STORAGE_GHOST_SET_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace embcache {

class GhostSet {
 public:
  explicit GhostSet(size_t capacity) : capacity_(capacity) {}

  // Remembers `key`; true when it was remembered already.
  bool See(absl::string_view key) {
    const uint64_t hash = absl::HashOf(key);
    if (!seen_.insert(hash).second) return true;
    order_.push_back(hash);
    if (order_.size() <= capacity_) return false;
    seen_.erase(order_.front());
    order_.pop_front();
    return false;
  }
  size_t size() const { return order_.size(); }

 private:
  const size_t capacity_;
  absl::flat_hash_set<uint64_t> seen_;
  std::deque<uint64_t> order_;  // oldest first
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_GHOST_SET_H_
