// OwnFileSystem: a tmpfs of a given size for one test, which nobody else writes to, so that statvfs
// says exactly what the test's daemon takes.
//
// It lives in a mount namespace of the test's own and goes with the process. Root, or a kernel that
// lets users make namespaces, is needed: a test fails, and is not skipped, where neither is given.

#ifndef EMBCACHE_TESTS_CRASH_OWN_FILE_SYSTEM_H_
#define EMBCACHE_TESTS_CRASH_OWN_FILE_SYSTEM_H_

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace embcache::testing_support {

class OwnFileSystem {
 public:
  explicit OwnFileSystem(std::string path) : path_(std::move(path)) {}
  ~OwnFileSystem() { umount2(path_.c_str(), MNT_DETACH); }

  OwnFileSystem(const OwnFileSystem&) = delete;
  OwnFileSystem& operator=(const OwnFileSystem&) = delete;

  // REQUIRES: the process has one thread yet.
  absl::Status Mount(uint64_t bytes) {
    absl::Status status = EnterNamespace();
    if (!status.ok()) return status;
    std::filesystem::create_directories(path_);
    const std::string size = absl::StrCat("size=", bytes, ",mode=0700");
    if (mount("tmpfs", path_.c_str(), "tmpfs", 0, size.c_str()) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("mount a tmpfs on ", path_));
  }

  // Whether anything may be written to it from now on.
  absl::Status SetReadOnly(bool read_only) const {
    const unsigned long flags = MS_REMOUNT | (read_only ? MS_RDONLY : 0);
    if (mount("none", path_.c_str(), nullptr, flags, nullptr) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("mount ", path_, " again"));
  }

  const std::string& path() const { return path_; }

  uint64_t UsedBytes() const {
    struct statvfs info;
    if (statvfs(path_.c_str(), &info) != 0) return UINT64_MAX;
    return (info.f_blocks - info.f_bfree) * info.f_frsize;
  }
  uint64_t FreeBytes() const {
    struct statvfs info;
    if (statvfs(path_.c_str(), &info) != 0) return 0;
    return info.f_bavail * info.f_frsize;
  }

  // Takes every byte that is left.
  void Fill() const {
    const int fd = open(ballast().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const std::string piece(1 << 20, 'b');
    for (size_t bytes = piece.size(); bytes > 0;) {
      if (write(fd, piece.data(), bytes) <= 0) bytes /= 2;
    }
    close(fd);
  }
  void Empty() const { unlink(ballast().c_str()); }

 private:
  std::string ballast() const { return path_ + "/ballast"; }

  static absl::Status EnterNamespace() {
    static const absl::Status entered = [] {
      const uid_t uid = geteuid();
      const gid_t gid = getegid();
      if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
          return absl::ErrnoToStatus(errno, "neither root nor allowed to make a user namespace");
        }
        std::ofstream("/proc/self/setgroups") << "deny";
        std::ofstream("/proc/self/uid_map") << uid << " " << uid << " 1";
        std::ofstream("/proc/self/gid_map") << gid << " " << gid << " 1";
      }
      if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
        return absl::ErrnoToStatus(errno, "make the mounts private");
      }
      return absl::OkStatus();
    }();
    return entered;
  }

  const std::string path_;
};

}  // namespace embcache::testing_support

#endif  // EMBCACHE_TESTS_CRASH_OWN_FILE_SYSTEM_H_
