// How RocksDbStore makes room: by dropping files. Everything here runs under writer_mu_, in one
// thread at a time.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/rocksdb_handle.h"
#include "storage/rocksdb_store.h"

namespace embcache {
namespace {

constexpr absl::Duration kReaderPatience = absl::Seconds(5);
constexpr size_t kIndexBatch = 2048;
constexpr uint64_t kLeastTargetBytes = uint64_t{1} << 20;
// A drop writes a little. One that fails for want of space makes more trouble than it ends.
constexpr uint64_t kDropBytes = uint64_t{64} << 10;
// How long a refusal counts: then a file is risked to see whether the disk takes more.
constexpr absl::Duration kRefusalHolds = absl::Minutes(1);
// How fast what somebody else takes of the disk is followed: by a file in this time.
constexpr absl::Duration kFollowPause = absl::Minutes(10);
constexpr absl::Duration kLogPause = absl::Minutes(10);

}  // namespace

uint64_t RocksDbStore::FreeBytes() const {
  const auto space = directory_->Space();
  return space.has_value() ? space->free : 0;
}

// On a disk that holds less than the capacity files are smaller too.
uint64_t RocksDbStore::TargetBytesLocked() const {
  if (bound_ >= options_.capacity_bytes) return segment_bytes_;
  return std::min(segment_bytes_, std::max(bound_ / 16, kLeastTargetBytes));
}

// What has to stay free of it for what is written beside the files. One that does not shrink with
// the bound would forbid a small disk to be written at all.
uint64_t RocksDbStore::ReserveOf(uint64_t bound) const {
  return std::min(reserve_bytes_, bound / 16);
}

// Sets the bound anew, too.
RocksDbStore::Shortage RocksDbStore::MeasureShortage(uint64_t bytes) {
  SetDiskBytes();
  const auto space = directory_->Space();
  const bool refused = options_.clock->MonotonicNow() < refused_until_;
  Shortage found;
  found.drops_work = !space.has_value() || space->free >= kDropBytes;
  uint64_t bound = options_.capacity_bytes;
  {
    absl::MutexLock lock(&mu_);
    found.used = disk_bytes_;
    found.files = files_.size();
    for (const auto& [number, file] : files_) found.in_files += file.bytes;
    if (space.has_value()) bound = std::min(bound, found.used + space->free);
    if (refused) bound = std::min(bound, refused_at_);
    bound_ = bound;
  }
  found.bound = bound;
  const uint64_t wanted = found.used + bytes + reserve_bytes_;
  if (wanted > options_.capacity_bytes) found.by_capacity = wanted - options_.capacity_bytes;
  const uint64_t wanted_here = found.used + bytes + ReserveOf(bound);
  if (wanted_here > bound) found.by_disk = wanted_here - bound;
  if (bound < options_.capacity_bytes && found.by_disk > 0 &&
      options_.clock->MonotonicNow() >= bound_logged_ + kLogPause) {
    bound_logged_ = options_.clock->MonotonicNow();
    std::string text = absl::StrCat("L3 cannot grow to its capacity of ", options_.capacity_bytes,
                                    " bytes: the disk has room for ", bound, ", of which ",
                                    found.used, " are used");
    if (found.by_disk > found.in_files) {
      absl::StrAppend(&text, "; whatever it drops, it needs ", found.by_disk - found.in_files,
                      " more to be written for sure");
    }
    Log(text);
  }
  return found;
}

// For a file of so many bytes; 0: for what else may have to be written.
absl::Status RocksDbStore::MakeRoom(uint64_t bytes) {
  meta_bytes_since_room_ = 0;
  bool may_drop_for_disk = bytes == 0 || bytes > room_made_for_;
  for (bool first = true;; first = false) {
    const Shortage found = MeasureShortage(bytes);
    if (first && found.by_disk > 0 && directory_->HasAside()) {
      directory_->RemoveAside();
      continue;
    }
    // Where dropping does not help, the disk is asked as it is.
    const bool for_disk = may_drop_for_disk && found.by_disk > found.by_capacity &&
                          found.by_disk <= found.in_files && found.drops_work &&
                          MayFollow(found.bound, bytes);
    const uint64_t over = for_disk ? found.by_disk : found.by_capacity;
    if (over == 0 && found.files < max_files_) return absl::OkStatus();
    if (over > found.in_files) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "L3: ", bytes, " bytes to write + ", found.used - found.in_files, " fixed + ",
          reserve_bytes_, " reserve > capacity ", options_.capacity_bytes));
    }
    if (for_disk) {
      may_drop_for_disk = false;
      room_made_for_ = std::max(room_made_for_, bytes);
    }
    absl::Status evicted;
    if (over == 0) evicted = ThinOutFiles();
    for (uint64_t freed = 0; evicted.ok() && freed < over;) evicted = EvictOldest(&freed);
    if (!evicted.ok()) return evicted;
    absl::Status released = WaitForReaders();
    if (!released.ok()) return released;
  }
}

// Whether files may be dropped to stay within `bound`. When that falls, somebody else is filling
// the disk, and would take whatever this store gives up.
bool RocksDbStore::MayFollow(uint64_t bound, uint64_t bytes) {
  const absl::Duration now = options_.clock->MonotonicNow();
  if (bound > followed_bound_ || now >= followed_since_ + kFollowPause) {
    followed_bound_ = bound;
    followed_since_ = now;
  }
  return bound + bytes + ReserveOf(bound) >= followed_bound_;
}

// After a file of `bytes` was refused: whether MakeRoom may bring more. A disk that refuses what it
// says to have room for has a quota, and its end is where it refused. A store that holds next to
// nothing is not emptied for a single refusal.
bool RocksDbStore::LowerBound(const absl::Status& refusal, uint64_t bytes) {
  if (!absl::IsResourceExhausted(refusal) || bytes <= room_made_for_ || poisoned_) return false;
  const Shortage found = MeasureShortage(bytes);
  const uint64_t reserve =
      std::max(ReserveOf(found.used), std::min(reserve_bytes_, kLeastTargetBytes));
  if (bytes + reserve > found.in_files || !found.drops_work || !MayFollow(found.used, bytes)) {
    return false;
  }
  {
    absl::MutexLock lock(&mu_);
    ++io_errors_;
  }
  refused_at_ = found.used;
  refused_until_ = options_.clock->MonotonicNow() + kRefusalHolds;
  return true;
}

// One that holds nothing any more goes before the oldest.
absl::Status RocksDbStore::EvictOldest(uint64_t* freed) {
  uint64_t file = 0;
  uint64_t file_bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    if (files_.empty()) return absl::ResourceExhaustedError("L3: no file is left to evict");
    auto found = std::find_if(files_.begin(), files_.end(),
                              [this](const auto& candidate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                return index_.entries_in(candidate.first) == 0;
                              });
    if (found == files_.end()) found = files_.begin();
    file = found->first;
    file_bytes = found->second.bytes;
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
      const uint64_t room = TargetBytesLocked() - std::min(TargetBytesLocked(), open_->file_bytes);
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
    const uint64_t room = TargetBytesLocked() - std::min(TargetBytesLocked(), open_->file_bytes);
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

}  // namespace embcache
