#include "storage/late_store.h"

#include <pthread.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace embcache {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
constexpr absl::Duration kMaxBackoff = absl::Seconds(5);

absl::Status NotOpen() {
  return absl::UnavailableError("L3 could not be opened yet; it will be tried again");
}

}  // namespace

LateStore::LateStore(LateStoreOptions options) : options_(std::move(options)) {
  if (options_.background_thread) thread_ = std::thread([this] { RetryUntilOpen(); });
}

LateStore::~LateStore() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status LateStore::Retry() {
  if (store() != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<PersistentStore>> opened = options_.open();
  if (!opened.ok()) {
    ++failures_;
    return opened.status();
  }
  opened_ = *std::move(opened);
  store_.store(opened_.get(), std::memory_order_release);
  if (options_.log) options_.log("L3 is open now");
  return absl::OkStatus();
}

void LateStore::RetryUntilOpen() {
  pthread_setname_np(pthread_self(), "l3-opener");
  std::string last;
  for (absl::Duration backoff = kFirstBackoff;; backoff = std::min(2 * backoff, kMaxBackoff)) {
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), backoff)) return;
    }
    const absl::Status status = Retry();
    if (status.ok()) return;
    // The same again every few seconds would hide everything else.
    if (options_.log && status.message() != last) {
      options_.log(absl::StrCat("L3 cannot be opened: ", status.message()));
    }
    last = std::string(status.message());
  }
}

absl::Status LateStore::Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                            const std::atomic<bool>& cancelled) {
  PersistentStore* const to = store();
  return to == nullptr ? NotOpen() : to->Put(record, std::move(payload), cancelled);
}

std::optional<StoredPlace> LateStore::Find(const CacheKey& key) const {
  const PersistentStore* const in = store();
  return in == nullptr ? std::nullopt : in->Find(key);
}

absl::StatusOr<StoredRecord> LateStore::Read(const CacheKey& key, uint64_t generation, char* to) {
  PersistentStore* const from = store();
  if (from == nullptr) return NotOpen();
  return from->Read(key, generation, to);
}

absl::StatusOr<StoredRecord> LateStore::Check(const CacheKey& key, uint64_t generation, char* to) {
  PersistentStore* const from = store();
  if (from == nullptr) return NotOpen();
  return from->Check(key, generation, to);
}

bool LateStore::Forget(const CacheKey& key, uint64_t generation) {
  PersistentStore* const in = store();
  // What an earlier run has left may have the key; if the next one finds it, it is back.
  return in == nullptr || in->Forget(key, generation);
}

absl::Status LateStore::Remove(const CacheKey& key, uint64_t generation) {
  PersistentStore* const from = store();
  return from == nullptr ? NotOpen() : from->Remove(key, generation);
}

absl::Status LateStore::SetModelEpoch(absl::string_view model, uint64_t epoch) {
  PersistentStore* const in = store();
  return in == nullptr ? NotOpen() : in->SetModelEpoch(model, epoch);
}

std::vector<CacheKey> LateStore::TakeLost(bool* overflowed) {
  PersistentStore* const from = store();
  if (from != nullptr) return from->TakeLost(overflowed);
  *overflowed = false;
  return {};
}

absl::Status LateStore::Flush() {
  PersistentStore* const to = store();
  return to == nullptr ? NotOpen() : to->Flush();
}

void LateStore::List(absl::string_view after,
                     absl::FunctionRef<bool(const CacheKey&, const StoredPlace&)> visit) const {
  if (const PersistentStore* const in = store()) in->List(after, visit);
}

uint64_t LateStore::max_generation() const {
  const PersistentStore* const of = store();
  return of == nullptr ? 0 : of->max_generation();
}

std::vector<std::pair<std::string, uint64_t>> LateStore::ModelEpochs() const {
  const PersistentStore* const of = store();
  if (of == nullptr) return {};
  return of->ModelEpochs();
}

absl::Status LateStore::Reachable() const {
  return store() == nullptr ? NotOpen() : absl::OkStatus();
}

StoreStats LateStore::GetStats() const {
  if (const PersistentStore* const of = store()) return of->GetStats();
  StoreStats stats;
  stats.capacity_bytes = options_.capacity_bytes;
  stats.io_errors = failures_;
  stats.writable = false;
  return stats;
}

}  // namespace embcache
