// The cache's counters. A CacheStats is a snapshot taken under one lock: its numbers agree with
// each other (hits + misses = gets, in total and per model).

#ifndef EMBCACHE_STORAGE_CACHE_STATS_H_
#define EMBCACHE_STORAGE_CACHE_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "storage/entry.h"
#include "storage/persistent_store.h"

namespace embcache {

struct TierStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;          // allocated ranges: entries, reservations, moves in flight
  uint64_t pinned_bytes = 0;        // of those: entries under a pin, and reservations
  uint64_t reserved_bytes = 0;      // of those: reservations
  uint64_t entries = 0;             // reachable by key
  double fragmentation = 0;         // see MemoryTier::Fragmentation
  uint64_t hits = 0;                // found here
  uint64_t evictions_capacity = 0;  // left to make room, whether demoted or dropped
  uint64_t evictions_expired = 0;
  uint64_t evictions_epoch = 0;
};

struct L3Counters {
  uint64_t hits = 0;
  uint64_t loads = 0;
  uint64_t load_failures = 0;
  uint64_t writes = 0;
  uint64_t write_failures = 0;
  uint64_t dropped_writes = 0;
  uint64_t queued_writes = 0;
  uint64_t queued_bytes = 0;
};

struct ModelStats {
  std::string model;
  uint64_t model_epoch = 0;
  uint64_t gets = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t saves = 0;
  uint64_t entries = 0;  // in memory tiers
  uint64_t bytes = 0;    // payload bytes in memory tiers
  uint64_t saved_us = 0;
};

struct CacheStats {
  uint64_t gets = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t mismatches = 0;
  uint64_t saves = 0;
  uint64_t replaced = 0;
  uint64_t deletes = 0;
  uint64_t promotions = 0;
  uint64_t demotions = 0;
  uint64_t rejected_puts = 0;
  uint64_t saved_us = 0;
  uint64_t fast_hits = 0;       // of the hits: those that took no call
  uint64_t doomed_entries = 0;  // unreachable, kept for readers
  uint64_t reservations = 0;
  std::array<TierStats, kMemoryTiers> memory;
  bool has_l3 = false;
  L3Counters l3;
  StoreStats store;
  std::vector<ModelStats> models;  // when asked for, by name
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_CACHE_STATS_H_
