// MetaLog: the file that makes removals and model epochs of the L3 store durable. Appended to and
// synced; written anew, as a whole, when it has grown to twice what it has to say.
//
// It is a file of ours and not RocksDB's write-ahead log because a damaged byte there can pass for
// the end of the log, and then removed records come back. Here every length has a checksum of its
// own: what is there and wrong is damage; only what is *not* there, at the end, is the mark of a
// crash during an append that was never acknowledged.
//
// Not thread-safe; blocks on the disk. The format is in docs/l3_format.md.

#ifndef EMBCACHE_STORAGE_META_LOG_H_
#define EMBCACHE_STORAGE_META_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/store_index.h"

namespace embcache {

class MetaLog {
 public:
  explicit MetaLog(std::string path) : path_(std::move(path)) {}
  ~MetaLog();

  MetaLog(const MetaLog&) = delete;
  MetaLog& operator=(const MetaLog&) = delete;

  // NOT_FOUND: there is no log. DATA_LOSS: it is damaged. Others: it cannot be read now.
  absl::StatusOr<MetaState> Load();

  // Whether the next write has to be a Rewrite: there is no log yet, it has become too long, or its
  // end is uncertain after a failed write or a crash.
  bool needs_rewrite() const { return fd_ < 0 || bytes_ > rewrite_at_; }
  // Durable when it returns OK. REQUIRES: !needs_rewrite().
  absl::Status Append(const MetaState& change);
  // Replaces all that was written. When it fails, the log on disk is the old one or the new one.
  absl::Status Rewrite(const MetaState& whole);

  uint64_t bytes() const { return bytes_; }

 private:
  void Close();

  const std::string path_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  uint64_t sequence_ = 0;  // of the next record
  uint64_t rewrite_at_ = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_META_LOG_H_
