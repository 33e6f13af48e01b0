#include "gpu/cuda_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace embcache {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

struct MemoryInfo {
  uint64_t free = 0;
  uint64_t total = 0;
};

// REQUIRES: `context` is current.
absl::StatusOr<MemoryInfo> GetMemoryInfo(CudaContext* context) {
  size_t free = 0;
  size_t total = 0;
  absl::Status status =
      context->Check(context->driver().cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
  if (!status.ok()) return status;
  return MemoryInfo{free, total};
}

class CudaSegment : public MemorySegment {
 public:
  CudaSegment(std::shared_ptr<CudaContext> context, std::shared_ptr<std::atomic<bool>> keep,
              CUdeviceptr pointer, uint64_t bytes)
      : context_(std::move(context)), keep_(std::move(keep)), pointer_(pointer), bytes_(bytes) {}
  ~CudaSegment() override {
    if (keep_->load()) return;
    const CudaContext::Current current(context_.get());
    // Of a lost context nothing can be freed; the end of the process does it.
    if (!current.status().ok()) return;
    (void)context_->Check(context_->driver().cuMemFree_v2(pointer_), "cuMemFree");
  }
  CudaSegment(const CudaSegment&) = delete;
  CudaSegment& operator=(const CudaSegment&) = delete;

  // Called once, before the segment is handed out. REQUIRES: the context is current.
  absl::Status Export(absl::string_view label) {
    CUipcMemHandle handle;
    absl::Status status = context_->Check(context_->driver().cuIpcGetMemHandle(&handle, pointer_),
                                          "cuIpcGetMemHandle");
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(label, ": device ", context_->uuid(),
                                                      " cannot share memory between processes: ",
                                                      status.message()));
    }
    handle_.assign(handle.reserved, sizeof(handle.reserved));
    return absl::OkStatus();
  }

  CUdeviceptr pointer() const { return pointer_; }
  uint64_t bytes() const override { return bytes_; }
  char* host_data() const override { return nullptr; }
  int writable_fd() const override { return -1; }
  int read_only_fd() const override { return -1; }
  std::string cuda_ipc_handle() const override { return handle_; }

 private:
  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<std::atomic<bool>> keep_;
  const CUdeviceptr pointer_;
  const uint64_t bytes_;
  std::string handle_;
};

// For memory that the device may still write to.
void KeepUntilExit(std::unique_ptr<MemorySegment> memory) {
  static auto* const mu = new absl::Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<MemorySegment>>;
  absl::MutexLock lock(mu);
  kept->push_back(std::move(memory));
}

// Host memory that is counted, and pinned as far as possible.
class CountedSegment : public MemorySegment {
 public:
  CountedSegment(std::shared_ptr<CudaContext> context, std::shared_ptr<std::atomic<uint64_t>> count,
                 std::unique_ptr<MemorySegment> host, bool pinned)
      : context_(std::move(context)),
        count_(std::move(count)),
        host_(std::move(host)),
        pinned_(pinned) {
    count_->fetch_add(host_->bytes(), std::memory_order_relaxed);
  }
  ~CountedSegment() override {
    count_->fetch_sub(host_->bytes(), std::memory_order_relaxed);
    if (context_->given_up()) {
      KeepUntilExit(std::move(host_));
      return;
    }
    if (!pinned_) return;
    const CudaContext::Current current(context_.get());
    if (!current.status().ok()) return;
    (void)context_->Check(context_->driver().cuMemHostUnregister(host_->host_data()),
                          "cuMemHostUnregister");
  }
  CountedSegment(const CountedSegment&) = delete;
  CountedSegment& operator=(const CountedSegment&) = delete;

  bool pinned() const { return pinned_; }
  uint64_t bytes() const override { return host_->bytes(); }
  char* host_data() const override { return host_->host_data(); }
  int writable_fd() const override { return host_->writable_fd(); }
  int read_only_fd() const override { return host_->read_only_fd(); }
  std::string cuda_ipc_handle() const override { return ""; }

 private:
  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<std::atomic<uint64_t>> count_;
  std::unique_ptr<MemorySegment> host_;
  const bool pinned_;
};

}  // namespace

CUdeviceptr DevicePointer(const MemorySegment* segment) {
  const auto* device = dynamic_cast<const CudaSegment*>(segment);
  return device == nullptr ? 0 : device->pointer();
}

bool IsPinned(const MemorySegment* segment) {
  const auto* host = dynamic_cast<const CountedSegment*>(segment);
  return host != nullptr && host->pinned();
}

// --- Device memory ------------------------------------------------------------------------------

CudaMemory::CudaMemory(std::shared_ptr<CudaContext> context, CudaMemoryOptions options)
    : context_(std::move(context)), options_(std::move(options)) {}

absl::StatusOr<uint64_t> CudaMemory::FreeBytes() const {
  const CudaContext::Current current(context_.get());
  if (!current.status().ok()) return current.status();
  absl::StatusOr<MemoryInfo> memory = GetMemoryInfo(context_.get());
  if (!memory.ok()) return memory.status();
  return memory->free;
}

absl::StatusOr<CUdeviceptr> CudaMemory::TryAllocate(absl::string_view label, uint64_t bytes) const {
  absl::StatusOr<MemoryInfo> memory = GetMemoryInfo(context_.get());
  if (!memory.ok()) return memory.status();
  const absl::Status too_little = absl::ResourceExhaustedError(
      absl::StrCat(label, ": asked for ", bytes, " bytes of device memory, but only ", memory->free,
                   " of ", memory->total, " are available on ", context_->uuid()));
  if (bytes > memory->total) return absl::OutOfRangeError(too_little.message());
  if (bytes > memory->free) return too_little;
  CUdeviceptr pointer = 0;
  absl::Status status =
      context_->Check(context_->driver().cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc");
  if (status.ok()) return pointer;
  return absl::Status(status.code(), absl::StrCat(too_little.message(), ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<MemorySegment>> CudaMemory::Allocate(absl::string_view label,
                                                                    uint64_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": ", bytes, " bytes; must be a positive multiple of ", kGranularity));
  }
  const CudaContext::Current current(context_.get());
  if (!current.status().ok()) return current.status();
  absl::Duration left = options_.patience;
  absl::Duration pause = kFirstPause;
  absl::StatusOr<CUdeviceptr> pointer = TryAllocate(label, bytes);
  while (absl::IsResourceExhausted(pointer.status()) && left > absl::ZeroDuration()) {
    if (pause == kFirstPause) {
      options_.log(absl::StrCat(pointer.status().message(), "; trying again for up to ",
                                absl::FormatDuration(left)));
    }
    const absl::Duration wait = std::min(pause, left);
    options_.wait ? options_.wait(wait) : absl::SleepFor(wait);
    left -= wait;
    pause = std::min(2 * pause, kLongestPause);
    pointer = TryAllocate(label, bytes);
  }
  if (absl::IsOutOfRange(pointer.status())) {
    return absl::ResourceExhaustedError(pointer.status().message());
  }
  if (!pointer.ok()) return pointer.status();
  auto segment = std::make_unique<CudaSegment>(context_, keep_, *pointer, bytes);
  if (absl::Status exported = segment->Export(label); !exported.ok()) return exported;
  return segment;
}

// --- Pinned host memory -------------------------------------------------------------------------

PinnedHostMemory::PinnedHostMemory(std::shared_ptr<CudaContext> context, HostMemoryOptions options,
                                   std::function<void(absl::string_view)> log)
    : context_(std::move(context)), host_(options), log_(std::move(log)) {}

absl::StatusOr<std::unique_ptr<MemorySegment>> PinnedHostMemory::Allocate(absl::string_view label,
                                                                          uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<MemorySegment>> host = host_.Allocate(label, bytes);
  if (!host.ok()) return host;
  absl::Status pinned;
  {
    const CudaContext::Current current(context_.get());
    pinned = current.status();
    if (pinned.ok()) {
      pinned = context_->Check(context_->driver().cuMemHostRegister_v2((*host)->host_data(), bytes,
                                                                       CU_MEMHOSTREGISTER_PORTABLE),
                               "cuMemHostRegister");
    }
  }
  if (pinned.ok()) {
    return std::make_unique<CountedSegment>(context_, pinned_bytes_, *std::move(host),
                                            /*pinned=*/true);
  }
  log_(absl::StrCat(label, ": ", bytes, " bytes of host memory could not be pinned, so copies to ",
                    "the device go by way of a buffer; is RLIMIT_MEMLOCK (LimitMEMLOCK= in ",
                    "systemd) too low? ", pinned.message()));
  return std::make_unique<CountedSegment>(context_, pageable_bytes_, *std::move(host),
                                          /*pinned=*/false);
}

}  // namespace embcache
