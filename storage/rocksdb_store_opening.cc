// How RocksDbStore finds its state again: at the start, and when a poisoned handle is replaced.

#include <pthread.h>

#include <algorithm>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "storage/rocksdb_handle.h"
#include "storage/rocksdb_store.h"

namespace embcache {
namespace {

uint64_t SegmentBytes(const RocksDbStoreOptions& options) {
  if (options.segment_bytes != 0) return options.segment_bytes;
  return std::min<uint64_t>(options.capacity_bytes / 64, uint64_t{64} << 20);
}

uint64_t MaxFiles(const RocksDbStoreOptions& options) {
  if (options.max_files != 0) return options.max_files;
  return std::max<uint64_t>(4000, 2 * options.capacity_bytes / SegmentBytes(options));
}

uint64_t ReserveBytes(const RocksDbStoreOptions& options) {
  return std::min<uint64_t>(options.capacity_bytes / 16, uint64_t{8} << 20);
}

// Records whose footers are taken in at a time, for a few tens of MB of them in memory.
constexpr size_t kLoadBatch = 200'000;

}  // namespace

struct RocksDbStore::LoadedFile {
  LiveFile live;
  absl::StatusOr<std::vector<FooterEntry>> footer;
};

// Reads footers from file number `*next` of `live` on, up to kLoadBatch records.
std::vector<RocksDbStore::LoadedFile> RocksDbStore::ReadFooters(const RocksDbHandle& handle,
                                                                const std::vector<LiveFile>& live,
                                                                size_t* next) {
  std::vector<LoadedFile> batch;
  for (size_t records = 0; *next < live.size() && records < kLoadBatch; ++*next) {
    const LiveFile& file = live[*next];
    batch.push_back({file, file.intact ? handle.ReadFooter(file.number)
                                       : absl::DataLossError("missing or of another size")});
    if (batch.back().footer.ok()) records += batch.back().footer->size();
  }
  return batch;
}

RocksDbStore::RocksDbStore(const RocksDbStoreOptions& options)
    : options_(options),
      segment_bytes_(SegmentBytes(options)),
      max_files_(MaxFiles(options)),
      reserve_bytes_(ReserveBytes(options)),
      bound_(options.capacity_bytes) {}

absl::StatusOr<std::unique_ptr<RocksDbStore>> RocksDbStore::Open(
    const RocksDbStoreOptions& options) {
  if (options.capacity_bytes < kMinStoreBytes) {
    return absl::InvalidArgumentError(absl::StrCat("capacity_bytes: ", options.capacity_bytes,
                                                   "; must be at least ", kMinStoreBytes));
  }
  if (options.segment_bytes > options.capacity_bytes / 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment_bytes: ", options.segment_bytes,
                     "; must be at most a quarter of the capacity of ", options.capacity_bytes));
  }
  absl::StatusOr<std::unique_ptr<StoreDirectory>> directory = StoreDirectory::Open(options.path);
  if (!directory.ok()) return directory.status();
  std::unique_ptr<RocksDbStore> store(new RocksDbStore(options));
  {
    absl::MutexLock writer(&store->writer_mu_);
    {
      absl::MutexLock lock(&store->mu_);
      store->SetOpenFileLocked(1);
    }
    store->directory_ = *std::move(directory);
    store->meta_log_.emplace(store->directory_->meta_log());
    absl::Status loaded = store->Load();
    if (!loaded.ok()) {
      store->poisoned_ = true;  // nothing may be written on the way out
      return loaded;
    }
  }
  if (options.background_thread) {
    store->thread_ = std::thread([raw = store.get()] { raw->RunBackground(); });
  }
  return store;
}

void RocksDbStore::SetOpenFileLocked(uint64_t number) {
  open_ = std::make_unique<PendingSegment>(number);
  index_.set_open_file(number);
}

absl::Status RocksDbStore::Load() {
  bool read_only = false;
  absl::Status status;
  if (options_.discard) {
    status = directory_->Discard();
    if (!status.ok()) return absl::UnavailableError(status.message());
  }
  status = LoadMeta();
  absl::StatusOr<std::unique_ptr<RocksDbHandle>> opened = absl::CancelledError();
  if (status.ok()) {
    opened = OpenHandle(&read_only);
    status = opened.status();
  }
  if (status.ok() && *opened != nullptr) status = LoadFrom(**opened, &read_only);
  if (absl::IsDataLoss(status)) {
    opened = absl::CancelledError();  // closed before it is moved away
    status = StartEmpty(status, &read_only);
    if (!status.ok()) return status;
  } else if (!status.ok()) {
    return status;
  } else {
    absl::MutexLock lock(&mu_);
    db_ = *std::move(opened);
  }
  SetDiskBytes();
  if (read_only) {
    (void)Poison(absl::ResourceExhaustedError(
        absl::StrCat(options_.path, ": can only be read for now, with ", FreeBytes(),
                     " bytes free (wanted: ", options_.min_free_bytes, ")")));
    return absl::OkStatus();
  }
  ForgetEpochs();
  // The capacity may be lower than last time. A failure has begun its back-off, and is no reason
  // not to start.
  PruneTombstones();
  const absl::Status trimmed = MakeRoom(0);
  if (!trimmed.ok()) Log(absl::StrCat("L3 could not make room: ", trimmed.message()));
  return absl::OkStatus();
}

// Of models that have nothing on disk any more, not even records that it hides. Only here, where
// all files are known and nothing is under way. The log first: an epoch that came back from it
// would hide what is put from now on.
void RocksDbStore::ForgetEpochs() {
  std::vector<std::string> unneeded;
  MetaState rest;
  {
    absl::MutexLock lock(&mu_);
    unneeded = index_.UnneededEpochs();
    if (unneeded.empty()) return;
    rest = index_.CollectAll();
  }
  const absl::flat_hash_set<absl::string_view> names(unneeded.begin(), unneeded.end());
  std::erase_if(rest.epochs, [&](const auto& epoch) { return names.contains(epoch.first); });
  const absl::Status written = meta_log_->Rewrite(rest);
  if (!written.ok()) {
    Log(absl::StrCat("L3 could not write its log of removals anew: ", written.message()));
    return;
  }
  absl::MutexLock lock(&mu_);
  for (const std::string& model : unneeded) index_.ForgetEpoch(model);
  index_.MarkWritten(rest);
}

absl::Status RocksDbStore::LoadMeta() {
  absl::StatusOr<MetaState> meta = meta_log_->Load();
  if (absl::IsNotFound(meta.status())) {
    // It is made before the database; without it, removed records would come back.
    return directory_->HasDatabase() ? absl::DataLossError(meta.status().message())
                                     : absl::OkStatus();
  }
  if (!meta.ok()) return meta.status();
  uint64_t last_file = 0;
  for (const MetaState::Tombstone& tombstone : meta->tombstones) {
    last_file = std::max(last_file, tombstone.last_file);
  }
  absl::MutexLock lock(&mu_);
  SetOpenFileLocked(last_file + 1);
  index_.LoadMeta(*meta);
  return absl::OkStatus();
}

// A new database, or nullptr where none can be made now.
std::unique_ptr<RocksDbHandle> RocksDbStore::CreateHandle() {
  MetaState whole;
  {
    absl::MutexLock lock(&mu_);
    whole = index_.CollectAll();
  }
  absl::Status status = directory_->Prepare();
  if (status.ok() && meta_log_->needs_rewrite()) status = meta_log_->Rewrite(whole);
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<RocksDbHandle>> created =
        RocksDbHandle::Open(HandleSettings(), RocksDbHandle::Mode::kCreate);
    if (created.ok()) return *std::move(created);
    status = created.status();
    directory_->RemoveDatabase();
  }
  Log(absl::StrCat("L3 cannot make a new database: ", status.message()));
  return nullptr;
}

// A handle of the best kind that can be had; nullptr, with `read_only`, when there is no database
// and none can be made.
absl::StatusOr<std::unique_ptr<RocksDbHandle>> RocksDbStore::OpenHandle(bool* read_only) {
  using Mode = RocksDbHandle::Mode;
  const RocksDbSettings settings = HandleSettings();
  *read_only = FreeBytes() < options_.min_free_bytes || !directory_->Prepare().ok();
  if (!directory_->HasDatabase()) {
    std::unique_ptr<RocksDbHandle> created = *read_only ? nullptr : CreateHandle();
    *read_only = created == nullptr;
    return created;
  }
  if (!directory_->HasDatabaseRoot()) {
    return absl::DataLossError(absl::StrCat(directory_->db(), ": has files but no CURRENT"));
  }
  if (!*read_only) {
    absl::StatusOr<std::unique_ptr<RocksDbHandle>> opened =
        RocksDbHandle::Open(settings, Mode::kReadWrite);
    if (opened.ok() || absl::IsDataLoss(opened.status()) ||
        absl::IsFailedPrecondition(opened.status())) {
      return opened;
    }
    Log(absl::StrCat("L3 cannot be opened for writing: ", opened.status().message()));
    *read_only = true;
  }
  return RocksDbHandle::Open(settings, Mode::kReadOnly);
}

absl::Status RocksDbStore::LoadFrom(RocksDbHandle& handle, bool* read_only) {
  const absl::StatusOr<std::vector<LiveFile>> live = handle.LiveFiles();
  if (!live.ok()) return live.status();
  if (!live->empty()) {
    absl::MutexLock lock(&mu_);
    SetOpenFileLocked(std::max(open_->number, live->back().number + 1));
  }
  size_t next = 0;
  std::vector<LoadedFile> batch = ReadFooters(handle, *live, &next);
  absl::Status status;
  while (status.ok() && !batch.empty()) {
    std::vector<LoadedFile> following;
    std::thread reader([&] {
      pthread_setname_np(pthread_self(), "l3-load");
      following = ReadFooters(handle, *live, &next);
    });
    status = LoadBatch(handle, std::move(batch), read_only);
    reader.join();
    batch = std::move(following);
  }
  if (!status.ok()) return status;
  absl::MutexLock lock(&mu_);
  for (const auto& [model, epoch] : index_.ModelEpochs()) {
    // One that was raised by a record may have come after some that it hides.
    if (index_.IsEpochDirty(model)) (void)index_.EraseHidden(model, SIZE_MAX);
  }
  return absl::OkStatus();
}

absl::Status RocksDbStore::LoadBatch(RocksDbHandle& handle, std::vector<LoadedFile> batch,
                                     bool* read_only) {
  std::vector<std::pair<CacheKey, IndexEntry>> records;
  for (LoadedFile& file : batch) {
    if (absl::IsUnavailable(file.footer.status())) return file.footer.status();
    if (file.footer.ok()) {
      for (FooterEntry& entry : *file.footer) {
        records.emplace_back(
            std::move(entry.key),
            IndexEntry{entry.generation, entry.payload_bytes, entry.model_epoch, file.live.number,
                       entry.entry, entry.heap_bytes, false, entry.position});
      }
      absl::MutexLock lock(&mu_);
      files_[file.live.number].bytes = file.live.bytes;
      continue;
    }
    Log(absl::StrCat("L3 drops file ", file.live.number, ": ", file.footer.status().message()));
    // What cannot be dropped now is dropped by Reconcile, which knows only the files above.
    if (!*read_only && !handle.Drop(file.live.number).ok()) *read_only = true;
    absl::MutexLock lock(&mu_);
    ++corruptions_;
  }
  absl::MutexLock lock(&mu_);
  index_.LoadRecords(std::move(records));
  return absl::OkStatus();
}

// Moves the database away and makes a new one; without space for that, later, and `read_only`.
absl::Status RocksDbStore::StartEmpty(const absl::Status& reason, bool* read_only) {
  Log(absl::StrCat("L3 starts empty; the database is moved to ", directory_->aside(), ": ",
                   reason.message()));
  absl::Status moved = directory_->MoveDatabaseAside();
  if (!moved.ok()) return moved;
  {
    absl::MutexLock lock(&mu_);
    ++corruptions_;
    files_.clear();
    damaged_files_.clear();
    index_.ClearFiles();
    SetOpenFileLocked(open_->number + 1);
  }
  absl::StatusOr<std::unique_ptr<RocksDbHandle>> opened = OpenHandle(read_only);
  if (!opened.ok()) return opened.status();
  absl::MutexLock lock(&mu_);
  db_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status RocksDbStore::Reopen() {
  std::shared_ptr<RocksDbHandle> old;
  {
    absl::MutexLock lock(&mu_);
    old = std::exchange(db_, nullptr);
    const auto unused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return readers_[0] == 0 && readers_[1] == 0;
    };
    mu_.Await(absl::Condition(&unused));
  }
  old.reset();  // the last one: RocksDB opens no database twice
  bool read_only = false;
  absl::StatusOr<std::unique_ptr<RocksDbHandle>> opened = OpenHandle(&read_only);
  absl::Status status = opened.status();
  if (opened.ok() && *opened != nullptr && !read_only) status = Reconcile(**opened);
  if (absl::IsDataLoss(status)) {
    opened = absl::CancelledError();
    status = StartEmpty(status, &read_only);
  } else if (opened.ok()) {
    absl::MutexLock lock(&mu_);
    db_ = *std::move(opened);
  }
  if (!status.ok()) return status;
  if (read_only) return absl::ResourceExhaustedError("the database can only be read");
  poisoned_ = false;
  return absl::OkStatus();
}

// Makes disk and memory agree after a failure that left it open what had happened.
absl::Status RocksDbStore::Reconcile(RocksDbHandle& handle) {
  absl::StatusOr<std::vector<LiveFile>> live = handle.LiveFiles();
  if (!live.ok()) return live.status();
  std::map<uint64_t, File> known;
  {
    absl::MutexLock lock(&mu_);
    known = files_;
  }
  for (const LiveFile& file : *live) {
    const bool wanted = file.intact && known.count(file.number) != 0;
    if (wanted) {
      known.erase(file.number);
      absl::MutexLock lock(&mu_);
      files_[file.number].dropping = false;
      continue;
    }
    absl::Status dropped = handle.Drop(file.number);
    if (!dropped.ok()) return absl::UnavailableError(dropped.message());
  }
  for (const auto& [number, file] : known) {
    {
      absl::MutexLock lock(&mu_);
      files_.erase(number);
      damaged_files_.erase(number);
    }
    EraseFileRecords(number, nullptr);
  }
  return absl::OkStatus();
}

}  // namespace embcache
