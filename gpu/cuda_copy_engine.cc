#include "gpu/cuda_copy_engine.h"

#include <algorithm>
#include <utility>

#include "gpu/cuda_memory.h"
#include "storage/check.h"

namespace embcache {
namespace {

void CheckRange(const MemorySegment* segment, uint64_t offset, uint64_t bytes) {
  EMB_CHECK(offset <= segment->bytes() && bytes <= segment->bytes() - offset);
}

uint64_t HostAddress(const MemorySegment* segment, uint64_t offset) {
  return reinterpret_cast<uint64_t>(segment->host_data() + offset);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaCopyEngine>> CudaCopyEngine::Create(
    std::shared_ptr<CudaContext> context, int host_threads,
    std::function<void(absl::string_view)> log) {
  auto to_device = CudaLane::Create(context, CopyDirection::kHostToDevice, "copy-to-gpu");
  if (!to_device.ok()) return to_device.status();
  auto to_host = CudaLane::Create(context, CopyDirection::kDeviceToHost, "copy-from-gpu");
  if (!to_host.ok()) return to_host.status();
  auto on_device = CudaLane::Create(context, CopyDirection::kDeviceToDevice, "copy-in-gpu");
  if (!on_device.ok()) return on_device.status();
  auto staging = CudaStaging::Create(context, to_device->get(), to_host->get(), std::move(log));
  if (!staging.ok()) return staging.status();
  return std::unique_ptr<CudaCopyEngine>(
      new CudaCopyEngine(std::move(context), *std::move(to_device), *std::move(to_host),
                         *std::move(on_device), *std::move(staging), host_threads));
}

CudaCopyEngine::CudaCopyEngine(std::shared_ptr<CudaContext> context,
                               std::unique_ptr<CudaLane> to_device,
                               std::unique_ptr<CudaLane> to_host,
                               std::unique_ptr<CudaLane> on_device,
                               std::unique_ptr<CudaStaging> staging, int host_threads)
    : context_(std::move(context)),
      to_device_(std::move(to_device)),
      to_host_(std::move(to_host)),
      on_device_(std::move(on_device)),
      staging_(std::move(staging)),
      host_("copy", host_threads) {}

CudaCopyEngine::~CudaCopyEngine() = default;

void CudaCopyEngine::Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
                          uint64_t from_offset, uint64_t bytes, Done done) {
  CheckRange(to, to_offset, bytes);
  CheckRange(from, from_offset, bytes);
  const CUdeviceptr device_to = DevicePointer(to);
  const CUdeviceptr device_from = DevicePointer(from);
  if (bytes == 0 || (device_to == 0 && device_from == 0)) {
    if (Fails(bytes, &done)) return;
    host_.Copy(to, to_offset, from, from_offset, bytes, std::move(done));
  } else if (device_from == 0) {
    if (!IsPinned(from)) {
      return Upload(to, to_offset, from->host_data() + from_offset, bytes, std::move(done));
    }
    to_device_->Add(
        {device_to + to_offset, HostAddress(from, from_offset), bytes, std::move(done)});
  } else if (device_to == 0) {
    if (!IsPinned(to)) {
      return Download(to->host_data() + to_offset, from, from_offset, bytes, std::move(done));
    }
    to_host_->Add({HostAddress(to, to_offset), device_from + from_offset, bytes, std::move(done)});
  } else {
    on_device_->Add({device_to + to_offset, device_from + from_offset, bytes, std::move(done)});
  }
}

void CudaCopyEngine::Upload(const MemorySegment* to, uint64_t to_offset, const char* from,
                            uint64_t bytes, Done done) {
  CheckRange(to, to_offset, bytes);
  const CUdeviceptr device_to = DevicePointer(to);
  if (bytes == 0 || device_to == 0) {
    if (Fails(bytes, &done)) return;
    host_.Upload(to, to_offset, from, bytes, std::move(done));
  } else {
    staging_->Upload(device_to + to_offset, from, bytes, std::move(done));
  }
}

void CudaCopyEngine::Download(char* to, const MemorySegment* from, uint64_t from_offset,
                              uint64_t bytes, Done done) {
  CheckRange(from, from_offset, bytes);
  const CUdeviceptr device_from = DevicePointer(from);
  if (bytes == 0 || device_from == 0) {
    if (Fails(bytes, &done)) return;
    host_.Download(to, from, from_offset, bytes, std::move(done));
  } else {
    staging_->Download(to, device_from + from_offset, bytes, std::move(done));
  }
}

bool CudaCopyEngine::Fails(uint64_t bytes, Done* done) {
  if (bytes == 0 || !context_->given_up()) return false;
  on_device_->Add({.bytes = bytes, .done = std::move(*done)});  // which only fails copies now
  return true;
}

absl::Duration CudaCopyEngine::LongestWait() const {
  return std::max({to_device_->Waited(), to_host_->Waited(), on_device_->Waited()});
}

void CudaCopyEngine::Abandon() {
  for (CudaLane* lane : {to_device_.get(), to_host_.get(), on_device_.get()}) lane->Abandon();
}

uint64_t CudaCopyEngine::copies() const {
  return to_device_->copies() + to_host_->copies() + on_device_->copies();
}

uint64_t CudaCopyEngine::copied_bytes() const {
  return to_device_->copied_bytes() + to_host_->copied_bytes() + on_device_->copied_bytes();
}

uint64_t CudaCopyEngine::failed_copies() const {
  return to_device_->failed_copies() + to_host_->failed_copies() + on_device_->failed_copies();
}

}  // namespace embcache
