#define _GNU_SOURCE
#include "client/fast/embcache_fast.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "client/fast/protocol.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
  kMaxIndexes = 32,  // each is several times the one before
  kNoPin = -1,
};

// What a lane needs beside its part of the table: of the thread that has the lane.
struct lane_state {
  uint32_t taken;  // atomic
  // What each pin was last used for, ended or not: an upper bound of what is pinned, which the same
  // get over and over does not change.
  uint64_t charged[EMBCACHE_FAST_LANE_PINS];
  const struct embcache_fast_blob* entries[EMBCACHE_FAST_LANE_PINS];  // of embcache_fast_get_number
} __attribute__((aligned(64)));

struct embcache_fast {
  const struct embcache_fast_header* index;  // atomic; NULL: none
  struct embcache_fast_table* table;
  uint64_t max_pinned_bytes;
  unsigned forks;
  // Atomic: the sum over all lanes, and what embcache_fast_charge added.
  uint64_t charged __attribute__((aligned(64)));
  struct lane_state lanes[EMBCACHE_FAST_LANES];
  // All that were ever in force: hits from the earlier ones may be in use.
  const void* indexes[kMaxIndexes];
  uint64_t index_bytes[kMaxIndexes];
  int index_count;
  uint64_t table_bytes;
};

static unsigned forks_of_this_process;
static pthread_once_t watch_forks_once = PTHREAD_ONCE_INIT;
static _Thread_local uint32_t last_lane;

static void in_forked_child(void) { ++forks_of_this_process; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, in_forked_child); }

uint32_t embcache_fast_version(void) { return EMBCACHE_FAST_VERSION; }

// --- Mapping
// --------------------------------------------------------------------------------------

static void* map(int fd, uint64_t bytes, int protection) {
  struct stat file;
  if (bytes == 0 || fstat(fd, &file) != 0 || (uint64_t)file.st_size < bytes) return NULL;
  void* const base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return NULL;
  madvise(base, bytes, MADV_DONTDUMP);
  madvise(base, bytes, MADV_DONTFORK);  // a child has no pins, so it must not look either
  return base;
}

static int is_sound(const struct embcache_fast_header* index, uint64_t bytes) {
  const uint64_t slot_bytes = sizeof(struct embcache_fast_slot);
  return bytes >= sizeof(*index) && index->magic == EMBCACHE_FAST_MAGIC &&
         index->version == EMBCACHE_FAST_VERSION && index->total_bytes <= bytes &&
         index->blobs_at <= index->total_bytes &&
         index->blobs_bytes <= index->total_bytes - index->blobs_at &&
         (index->slot_mask & (index->slot_mask + 1)) == 0 &&
         index->slots_at >= sizeof(*index) + EMBCACHE_FAST_MODELS * sizeof(uint64_t) &&
         index->slots_at <= index->blobs_at && index->slots_at % slot_bytes == 0 &&
         index->slot_mask < (index->blobs_at - index->slots_at) / slot_bytes;
}

int embcache_fast_replace_index(embcache_fast* fast, int index_fd, uint64_t index_bytes) {
  const void* index = NULL;
  if (fast->index_count < kMaxIndexes) index = map(index_fd, index_bytes, PROT_READ);
  if (index != NULL && !is_sound(index, index_bytes)) {
    munmap((void*)index, index_bytes);
    index = NULL;
  }
  if (index != NULL) {
    fast->indexes[fast->index_count] = index;
    fast->index_bytes[fast->index_count++] = index_bytes;
  }
  __atomic_store_n(&fast->index, index, __ATOMIC_RELEASE);
  return index != NULL;
}

embcache_fast* embcache_fast_open(int index_fd, uint64_t index_bytes, int table_fd,
                                  uint64_t table_bytes, uint64_t max_pinned_bytes) {
  if (table_bytes < sizeof(struct embcache_fast_table)) return NULL;
  embcache_fast* const fast = aligned_alloc(64, (sizeof(*fast) + 63) / 64 * 64);
  if (fast == NULL) return NULL;
  memset(fast, 0, sizeof(*fast));
  pthread_once(&watch_forks_once, watch_forks);
  fast->forks = forks_of_this_process;
  fast->max_pinned_bytes = max_pinned_bytes == 0 ? UINT64_MAX : max_pinned_bytes;
  fast->table = map(table_fd, table_bytes, PROT_READ | PROT_WRITE);
  fast->table_bytes = table_bytes;
  if (fast->table == NULL || !embcache_fast_replace_index(fast, index_fd, index_bytes)) {
    embcache_fast_close(fast);
    return NULL;
  }
  return fast;
}

void embcache_fast_close(embcache_fast* fast) {
  if (fast == NULL) return;
  if (fast->forks == forks_of_this_process) {
    for (int i = 0; i < fast->index_count; ++i) {
      munmap((void*)fast->indexes[i], fast->index_bytes[i]);
    }
    if (fast->table != NULL) munmap(fast->table, fast->table_bytes);
  }
  free(fast);
}

// --- Lanes
// ----------------------------------------------------------------------------------------

static int try_lane(embcache_fast* fast, uint32_t lane) {
  if (__atomic_exchange_n(&fast->lanes[lane].taken, 1, __ATOMIC_ACQUIRE) != 0) return 0;
  // Before the first pin or touch in it, so that the daemon looks there (a fence follows).
  uint32_t used = __atomic_load_n(&fast->table->lanes_used, __ATOMIC_RELAXED);
  while (used <= lane && !__atomic_compare_exchange_n(&fast->table->lanes_used, &used, lane + 1, 0,
                                                      __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
  return 1;
}

void embcache_fast_give_lane(embcache_fast* fast, int lane) {
  __atomic_store_n(&fast->lanes[lane].taken, 0, __ATOMIC_RELEASE);
}

int embcache_fast_take_lane(embcache_fast* fast) {
  if (fast->forks != forks_of_this_process) return -1;
  for (uint32_t i = 0; i < EMBCACHE_FAST_LANES; ++i) {
    const uint32_t lane = (last_lane + i) % EMBCACHE_FAST_LANES;
    if (!try_lane(fast, lane)) continue;
    last_lane = lane;
    return (int)lane;
  }
  return -1;
}

static int find_free_pin(struct embcache_fast_lane* lane) {
  for (uint32_t i = 0; i < EMBCACHE_FAST_LANE_PINS; ++i) {
    if (__atomic_load_n(&lane->pins[i], __ATOMIC_RELAXED) != 0) continue;
    if (i >= lane->pins_used) __atomic_store_n(&lane->pins_used, i + 1, __ATOMIC_RELEASE);
    return (int)i;
  }
  return kNoPin;
}

// Charges `bytes` for a pin of the lane; 0 if that would be more than the session may pin.
static int charge(embcache_fast* fast, int lane, int pin, uint64_t bytes) {
  struct lane_state* const state = &fast->lanes[lane];
  const uint64_t change = bytes - state->charged[pin];  // may wrap below 0
  if (change == 0) return 1;
  state->charged[pin] = bytes;
  if (__atomic_add_fetch(&fast->charged, change, __ATOMIC_RELAXED) <= fast->max_pinned_bytes) {
    return 1;
  }
  // What the lane's other pins were charged for may have ended.
  for (int i = 0; i < EMBCACHE_FAST_LANE_PINS; ++i) {
    if (i == pin || __atomic_load_n(&fast->table->lanes[lane].pins[i], __ATOMIC_RELAXED) != 0) {
      continue;
    }
    __atomic_fetch_sub(&fast->charged, state->charged[i], __ATOMIC_RELAXED);
    state->charged[i] = 0;
  }
  if (__atomic_load_n(&fast->charged, __ATOMIC_RELAXED) <= fast->max_pinned_bytes) return 1;
  __atomic_fetch_sub(&fast->charged, bytes, __ATOMIC_RELAXED);
  state->charged[pin] = 0;
  return 0;
}

void embcache_fast_charge(embcache_fast* fast, int64_t bytes) {
  __atomic_add_fetch(&fast->charged, (uint64_t)bytes, __ATOMIC_RELAXED);
}

static void record(struct embcache_fast_lane* lane, uint64_t publication) {
  const uint64_t count = lane->touch_count;
  __atomic_store_n(&lane->touches[count % EMBCACHE_FAST_LANE_TOUCHES], publication,
                   __ATOMIC_RELAXED);
  __atomic_store_n(&lane->touch_count, count + 1, __ATOMIC_RELEASE);
}

// --- Hits
// -----------------------------------------------------------------------------------------

void embcache_fast_hash(const void* key, size_t key_bytes, uint64_t hash[2]) {
  const XXH128_hash_t value = XXH3_128bits(key, key_bytes);
  hash[0] = value.low64;
  hash[1] = value.high64;
}

static int is_expired(int64_t expires_unix_ms) {
  if (expires_unix_ms == 0) return 0;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 >= expires_unix_ms;
}

// The blob that was found, if it lies where it may; its content is looked at only when pinned.
static const struct embcache_fast_blob* blob_of(const struct embcache_fast_header* index,
                                                uint64_t at) {
  const uint64_t least = sizeof(struct embcache_fast_blob);
  if (at < index->blobs_at || at % 8 != 0 || at > index->total_bytes - least) return NULL;
  return (const struct embcache_fast_blob*)((const char*)index + at);
}

static int is_of_key(const struct embcache_fast_header* index,
                     const struct embcache_fast_blob* blob, const void* key, size_t key_bytes) {
  const uint64_t rest = index->total_bytes - (uint64_t)((const char*)blob - (const char*)index);
  return blob->key_bytes == key_bytes && blob->blob_bytes <= rest && blob->key_at <= rest &&
         key_bytes <= rest - blob->key_at &&
         memcmp((const char*)blob + blob->key_at, key, key_bytes) == 0;
}

int embcache_fast_get_in_lane(embcache_fast* fast, int lane, const void* key, size_t key_bytes,
                              const uint64_t hash[2], int touch, embcache_fast_hit* hit) {
  const struct embcache_fast_header* const index = __atomic_load_n(&fast->index, __ATOMIC_ACQUIRE);
  if (index == NULL || fast->forks != forks_of_this_process) return 0;
  struct embcache_fast_found found;
  if (!embcache_fast_find(index, hash[0], hash[1], &found)) return 0;
  if (!embcache_fast_is_of_epoch(index, &found) || is_expired(found.expires_unix_ms)) return 0;
  const struct embcache_fast_blob* const blob = blob_of(index, found.blob);
  struct embcache_fast_lane* const mine = &fast->table->lanes[lane];
  const int pin = find_free_pin(mine);
  if (blob == NULL || pin == kNoPin) return 0;
  // Before the pin: the daemon must at no time see more pinned than the session may.
  if (!charge(fast, lane, pin, (uint64_t)found.size * 256)) return 0;
  __builtin_prefetch(blob);  // it is on its way while the fence waits
  if (!embcache_fast_pin(index, &found, &mine->pins[pin])) return 0;
  if (!is_of_key(index, blob, key, key_bytes)) {
    embcache_fast_unpin(&mine->pins[pin]);
    return 0;
  }
  if (touch) record(mine, found.publication);
  hit->entry = blob;
  hit->publication = found.publication;
  hit->pin = (uint32_t)(lane * EMBCACHE_FAST_LANE_PINS + pin);
  return 1;
}

int embcache_fast_get(embcache_fast* fast, const void* key, size_t key_bytes,
                      const uint64_t hash[2], int touch, embcache_fast_hit* hit) {
  // A lane whose pins are all in use answers 0 too: then the next is tried.
  for (int attempt = 0; attempt < EMBCACHE_FAST_LANES; ++attempt) {
    const int lane = embcache_fast_take_lane(fast);
    if (lane < 0) return 0;
    const int found = embcache_fast_get_in_lane(fast, lane, key, key_bytes, hash, touch, hit);
    const int full = !found && find_free_pin(&fast->table->lanes[lane]) == kNoPin;
    embcache_fast_give_lane(fast, lane);
    if (!full) return found;
    last_lane = ((uint32_t)lane + 1) % EMBCACHE_FAST_LANES;
  }
  return 0;
}

_Static_assert(EMBCACHE_FAST_LANES* EMBCACHE_FAST_LANE_PINS <= 1 << 10, "a pin has 10 bits");

uint64_t embcache_fast_get_number(embcache_fast* fast, const embcache_fast_key* key, int touch) {
  embcache_fast_hit hit;
  if (!embcache_fast_get(fast, key->bytes, key->size, key->hash, touch, &hit)) return 0;
  fast->lanes[hit.pin / EMBCACHE_FAST_LANE_PINS].entries[hit.pin % EMBCACHE_FAST_LANE_PINS] =
      hit.entry;
  return hit.publication << 10 | hit.pin;
}

const struct embcache_fast_blob* embcache_fast_entry(embcache_fast* fast, uint32_t pin) {
  return fast->lanes[pin / EMBCACHE_FAST_LANE_PINS].entries[pin % EMBCACHE_FAST_LANE_PINS];
}

int embcache_fast_touch(embcache_fast* fast, uint64_t publication) {
  const int lane = embcache_fast_take_lane(fast);
  if (lane < 0) return 0;
  record(&fast->table->lanes[lane], publication);
  embcache_fast_give_lane(fast, lane);
  return 1;
}

void embcache_fast_release(embcache_fast* fast, uint32_t pin) {
  if (fast->forks != forks_of_this_process) return;
  if (pin >= EMBCACHE_FAST_LANES * EMBCACHE_FAST_LANE_PINS) return;
  embcache_fast_unpin(
      &fast->table->lanes[pin / EMBCACHE_FAST_LANE_PINS].pins[pin % EMBCACHE_FAST_LANE_PINS]);
}
