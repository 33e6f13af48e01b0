// DirectReader: reads ranges of files around the page cache, several pieces at a time, and hands
// them on in order while the next ones are on their way.
//
// By Linux AIO, so that a read costs no thread. Pieces go through an aligned buffer of its own:
// what is wanted lies anywhere in a file. Not thread-safe.

#ifndef EMBCACHE_STORAGE_DIRECT_READER_H_
#define EMBCACHE_STORAGE_DIRECT_READER_H_

#include <linux/aio_abi.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

class DirectReader {
 public:
  // UNAVAILABLE: the kernel, or its bound on such readers, does not allow one.
  static absl::StatusOr<std::unique_ptr<DirectReader>> Create();
  ~DirectReader();

  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;

  // Calls `take` with the bytes [offset, offset + bytes) of the file, piece after piece, until it
  // fails; the answer is its failure then. DATA_LOSS: the file ends before, or cannot be read.
  // UNAVAILABLE: it cannot be opened in this way now.
  absl::Status Read(const std::string& path, uint64_t offset, uint64_t bytes,
                    absl::FunctionRef<absl::Status(absl::string_view piece)> take);

 private:
  static constexpr uint64_t kAlignment = 4096;
  static constexpr uint64_t kPieceBytes = uint64_t{1088} << 10;
  static constexpr uint64_t kLeastBytes = uint64_t{256} << 10;  // each piece costs a wake-up
  static constexpr uint64_t kDepth = 4;

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  DirectReader(aio_context_t context, char* buffer) : context_(context), buffer_(buffer) {}

  // Of the next piece when so many bytes are left: at most half of them, since the taking of the
  // last piece is what nothing else goes on beside.
  static uint64_t PieceBytes(uint64_t left);
  absl::Status Submit(int fd, uint64_t piece, uint64_t offset, uint64_t bytes);
  void AwaitAny();
  // Until `piece` is there: how many bytes it has.
  absl::StatusOr<uint64_t> Await(uint64_t piece);

  const aio_context_t context_;
  const std::unique_ptr<char, Free> buffer_;
  uint64_t in_flight_ = 0;
  int64_t results_[kDepth] = {};  // of piece n, at n modulo kDepth
  bool done_[kDepth] = {};
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_DIRECT_READER_H_
