// The reader's half of the fast path's protocol: find, pin, check. Inline C, so that the library,
// its tests and its benchmarks run the same instructions. Why each ordering is needed is in
// docs/architecture.md, "A hit without a call".
//
// The tests compile it three more times with one part left out, to see that they would notice:
// EMBCACHE_FAST_WITHOUT_FENCE, EMBCACHE_FAST_WITHOUT_CHECK, EMBCACHE_FAST_WITHOUT_PIN.

#ifndef EMBCACHE_CLIENT_FAST_PROTOCOL_H_
#define EMBCACHE_CLIENT_FAST_PROTOCOL_H_

#include <stddef.h>
#include <stdint.h>

#include "storage/fast_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  // After so many slots, or so many looks at one that keeps changing, the daemon is asked.
  EMBCACHE_FAST_MAX_PROBES = 128,
  EMBCACHE_FAST_MAX_LOOKS = 64,
};

struct embcache_fast_found {
  const struct embcache_fast_slot* slot;
  uint64_t seq;
  uint64_t publication;
  uint64_t blob;
  int64_t expires_unix_ms;
  uint64_t model_epoch;
  uint32_t model;
  uint32_t size;
};

static inline const uint64_t* embcache_fast_model_epochs(const struct embcache_fast_header* index) {
  return (const uint64_t*)(index + 1);
}

// One look at a slot: 1 a whole picture, 0 it was changing.
static inline int embcache_fast_look(const struct embcache_fast_slot* slot, uint64_t* hash_low,
                                     uint64_t* hash_high, struct embcache_fast_found* found) {
  found->seq = __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
  *hash_low = __atomic_load_n(&slot->hash_low, __ATOMIC_RELAXED);
  *hash_high = __atomic_load_n(&slot->hash_high, __ATOMIC_RELAXED);
  found->publication = __atomic_load_n(&slot->publication, __ATOMIC_RELAXED);
  found->blob = __atomic_load_n(&slot->blob, __ATOMIC_RELAXED);
  found->expires_unix_ms = __atomic_load_n(&slot->expires_unix_ms, __ATOMIC_RELAXED);
  found->model_epoch = __atomic_load_n(&slot->model_epoch, __ATOMIC_RELAXED);
  found->model = __atomic_load_n(&slot->model, __ATOMIC_RELAXED);
  found->size = __atomic_load_n(&slot->size, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return (found->seq & 1) == 0 && __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == found->seq;
}

// 1 and `found`, or 0: not there, as far as can be seen from here.
static inline int embcache_fast_find(const struct embcache_fast_header* index, uint64_t hash_low,
                                     uint64_t hash_high, struct embcache_fast_found* found) {
  const struct embcache_fast_slot* const slots =
      (const struct embcache_fast_slot*)((const char*)index + index->slots_at);
  const uint64_t mask = index->slot_mask;
  for (uint64_t i = 0; i < EMBCACHE_FAST_MAX_PROBES; ++i) {
    const struct embcache_fast_slot* const slot = &slots[(hash_low + i) & mask];
    const uint64_t low = __atomic_load_n(&slot->hash_low, __ATOMIC_RELAXED);
    // A wrong guess here only means that the daemon is asked.
    if (low != hash_low) {
      if (__atomic_load_n(&slot->publication, __ATOMIC_RELAXED) == 0) return 0;
      continue;
    }
    found->slot = slot;
    uint64_t seen_low = 0;
    uint64_t seen_high = 0;
    int looks = 0;
    while (!embcache_fast_look(slot, &seen_low, &seen_high, found)) {
      if (++looks == EMBCACHE_FAST_MAX_LOOKS) return 0;
    }
    if (found->publication == 0) return 0;
    if (seen_low == hash_low && seen_high == hash_high) return 1;
  }
  return 0;
}

// Makes the pin known, then looks whether the entry is still there, and the index still the one in
// force. 1: so it is, and the entry's bytes stay until embcache_fast_unpin. 0: nothing is pinned.
static inline int embcache_fast_pin(const struct embcache_fast_header* index,
                                    const struct embcache_fast_found* found, uint64_t* pin) {
#ifndef EMBCACHE_FAST_WITHOUT_PIN
  // Release: what was read under this slot's earlier pins is read before it names another.
  __atomic_store_n(pin, found->publication, __ATOMIC_RELEASE);
#endif
#ifndef EMBCACHE_FAST_WITHOUT_FENCE
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
#ifndef EMBCACHE_FAST_WITHOUT_CHECK
  if (__atomic_load_n(&found->slot->seq, __ATOMIC_ACQUIRE) != found->seq ||
      __atomic_load_n(&index->state, __ATOMIC_ACQUIRE) != EMBCACHE_FAST_LIVE) {
    __atomic_store_n(pin, 0, __ATOMIC_RELEASE);
    return 0;
  }
#endif
  return 1;
}

static inline void embcache_fast_unpin(uint64_t* pin) {
  __atomic_store_n(pin, 0, __ATOMIC_RELEASE);
}

// Whether the epoch of the entry's model is still the one it was put in.
static inline int embcache_fast_is_of_epoch(const struct embcache_fast_header* index,
                                            const struct embcache_fast_found* found) {
  return found->model < EMBCACHE_FAST_MODELS &&
         __atomic_load_n(&embcache_fast_model_epochs(index)[found->model], __ATOMIC_ACQUIRE) ==
             found->model_epoch;
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // EMBCACHE_CLIENT_FAST_PROTOCOL_H_
