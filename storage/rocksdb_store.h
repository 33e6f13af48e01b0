// RocksDbStore: the PersistentStore on an SSD. A log of files, each written once by SstFileWriter,
// ingested into RocksDB, read by key, and dropped as a whole when room is needed. The format is in
// docs/l3_format.md.
//
//   Put -> open segment (RAM) --full, old or Flush--> sealed file --oldest, room needed--> dropped
//
// The index of everything is in memory (StoreIndex) and is rebuilt from the files' footers when the
// store is opened. Removals and model epochs are small synced writes to a log of their own
// (MetaLog). Records that were read since they were written are written again, up to a quarter of
// their file, when it is dropped.
//
// Locks: writer_mu_ is held across disk writes and taken by writers only; mu_ guards all that is in
// memory and is never held across I/O. Order: writer_mu_, then mu_.
//
// When the disk fails: a file that could not be staged costs its own records. A failed ingest or
// drop *poisons* the RocksDB handle: it is only read from then on, and replaced by a fresh one. In
// all cases writable is false, Put answers UNAVAILABLE, and writing is tried again after 1 s, then
// 2, 4, 5. Reads go on, and so do removals as long as their log can be written.
//
// When the disk is full, though the capacity is not reached: files are dropped as if it were, and
// what the disk holds is the capacity (StoreStats says so) until there is more. But whoever else
// fills the disk would take that room too, so that no more is dropped than what one file needs
// until a file was written, and again in ten minutes while the rest of the disk fills.

#ifndef EMBCACHE_STORAGE_ROCKSDB_STORE_H_
#define EMBCACHE_STORAGE_ROCKSDB_STORE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/clock.h"
#include "storage/meta_log.h"
#include "storage/pending_segment.h"
#include "storage/persistent_store.h"
#include "storage/store_directory.h"
#include "storage/store_index.h"

namespace rocksdb {
class Env;
}

namespace embcache {

class RocksDbHandle;
struct LiveFile;
struct RocksDbSettings;

struct RocksDbStoreOptions {
  std::string path;             // the directory; created if its parent exists
  uint64_t capacity_bytes = 0;  // of everything in it; at least kMinStoreBytes
  Clock* clock = SystemClock();
  // Of a file; a larger value has one of its own. 0: 1/64 of the capacity, at most 64 MiB.
  uint64_t segment_bytes = 0;
  absl::Duration seal_after = absl::Seconds(2);
  // With less than this left on the file system at the start, the store is opened for reading only
  // until there is more. Less than what a full disk is left with by this store itself.
  uint64_t min_free_bytes = uint64_t{512} << 10;
  // 0: 4000, or twice what the capacity holds of full ones. At that number small ones become one.
  uint64_t max_files = 0;
  int max_open_files = 512;
  bool direct_reads = false;  // around the page cache
  // Begin empty, whatever is there.
  bool discard = false;
  // Without it nothing happens by age until somebody calls Tick.
  bool background_thread = true;
  // How RocksDB reaches the disk, for tests; not owned. nullptr: the real one.
  rocksdb::Env* env = nullptr;
  // Called between pieces, of about a MiB, of what is done in the background; may block for some
  // milliseconds.
  std::function<void()> pause;
  // Told of what an operator should know. Called from several threads, with the writers' lock held
  // at times: must be quick, and call nothing of the store's.
  std::function<void(absl::string_view)> log;
};

inline constexpr uint64_t kMinStoreBytes = uint64_t{16} << 20;

class RocksDbStore final : public PersistentStore {
 public:
  // INVALID_ARGUMENT: impossible options. ALREADY_EXISTS: the directory is in use (the message
  // names the process). FAILED_PRECONDITION: it has an unknown version, or is no store. Nothing in
  // it is touched then. Others: it cannot be used now, and may be later.
  static absl::StatusOr<std::unique_ptr<RocksDbStore>> Open(const RocksDbStoreOptions& options);
  // Seals what is pending. No other call may be in progress.
  ~RocksDbStore() override;

  absl::Status Put(const StoredRecord& record, std::unique_ptr<char[]> payload,
                   const std::atomic<bool>& cancelled) override;
  std::optional<StoredPlace> Find(const CacheKey& key) const override;
  absl::StatusOr<StoredRecord> Read(const CacheKey& key, uint64_t generation, char* to) override;
  absl::StatusOr<StoredRecord> Check(const CacheKey& key, uint64_t generation, char* to) override;
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

  // Does what is due: seals an old segment, writes removals that were only forgotten, drops damaged
  // files, tries a failed disk again. The background thread calls it when it is time.
  void Tick();

 private:
  struct File {
    uint64_t bytes = 0;
    uint32_t damaged = 0;   // records that failed their check
    bool dropping = false;  // reads of it may fail from now on
  };
  struct Due {
    bool seal = false;
    bool meta = false;
    bool drop = false;
    bool recover = false;
    bool any() const { return seal || meta || drop || recover; }
  };

  explicit RocksDbStore(const RocksDbStoreOptions& options);

  // rocksdb_store.cc
  absl::StatusOr<std::shared_ptr<const PendingRecord>> Prepare(
      const StoredRecord& record, std::unique_ptr<char[]> payload) const;
  uint64_t MostFileBytes(uint64_t wanted) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AdmitLocked(std::shared_ptr<const PendingRecord> pending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<IndexEntry> ForgetLocked(const CacheKey& key, uint64_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseLocked(const IndexEntry& removed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const PendingRecord> PendingAtLocked(const IndexEntry& at) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<StoredRecord> ReadAs(const CacheKey& key, uint64_t generation, bool touch,
                                      char* to);
  absl::StatusOr<StoredRecord> ReadPending(const PendingRecord& pending, bool touch, char* to);
  absl::Status ReadFailedLocked(const CacheKey& key, const IndexEntry& at, absl::Status failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Due DueLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration UntilDueLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunBackground();
  void Log(absl::string_view text) const;

  // rocksdb_store_writing.cc
  absl::Status Seal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteFile(const PendingSegment& segment, bool* uncertain, WrittenSegment* file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  void SetPositions(const PendingSegment& segment, const std::vector<RecordPosition>& positions)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteMeta(bool always) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Recover() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Poison(absl::Status failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  void BeginBackoff(const absl::Status& failure) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<RocksDbHandle> handle() const ABSL_LOCKS_EXCLUDED(mu_);
  RocksDbSettings HandleSettings() const;

  // rocksdb_store_room.cc
  struct Shortage {
    uint64_t by_capacity = 0;  // bytes over it
    uint64_t by_disk = 0;      // and over what the disk holds
    uint64_t files = 0;
    uint64_t in_files = 0;  // bytes
    uint64_t used = 0;      // in all
    uint64_t bound = 0;
    bool drops_work = true;
  };
  Shortage MeasureShortage(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t TargetBytesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t ReserveOf(uint64_t bound) const;
  uint64_t FreeBytes() const;
  absl::Status MakeRoom(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool MayFollow(uint64_t bound, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_);
  bool LowerBound(const absl::Status& refusal, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EvictOldest(uint64_t* freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ThinOutFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EvictFile(uint64_t file, uint64_t file_bytes, bool keep_all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<const PendingRecord>> ReadSurvivors(
      uint64_t file, uint64_t most_bytes, bool untouched_too,
      const std::vector<FooterEntry>& footer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DropFile(uint64_t file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t EraseFileRecords(uint64_t file, const std::vector<FooterEntry>* footer)
      ABSL_LOCKS_EXCLUDED(mu_);
  void PruneTombstones() ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetEpochs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WaitForReaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DropDamagedFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetDiskBytes() ABSL_LOCKS_EXCLUDED(mu_);

  // rocksdb_store_opening.cc
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status LoadMeta() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<RocksDbHandle>> OpenHandle(bool* read_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  std::unique_ptr<RocksDbHandle> CreateHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  struct LoadedFile;  // a footer that was read
  static std::vector<LoadedFile> ReadFooters(const RocksDbHandle& handle,
                                             const std::vector<LiveFile>& live, size_t* next);
  absl::Status LoadBatch(RocksDbHandle& handle, std::vector<LoadedFile> batch, bool* read_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status LoadFrom(RocksDbHandle& handle, bool* read_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StartEmpty(const absl::Status& reason, bool* read_only)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Reopen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Reconcile(RocksDbHandle& handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SetOpenFileLocked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RocksDbStoreOptions options_;
  const uint64_t segment_bytes_;  // as long as the disk holds the capacity
  const uint64_t max_files_;
  const uint64_t reserve_bytes_;  // likewise
  std::unique_ptr<StoreDirectory> directory_;

  mutable absl::Mutex writer_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::optional<MetaLog> meta_log_ ABSL_GUARDED_BY(writer_mu_);  // set by Open
  bool poisoned_ ABSL_GUARDED_BY(writer_mu_) = false;
  uint64_t meta_bytes_since_room_ ABSL_GUARDED_BY(writer_mu_) = 0;
  // Files were dropped, because the disk was full, to write a file of so many bytes; 0: none since
  // a file was written.
  uint64_t room_made_for_ ABSL_GUARDED_BY(writer_mu_) = 0;
  // The disk takes no more than this for now, whatever it says of its free space (a quota).
  uint64_t refused_at_ ABSL_GUARDED_BY(writer_mu_) = 0;
  absl::Duration refused_until_ ABSL_GUARDED_BY(writer_mu_) = -absl::InfiniteDuration();
  // The most that the disk had room for, among the bounds that files were dropped for of late.
  uint64_t followed_bound_ ABSL_GUARDED_BY(writer_mu_) = 0;
  absl::Duration followed_since_ ABSL_GUARDED_BY(writer_mu_) = -absl::InfiniteDuration();
  absl::Duration bound_logged_ ABSL_GUARDED_BY(writer_mu_) = -absl::InfiniteDuration();

  mutable absl::Mutex mu_;
  StoreIndex index_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<PendingSegment> open_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const PendingSegment> sealing_ ABSL_GUARDED_BY(mu_);  // nullptr at most times
  std::map<uint64_t, File> files_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<uint64_t> damaged_files_ ABSL_GUARDED_BY(mu_);  // to be dropped
  // nullptr while it is replaced. A reader counts itself, under the phase of its beginning, as long
  // as it uses the handle: dropped files give their space back only when no older reader is left.
  std::shared_ptr<RocksDbHandle> db_ ABSL_GUARDED_BY(mu_);
  std::array<int64_t, 2> readers_ ABSL_GUARDED_BY(mu_) = {0, 0};
  int phase_ ABSL_GUARDED_BY(mu_) = 0;

  bool writable_ ABSL_GUARDED_BY(mu_) = true;
  absl::Duration retry_at_ ABSL_GUARDED_BY(mu_);
  absl::Duration backoff_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
  uint64_t disk_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bound_ ABSL_GUARDED_BY(mu_);  // the capacity, or less where the disk holds less
  uint64_t bytes_written_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t evictions_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t corruptions_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t io_errors_ ABSL_GUARDED_BY(mu_) = 0;

  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool kicked_ ABSL_GUARDED_BY(mu_) = false;  // something became due, or will
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_ROCKSDB_STORE_H_
