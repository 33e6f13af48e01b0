// What TieredCache takes and gives: options, ports, reservations, pages of keys.

#ifndef EMBCACHE_STORAGE_TIERED_CACHE_TYPES_H_
#define EMBCACHE_STORAGE_TIERED_CACHE_TYPES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "storage/cache_key.h"
#include "storage/clock.h"
#include "storage/copy_engine.h"
#include "storage/entry.h"
#include "storage/executor.h"
#include "storage/memory_resource.h"
#include "storage/memory_tier.h"
#include "storage/persistent_store.h"
#include "storage/put_gate.h"
#include "storage/read_handle.h"
#include "storage/tensor_spec.h"

namespace embcache {

// When an entry is written to L3.
enum class L3WriteMode {
  kThrough,  // after its commit, in the background
  kEvict,    // when L2 (or L1, without L2) evicts it
};

// Which entries are.
enum class L3Admit {
  kAlways,
  // Those asked for again: by a hit, or by another put of a key that was put before, as far as the
  // last kGhostKeys of those are remembered.
  kSecondHit,
};

struct TieredCacheOptions {
  static constexpr size_t kGhostKeys = 65536;
  static constexpr size_t kRememberedEvents = 65536;

  MemoryTierOptions l1;
  MemoryTierOptions l2;  // capacity_bytes 0 = no such tier
  L3WriteMode l3_write = L3WriteMode::kThrough;
  L3Admit l3_admit = L3Admit::kAlways;
  // Writes waiting for the disk: the newest is dropped when either bound is reached.
  uint64_t l3_queue_entries = 4096;
  uint64_t l3_queue_bytes = uint64_t{1} << 30;
  // A reservation neither committed nor aborted by then is given up.
  absl::Duration reservation_ttl = absl::Seconds(30);
  // Gets that may wait for one entry's copy or load; more fail with RESOURCE_EXHAUSTED.
  uint32_t max_waiters_per_entry = 4096;
  // Entries that clients can find without a call, at most; 0 = no fast path.
  uint64_t fast_index_entries = 0;
};

// The ports, not owned; they outlive the cache. store may be nullptr: no L3.
struct TieredCacheDeps {
  Clock* clock = nullptr;
  Executor* executor = nullptr;  // for the disk
  CopyEngine* copier = nullptr;
  MemoryResource* l1_memory = nullptr;
  MemoryResource* l2_memory = nullptr;
  PersistentStore* store = nullptr;
  PutGate* gate = nullptr;  // told of puts under way, unless the store must not wait for them
  MemoryResource* fast_memory = nullptr;  // of the shared index and the pin tables: host memory
};

using ReservationId = uint64_t;  // never 0, never reused

struct ReserveRequest {
  CacheKey key;
  TensorLayout layout;
  Metadata metadata;
  uint64_t encode_cost_us = 0;
  absl::Duration ttl = absl::InfiniteDuration();
  Place place = Place::kAny;
  // For a value that is fetched from somewhere, and not a caller's own: once this is true, or if
  // the key has a value by then, Commit refuses with ABORTED.
  std::shared_ptr<const std::atomic<bool>> cancelled;
};

struct ReservedPlace {
  ReservationId id = 0;
  Location location;
};

struct ListedEntry {
  CacheKey key;
  TierId tier;
  uint64_t payload_bytes = 0;
  uint64_t generation = 0;
  bool on_disk = false;
  uint32_t pins = 0;
  absl::Time created = absl::UnixEpoch();  // memory tiers only
  uint64_t encode_cost_us = 0;             // memory tiers only
};

struct ListQuery {
  std::string model;                // empty: all
  std::string content_hash_prefix;  // raw bytes
  std::string after;                // encoded key to start behind
  size_t limit = 100;
};

struct ListPage {
  std::vector<ListedEntry> entries;
  std::string next;  // `after` for the next page; empty when this was the last
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_TIERED_CACHE_TYPES_H_
