// PersistentStore: the port behind which L3 keeps entries on disk.
//
// A map from key to record that survives restarts. It may lose what it has not made durable and may
// forget anything to make room, but it never returns other bytes than were put: a Read checks them.
//
// Generations order all puts of one daemon directory: each put carries a higher one than any
// before, also across restarts (max_generation() says where to go on). A removal names a generation
// and covers every record of the key up to it, so that a late write of an old value cannot bring it
// back.
//
// Thread-safe. Find, Forget, List, TakeLost and GetStats touch memory only and may be called with
// locks held; the others block on the disk.

#ifndef EMBCACHE_STORAGE_PERSISTENT_STORE_H_
#define EMBCACHE_STORAGE_PERSISTENT_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/entry.h"

namespace embcache {

struct StoredRecord {
  std::shared_ptr<const EntryInfo> info;
  uint64_t generation = 0;
  uint64_t model_epoch = 0;
};

struct StoredPlace {
  uint64_t generation = 0;
  uint64_t model_epoch = 0;
  uint64_t payload_bytes = 0;
  uint64_t heap_bytes = 0;  // ChargedHeapBytes; 0 where the store cannot tell without reading it
};

struct StoreStats {
  uint64_t entries = 0;
  uint64_t payload_bytes = 0;   // of the entries that can be found
  uint64_t disk_bytes = 0;      // of everything in the directory
  uint64_t capacity_bytes = 0;  // less than configured where the disk holds less
  uint64_t bytes_written = 0;   // to the disk since start, for wear
  uint64_t files = 0;
  uint64_t evictions = 0;    // entries dropped to make room
  uint64_t corruptions = 0;  // records that failed their check
  uint64_t io_errors = 0;    // failed disk operations
  bool writable = true;      // false while the disk refuses writes
};

class PersistentStore {
 public:
  virtual ~PersistentStore() = default;

  // Takes the record and its payload (info->payload_bytes() bytes). When Put returns OK the record
  // can be found and read; it is durable after the next Flush or when the store seals it by itself.
  // `cancelled`, checked at the instant of becoming findable, lets an invalidation that came
  // meanwhile win: the answer is then CANCELLED and the record is never found, also after a restart
  // once Remove has returned. RESOURCE_EXHAUSTED: no room (too large, or disk full). UNAVAILABLE:
  // the store is not writable now.
  virtual absl::Status Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                           const std::atomic<bool>& cancelled) = 0;

  // The newest record of `key` in its model's current epoch, if there is one.
  virtual std::optional<StoredPlace> Find(const CacheKey& key) const = 0;

  // Reads that record's payload into `to` (payload_bytes of StoredPlace) and checks it. NOT_FOUND:
  // gone meanwhile. DATA_LOSS: damaged; the record has been removed. Others: I/O.
  virtual absl::StatusOr<StoredRecord> Read(const CacheKey& key, uint64_t generation, char* to) = 0;

  // The same without counting as a use of the record.
  virtual absl::StatusOr<StoredRecord> Check(const CacheKey& key, uint64_t generation,
                                             char* to) = 0;

  // From now on no record of `key` up to `generation` is found. Not durable by itself: true when it
  // takes a Remove to make it, or an earlier one, so.
  virtual bool Forget(const CacheKey& key, uint64_t generation) = 0;

  // The same, durable when it returns OK.
  virtual absl::Status Remove(const CacheKey& key, uint64_t generation) = 0;

  // From now on no record of `model` with an epoch below `epoch` is found; durable when it returns
  // OK. In memory it holds as soon as the call has begun, and stays in force when it fails.
  virtual absl::Status SetModelEpoch(absl::string_view model, uint64_t epoch) = 0;

  // Makes durable all that was put.
  virtual absl::Status Flush() = 0;

  // Calls `visit` for findable records with encoded key > `after` in the order of encoded keys
  // until it returns false. `visit` runs under the store's lock: it must be short and call nothing
  // of ours.
  virtual void List(absl::string_view after,
                    absl::FunctionRef<bool(const CacheKey&, const StoredPlace&)> visit) const = 0;

  // The keys of records that the store has dropped by itself since the last call, for room or for
  // damage. Sets `overflowed` when there were more than it remembers.
  virtual std::vector<CacheKey> TakeLost(bool* overflowed) = 0;

  // What a cache needs to go on where the last run stopped: the highest generation ever used, and
  // every model's epoch (models at epoch 0 may be left out).
  virtual uint64_t max_generation() const = 0;
  virtual std::vector<std::pair<std::string, uint64_t>> ModelEpochs() const = 0;

  // UNAVAILABLE: what it holds cannot be reached yet.
  virtual absl::Status Reachable() const { return absl::OkStatus(); }
  virtual StoreStats GetStats() const = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_PERSISTENT_STORE_H_
