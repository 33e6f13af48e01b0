#include "storage/direct_reader.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/small_files.h"

namespace embcache {

uint64_t DirectReader::PieceBytes(uint64_t left) {
  const uint64_t half = (left / 2 + kAlignment - 1) / kAlignment * kAlignment;
  return std::min({left, kPieceBytes, std::max(half, kLeastBytes)});
}

absl::StatusOr<std::unique_ptr<DirectReader>> DirectReader::Create() {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, kDepth, &context) != 0) {
    return absl::UnavailableError(absl::ErrnoToStatus(errno, "io_setup").message());
  }
  auto* buffer = static_cast<char*>(std::aligned_alloc(kAlignment, kDepth * kPieceBytes));
  EMB_CHECK(buffer != nullptr);
  return std::unique_ptr<DirectReader>(new DirectReader(context, buffer));
}

DirectReader::~DirectReader() { syscall(SYS_io_destroy, context_); }

absl::Status DirectReader::Submit(int fd, uint64_t piece, uint64_t offset, uint64_t bytes) {
  const uint64_t slot = piece % kDepth;
  iocb request = {};
  request.aio_data = slot;
  request.aio_lio_opcode = IOCB_CMD_PREAD;
  request.aio_fildes = static_cast<uint32_t>(fd);
  request.aio_buf = reinterpret_cast<uint64_t>(buffer_.get() + slot * kPieceBytes);
  request.aio_nbytes = bytes;
  request.aio_offset = static_cast<int64_t>(offset);
  iocb* requests[] = {&request};
  done_[slot] = false;
  while (syscall(SYS_io_submit, context_, 1, requests) != 1) {
    if (errno != EINTR) {
      return absl::UnavailableError(absl::ErrnoToStatus(errno, "io_submit").message());
    }
  }
  ++in_flight_;
  return absl::OkStatus();
}

void DirectReader::AwaitAny() {
  io_event events[kDepth];
  const long got = syscall(SYS_io_getevents, context_, 1, kDepth, events, nullptr);
  EMB_CHECK(got > 0 || errno == EINTR);
  for (long i = 0; i < got; ++i) {
    results_[events[i].data] = events[i].res;
    done_[events[i].data] = true;
    --in_flight_;
  }
}

absl::StatusOr<uint64_t> DirectReader::Await(uint64_t piece) {
  const uint64_t slot = piece % kDepth;
  while (!done_[slot]) AwaitAny();
  if (results_[slot] >= 0) return static_cast<uint64_t>(results_[slot]);
  return absl::DataLossError(
      absl::ErrnoToStatus(static_cast<int>(-results_[slot]), "read").message());
}

absl::Status DirectReader::Read(const std::string& path, uint64_t offset, uint64_t bytes,
                                absl::FunctionRef<absl::Status(absl::string_view piece)> take) {
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (fd.get() < 0) {
    return absl::UnavailableError(
        absl::ErrnoToStatus(errno, absl::StrCat("open ", path)).message());
  }
  const uint64_t begin = offset / kAlignment * kAlignment;
  const uint64_t end = offset + bytes;
  const uint64_t aligned_end = (end + kAlignment - 1) / kAlignment * kAlignment;
  absl::Status status;
  uint64_t taken = 0;  // pieces, here and below
  uint64_t submitted = 0;
  uint64_t at = begin;
  uint64_t next = begin;  // to be submitted
  while (at < end) {
    for (; next < aligned_end && submitted < taken + kDepth && status.ok(); ++submitted) {
      const uint64_t piece = PieceBytes(aligned_end - next);
      status = Submit(fd.get(), submitted, next, piece);
      next += piece;
    }
    if (!status.ok()) break;
    const absl::StatusOr<uint64_t> got = Await(taken);
    status = got.status();
    if (!status.ok()) break;
    const uint64_t piece = PieceBytes(aligned_end - at);
    const uint64_t from = std::max(offset, at);
    const uint64_t to = std::min(end, at + piece);
    if (*got < to - at) {
      status = absl::DataLossError(absl::StrCat(path, ": ends too early"));
      break;
    }
    status = take({buffer_.get() + taken % kDepth * kPieceBytes + (from - at), to - from});
    if (!status.ok()) break;
    at += piece;
    ++taken;
  }
  // The kernel writes into the buffer until all have ended.
  while (in_flight_ > 0) AwaitAny();
  return status;
}

}  // namespace embcache
