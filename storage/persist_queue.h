// PersistQueue: entries waiting to be written to L3, oldest first, bounded in entries and bytes.
//
// A key is queued at most once: a newer put takes the older one's place. An entry's bytes normally
// stay where they are until its turn; when the entry must leave memory before, a staged copy of
// them is attached. Not thread-safe: guarded by TieredCache's lock.

#ifndef EMBCACHE_STORAGE_PERSIST_QUEUE_H_
#define EMBCACHE_STORAGE_PERSIST_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "storage/model_table.h"
#include "storage/persistent_store.h"

namespace embcache {

struct CacheEntry;

struct PersistItem {
  uint64_t sequence = 0;  // order of arrival
  StoredRecord record;
  CacheEntry* entry = nullptr;      // whose memory holds the bytes, unless `payload` does
  std::unique_ptr<char[]> payload;  // staged bytes
  ModelUse model;                   // until the record can be found
  bool replaces_stored = false;     // an older record of the key may be on disk
  std::shared_ptr<std::atomic<bool>> cancelled;
};

class PersistQueue {
 public:
  PersistQueue(uint64_t max_entries, uint64_t max_bytes)
      : max_entries_(max_entries), max_bytes_(max_bytes) {}

  // False when full; the item is then dropped.
  bool Push(PersistItem item);
  // The oldest item whose bytes are at rest (not moving between tiers); nullopt if there is none.
  // The caller reports Finished later.
  std::optional<PersistItem> TakeNext();
  void Finished();
  // The queued item of this key and generation; nullptr if there is none.
  PersistItem* Find(absl::string_view key, uint64_t generation);
  // Drops the queued item of the key and cancels one being written. Returns the entry that no
  // longer waits, if any.
  CacheEntry* Cancel(absl::string_view key);
  // The same for all items of a model with an epoch below `epoch`.
  void CancelModel(absl::string_view model, uint64_t epoch);

  uint64_t entries() const { return items_.size(); }
  uint64_t bytes() const { return bytes_; }
  // All items up to this sequence number are finished.
  uint64_t last_sequence() const { return last_sequence_; }
  bool IdleUpTo(uint64_t sequence) const;

 private:
  using Items = std::list<PersistItem>;

  Items::iterator Erase(Items::iterator it);

  const uint64_t max_entries_;
  const uint64_t max_bytes_;
  uint64_t bytes_ = 0;
  uint64_t last_sequence_ = 0;
  Items items_;
  absl::flat_hash_map<absl::string_view, Items::iterator> by_key_;  // keys live in the items
  // Of the item being written, if any.
  uint64_t writing_sequence_ = 0;
  StoredRecord writing_;
  std::shared_ptr<std::atomic<bool>> writing_cancelled_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_PERSIST_QUEUE_H_
