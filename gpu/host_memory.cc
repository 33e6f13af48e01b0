#include "gpu/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu/available_memory.h"

namespace embcache {
namespace {

constexpr unsigned kMfdNoexecSeal = 0x0008;  // Linux 6.3, newer than the C library's headers

// fallocate starts anew when a signal interrupts it, so it goes in steps; and with a look at the
// available memory before each, since other processes take memory meanwhile.
constexpr uint64_t kReserveStep = uint64_t{256} << 20;

constexpr size_t kMaxMemfdName = 249;  // bytes, memfd_create(2)

absl::Status SystemError(int error, absl::string_view call, absl::string_view label,
                         uint64_t bytes) {
  return absl::ErrnoToStatus(error,
                             absl::StrCat(call, " for ", label, " of ", bytes, " bytes failed"));
}

// `got` of the `asked` bytes are reserved already.
absl::Status NotEnough(absl::string_view label, uint64_t asked, uint64_t got,
                       const AvailableMemory& available) {
  return absl::ResourceExhaustedError(
      absl::StrCat(label, ": asked for ", asked, " bytes of host memory, but only ",
                   got + available.bytes, " are available (", available.source, ")"));
}

class HostSegment : public MemorySegment {
 public:
  HostSegment(absl::string_view label, uint64_t bytes) : label_(label), bytes_(bytes) {}
  ~HostSegment() override {
    if (data_ != nullptr) munmap(data_, bytes_);
    if (read_only_fd_ >= 0) close(read_only_fd_);
    if (writable_fd_ >= 0) close(writable_fd_);
  }

  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  // Called once, before anything else. On failure the destructor gives back what was had.
  absl::Status Open(bool huge_pages) {
    absl::Status status = CreateFile();
    if (status.ok()) status = Map(huge_pages);
    if (status.ok()) status = ReserveAll(huge_pages);
    if (status.ok()) status = SealAndReopen();
    return status;
  }

  uint64_t bytes() const override { return bytes_; }
  char* host_data() const override { return data_; }
  int writable_fd() const override { return writable_fd_; }
  int read_only_fd() const override { return read_only_fd_; }
  std::string cuda_ipc_handle() const override { return ""; }

 private:
  absl::Status CreateFile() {
    const std::string name = label_.substr(0, kMaxMemfdName);
    constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    // Shared with other processes, so not executable, where the kernel knows the flag.
    writable_fd_ = memfd_create(name.c_str(), kFlags | kMfdNoexecSeal);
    if (writable_fd_ < 0 && errno == EINVAL) writable_fd_ = memfd_create(name.c_str(), kFlags);
    if (writable_fd_ < 0) return SystemError(errno, "memfd_create", label_, bytes_);
    if (ftruncate(writable_fd_, static_cast<off_t>(bytes_)) != 0) {
      return SystemError(errno, "ftruncate", label_, bytes_);
    }
    return absl::OkStatus();
  }

  absl::Status Map(bool huge_pages) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, writable_fd_, 0);
    if (data == MAP_FAILED) return SystemError(errno, "mmap", label_, bytes_);
    data_ = static_cast<char*>(data);
    // Both are wishes: a core file without the cached bytes, and large pages.
    (void)madvise(data_, bytes_, MADV_DONTDUMP);
    if (huge_pages) (void)madvise(data_, bytes_, MADV_HUGEPAGE);
    return absl::OkStatus();
  }

  absl::Status ReserveAll(bool huge_pages) {
    for (uint64_t done = 0; done < bytes_;) {
      const AvailableMemory available = ReadAvailableMemory();
      if (bytes_ - done > available.bytes) return NotEnough(label_, bytes_, done, available);
      const uint64_t step = std::min(bytes_ - done, kReserveStep);
      // fallocate knows nothing of the wish for huge pages, a page fault does. Whatever this leaves
      // out comes from fallocate.
      if (huge_pages) (void)madvise(data_ + done, step, MADV_POPULATE_WRITE);
      if (fallocate(writable_fd_, 0, static_cast<off_t>(done), static_cast<off_t>(step)) != 0) {
        if (errno == EINTR) continue;
        if (errno == ENOSPC || errno == ENOMEM) {
          return NotEnough(label_, bytes_, done, ReadAvailableMemory());
        }
        return SystemError(errno, "fallocate", label_, bytes_);
      }
      done += step;
    }
    return absl::OkStatus();
  }

  absl::Status SealAndReopen() {
    if (fcntl(writable_fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return SystemError(errno, "sealing the size", label_, bytes_);
    }
    const std::string path = absl::StrCat("/proc/self/fd/", writable_fd_);
    read_only_fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (read_only_fd_ < 0) return SystemError(errno, "opening read-only", label_, bytes_);
    // A reader of the same user, unless it is root, could otherwise open its descriptor anew for
    // writing.
    if (fchmod(writable_fd_, S_IRUSR) != 0) {
      return SystemError(errno, "fchmod", label_, bytes_);
    }
    return absl::OkStatus();
  }

  const std::string label_;
  const uint64_t bytes_;
  char* data_ = nullptr;
  int writable_fd_ = -1;
  int read_only_fd_ = -1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MemorySegment>> HostMemory::Allocate(absl::string_view label,
                                                                    uint64_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": ", bytes, " bytes; must be a positive multiple of ", kGranularity));
  }
  const AvailableMemory available = ReadAvailableMemory();
  if (bytes > available.bytes) return NotEnough(label, bytes, 0, available);
  // Growing a file past this limit would end the process by SIGXFSZ.
  rlimit file_size;
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && bytes > file_size.rlim_cur) {
    return absl::ResourceExhaustedError(absl::StrCat(
        label, ": asked for ", bytes, " bytes of host memory, but files may have only ",
        file_size.rlim_cur, " (RLIMIT_FSIZE, LimitFSIZE= in systemd)"));
  }
  auto segment = std::make_unique<HostSegment>(label, bytes);
  absl::Status opened = segment->Open(options_.huge_pages);
  if (!opened.ok()) return opened;
  return segment;
}

}  // namespace embcache
