/* libembcache_fast: hits without a call, in C. It reads the daemon's shared index and pins what it
 * finds there; whatever it cannot answer, the caller asks the daemon for over gRPC, and nothing is
 * lost but time. It knows no sockets: the two descriptors come from a Welcome (control.proto,
 * FastPath), or use the C++ or Python client, which do all of this.
 *
 *   embcache_fast* fast = embcache_fast_open(index_fd, index_bytes, table_fd, table_bytes, quota);
 *   embcache_fast_hash(key, key_bytes, hash);
 *   if (embcache_fast_get(fast, key, key_bytes, hash, 1, &hit)) {
 *     ... hit.entry says where the bytes are; they stay until ...
 *     embcache_fast_release(fast, hit.pin);
 *   }
 *
 * Threads: every function but open and close may be called by any number of threads at once; a pin
 * may be released by another thread than took it. After a fork the child's calls answer 0 and do
 * nothing.
 *
 * Links with the C library alone. */

#ifndef EMBCACHE_CLIENT_FAST_EMBCACHE_FAST_H_
#define EMBCACHE_CLIENT_FAST_EMBCACHE_FAST_H_

#include <stddef.h>
#include <stdint.h>

#include "storage/fast_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct embcache_fast embcache_fast;

typedef struct embcache_fast_hit {
  /* Key, place, tensors and metadata; whole and unchanging until the release. */
  const struct embcache_fast_blob* entry;
  uint64_t publication;
  uint32_t pin; /* for embcache_fast_release */
} embcache_fast_hit;

/* The layout that this library knows: what a Hello says in fast_path_version. */
uint32_t embcache_fast_version(void);

/* Maps both; the descriptors may be closed afterwards. `max_pinned_bytes` is the session's limit
 * (0: none): the daemon ignores the pins of who exceeds it. NULL when they cannot be mapped or are
 * not what they should be. */
embcache_fast* embcache_fast_open(int index_fd, uint64_t index_bytes, int table_fd,
                                  uint64_t table_bytes, uint64_t max_pinned_bytes);
/* The descriptor that came with FastIndexMoved. 1, or 0 as above: then nothing is found any more.
 * By one thread at a time. */
int embcache_fast_replace_index(embcache_fast* fast, int index_fd, uint64_t index_bytes);
/* Unmaps. No pin may be in use any more. */
void embcache_fast_close(embcache_fast* fast);

/* XXH3-128 of an encoded key: u8 length, model; u8 length, content hash; u16 (little endian)
 * length, variant. */
void embcache_fast_hash(const void* key, size_t key_bytes, uint64_t hash[2]);

/* 1: `hit` is pinned. 0: not found here; ask the daemon. With `touch` the hit is recorded, which
 * counts it and makes the entry a recently used one. */
int embcache_fast_get(embcache_fast* fast, const void* key, size_t key_bytes,
                      const uint64_t hash[2], int touch, embcache_fast_hit* hit);
/* Records a hit that was got without `touch`. 0: it could not, and the caller has to release the
 * hit and ask the daemon, so that every get is counted once. */
int embcache_fast_touch(embcache_fast* fast, uint64_t publication);
/* The bytes may change from now on. */
void embcache_fast_release(embcache_fast* fast, uint32_t pin);

/* What the session holds by leases and reservations, which counts against the same limit: `bytes`
 * more, or less. */
void embcache_fast_charge(embcache_fast* fast, int64_t bytes);

/* A lane is what one thread at a time pins and records through. embcache_fast_get takes one for as
 * long as it runs; a thread with a lane of its own saves that. -1: all are taken. Give it back
 * before closing or not at all. */
int embcache_fast_take_lane(embcache_fast* fast);
void embcache_fast_give_lane(embcache_fast* fast, int lane);
/* As embcache_fast_get. */
int embcache_fast_get_in_lane(embcache_fast* fast, int lane, const void* key, size_t key_bytes,
                              const uint64_t hash[2], int touch, embcache_fast_hit* hit);

/* --- For callers to whom a call with many arguments is dear (Python's ctypes) ------------------
 */

/* Made once for each key; the bytes must outlive it. */
typedef struct embcache_fast_key {
  const void* bytes; /* encoded */
  uint64_t size;
  uint64_t hash[2];
} embcache_fast_key;

/* As embcache_fast_get, but answers in one number: the pin in the lowest 10 bits, above them the
 * publication; 0: not found here. What an entry says never changes under one publication, so it
 * need be read only once. */
uint64_t embcache_fast_get_number(embcache_fast* fast, const embcache_fast_key* key, int touch);
/* The entry that a pin got so holds. */
const struct embcache_fast_blob* embcache_fast_entry(embcache_fast* fast, uint32_t pin);

/* --- What an entry says ------------------------------------------------------------------------
 */

static inline const struct embcache_fast_tensor* embcache_fast_tensors(
    const struct embcache_fast_blob* entry) {
  return (const struct embcache_fast_tensor*)(entry + 1);
}
static inline const struct embcache_fast_metadata* embcache_fast_metadata_of(
    const struct embcache_fast_blob* entry) {
  return (const struct embcache_fast_metadata*)(embcache_fast_tensors(entry) + entry->tensors);
}
/* Text or bytes of the entry, for one of the fields ending in _at. */
static inline const char* embcache_fast_text(const struct embcache_fast_blob* entry, uint32_t at) {
  return (const char*)entry + at;
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EMBCACHE_CLIENT_FAST_EMBCACHE_FAST_H_ */
