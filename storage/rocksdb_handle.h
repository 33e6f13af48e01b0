// RocksDbHandle: one opened RocksDB database, used as a log of ingested files (docs/l3_format.md).
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

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/pending_segment.h"
#include "storage/record_format.h"
#include "storage/store_index.h"

namespace embcache {

struct RocksDbSettings {
  std::string path;
  uint64_t capacity_bytes = 0;
  int max_open_files = 512;
  bool direct_reads = false;
  rocksdb::Env* env = nullptr;  // not owned; nullptr: the default one
  // Called by RocksDB's threads too; must be quick and call nothing of the store's.
  std::function<void(absl::string_view)> log;
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

  struct LiveFile {
    uint64_t number = 0;
    uint64_t bytes = 0;
    bool intact = true;  // the file is there and has the size that was recorded
  };
  // In ascending order of numbers. DATA_LOSS when there is a file that is none of ours.
  absl::StatusOr<std::vector<LiveFile>> LiveFiles() const;

  // DATA_LOSS when both copies are damaged.
  absl::StatusOr<std::vector<FooterEntry>> ReadFooter(uint64_t file) const;
  // Reads a record and checks all of it. DATA_LOSS: damaged or not there. UNAVAILABLE: it may come
  // back (too many open files).
  absl::StatusOr<StoredRecord> ReadRecord(const CacheKey& key, const IndexEntry& at,
                                          char* to) const;

  // Writes a segment's live records to `path`, synced; returns the file's size. What a failed call
  // leaves there is the caller's to remove. Does not touch the database.
  static absl::StatusOr<uint64_t> WriteSegment(const RocksDbSettings& settings,
                                               const std::string& path,
                                               const PendingSegment& segment);
  absl::Status Ingest(const std::string& path);
  absl::Status Drop(uint64_t file);

 private:
  RocksDbHandle(rocksdb::DB* db, bool direct_reads) : db_(db), direct_reads_(direct_reads) {}

  const std::unique_ptr<rocksdb::DB> db_;
  const bool direct_reads_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_ROCKSDB_HANDLE_H_
