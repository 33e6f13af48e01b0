// RocksDbHandle: one opened RocksDB database, used as a log of ingested files (docs/l3_format.md).
//
// A record whose position in its file is known is read from there, past RocksDB: straight into its
// place, or, around the page cache, by a DirectReader; one copy, one checksum. Whatever is wrong
// with that, the record is then read by key, and that decides.
//
// Thread-safe for reads. Ingest and Drop are for one thread at a time, and after one of
// them has failed none may be called again: this RocksDB aborts the process when a handle is used
// for another MANIFEST write after a failed one. Close it (the destructor) and open anew.
//
// Nothing is done behind the caller's back: no compaction, no flush, no recovery from errors by
// RocksDB itself, no log files.

#ifndef EMBCACHE_STORAGE_ROCKSDB_HANDLE_H_
#define EMBCACHE_STORAGE_ROCKSDB_HANDLE_H_

#include <rocksdb/db.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "storage/direct_reader.h"
#include "storage/pending_segment.h"
#include "storage/record_format.h"
#include "storage/store_index.h"

namespace embcache {

struct RocksDbSettings {
  std::string path;
  uint64_t capacity_bytes = 0;
  int max_open_files = 512;
  bool direct_reads = false;
  // Not owned; nullptr: the default one. Direct reads by position go past it.
  rocksdb::Env* env = nullptr;
  // Called by RocksDB's threads too; must be quick and call nothing of the store's.
  std::function<void(absl::string_view)> log;
  std::function<void()> pause;  // called between pieces of a file that is written
};

// A segment file that the database has.
struct LiveFile {
  uint64_t number = 0;
  uint64_t bytes = 0;
  bool intact = true;  // the file is there and has the size that was recorded
};

class RocksDbHandle {
 public:
  enum class Mode {
    kCreate,  // read and write; there must be no database yet
    kReadWrite,
    kReadOnly,  // writes nothing at all
  };

  // FAILED_PRECONDITION: another process has it open. RESOURCE_EXHAUSTED: the disk is full.
  // DATA_LOSS: it is damaged. UNAVAILABLE: other I/O errors, which may pass.
  static absl::StatusOr<std::unique_ptr<RocksDbHandle>> Open(const RocksDbSettings& settings,
                                                             Mode mode);

  RocksDbHandle(const RocksDbHandle&) = delete;
  RocksDbHandle& operator=(const RocksDbHandle&) = delete;

  // In ascending order of numbers. DATA_LOSS when there is a file that is none of ours.
  absl::StatusOr<std::vector<LiveFile>> LiveFiles() const;

  // DATA_LOSS when both copies are damaged.
  absl::StatusOr<std::vector<FooterEntry>> ReadFooter(uint64_t file) const;
  // Reads a record and checks all of it. DATA_LOSS: damaged or not there. UNAVAILABLE: it may come
  // back (too many open files).
  absl::StatusOr<StoredRecord> ReadRecord(const CacheKey& key, const IndexEntry& at,
                                          char* to) const;
  // The same by key whatever is known, so that RocksDB's own checksums are checked too.
  absl::StatusOr<StoredRecord> ReadRecordByKey(const CacheKey& key, const IndexEntry& at,
                                               char* to) const;

  // Writes a segment's live records to `path`, synced. What a failed call leaves there is the
  // caller's to remove. Does not touch the database.
  static absl::StatusOr<WrittenSegment> WriteSegment(const RocksDbSettings& settings,
                                                     const std::string& path,
                                                     const PendingSegment& segment);
  // `file` is the number of the segment at `path`.
  absl::Status Ingest(const std::string& path, uint64_t file);
  absl::Status Drop(uint64_t file);

  // Of this handle: records read by position, and those of them that had to be read by key then.
  struct ReadCounts {
    uint64_t by_position = 0;
    uint64_t fallbacks = 0;
  };
  ReadCounts read_counts() const { return {by_position_.load(), fallbacks_.load()}; }

 private:
  class IngestListener;

  RocksDbHandle(const RocksDbSettings& settings, rocksdb::DB* db,
                std::shared_ptr<IngestListener> ingested);

  absl::StatusOr<StoredRecord> ReadAtPosition(const CacheKey& key, const IndexEntry& at,
                                              char* to) const;
  absl::StatusOr<StoredRecord> ReadAroundPageCache(const CacheKey& key, const IndexEntry& at,
                                                   char* to) const ABSL_LOCKS_EXCLUDED(mu_);
  // Where RocksDB keeps the segment file.
  std::string PathOf(uint64_t file) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<IngestListener> ingested_;
  rocksdb::Env* const env_;
  const bool direct_reads_;
  mutable std::atomic<uint64_t> by_position_{0};
  mutable std::atomic<uint64_t> fallbacks_{0};

  mutable absl::Mutex mu_;
  std::map<uint64_t, std::string> paths_ ABSL_GUARDED_BY(mu_);
  // Those that no read uses now: as many as there were reads at a time, kMaxIdleReaders at most.
  mutable std::vector<std::unique_ptr<DirectReader>> idle_readers_ ABSL_GUARDED_BY(mu_);

  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_ROCKSDB_HANDLE_H_
