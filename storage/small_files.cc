#include "storage/small_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"

namespace embcache {

absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view name) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return absl::ErrnoToStatus(written < 0 ? errno : ENOSPC, absl::StrCat("write ", name));
    }
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  return ReadFileBegin(path, std::numeric_limits<size_t>::max());
}

absl::StatusOr<std::string> ReadFileBegin(const std::string& path, size_t most) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  std::string text;
  char piece[64 * 1024];
  for (;;) {
    const ssize_t got = read(fd.get(), piece, std::min(sizeof(piece), most - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("read ", path));
    if (got == 0) return text;
    text.append(piece, got);
  }
}

absl::StatusOr<int> ReplaceFile(const std::string& path, const std::string& draft,
                                absl::string_view bytes) {
  ScopedFd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0640));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", draft));
  absl::Status status = WriteAll(fd.get(), bytes, draft);
  if (status.ok() && fsync(fd.get()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("fsync ", draft));
  }
  if (status.ok() && rename(draft.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("rename ", draft, " to ", path));
  }
  if (!status.ok()) {
    unlink(draft.c_str());
    return status;
  }
  const std::string folder = path.substr(0, path.find_last_of('/') + 1);
  ScopedFd parent(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() < 0 || fsync(parent.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("fsync ", folder));
  }
  return fd.release();
}

}  // namespace embcache
