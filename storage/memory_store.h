// MemoryStore: the PersistentStore that keeps everything in RAM, for tests. Bounded in payload
// bytes; evicts the oldest put. Does exactly what it is told, at once: nothing in it depends on
// time.
//
// Thread-safe, as every PersistentStore.

#ifndef EMBCACHE_STORAGE_MEMORY_STORE_H_
#define EMBCACHE_STORAGE_MEMORY_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "storage/persistent_store.h"

namespace embcache {

class MemoryStore final : public PersistentStore {
 public:
  explicit MemoryStore(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // The next `count` puts (reads) answer `status` and do nothing.
  void FailNextPuts(int count, absl::Status status);
  void FailNextReads(int count, absl::Status status);
  // The next Read of `key`'s present record finds it damaged.
  void Corrupt(const CacheKey& key);
  // While false, everything that has to reach the disk answers UNAVAILABLE.
  void SetWritable(bool writable);
  // While false, Find does not tell heap_bytes, as of records in files of an older format.
  void SetTellsHeapBytes(bool tells);

  absl::Status Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                   const std::atomic<bool>& cancelled) override;
  std::optional<StoredPlace> Find(const CacheKey& key) const override;
  absl::StatusOr<StoredRecord> Read(const CacheKey& key, uint64_t generation, char* to) override;
  absl::StatusOr<StoredRecord> Check(const CacheKey& key, uint64_t generation, char* to) override {
    return Read(key, generation, to);
  }
  bool Forget(const CacheKey& key, uint64_t generation) override;
  absl::Status Remove(const CacheKey& key, uint64_t generation) override;
  absl::Status SetModelEpoch(absl::string_view model, uint64_t epoch) override;
  absl::Status Flush() override;
  void List(absl::string_view after,
            absl::FunctionRef<bool(const CacheKey&, const StoredPlace&)> visit) const override;
  std::vector<CacheKey> TakeLost(bool* overflowed) override;
  uint64_t max_generation() const override;
  std::vector<std::pair<std::string, uint64_t>> ModelEpochs() const override;
  StoreStats GetStats() const override;

 private:
  struct Item {
    StoredRecord record;
    std::shared_ptr<const char[]> payload;  // shared with reads in progress
    uint64_t sequence = 0;
    bool damaged = false;
  };
  struct Failures {
    int count = 0;
    absl::Status status;
    // Uses one up; OK when there is none.
    absl::Status Take();
  };
  using Items = absl::btree_map<CacheKey, Item>;

  bool HiddenLocked(const CacheKey& key, uint64_t model_epoch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EraseLocked(Items::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status DurableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t capacity_bytes_;
  mutable absl::Mutex mu_;
  Items items_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, CacheKey> by_sequence_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<CacheKey, uint64_t> removed_ ABSL_GUARDED_BY(mu_);  // up to which generation
  absl::btree_set<CacheKey> undurable_ ABSL_GUARDED_BY(mu_);          // forgotten, not removed
  std::map<std::string, uint64_t> epochs_ ABSL_GUARDED_BY(mu_);
  uint64_t payload_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t max_generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<CacheKey> lost_ ABSL_GUARDED_BY(mu_);
  StoreStats counters_ ABSL_GUARDED_BY(mu_);
  bool tells_heap_bytes_ ABSL_GUARDED_BY(mu_) = true;
  Failures put_failures_ ABSL_GUARDED_BY(mu_);
  Failures read_failures_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_MEMORY_STORE_H_
