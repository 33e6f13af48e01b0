// Small files, read and written whole. Thread-safe; block on the disk.

#ifndef EMBCACHE_STORAGE_SMALL_FILES_H_
#define EMBCACHE_STORAGE_SMALL_FILES_H_

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

// A descriptor that is closed with its scope.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd() {
    if (fd_ >= 0) close(fd_);
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// `name` is for the error message.
absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view name);

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// At most the first `most` bytes.
absl::StatusOr<std::string> ReadFileBegin(const std::string& path, size_t most);

// Makes `path` a file of exactly `bytes`, durably: after a crash at any moment it is the old file
// or the new one, whole. `draft` is a name in the same folder to write it under first. Returns a
// descriptor that appends to it.
absl::StatusOr<int> ReplaceFile(const std::string& path, const std::string& draft,
                                absl::string_view bytes);

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_SMALL_FILES_H_
