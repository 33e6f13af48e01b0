// UnixListener: a listening socket bound to a path. When destroyed it unlinks the
// path, but only while the path still names what it bound. Not thread-safe.

#ifndef EMBCACHE_SERVER_UNIX_LISTENER_H_
#define EMBCACHE_SERVER_UNIX_LISTENER_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/unique_fd.h"

namespace embcache {

// INVALID_ARGUMENT unless `path` fits the kernel's address structure (107 bytes).
absl::Status CheckSocketPath(absl::string_view path);

class UnixListener {
 public:
  // Replaces a socket left at `path` by a dead process; anything else there is FAILED_PRECONDITION.
  // `mode` is the access the socket file gives, whatever the umask.
  // REQUIRES: the caller holds a lock that keeps live daemons from sharing the path.
  static absl::StatusOr<UnixListener> Bind(const std::string& path, mode_t mode,
                                           int type = SOCK_SEQPACKET);
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
