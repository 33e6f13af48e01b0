#include "server/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

constexpr size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kBacklog = 1024;  // less where the kernel says so
constexpr auto kUnchanged = static_cast<uid_t>(-1);

absl::Status ErrnoStatus(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("stat", path);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket; not touching it"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus("unlink", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSocketPath(absl::string_view path) {
  if (path.empty()) return absl::InvalidArgumentError("socket path: empty");
  if (path.size() > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("socket path \"", path, "\": ", path.size(),
                                                   " bytes, at most ", kMaxSocketPathBytes,
                                                   " are possible"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UnixListener> UnixListener::Bind(const std::string& path, int type,
                                                const SocketAccess& access) {
  if (absl::Status ok = CheckSocketPath(path); !ok.ok()) return ok;
  UnixListener listener;
  listener.fd_ = UniqueFd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd_) return ErrnoStatus("socket for", path);
  if (absl::Status ok = RemoveStaleSocket(path); !ok.ok()) return ok;

  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  // The file gets the descriptor's mode less the umask; chmod widens it when owner and group are
  // right. So it is never wider than asked, not even for an instant.
  if (fchmod(listener.fd(), access.mode & 0700) != 0) return ErrnoStatus("fchmod", path);
  if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus("bind", path);
  }
  struct stat bound;
  if (lstat(path.c_str(), &bound) != 0) return ErrnoStatus("stat", path);
  listener.path_ = path;
  listener.device_ = bound.st_dev;
  listener.inode_ = bound.st_ino;
  if ((access.owner.has_value() || access.group.has_value()) &&
      lchown(path.c_str(), access.owner.value_or(kUnchanged), access.group.value_or(kUnchanged)) !=
          0) {
    return ErrnoStatus("chown", path);
  }
  if (chmod(path.c_str(), access.mode) != 0) return ErrnoStatus("chmod", path);
  if (listen(listener.fd(), kBacklog) != 0) return ErrnoStatus("listen", path);
  return listener;
}

UnixListener::UnixListener(UnixListener&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::exchange(other.path_, std::string())),
      device_(other.device_),
      inode_(other.inode_) {}

UnixListener::~UnixListener() {
  struct stat found;
  if (!path_.empty() && lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
      found.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

}  // namespace embcache
