// How RocksDbStore writes, makes room, and deals with a disk that refuses. Everything here runs
// under writer_mu_, in one thread at a time.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/rocksdb_handle.h"
#include "storage/rocksdb_store.h"

namespace embcache {
namespace {

constexpr absl::Duration kMaxBackoff = absl::Seconds(5);
constexpr absl::Duration kReaderPatience = absl::Seconds(5);
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
  absl::Status room = MakeRoom(segment.file_bytes + kFileOverheadBytes);
  if (!room.ok()) return room;
  const std::string path = directory_->StagedFile(segment.number);
  absl::StatusOr<WrittenSegment> written =
      RocksDbHandle::WriteSegment(HandleSettings(), path, segment);
  if (!written.ok()) {
    directory_->RemoveStaged(segment.number);
    BeginBackoff(written.status());
    return written.status();
  }
  const absl::Status ingested = handle()->Ingest(path, segment.number);
  if (!ingested.ok()) {
    *uncertain = true;
    directory_->RemoveStaged(segment.number);
    return Poison(ingested);
  }
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
  {
    absl::MutexLock lock(&mu_);
    index_.MarkWritten(change);
    bytes_written_ += bytes;
  }
  // Removals alone can fill a disk too. What comes of it is not their failure.
  if (meta_bytes_since_room_ >= reserve_bytes_ / 4 && !poisoned_) (void)MakeRoom(0);
  return absl::OkStatus();
}

absl::Status RocksDbStore::MakeRoom(uint64_t bytes) {
  meta_bytes_since_room_ = 0;
  for (;;) {
    SetDiskBytes();
    uint64_t in_files = 0;
    uint64_t used = 0;
    uint64_t files = 0;
    {
      absl::MutexLock lock(&mu_);
      used = disk_bytes_;
      files = files_.size();
      for (const auto& [number, file] : files_) in_files += file.bytes;
    }
    const uint64_t wanted = used + bytes + reserve_bytes_;
    uint64_t over = wanted > options_.capacity_bytes ? wanted - options_.capacity_bytes : 0;
    if (over == 0 && files < max_files_) return absl::OkStatus();
    if (over > 0 && directory_->HasAside()) {
      directory_->RemoveAside();
      continue;
    }
    if (over > in_files) {
      return absl::ResourceExhaustedError(
          absl::StrCat("L3: ", bytes, " bytes to write + ", used - in_files, " fixed + ",
                       reserve_bytes_, " reserve > capacity ", options_.capacity_bytes));
    }
    absl::Status evicted;
    if (over == 0) evicted = ThinOutFiles();
    for (uint64_t freed = 0; evicted.ok() && freed < over;) evicted = EvictOldest(&freed);
    if (!evicted.ok()) return evicted;
    absl::Status released = WaitForReaders();
    if (!released.ok()) return released;
  }
}

absl::Status RocksDbStore::EvictOldest(uint64_t* freed) {
  uint64_t file = 0;
  uint64_t file_bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    if (files_.empty()) return absl::ResourceExhaustedError("L3: no file is left to evict");
    file = files_.begin()->first;
    file_bytes = files_.begin()->second.bytes;
  }
  absl::Status evicted = EvictFile(file, file_bytes, /*keep_all=*/false);
  if (evicted.ok()) *freed += file_bytes;
  return evicted;
}

// There is room, but too many files: puts that trickle in make one every few seconds. The records
// of small ones are written again, together; only where all are large the oldest goes with its own.
// A few at a time, so that the file they become is not one too many again.
absl::Status RocksDbStore::ThinOutFiles() {
  const uint64_t wanted = max_files_ - std::min(max_files_, std::max<uint64_t>(2, max_files_ / 16));
  for (bool first = true;; first = false) {
    uint64_t file = 0;
    uint64_t file_bytes = 0;
    bool small = false;
    {
      absl::MutexLock lock(&mu_);
      if (files_.size() <= wanted) return absl::OkStatus();
      const uint64_t room =
          segment_bytes_ > open_->file_bytes ? segment_bytes_ - open_->file_bytes : 0;
      auto found = std::find_if(files_.begin(), files_.end(), [room](const auto& candidate) {
        return candidate.second.bytes <= room / 2;
      });
      small = found != files_.end();
      if (!small && !first) return absl::OkStatus();
      if (!small) found = files_.begin();
      file = found->first;
      file_bytes = found->second.bytes;
    }
    absl::Status evicted = EvictFile(file, file_bytes, /*keep_all=*/small);
    if (!evicted.ok() || !small) return evicted;
  }
}

// What is kept is in RAM until the open segment is sealed: a crash before that loses it as if it
// had been evicted.
absl::Status RocksDbStore::EvictFile(uint64_t file, uint64_t file_bytes, bool keep_all) {
  const std::shared_ptr<RocksDbHandle> db = handle();
  const absl::StatusOr<std::vector<FooterEntry>> footer = db->ReadFooter(file);
  std::vector<std::shared_ptr<const PendingRecord>> survivors;
  if (footer.ok()) {
    survivors = ReadSurvivors(file, keep_all ? file_bytes : file_bytes / 4, keep_all, *footer);
  }
  absl::Status dropped = DropFile(file);
  if (!dropped.ok()) return dropped;
  {
    absl::MutexLock lock(&mu_);
    for (std::shared_ptr<const PendingRecord>& survivor : survivors) {
      // It may have been removed or replaced meanwhile.
      const IndexEntry* found = index_.Find(survivor->key());
      if (found == nullptr || found->file != file) continue;
      if (open_->empty()) open_->since = options_.clock->MonotonicNow();
      const CacheKey key = survivor->key();
      index_.Move(key, open_->number, open_->Add(std::move(survivor)));
      kicked_ = true;
    }
  }
  const uint64_t erased = EraseFileRecords(file, footer.ok() ? &*footer : nullptr);
  {
    absl::MutexLock lock(&mu_);
    evictions_ += erased;
  }
  PruneTombstones();
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const PendingRecord>> RocksDbStore::ReadSurvivors(
    uint64_t file, uint64_t most_bytes, bool untouched_too,
    const std::vector<FooterEntry>& footer) {
  std::vector<std::pair<CacheKey, IndexEntry>> chosen;
  {
    absl::MutexLock lock(&mu_);
    const uint64_t room =
        segment_bytes_ > open_->file_bytes ? segment_bytes_ - open_->file_bytes : 0;
    uint64_t left = std::min(most_bytes, room / 2);
    for (const FooterEntry& entry : footer) {
      const IndexEntry* found = index_.Find(entry.key);
      if (found == nullptr || found->file != file || found->entry != entry.entry ||
          !(found->touched || untouched_too) || found->payload_bytes > left) {
        continue;
      }
      left -= found->payload_bytes;
      chosen.emplace_back(entry.key, *found);
    }
  }
  std::vector<std::shared_ptr<const PendingRecord>> survivors;
  const std::shared_ptr<RocksDbHandle> db = handle();
  for (const auto& [key, at] : chosen) {
    std::unique_ptr<char[]> payload(new char[at.payload_bytes]);
    absl::StatusOr<StoredRecord> record = db->ReadRecord(key, at, payload.get());
    if (!record.ok()) continue;
    absl::StatusOr<std::shared_ptr<const PendingRecord>> prepared =
        Prepare(*record, std::move(payload));
    if (prepared.ok()) survivors.push_back(*std::move(prepared));
  }
  return survivors;
}

absl::Status RocksDbStore::DropFile(uint64_t file) {
  if (poisoned_) return absl::UnavailableError("the database has to be opened again first");
  {
    absl::MutexLock lock(&mu_);
    files_[file].dropping = true;
  }
  // Only then may its records leave the index: one that is on disk has to be known.
  absl::Status dropped = handle()->Drop(file);
  if (!dropped.ok()) return Poison(dropped);
  absl::MutexLock lock(&mu_);
  files_.erase(file);
  damaged_files_.erase(file);
  return absl::OkStatus();
}

uint64_t RocksDbStore::EraseFileRecords(uint64_t file, const std::vector<FooterEntry>* footer) {
  uint64_t erased = 0;
  if (footer == nullptr) {
    std::optional<CacheKey> after;
    bool more = true;
    while (more) {
      absl::MutexLock lock(&mu_);
      more = index_.EraseFile(file, kIndexBatch, &after, &erased);
    }
    return erased;
  }
  for (size_t at = 0; at < footer->size(); at += kIndexBatch) {
    absl::MutexLock lock(&mu_);
    const size_t end = std::min(footer->size(), at + kIndexBatch);
    for (size_t i = at; i < end; ++i) {
      const FooterEntry& entry = (*footer)[i];
      if (index_.ErasePlace(entry.key, file, entry.entry)) ++erased;
    }
  }
  return erased;
}

void RocksDbStore::PruneTombstones() {
  absl::MutexLock lock(&mu_);
  uint64_t oldest = sealing_ != nullptr ? sealing_->number : open_->number;
  if (!files_.empty()) oldest = std::min(oldest, files_.begin()->first);
  index_.PruneTombstones(oldest);
}

// Waits for the readers that began before now; RocksDB keeps a dropped file until they end.
absl::Status RocksDbStore::WaitForReaders() {
  absl::MutexLock lock(&mu_);
  const absl::Time deadline = absl::Now() + kReaderPatience;
  for (int round = 0; round < 2; ++round) {
    const int old_phase = phase_;
    phase_ = 1 - phase_;
    const auto gone = [this, old_phase]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return readers_[old_phase] == 0; };
    if (!mu_.AwaitWithDeadline(absl::Condition(&gone), deadline)) {
      return absl::UnavailableError("a read holds the room that was made");
    }
  }
  return absl::OkStatus();
}

absl::Status RocksDbStore::DropDamagedFiles() {
  std::vector<uint64_t> files;
  {
    absl::MutexLock lock(&mu_);
    files.assign(damaged_files_.begin(), damaged_files_.end());
  }
  const std::shared_ptr<RocksDbHandle> db = handle();
  for (uint64_t file : files) {
    const absl::StatusOr<std::vector<FooterEntry>> footer = db->ReadFooter(file);
    absl::Status dropped = DropFile(file);
    if (!dropped.ok()) return dropped;
    const uint64_t erased = EraseFileRecords(file, footer.ok() ? &*footer : nullptr);
    Log(absl::StrCat("L3 dropped file ", file, ", which is damaged, and the ", erased,
                     " records that were left of it"));
  }
  SetDiskBytes();
  PruneTombstones();
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
  if (status.ok()) status = directory_->Probe(std::min(kProbeBytes, segment_bytes_));
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
