#include "gpu/cuda_lane.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace embcache {
namespace {

// Batches on the device at a time: one that runs and one that is ready to follow it.
constexpr size_t kMaxBatches = 2;
// What one batch holds at most, so that its first copy does not wait long for its last.
constexpr size_t kMaxBatchCopies = 64;
constexpr uint64_t kMaxBatchBytes = uint64_t{32} << 20;

}  // namespace

absl::Status StartCopy(CudaContext* context, CopyDirection direction, CUstream stream, uint64_t to,
                       uint64_t from, uint64_t bytes) {
  const CudaDriver& driver = context->driver();
  switch (direction) {
    case CopyDirection::kHostToDevice:
      return context->Check(
          driver.cuMemcpyHtoDAsync_v2(to, reinterpret_cast<const void*>(from), bytes, stream),
          "cuMemcpyHtoDAsync");
    case CopyDirection::kDeviceToHost:
      return context->Check(
          driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(to), from, bytes, stream),
          "cuMemcpyDtoHAsync");
    case CopyDirection::kDeviceToDevice:
      break;
  }
  return context->Check(driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream), "cuMemcpyDtoDAsync");
}

absl::StatusOr<std::unique_ptr<CudaLane>> CudaLane::Create(std::shared_ptr<CudaContext> context,
                                                           CopyDirection direction,
                                                           absl::string_view name) {
  std::unique_ptr<CudaLane> lane(new CudaLane(std::move(context), direction));
  if (absl::Status ready = lane->SetUp(); !ready.ok()) return ready;
  lane->thread_ = std::thread([raw = lane.get()] { raw->Run(); });
  pthread_setname_np(lane->thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
  return lane;
}

absl::Status CudaLane::SetUp() {
  const CudaContext::Current current(context_.get());
  if (!current.status().ok()) return current.status();
  const CudaDriver& driver = context_->driver();
  absl::Status status =
      context_->Check(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  while (status.ok() && events_.size() < kMaxBatches) {
    CUevent event = nullptr;
    status = context_->Check(
        driver.cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
    if (status.ok()) events_.push_back(event);
  }
  free_events_ = events_;
  return status;
}

CudaLane::~CudaLane() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  const CudaContext::Current current(context_.get());
  if (!current.status().ok()) return;
  const CudaDriver& driver = context_->driver();
  for (CUevent event : events_) {
    (void)context_->Check(driver.cuEventDestroy_v2(event), "cuEventDestroy");
  }
  if (stream_ != nullptr) {
    (void)context_->Check(driver.cuStreamDestroy_v2(stream_), "cuStreamDestroy");
  }
}

void CudaLane::Add(DeviceCopy copy) {
  EMB_CHECK(copy.bytes > 0);
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(copy));
}

std::vector<DeviceCopy> CudaLane::Take(bool wait) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !queue_.empty();
  };
  if (wait) mu_.Await(absl::Condition(&ready));
  std::vector<DeviceCopy> taken;
  uint64_t bytes = 0;
  while (!queue_.empty() && taken.size() < kMaxBatchCopies &&
         (taken.empty() || bytes + queue_.front().bytes <= kMaxBatchBytes)) {
    bytes += queue_.front().bytes;
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return taken;
}

void CudaLane::Run() {
  std::deque<Batch> on_device;
  std::deque<Batch> over;
  while (true) {
    if (on_device.size() < kMaxBatches) {
      std::vector<DeviceCopy> copies = Take(/*wait=*/on_device.empty() && over.empty());
      if (!copies.empty()) {
        on_device.push_back(Submit(std::move(copies)));
        continue;
      }
      if (on_device.empty() && over.empty()) return;  // stopping
    }
    if (!over.empty()) {
      // The device has its next work already.
      Answer(std::move(over.front()));
      over.pop_front();
      continue;
    }
    Await(&on_device.front());
    over.push_back(std::move(on_device.front()));
    on_device.pop_front();
  }
}

CudaLane::Batch CudaLane::Submit(std::vector<DeviceCopy> copies) {
  Batch batch;
  batch.end = free_events_.back();
  free_events_.pop_back();
  batch.copies = std::move(copies);
  const CudaContext::Current current(context_.get());
  for (const DeviceCopy& copy : batch.copies) {
    batch.results.push_back(
        current.status().ok() && !context_->lost()
            ? StartCopy(context_.get(), direction_, stream_, copy.to, copy.from, copy.bytes)
            : context_->lost_status());
  }
  if (!current.status().ok() || context_->lost()) return batch;
  absl::Status recorded =
      context_->Check(context_->driver().cuEventRecord(batch.end, stream_), "cuEventRecord");
  if (recorded.ok()) return batch;
  // Without the event, the stream itself says when the copies are over; an event never recorded
  // counts as reached.
  absl::Status over =
      context_->Check(context_->driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  for (absl::Status& result : batch.results) result.Update(over);
  return batch;
}

void CudaLane::Await(Batch* batch) {
  const CudaContext::Current current(context_.get());
  absl::Status over = current.status();
  if (over.ok()) {
    over = context_->Check(context_->driver().cuEventSynchronize(batch->end), "cuEventSynchronize");
    // Whatever this says: nothing may be under way any more when the callers are told.
    if (!over.ok() && !context_->lost()) (void)context_->driver().cuStreamSynchronize(stream_);
  }
  if (context_->lost()) over = context_->lost_status();
  for (absl::Status& result : batch->results) result.Update(over);
  free_events_.push_back(batch->end);
}

void CudaLane::Answer(Batch batch) {
  for (size_t i = 0; i < batch.copies.size(); ++i) {
    if (batch.results[i].ok()) {
      copies_.fetch_add(1, std::memory_order_relaxed);
      copied_bytes_.fetch_add(batch.copies[i].bytes, std::memory_order_relaxed);
    } else {
      failed_copies_.fetch_add(1, std::memory_order_relaxed);
    }
    batch.copies[i].done(std::move(batch.results[i]));
  }
}

}  // namespace embcache
