// The two pieces of shared memory of the fast path, version 1: the index that the daemon writes and
// every client reads, and the pin table that one client writes and the daemon reads. Plain C, for
// the daemon and for libembcache_fast alike. docs/architecture.md, "A hit without a call", says why
// the orderings are what they are; client/fast/protocol.h is the reader's side, FastIndex and
// FastTable are the daemon's.
//
// Every field that one process writes while another may read it is accessed by the __atomic
// builtins only. All numbers are in the byte order of the machine.

#ifndef EMBCACHE_STORAGE_FAST_LAYOUT_H_
#define EMBCACHE_STORAGE_FAST_LAYOUT_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMBCACHE_FAST_VERSION 1
#define EMBCACHE_FAST_MAGIC 0x7473616665626d65u  // "embefast"

// --- The index ----------------------------------------------------------------------------------
//
//   header (64 bytes) | model epochs | slots, a power of two | blobs
//
// Slots are hashed openly by linear probing. A slot is written under its sequence number: odd while
// it changes, another even one afterwards. A reader that finds no slot, or cannot make sense of
// one, asks the daemon, so only what is found has to be right.

enum embcache_fast_state {
  EMBCACHE_FAST_LIVE = 0,
  EMBCACHE_FAST_MOVED = 1,    // outgrown: its successor comes over the control socket
  EMBCACHE_FAST_STOPPED = 2,  // the daemon drains: ask it
};

enum { EMBCACHE_FAST_MODELS = 4096 };

struct embcache_fast_header {
  uint64_t magic;
  uint32_t version;
  uint32_t state;      // atomic: enum embcache_fast_state
  uint64_t slot_mask;  // number of slots - 1
  uint64_t slots_at;   // offset of the first slot
  uint64_t blobs_at;   // of the blobs
  uint64_t blobs_bytes;
  uint64_t total_bytes;
  uint64_t unused;
};

// One cache line. publication == 0: free, and the end of a probe.
struct embcache_fast_slot {
  uint64_t seq;
  uint64_t hash_low;  // XXH3-128 of the encoded key
  uint64_t hash_high;
  // Of one stay of one entry in one place; never used again. What pins name.
  uint64_t publication;
  uint64_t blob;            // offset from the start of the index
  int64_t expires_unix_ms;  // 0: never
  uint64_t model_epoch;     // in force only while the model's word says the same
  uint32_t model;           // index into the model epochs
  uint32_t size;            // of the payload, in units of 256 bytes, rounded up
};

// What a slot leads to; 256-byte aligned. Never changes while the publication is pinned. Offsets
// ("_at") count from the start of the blob. The records follow the struct: tensors, then metadata.
struct embcache_fast_blob {
  uint64_t publication;
  uint64_t generation;  // which put of the key this is
  uint64_t segment_generation;
  uint64_t offset;  // of the payload, in its segment
  uint64_t bytes;   // of the payload
  uint64_t encode_cost_us;
  uint32_t segment;
  uint32_t tier;  // 1: L1, 2: L2
  uint32_t blob_bytes;
  uint32_t key_at;
  uint32_t key_bytes;  // of the encoded key (storage/cache_key.h)
  uint32_t tensors;
  uint32_t metadata;
  uint32_t unused;
};

struct embcache_fast_tensor {
  uint64_t offset;  // from the start of the payload
  uint64_t bytes;
  int64_t shape[8];
  uint32_t name_at;
  uint16_t name_bytes;
  uint8_t dtype;
  uint8_t rank;
  uint32_t absent;
  uint32_t unused;
};

struct embcache_fast_metadata {
  uint32_t name_at;
  uint32_t name_bytes;
  uint32_t value_at;
  uint32_t value_bytes;
};

// --- The pin table ------------------------------------------------------------------------------
//
// Lanes, each used by one thread of the client at a time for pinning and touching; a pin may be
// ended by any thread. The client keeps lanes apart by itself, the daemon only reads.

enum {
  EMBCACHE_FAST_LANES = 16,
  EMBCACHE_FAST_LANE_PINS = 64,
  EMBCACHE_FAST_LANE_TOUCHES = 512,
};

struct embcache_fast_lane {
  // Touches ever recorded; the last EMBCACHE_FAST_LANE_TOUCHES of them are in `touches`.
  uint64_t touch_count;
  uint32_t pins_used;  // pins at and beyond this index have never been used
  uint32_t unused;
  uint64_t unused_line[6];
  uint64_t pins[EMBCACHE_FAST_LANE_PINS];  // publications; 0: free
  uint64_t touches[EMBCACHE_FAST_LANE_TOUCHES];
};

struct embcache_fast_table {
  uint32_t lanes_used;  // lanes at and beyond this index have never been used
  uint32_t unused;
  uint64_t unused_line[7];
  struct embcache_fast_lane lanes[EMBCACHE_FAST_LANES];
};

#ifdef __cplusplus
}  // extern "C"

static_assert(sizeof(embcache_fast_header) == 64 && sizeof(embcache_fast_slot) == 64);
static_assert(sizeof(embcache_fast_lane) % 64 == 0 && sizeof(embcache_fast_table) % 64 == 0);
static_assert(sizeof(embcache_fast_blob) % 8 == 0 && sizeof(embcache_fast_tensor) % 8 == 0);
#endif

#endif  // EMBCACHE_STORAGE_FAST_LAYOUT_H_
