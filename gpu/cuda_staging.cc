#include "gpu/cuda_staging.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "storage/check.h"

namespace embcache {
namespace {

// Without a bound of its own, like every queue of copies: see CudaLane.
constexpr size_t kQueueLimit = std::numeric_limits<size_t>::max();

uint64_t ChunkBytes(uint64_t bytes, uint64_t chunk) {
  return std::min(CudaStaging::kBufferBytes, bytes - chunk * CudaStaging::kBufferBytes);
}

uint64_t ChunksOf(uint64_t bytes) {
  return (bytes + CudaStaging::kBufferBytes - 1) / CudaStaging::kBufferBytes;
}

}  // namespace

void CudaStaging::Buffers::Acquire(uint64_t chunk) {
  absl::MutexLock lock(&mu_);
  bool& busy = busy_[chunk % 2];
  const auto is_free = [&busy] { return !busy; };
  mu_.Await(absl::Condition(&is_free));
  busy = true;
}

void CudaStaging::Buffers::Release(uint64_t chunk, const absl::Status& result) {
  absl::MutexLock lock(&mu_);
  busy_[chunk % 2] = false;
  result_.Update(result);
}

absl::Status CudaStaging::Buffers::AwaitAll() {
  absl::MutexLock lock(&mu_);
  const auto all_free = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !busy_[0] && !busy_[1]; };
  mu_.Await(absl::Condition(&all_free));
  return std::exchange(result_, absl::OkStatus());
}

absl::StatusOr<std::unique_ptr<CudaStaging>> CudaStaging::Create(
    std::shared_ptr<CudaContext> context, CudaLane* to_device, CudaLane* to_host,
    std::function<void(absl::string_view)> log) {
  PinnedHostMemory memory(std::move(context), {}, std::move(log));
  auto up = memory.Allocate("embcache-staging-up", 2 * kBufferBytes);
  if (!up.ok()) return up.status();
  auto down = memory.Allocate("embcache-staging-down", 2 * kBufferBytes);
  if (!down.ok()) return down.status();
  return std::unique_ptr<CudaStaging>(
      new CudaStaging(to_device, to_host, *std::move(up), *std::move(down)));
}

CudaStaging::CudaStaging(CudaLane* to_device, CudaLane* to_host, std::unique_ptr<MemorySegment> up,
                         std::unique_ptr<MemorySegment> down)
    : to_device_(to_device),
      to_host_(to_host),
      up_(std::move(up)),
      down_(std::move(down)),
      uploads_("stage-up", 1, kQueueLimit),
      downloads_("stage-down", 1, kQueueLimit) {}

CudaStaging::~CudaStaging() = default;

void CudaStaging::Upload(CUdeviceptr to, const char* from, uint64_t bytes, CopyEngine::Done done) {
  EMB_CHECK(uploads_.Schedule([this, to, from, bytes, done = std::move(done)]() mutable {
    done(RunUpload(to, from, bytes));
  }));
}

void CudaStaging::Download(char* to, CUdeviceptr from, uint64_t bytes, CopyEngine::Done done) {
  EMB_CHECK(downloads_.Schedule([this, to, from, bytes, done = std::move(done)]() mutable {
    done(RunDownload(to, from, bytes));
  }));
}

absl::Status CudaStaging::RunUpload(CUdeviceptr to, const char* from, uint64_t bytes) {
  for (uint64_t chunk = 0; chunk < ChunksOf(bytes); ++chunk) {
    const uint64_t at = chunk * kBufferBytes;
    const uint64_t size = ChunkBytes(bytes, chunk);
    up_.Acquire(chunk);
    std::memcpy(up_.data(chunk), from + at, size);
    to_device_->Add({to + at, reinterpret_cast<uint64_t>(up_.data(chunk)), size,
                     [this, chunk](absl::Status copied) { up_.Release(chunk, copied); }});
  }
  return up_.AwaitAll();
}

absl::Status CudaStaging::RunDownload(char* to, CUdeviceptr from, uint64_t bytes) {
  const uint64_t chunks = ChunksOf(bytes);
  const auto start = [&](uint64_t chunk) {
    down_.Acquire(chunk);
    to_host_->Add({reinterpret_cast<uint64_t>(down_.data(chunk)), from + chunk * kBufferBytes,
                   ChunkBytes(bytes, chunk),
                   [this, chunk](absl::Status copied) { down_.Release(chunk, copied); }});
  };
  start(0);
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    // The next chunk goes into the other buffer, which was read in the turn before.
    if (chunk + 1 < chunks) start(chunk + 1);
    down_.Acquire(chunk);  // its copy is over
    std::memcpy(to + chunk * kBufferBytes, down_.data(chunk), ChunkBytes(bytes, chunk));
    down_.Release(chunk, absl::OkStatus());
  }
  return down_.AwaitAll();
}

}  // namespace embcache
