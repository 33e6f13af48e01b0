#include "server/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

absl::Status ErrnoStatus(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

std::string HolderOf(int lock_fd) {
  char text[32];
  const ssize_t size = pread(lock_fd, text, sizeof(text), 0);
  const absl::string_view pid =
      absl::StripAsciiWhitespace({text, size > 0 ? static_cast<size_t>(size) : 0});
  // Between locking and writing there is a moment in which nothing is there yet.
  return pid.empty() ? "an unknown process" : absl::StrCat("pid ", pid);
}

}  // namespace

absl::Status MakeDirectory(const std::string& path, mode_t mode) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("mkdir ", parent.string()));
  }
  if (mkdir(path.c_str(), mode) == 0) {
    return chmod(path.c_str(), mode) == 0 ? absl::OkStatus() : ErrnoStatus("chmod", path);
  }
  struct stat found;
  if (errno == EEXIST && stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    return absl::OkStatus();
  }
  return ErrnoStatus("mkdir", path);
}

absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/embcached.lock");
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return ErrnoStatus("open", path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus("flock", path);
    return absl::AlreadyExistsError(
        absl::StrCat(directory, " is served by another daemon, ", HolderOf(lock.get())));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoStatus("write", path);
  }
  return lock;
}

}  // namespace embcache
