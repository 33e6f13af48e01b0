// StoreDirectory: the directory of an L3 store, its lock and its version.
//
//   <path>/LOCK.embcache   locked while the store lives; holds the owner's pid
//   <path>/FORMAT          "embcache-l3 <version>\n", the newest of what is in there
//   <path>/meta.log        removals and model epochs (MetaLog)
//   <path>/db/             the database
//   <path>/db.corrupt/     the last database that could not be opened, until its room is needed
//   <path>/stage/          files being written
//
// Owns the lock and nothing else. Thread-safe; everything here blocks on the disk.

#ifndef EMBCACHE_STORAGE_STORE_DIRECTORY_H_
#define EMBCACHE_STORAGE_STORE_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

class StoreDirectory {
 public:
  // Takes the lock, empties stage/, creates what is missing and raises an older version that can be
  // read as it is; what the disk refuses of that is left to Prepare. ALREADY_EXISTS: another
  // process has the lock (the message names its pid). FAILED_PRECONDITION: the directory has a
  // version this program does not know, or it holds something else than a store. Nothing is touched
  // then. UNAVAILABLE: it cannot be made, read or locked now.
  static absl::StatusOr<std::unique_ptr<StoreDirectory>> Open(absl::string_view path);
  ~StoreDirectory();

  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  // Creates what Open could not. Nothing else may be written before it has succeeded.
  absl::Status Prepare() const;

  std::string db() const { return path_ + "/db"; }
  std::string aside() const { return path_ + "/db.corrupt"; }
  std::string meta_log() const { return path_ + "/meta.log"; }
  std::string StagedFile(uint64_t number) const;

  // Bytes on the disk of everything in the directory, as du counts them.
  uint64_t Bytes() const;
  struct DiskSpace {
    uint64_t total = 0;  // of the file system
    uint64_t free = 0;   // what can still be written to it
  };
  // Nothing when it cannot be told.
  std::optional<DiskSpace> Space() const;
  // Whether db/ has anything in it, and whether it has what a database begins with.
  bool HasDatabase() const;
  bool HasDatabaseRoot() const;

  // Gives up all that was stored: db/ is moved aside, meta.log removed.
  absl::Status Discard() const;
  // Renames db/, if there is one, to db.corrupt/, in place of an older one.
  absl::Status MoveDatabaseAside() const;
  // What a failed creation has left.
  void RemoveDatabase() const;
  bool HasAside() const;
  void RemoveAside() const;
  // Writes and removes a file of `bytes`: does the disk take anything?
  absl::Status Probe(uint64_t bytes) const;
  void RemoveStaged(uint64_t number) const;

 private:
  StoreDirectory(absl::string_view path, int lock_fd) : path_(path), lock_fd_(lock_fd) {}

  const std::string path_;
  const int lock_fd_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_STORE_DIRECTORY_H_
