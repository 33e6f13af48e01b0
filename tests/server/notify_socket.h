// NotifySocket: the service manager's end of sd_notify(3), for tests.

#ifndef EMBCACHE_TESTS_SERVER_NOTIFY_SOCKET_H_
#define EMBCACHE_TESTS_SERVER_NOTIFY_SOCKET_H_

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace embcache::testing_support {

class NotifySocket {
 public:
  enum class Kind { kPath, kAbstract };

  explicit NotifySocket(Kind kind) {
    static std::atomic<int> next = 0;
    const std::string name = absl::StrCat("/tmp/embnotify.", getpid(), ".", next++);
    address_ = kind == Kind::kAbstract ? absl::StrCat("@", name) : name;
    sockaddr_un bound = {AF_UNIX, {}};
    std::memcpy(bound.sun_path, address_.data(), address_.size());
    if (kind == Kind::kAbstract) bound.sun_path[0] = '\0';
    const auto size = offsetof(sockaddr_un, sun_path) + address_.size();
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&bound), static_cast<socklen_t>(size)) != 0) {
      std::abort();
    }
  }
  ~NotifySocket() {
    close(fd_);
    if (address_[0] != '@') unlink(address_.c_str());
  }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  // As in NOTIFY_SOCKET.
  const std::string& address() const { return address_; }

  // The next notification; "" when none comes in time.
  std::string Receive(absl::Duration timeout = absl::Seconds(30)) const {
    pollfd event = {fd_, POLLIN, 0};
    if (poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return "";
    char message[4096];
    const ssize_t size = recv(fd_, message, sizeof(message), 0);
    return size <= 0 ? "" : std::string(message, static_cast<size_t>(size));
  }

 private:
  std::string address_;
  int fd_ = -1;
};

}  // namespace embcache::testing_support

#endif  // EMBCACHE_TESTS_SERVER_NOTIFY_SOCKET_H_
