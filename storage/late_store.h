// LateStore: a PersistentStore whose disk could not be used when the process started. It holds
// nothing, takes nothing and says so until it can be opened, which it tries again and again; from
// then on it is that store.
//
// The opener must begin with an empty store: what was removed or replaced meanwhile is not known,
// so that nothing from before may come back.
//
// Thread-safe. Calls return at once while nothing is open: puts, removals and flushes with
// UNAVAILABLE.

#ifndef EMBCACHE_STORAGE_LATE_STORE_H_
#define EMBCACHE_STORAGE_LATE_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "storage/persistent_store.h"

namespace embcache {

struct LateStoreOptions {
  std::function<absl::StatusOr<std::unique_ptr<PersistentStore>>()> open;
  uint64_t capacity_bytes = 0;
  // Without it only Retry opens.
  bool background_thread = true;
  std::function<void(absl::string_view)> log;
};

class LateStore final : public PersistentStore {
 public:
  explicit LateStore(LateStoreOptions options);
  ~LateStore() override;

  // Tries to open, unless it is open. For one thread at a time, and none with background_thread.
  absl::Status Retry();

  absl::Status Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                   const std::atomic<bool>& cancelled) override;
  std::optional<StoredPlace> Find(const CacheKey& key) const override;
  absl::StatusOr<StoredRecord> Read(const CacheKey& key, uint64_t generation, char* to) override;
  absl::StatusOr<StoredRecord> Check(const CacheKey& key, uint64_t generation, char* to) override;
  bool Forget(const CacheKey& key, uint64_t generation) override;
  absl::Status Remove(const CacheKey& key, uint64_t generation) override;
  absl::Status SetModelEpoch(absl::string_view model, uint64_t epoch) override;
  std::vector<CacheKey> TakeLost(bool* overflowed) override;
  absl::Status Flush() override;
  void List(absl::string_view after,
            absl::FunctionRef<bool(const CacheKey&, const StoredPlace&)> visit) const override;
  uint64_t max_generation() const override;
  std::vector<std::pair<std::string, uint64_t>> ModelEpochs() const override;
  absl::Status Reachable() const override;
  StoreStats GetStats() const override;

 private:
  PersistentStore* store() const { return store_.load(std::memory_order_acquire); }
  void RetryUntilOpen();

  const LateStoreOptions options_;
  std::unique_ptr<PersistentStore> opened_;        // written once, before store_
  std::atomic<PersistentStore*> store_ = nullptr;  // opened_, once it may be used
  std::atomic<uint64_t> failures_ = 1;             // what came before it was made, too

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_LATE_STORE_H_
