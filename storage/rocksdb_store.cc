#include "storage/rocksdb_store.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/rocksdb_handle.h"

namespace embcache {
namespace {

// A file in which more records than this were damaged is given up as a whole.
constexpr uint32_t kMaxDamagedRecords = 3;
// Index entries erased in one go under the lock.
constexpr size_t kEraseBatch = 2048;

}  // namespace

RocksDbStore::~RocksDbStore() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  absl::MutexLock writer(&writer_mu_);
  if (poisoned_) return;
  const absl::Status sealed = Seal();
  const absl::Status written = WriteMeta(/*always=*/true);
  for (const absl::Status& status : {sealed, written}) {
    if (!status.ok()) Log(absl::StrCat("L3 could not finish its last writes: ", status.message()));
  }
}

absl::Status RocksDbStore::Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                               const std::atomic<bool>& cancelled) {
  absl::StatusOr<std::shared_ptr<const PendingRecord>> prepared =
      Prepare(record, std::move(payload));
  if (!prepared.ok()) return prepared.status();
  const uint64_t bytes = (*prepared)->FileBytes();
  for (;;) {
    bool admitted = false;
    {
      absl::MutexLock lock(&mu_);
      if (cancelled.load()) return absl::CancelledError("the put was cancelled");
      if (writable_ && (open_->empty() || open_->file_bytes + bytes <= TargetBytesLocked())) {
        absl::Status status = AdmitLocked(*prepared);
        if (!status.ok() || open_->file_bytes < TargetBytesLocked()) return status;
        admitted = true;
      }
      if (!writable_ && options_.clock->MonotonicNow() < retry_at_) {
        return absl::UnavailableError("the disk refuses writes; it will be tried again");
      }
    }
    absl::MutexLock writer(&writer_mu_);
    absl::Status status = Recover();
    if (!status.ok()) return status;
    bool full;
    {
      absl::MutexLock lock(&mu_);
      full = !open_->empty() && open_->file_bytes + (admitted ? 0 : bytes) >= TargetBytesLocked();
    }
    if (full) status = Seal();
    if (!status.ok() || admitted) return status;
  }
}

absl::StatusOr<std::shared_ptr<const PendingRecord>> RocksDbStore::Prepare(
    const StoredRecord& record, std::unique_ptr<char[]> payload) const {
  EMB_CHECK(record.info != nullptr && payload != nullptr);
  // What does not pass here could not be read back.
  absl::Status valid = ValidateLayout(record.info->layout);
  if (valid.ok()) valid = ValidateMetadata(record.info->metadata);
  if (!valid.ok()) return valid;
  const uint64_t payload_bytes = record.info->payload_bytes();
  auto pending = std::make_shared<PendingRecord>();
  pending->record = record;
  PayloadHasher hasher;
  for (uint64_t at = 0; at < payload_bytes; at += kChunkBytes) {
    if (at > 0 && options_.pause) options_.pause();
    hasher.Add(payload.get() + at, std::min(kChunkBytes, payload_bytes - at));
  }
  pending->hash = hasher.Finish();
  pending->header = EncodeHeader(record, pending->hash);
  pending->payload = std::move(payload);
  pending->last_access = options_.clock->Now();
  const uint64_t file_bytes = pending->FileBytes() + kFileOverheadBytes;
  const uint64_t most = MostFileBytes(file_bytes);
  if (file_bytes > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("payload: ", payload_bytes, " bytes do not fit L3: ", file_bytes,
                     " with its file's overhead > ", most,
                     " of the capacity, or of what the disk has room for"));
  }
  return pending;
}

// The largest file that there could be room for, if everything else were dropped. The disk is asked
// only for one with a large value: that it is full is no reason to refuse others.
uint64_t RocksDbStore::MostFileBytes(uint64_t wanted) const {
  uint64_t bound = options_.capacity_bytes;
  uint64_t used = 0;
  bool large = false;
  {
    absl::MutexLock lock(&mu_);
    used = disk_bytes_;
    large = wanted > TargetBytesLocked() + kFileOverheadBytes;
  }
  if (large) {
    const auto space = directory_->Space();
    if (space.has_value()) bound = std::min(bound, used + space->free);
  }
  return bound - ReserveOf(bound);
}

absl::Status RocksDbStore::AdmitLocked(std::shared_ptr<const PendingRecord> pending) {
  if (open_->empty()) {
    open_->records.clear();
    open_->since = options_.clock->MonotonicNow();
    kicked_ = true;
  }
  IndexEntry entry;
  entry.generation = pending->record.generation;
  entry.payload_bytes = pending->payload_bytes();
  entry.heap_bytes = pending->heap_bytes();
  entry.model_epoch = pending->record.model_epoch;
  entry.file = open_->number;
  entry.entry = static_cast<uint32_t>(open_->records.size());
  std::optional<IndexEntry> replaced;
  absl::Status status = index_.Put(pending->key(), entry, &replaced);
  if (!status.ok()) return status;
  open_->Add(std::move(pending));
  if (replaced) ReleaseLocked(*replaced);
  return absl::OkStatus();
}

void RocksDbStore::ReleaseLocked(const IndexEntry& removed) {
  if (removed.file == open_->number) open_->Release(removed.entry);
}

std::optional<IndexEntry> RocksDbStore::ForgetLocked(const CacheKey& key, uint64_t generation) {
  std::optional<IndexEntry> removed = index_.Forget(key, generation);
  if (removed) ReleaseLocked(*removed);
  if (index_.has_dirty()) kicked_ = true;
  return removed;
}

std::optional<StoredPlace> RocksDbStore::Find(const CacheKey& key) const {
  absl::MutexLock lock(&mu_);
  const IndexEntry* found = index_.Find(key);
  if (found == nullptr) return std::nullopt;
  return StoredPlace{.generation = found->generation,
                     .model_epoch = found->model_epoch,
                     .payload_bytes = found->payload_bytes,
                     .heap_bytes = found->heap_bytes};
}

std::shared_ptr<const PendingRecord> RocksDbStore::PendingAtLocked(const IndexEntry& at) const {
  if (at.file == open_->number) return open_->records[at.entry];
  if (sealing_ != nullptr && at.file == sealing_->number) return sealing_->records[at.entry];
  return nullptr;
}

absl::StatusOr<StoredRecord> RocksDbStore::Read(const CacheKey& key, uint64_t generation,
                                                char* to) {
  return ReadAs(key, generation, /*touch=*/true, to);
}

absl::StatusOr<StoredRecord> RocksDbStore::Check(const CacheKey& key, uint64_t generation,
                                                 char* to) {
  return ReadAs(key, generation, /*touch=*/false, to);
}

absl::StatusOr<StoredRecord> RocksDbStore::ReadAs(const CacheKey& key, uint64_t generation,
                                                  bool touch, char* to) {
  std::shared_ptr<const PendingRecord> pending;
  std::shared_ptr<RocksDbHandle> db;
  IndexEntry at;
  int phase = 0;
  {
    absl::MutexLock lock(&mu_);
    const IndexEntry* found = index_.Find(key);
    if (found == nullptr || found->generation != generation) {
      return absl::NotFoundError(absl::StrCat("no generation ", generation, " of the key"));
    }
    at = *found;
    pending = PendingAtLocked(at);
    if (pending == nullptr) {
      if (db_ == nullptr) return absl::UnavailableError("the database is being opened again");
      db = db_;
      phase = phase_;
      ++readers_[phase];
    }
  }
  if (pending != nullptr) return ReadPending(*pending, touch, to);
  // A check is of what RocksDB needs too.
  absl::StatusOr<StoredRecord> record =
      touch ? db->ReadRecord(key, at, to) : db->ReadRecordByKey(key, at, to);
  db.reset();
  absl::MutexLock lock(&mu_);
  --readers_[phase];
  if (!record.ok()) return ReadFailedLocked(key, at, record.status());
  if (touch) index_.Touch(key, generation);
  return record;
}

absl::StatusOr<StoredRecord> RocksDbStore::ReadPending(const PendingRecord& pending, bool touch,
                                                       char* to) {
  std::memcpy(to, pending.payload.get(), pending.payload_bytes());
  const bool intact = HashPayload(to, pending.payload_bytes()) == pending.hash;
  absl::MutexLock lock(&mu_);
  if (intact) {
    if (touch) index_.Touch(pending.key(), pending.record.generation);
    return pending.record;
  }
  ++corruptions_;
  ForgetLocked(pending.key(), pending.record.generation);
  return absl::DataLossError("a record changed in RAM before it was written");
}

absl::Status RocksDbStore::ReadFailedLocked(const CacheKey& key, const IndexEntry& at,
                                            absl::Status failure) {
  if (!absl::IsDataLoss(failure)) {
    ++io_errors_;
    return failure;
  }
  const IndexEntry* found = index_.Find(key);
  auto file = files_.find(at.file);
  if (found == nullptr || found->generation != at.generation || found->file != at.file ||
      file == files_.end() || file->second.dropping) {
    return absl::NotFoundError("the record left the store while it was read");
  }
  ++corruptions_;
  ForgetLocked(key, at.generation);
  if (++file->second.damaged > kMaxDamagedRecords) damaged_files_.insert(at.file);
  kicked_ = true;
  return failure;
}

bool RocksDbStore::Forget(const CacheKey& key, uint64_t generation) {
  absl::MutexLock lock(&mu_);
  ForgetLocked(key, generation);
  return index_.IsDirty(key);
}

absl::Status RocksDbStore::Remove(const CacheKey& key, uint64_t generation) {
  {
    absl::MutexLock lock(&mu_);
    ForgetLocked(key, generation);
    if (!index_.IsDirty(key)) return absl::OkStatus();
  }
  absl::MutexLock writer(&writer_mu_);
  return WriteMeta(/*always=*/false);
}

absl::Status RocksDbStore::SetModelEpoch(absl::string_view model, uint64_t epoch) {
  bool more = true;
  bool dirty = false;
  {
    absl::MutexLock lock(&mu_);
    index_.RaiseEpoch(model, epoch);
    dirty = index_.IsEpochDirty(model);
  }
  while (more) {
    absl::MutexLock lock(&mu_);
    const std::vector<IndexEntry> erased = index_.EraseHidden(model, kEraseBatch);
    for (const IndexEntry& entry : erased) ReleaseLocked(entry);
    more = !erased.empty();
  }
  if (!dirty) return absl::OkStatus();
  absl::MutexLock writer(&writer_mu_);
  return WriteMeta(/*always=*/false);
}

absl::Status RocksDbStore::Flush() {
  absl::MutexLock writer(&writer_mu_);
  absl::Status status = Recover();
  if (status.ok()) status = Seal();
  if (status.ok()) status = WriteMeta(/*always=*/false);
  // What was sealed may have made others' records pending again.
  if (status.ok()) status = Seal();
  return status;
}

void RocksDbStore::List(absl::string_view after,
                        absl::FunctionRef<bool(const CacheKey&, const StoredPlace&)> visit) const {
  absl::MutexLock lock(&mu_);
  index_.List(after, [&](const CacheKey& key, const IndexEntry& entry) {
    return visit(key, StoredPlace{.generation = entry.generation,
                                  .model_epoch = entry.model_epoch,
                                  .payload_bytes = entry.payload_bytes,
                                  .heap_bytes = entry.heap_bytes});
  });
}

std::vector<CacheKey> RocksDbStore::TakeLost(bool* overflowed) {
  absl::MutexLock lock(&mu_);
  return index_.TakeLost(overflowed);
}

uint64_t RocksDbStore::max_generation() const {
  absl::MutexLock lock(&mu_);
  return index_.max_generation();
}

std::vector<std::pair<std::string, uint64_t>> RocksDbStore::ModelEpochs() const {
  absl::MutexLock lock(&mu_);
  return index_.ModelEpochs();
}

StoreStats RocksDbStore::GetStats() const {
  absl::MutexLock lock(&mu_);
  StoreStats stats;
  stats.entries = index_.entries();
  stats.payload_bytes = index_.payload_bytes();
  stats.disk_bytes = disk_bytes_;
  stats.capacity_bytes = bound_;
  stats.bytes_written = bytes_written_;
  stats.files = files_.size();
  stats.evictions = evictions_;
  stats.corruptions = corruptions_;
  stats.io_errors = io_errors_;
  stats.writable = writable_;
  return stats;
}

RocksDbStore::Due RocksDbStore::DueLocked() const {
  const absl::Duration now = options_.clock->MonotonicNow();
  Due due;
  if (!writable_) {
    due.recover = now >= retry_at_;
    return due;
  }
  due.seal = !open_->empty() && now >= open_->since + options_.seal_after;
  due.meta = index_.has_dirty();
  due.drop = !damaged_files_.empty();
  return due;
}

absl::Duration RocksDbStore::UntilDueLocked() const {
  if (DueLocked().any()) return absl::ZeroDuration();
  const absl::Duration now = options_.clock->MonotonicNow();
  if (!writable_) return retry_at_ - now;
  if (!open_->empty()) return open_->since + options_.seal_after - now;
  return absl::InfiniteDuration();
}

void RocksDbStore::Tick() {
  {
    absl::MutexLock lock(&mu_);
    if (!DueLocked().any()) return;
  }
  absl::MutexLock writer(&writer_mu_);
  if (!Recover().ok()) return;
  Due due;
  {
    absl::MutexLock lock(&mu_);
    due = DueLocked();
  }
  // Each logs and counts its own failure; one that fails makes the next one refuse.
  absl::Status status;
  if (due.seal) status = Seal();
  if (status.ok() && due.meta) status = WriteMeta(/*always=*/false);
  if (status.ok() && due.drop) status = DropDamagedFiles();
}

void RocksDbStore::RunBackground() {
  pthread_setname_np(pthread_self(), "l3-sealer");
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      const auto wake = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || kicked_; };
      mu_.AwaitWithTimeout(absl::Condition(&wake), UntilDueLocked());
      kicked_ = false;
      if (stopping_) return;
    }
    Tick();
  }
}

void RocksDbStore::Log(absl::string_view text) const {
  if (options_.log) options_.log(text);
}

}  // namespace embcache
