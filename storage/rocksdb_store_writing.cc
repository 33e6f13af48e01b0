// How RocksDbStore writes, and deals with a disk that refuses. Everything here runs under
// writer_mu_, in one thread at a time.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/rocksdb_handle.h"
#include "storage/rocksdb_store.h"

namespace embcache {
namespace {

constexpr absl::Duration kMaxBackoff = absl::Seconds(5);
constexpr uint64_t kProbeBytes = uint64_t{1} << 20;
constexpr size_t kIndexBatch = 2048;

}  // namespace

std::shared_ptr<RocksDbHandle> RocksDbStore::handle() const {
  absl::MutexLock lock(&mu_);
  return db_;
}

RocksDbSettings RocksDbStore::HandleSettings() const {
  return {directory_->db(),
          options_.capacity_bytes,
          options_.max_open_files,
          options_.direct_reads,
          options_.env,
          options_.log,
          options_.pause};
}

absl::Status RocksDbStore::Seal() {
  std::shared_ptr<const PendingSegment> segment;
  {
    absl::MutexLock lock(&mu_);
    if (open_->empty()) return absl::OkStatus();
    segment = std::move(open_);
    sealing_ = segment;
    SetOpenFileLocked(segment->number + 1);
  }
  bool uncertain = false;
  WrittenSegment file;
  const absl::Status status = WriteFile(*segment, &uncertain, &file);
  {
    absl::MutexLock lock(&mu_);
    sealing_ = nullptr;
    if (status.ok()) {
      files_[segment->number].bytes = file.bytes;
      bytes_written_ += file.bytes;
      backoff_ = absl::Seconds(1);
    } else {
      for (uint32_t i = 0; i < segment->records.size(); ++i) {
        if (segment->records[i] == nullptr) continue;
        const PendingRecord& lost = *segment->records[i];
        if (uncertain) {
          index_.ForgetUncertain(lost.key(), lost.record.generation);
        } else {
          index_.ErasePlace(lost.key(), segment->number, i);
        }
      }
    }
  }
  if (status.ok()) SetPositions(*segment, file.positions);
  SetDiskBytes();
  // Removals and replacements that were waiting ride along; their failure is not this file's.
  if (status.ok()) (void)WriteMeta(/*always=*/false);
  return status;
}

void RocksDbStore::SetPositions(const PendingSegment& segment,
                                const std::vector<RecordPosition>& positions) {
  for (size_t at = 0; at < segment.records.size(); at += kIndexBatch) {
    absl::MutexLock lock(&mu_);
    const size_t end = std::min(segment.records.size(), at + kIndexBatch);
    for (size_t i = at; i < end; ++i) {
      if (segment.records[i] == nullptr) continue;
      index_.SetPosition(segment.records[i]->key(), segment.number, static_cast<uint32_t>(i),
                         positions[i]);
    }
  }
}

absl::Status RocksDbStore::WriteFile(const PendingSegment& segment, bool* uncertain,
                                     WrittenSegment* file) {
  if (poisoned_) return absl::UnavailableError("the database has to be opened again first");
  const uint64_t bytes = segment.file_bytes + kFileOverheadBytes;
  const std::string path = directory_->StagedFile(segment.number);
  absl::StatusOr<WrittenSegment> written = absl::CancelledError();
  for (int tries = 0;; ++tries) {
    absl::Status room = MakeRoom(bytes);
    if (!room.ok()) return room;
    written = RocksDbHandle::WriteSegment(HandleSettings(), path, segment);
    if (written.ok()) break;
    directory_->RemoveStaged(segment.number);
    if (tries > 0 || !LowerBound(written.status(), bytes)) break;
  }
  if (!written.ok()) {
    BeginBackoff(written.status());
    return written.status();
  }
  const absl::Status ingested = handle()->Ingest(path, segment.number);
  if (!ingested.ok()) {
    *uncertain = true;
    directory_->RemoveStaged(segment.number);
    return Poison(ingested);
  }
  room_made_for_ = 0;
  *file = *std::move(written);
  return absl::OkStatus();
}

// Without `always`, only when there is something new to say.
absl::Status RocksDbStore::WriteMeta(bool always) {
  const bool whole = meta_log_->needs_rewrite();
  MetaState change;
  {
    absl::MutexLock lock(&mu_);
    if (!always && !index_.has_dirty()) return absl::OkStatus();
    change = whole ? index_.CollectAll() : index_.CollectDirty();
  }
  const uint64_t before = whole ? 0 : meta_log_->bytes();
  const absl::Status status = whole ? meta_log_->Rewrite(change) : meta_log_->Append(change);
  if (!status.ok()) {
    BeginBackoff(status);
    return absl::UnavailableError(
        absl::StrCat("removals cannot be written now: ", status.message()));
  }
  const uint64_t bytes = meta_log_->bytes() - before;
  meta_bytes_since_room_ += bytes;
  uint64_t reserve = 0;
  {
    absl::MutexLock lock(&mu_);
    index_.MarkWritten(change);
    bytes_written_ += bytes;
    reserve = ReserveOf(bound_);
  }
  // Removals alone can fill a disk too. What comes of it is not their failure.
  if (meta_bytes_since_room_ >= reserve / 4 && !poisoned_) (void)MakeRoom(0);
  return absl::OkStatus();
}

absl::Status RocksDbStore::Recover() {
  {
    absl::MutexLock lock(&mu_);
    if (writable_) return absl::OkStatus();
    if (options_.clock->MonotonicNow() < retry_at_) {
      return absl::UnavailableError("the disk refuses writes; it will be tried again");
    }
  }
  absl::Status status = poisoned_ ? Reopen() : absl::OkStatus();
  if (status.ok()) {
    const uint64_t bytes = std::min(kProbeBytes, segment_bytes_);
    status = directory_->Probe(bytes);
    if (!status.ok() && LowerBound(status, bytes)) {
      (void)MakeRoom(bytes);
      status = directory_->Probe(bytes);
    }
  }
  if (!status.ok()) {
    BeginBackoff(status);
    return absl::UnavailableError(
        absl::StrCat("the disk still refuses writes: ", status.message()));
  }
  {
    absl::MutexLock lock(&mu_);
    writable_ = true;
  }
  Log("L3 takes writes again");
  return absl::OkStatus();
}

absl::Status RocksDbStore::Poison(absl::Status failure) {
  poisoned_ = true;
  BeginBackoff(failure);
  return failure;
}

void RocksDbStore::BeginBackoff(const absl::Status& failure) {
  absl::Duration backoff;
  {
    absl::MutexLock lock(&mu_);
    ++io_errors_;
    // A removal may fail while the disk is being left alone already.
    if (!writable_ && options_.clock->MonotonicNow() < retry_at_) return;
    writable_ = false;
    backoff = backoff_;
    retry_at_ = options_.clock->MonotonicNow() + backoff;
    backoff_ = std::min(2 * backoff_, kMaxBackoff);
    kicked_ = true;
  }
  Log(absl::StrCat("L3 takes no writes for ", absl::FormatDuration(backoff), ": ",
                   failure.message()));
}

void RocksDbStore::SetDiskBytes() {
  const uint64_t bytes = directory_->Bytes();
  absl::MutexLock lock(&mu_);
  disk_bytes_ = bytes;
}

}  // namespace embcache
