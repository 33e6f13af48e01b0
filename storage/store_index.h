// StoreIndex: what the L3 store knows in memory of its records, removals and model epochs.
//
// Records live in numbered files. The newest number is the open file, whose records are in RAM
// only; those of lower numbers are, or may be, on disk. From that follows what a removal has to
// write:
//
//   Every record that may be on disk and is not in the index is covered by a tombstone (the key's
//   removals up to a generation), by its model's epoch, or by a newer record of its key that the
//   index had: and then by a tombstone too, which is made when the newer one arrives.
//
// A tombstone is dirty until written; it can go when no file is left that existed when it was made.
// Removals of keys that are not on disk are remembered too, against writes that come late, but only
// the last kVolatileTombstones of them: beyond that every put of an older generation is refused.
//
// Not thread-safe: guarded by the store's lock. Does no I/O.

#ifndef EMBCACHE_STORAGE_STORE_INDEX_H_
#define EMBCACHE_STORAGE_STORE_INDEX_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/persistent_store.h"
#include "storage/segment_layout.h"

namespace embcache {

struct IndexEntry {
  uint64_t generation = 0;
  uint64_t payload_bytes = 0;
  uint64_t model_epoch = 0;
  uint64_t file = 0;
  uint32_t entry = 0;
  uint32_t heap_bytes : 31 = 0;  // as StoredPlace has it
  bool touched : 1 = false;      // read since it was written
  RecordPosition position;
};
// There are as many as entries on the disk.
static_assert(sizeof(IndexEntry) <= 56);

// The small facts that must survive: what the meta log holds, or an addition to it.
struct MetaState {
  struct Tombstone {
    CacheKey key;
    uint64_t generation = 0;
    uint64_t last_file = 0;  // no file above has a record that it covers
  };
  std::vector<Tombstone> tombstones;
  std::vector<std::pair<std::string, uint64_t>> epochs;
  uint64_t max_generation = 0;
};

class StoreIndex {
 public:
  static constexpr size_t kVolatileTombstones = 16384;
  static constexpr size_t kMaxLost = 65536;

  // In any order: of what is said twice about a key or a model, the higher counts.
  void LoadMeta(const MetaState& meta);
  // Those of one file after those of another: REQUIRES ascending order of files. Many at a time are
  // taken in much faster than one by one.
  void LoadRecords(std::vector<std::pair<CacheKey, IndexEntry>> records);
  // Forgets all but epochs and generations: the files are lost.
  void ClearFiles();

  uint64_t open_file() const { return open_file_; }
  void set_open_file(uint64_t file) { open_file_ = file; }

  // CANCELLED when a removal, the model's epoch or a newer record forbids it. `replaced` is what
  // the key had before.
  absl::Status Put(const CacheKey& key, const IndexEntry& entry,
                   std::optional<IndexEntry>* replaced);
  // Gives a record that is in the index a new place.
  void Move(const CacheKey& key, uint64_t file, uint32_t entry);
  // Of the record at this place, unless it has left it.
  void SetPosition(const CacheKey& key, uint64_t file, uint32_t entry,
                   const RecordPosition& position);
  const IndexEntry* Find(const CacheKey& key) const;
  void Touch(const CacheKey& key, uint64_t generation);

  // Returns what the key had, if that is removed by it.
  std::optional<IndexEntry> Forget(const CacheKey& key, uint64_t generation);
  // Whether a removal of `key` is not on disk yet and has to be.
  bool IsDirty(const CacheKey& key) const;
  // The record at this place, which may be on disk in spite of a failure, leaves the index.
  void ForgetUncertain(const CacheKey& key, uint64_t generation);
  // The record at this place is gone from disk and RAM. False when the index has another.
  bool ErasePlace(const CacheKey& key, uint64_t file, uint32_t entry);
  // The same for any key, looking at up to `limit` entries after `after`, which moves on; false at
  // the end.
  bool EraseFile(uint64_t file, size_t limit, std::optional<CacheKey>* after, uint64_t* erased);

  // Epochs only rise.
  void RaiseEpoch(absl::string_view model, uint64_t epoch);
  bool IsEpochDirty(absl::string_view model) const;
  // Erases up to `limit` records that the model's epoch hides; empty when there are no more.
  std::vector<IndexEntry> EraseHidden(absl::string_view model, size_t limit);
  std::vector<std::pair<std::string, uint64_t>> ModelEpochs() const;
  // Epochs of models of which no file has a record, findable or not, so that they hide nothing. To
  // be asked once all files are loaded and before anything is put.
  std::vector<std::string> UnneededEpochs() const;
  void ForgetEpoch(absl::string_view model) { epochs_.erase(model); }

  // What has to be written; then, once it has been.
  MetaState CollectDirty() const;
  // All that has to be on disk, written or not.
  MetaState CollectAll() const;
  void MarkWritten(const MetaState& written);
  bool has_dirty() const { return dirty_tombstones_ != 0 || dirty_epochs_ != 0; }
  // Takes out the tombstones that no file from `oldest_file` on needs. On disk they do no harm.
  void PruneTombstones(uint64_t oldest_file);

  void List(absl::string_view after,
            absl::FunctionRef<bool(const CacheKey&, const IndexEntry&)> visit) const;

  // What ErasePlace, EraseFile and ForgetUncertain took out since the last call; at most
  // kMaxLost, then `overflowed`.
  std::vector<CacheKey> TakeLost(bool* overflowed);

  uint64_t entries() const { return records_.size(); }
  // How many of them are in this file.
  uint64_t entries_in(uint64_t file) const {
    auto at = entries_in_.find(file);
    return at == entries_in_.end() ? 0 : at->second;
  }
  uint64_t payload_bytes() const { return payload_bytes_; }
  uint64_t max_generation() const { return max_generation_; }
  size_t tombstones() const { return tombstones_.size(); }

 private:
  struct EncodedLess {
    using is_transparent = void;
    static absl::string_view View(const CacheKey& key) { return key.encoded(); }
    static absl::string_view View(absl::string_view encoded) { return encoded; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return View(a) < View(b);
    }
  };
  using Records = absl::btree_map<CacheKey, IndexEntry, EncodedLess>;

  enum class TombstoneState : uint8_t { kVolatile, kDirty, kWritten };
  struct Tombstone {
    uint64_t generation = 0;
    uint64_t last_file = 0;
    TombstoneState state = TombstoneState::kVolatile;
  };
  struct Epoch {
    uint64_t epoch = 0;
    bool dirty = false;
    bool has_records = false;  // among those that were loaded
  };

  // Returns where the next key would be, if it is greater.
  Records::iterator LoadRecord(Records::iterator hint, CacheKey key, const IndexEntry& entry);
  bool Hidden(const CacheKey& key, uint64_t model_epoch) const;
  void SetEntry(IndexEntry& at, const IndexEntry& entry);
  void CountOut(uint64_t file);
  void Erase(Records::iterator at);
  // Erases what nobody asked to be removed.
  void Lose(Records::iterator at);
  void RememberRemoval(const CacheKey& key, uint64_t generation);
  void MakeDirty(const CacheKey& key, uint64_t generation);
  void SetState(const CacheKey& key, Tombstone& tombstone, TombstoneState state);

  Records records_;
  absl::flat_hash_map<uint64_t, uint64_t> entries_in_;  // by file; none of 0
  std::vector<CacheKey> lost_;
  bool lost_overflowed_ = false;
  uint64_t payload_bytes_ = 0;
  uint64_t open_file_ = 1;
  uint64_t max_generation_ = 0;

  absl::flat_hash_map<CacheKey, Tombstone> tombstones_;
  std::map<uint64_t, std::vector<CacheKey>> tombstones_by_last_file_;
  std::deque<CacheKey> volatile_order_;
  uint64_t refused_up_to_ = 0;  // puts of this and older generations come too late
  size_t dirty_tombstones_ = 0;
  std::vector<CacheKey> dirty_keys_;  // of those, and of some that are not dirty any more

  absl::flat_hash_map<std::string, Epoch> epochs_;
  size_t dirty_epochs_ = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_STORE_INDEX_H_
