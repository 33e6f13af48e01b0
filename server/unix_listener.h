// UnixListener: a listening unix socket bound to a path. When destroyed it unlinks the
// path, but only while the path still names what it bound. Not thread-safe.

#ifndef EMBCACHE_SERVER_UNIX_LISTENER_H_
#define EMBCACHE_SERVER_UNIX_LISTENER_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/unique_fd.h"

namespace embcache {

// INVALID_ARGUMENT unless `path` fits the kernel's address structure (107 bytes).
absl::Status CheckSocketPath(absl::string_view path);

// Whom the socket's file lets in, whatever the umask.
struct SocketAccess {
  mode_t mode = 0660;
  // Without a value: as the process makes files.
  std::optional<uid_t> owner;
  std::optional<gid_t> group;
};

class UnixListener {
 public:
  // Replaces a socket left at `path` by a dead process; anything else there is FAILED_PRECONDITION.
  // `type` is SOCK_SEQPACKET or SOCK_STREAM.
  // REQUIRES: the caller holds a lock that keeps live daemons from sharing the path.
  static absl::StatusOr<UnixListener> Bind(const std::string& path, int type,
                                           const SocketAccess& access);
  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();

  int fd() const { return fd_.get(); }

 private:
  UnixListener() = default;

  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_UNIX_LISTENER_H_
