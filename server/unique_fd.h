// UniqueFd: owns one file descriptor and closes it. Move-only, not thread-safe.

#ifndef EMBCACHE_SERVER_UNIQUE_FD_H_
#define EMBCACHE_SERVER_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace embcache {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // The caller owns it from now on.
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_UNIQUE_FD_H_
