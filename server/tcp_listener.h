// TcpListener: a listening TCP socket. Not thread-safe.

#ifndef EMBCACHE_SERVER_TCP_LISTENER_H_
#define EMBCACHE_SERVER_TCP_LISTENER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/unique_fd.h"

namespace embcache {

// "host:port" or "[host]:port" in its two parts; INVALID_ARGUMENT when it is neither.
struct TcpAddress {
  std::string host;
  std::string port;
};
absl::StatusOr<TcpAddress> ParseTcpAddress(absl::string_view address);
// Whether `host` can be reached from this machine alone: 127.0.0.0/8, ::1 or localhost.
bool IsLoopback(absl::string_view host);

class TcpListener {
 public:
  // Binds the first address that `address` stands for. UNAVAILABLE: taken, or not of this machine.
  static absl::StatusOr<TcpListener> Bind(absl::string_view address);

  int fd() const { return fd_.get(); }
  int port() const { return port_; }

 private:
  TcpListener(UniqueFd fd, int port) : fd_(std::move(fd)), port_(port) {}

  UniqueFd fd_;
  int port_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_TCP_LISTENER_H_
