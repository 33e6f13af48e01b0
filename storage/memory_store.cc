#include "storage/memory_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace embcache {
namespace {

StoredPlace PlaceOf(const StoredRecord& record) {
  return {.generation = record.generation,
          .model_epoch = record.model_epoch,
          .payload_bytes = record.info->payload_bytes(),
          .heap_bytes = ChargedHeapBytes(*record.info)};
}

}  // namespace

absl::Status MemoryStore::Failures::Take() {
  if (count == 0) return absl::OkStatus();
  --count;
  return status;
}

void MemoryStore::FailNextPuts(int count, absl::Status status) {
  absl::MutexLock lock(&mu_);
  put_failures_ = {count, std::move(status)};
}

void MemoryStore::FailNextReads(int count, absl::Status status) {
  absl::MutexLock lock(&mu_);
  read_failures_ = {count, std::move(status)};
}

void MemoryStore::Corrupt(const CacheKey& key) {
  absl::MutexLock lock(&mu_);
  auto at = items_.find(key);
  if (at != items_.end()) at->second.damaged = true;
}

void MemoryStore::SetWritable(bool writable) {
  absl::MutexLock lock(&mu_);
  counters_.writable = writable;
}

void MemoryStore::SetTellsHeapBytes(bool tells) {
  absl::MutexLock lock(&mu_);
  tells_heap_bytes_ = tells;
}

absl::Status MemoryStore::Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                              const std::atomic<bool>& cancelled) {
  EMB_CHECK(record.info != nullptr && payload != nullptr);
  const CacheKey& key = record.info->key;
  const uint64_t bytes = record.info->payload_bytes();
  absl::MutexLock lock(&mu_);
  max_generation_ = std::max(max_generation_, record.generation);
  absl::Status status = DurableLocked();
  if (status.ok()) status = put_failures_.Take();
  if (!status.ok()) {
    ++counters_.io_errors;
    return status;
  }
  if (bytes > capacity_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("payload: ", bytes, " bytes > capacity ", capacity_bytes_));
  }
  auto removed = removed_.find(key);
  auto old = items_.find(key);
  if (cancelled.load() || HiddenLocked(key, record.model_epoch) ||
      (removed != removed_.end() && record.generation <= removed->second) ||
      (old != items_.end() && record.generation <= old->second.record.generation)) {
    return absl::CancelledError("cancelled, removed or replaced meanwhile");
  }
  if (old != items_.end()) EraseLocked(old);
  while (payload_bytes_ + bytes > capacity_bytes_) {
    const auto oldest = items_.find(by_sequence_.begin()->second);
    lost_.push_back(oldest->first);
    EraseLocked(oldest);
    ++counters_.evictions;
  }
  by_sequence_.emplace(next_sequence_, key);
  items_.emplace(key, Item{record, std::move(payload), next_sequence_++, false});
  payload_bytes_ += bytes;
  counters_.bytes_written += bytes;
  return absl::OkStatus();
}

std::optional<StoredPlace> MemoryStore::Find(const CacheKey& key) const {
  absl::MutexLock lock(&mu_);
  auto at = items_.find(key);
  if (at == items_.end()) return std::nullopt;
  StoredPlace place = PlaceOf(at->second.record);
  if (!tells_heap_bytes_) place.heap_bytes = 0;
  return place;
}

absl::StatusOr<StoredRecord> MemoryStore::Read(const CacheKey& key, uint64_t generation, char* to) {
  Item item;
  {
    absl::MutexLock lock(&mu_);
    absl::Status failure = read_failures_.Take();
    if (!failure.ok()) {
      ++counters_.io_errors;
      return failure;
    }
    auto at = items_.find(key);
    if (at == items_.end() || at->second.record.generation != generation) {
      return absl::NotFoundError(absl::StrCat("no generation ", generation, " of the key"));
    }
    if (at->second.damaged) {
      ++counters_.corruptions;
      lost_.push_back(key);
      EraseLocked(at);
      return absl::DataLossError("the record is damaged");
    }
    item = at->second;
  }
  std::memcpy(to, item.payload.get(), item.record.info->payload_bytes());
  return item.record;
}

bool MemoryStore::Forget(const CacheKey& key, uint64_t generation) {
  absl::MutexLock lock(&mu_);
  max_generation_ = std::max(max_generation_, generation);
  uint64_t& removed = removed_[key];
  removed = std::max(removed, generation);
  auto at = items_.find(key);
  if (at != items_.end() && at->second.record.generation <= generation) {
    EraseLocked(at);
    undurable_.insert(key);
  }
  return undurable_.count(key) != 0;
}

absl::Status MemoryStore::Remove(const CacheKey& key, uint64_t generation) {
  Forget(key, generation);
  absl::MutexLock lock(&mu_);
  absl::Status status = DurableLocked();
  if (status.ok()) undurable_.erase(key);
  return status;
}

absl::Status MemoryStore::SetModelEpoch(absl::string_view model, uint64_t epoch) {
  absl::MutexLock lock(&mu_);
  uint64_t& current = epochs_[std::string(model)];
  current = std::max(current, epoch);
  for (auto at = items_.begin(); at != items_.end();) {
    if (!HiddenLocked(at->first, at->second.record.model_epoch)) {
      ++at;
      continue;
    }
    payload_bytes_ -= at->second.record.info->payload_bytes();
    by_sequence_.erase(at->second.sequence);
    at = items_.erase(at);
  }
  return DurableLocked();
}

absl::Status MemoryStore::Flush() {
  absl::MutexLock lock(&mu_);
  return DurableLocked();
}

void MemoryStore::List(absl::string_view after,
                       absl::FunctionRef<bool(const CacheKey&, const StoredPlace&)> visit) const {
  absl::MutexLock lock(&mu_);
  for (const auto& [key, item] : items_) {
    if (key.encoded() <= after) continue;
    if (!visit(key, PlaceOf(item.record))) return;
  }
}

std::vector<CacheKey> MemoryStore::TakeLost(bool* overflowed) {
  *overflowed = false;
  absl::MutexLock lock(&mu_);
  return std::exchange(lost_, {});
}

uint64_t MemoryStore::max_generation() const {
  absl::MutexLock lock(&mu_);
  return max_generation_;
}

std::vector<std::pair<std::string, uint64_t>> MemoryStore::ModelEpochs() const {
  absl::MutexLock lock(&mu_);
  return {epochs_.begin(), epochs_.end()};
}

StoreStats MemoryStore::GetStats() const {
  absl::MutexLock lock(&mu_);
  StoreStats stats = counters_;
  stats.entries = items_.size();
  stats.payload_bytes = payload_bytes_;
  stats.disk_bytes = payload_bytes_;
  stats.capacity_bytes = capacity_bytes_;
  return stats;
}

bool MemoryStore::HiddenLocked(const CacheKey& key, uint64_t model_epoch) const {
  auto at = epochs_.find(std::string(key.model()));
  return at != epochs_.end() && model_epoch < at->second;
}

void MemoryStore::EraseLocked(Items::iterator at) {
  payload_bytes_ -= at->second.record.info->payload_bytes();
  by_sequence_.erase(at->second.sequence);
  items_.erase(at);
}

absl::Status MemoryStore::DurableLocked() const {
  return counters_.writable ? absl::OkStatus() : absl::UnavailableError("writes are refused");
}

}  // namespace embcache
