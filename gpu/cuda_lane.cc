#include "gpu/cuda_lane.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "storage/check.h"
#include "storage/clock.h"

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

// The stream, the thread and the copies that are not over. Also the thread's: when it is abandoned,
// it may outlive the lane.
class CudaLane::Worker {
 public:
  Worker(std::shared_ptr<CudaContext> context, CopyDirection direction,
         std::shared_ptr<Counts> counts)
      : context_(std::move(context)), direction_(direction), counts_(std::move(counts)) {}
  ~Worker();

  absl::Status SetUp();
  static void Start(const std::shared_ptr<Worker>& self, const std::string& name);
  void Add(DeviceCopy copy);
  void Finish();
  absl::Duration Waited() const;
  // Answers with the copies that are not over, in their order. The thread ends by itself once the
  // driver lets go of it.
  std::deque<DeviceCopy> Abandon();

 private:
  struct Batch {
    CUevent end = nullptr;
    std::vector<DeviceCopy> copies;     // Abandon() takes their `done`s, and nothing else
    std::vector<absl::Status> results;  // of the copies
  };
  // For as long as it exists, the thread may be held up by the driver.
  class InDriver;

  void Run();
  // Null when there is nothing to submit.
  std::shared_ptr<Batch> Take(bool wait);
  void Submit(Batch* batch);
  // Waits until the batch is over.
  void Await(Batch* batch);
  void Answer(Batch* batch);

  const std::shared_ptr<CudaContext> context_;
  const CopyDirection direction_;
  const std::shared_ptr<Counts> counts_;
  CUstream stream_ = nullptr;
  std::vector<CUevent> events_;       // all of them; none in a worker that only fails copies
  std::vector<CUevent> free_events_;  // the thread's
  std::thread thread_;

  mutable absl::Mutex mu_;
  std::deque<DeviceCopy> queue_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Batch>> unanswered_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration in_driver_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();  // monotonic
};

class CudaLane::Worker::InDriver {
 public:
  explicit InDriver(Worker* worker) : worker_(worker) { Set(SystemClock()->MonotonicNow()); }
  ~InDriver() { Set(absl::InfiniteDuration()); }
  InDriver(const InDriver&) = delete;
  InDriver& operator=(const InDriver&) = delete;

 private:
  void Set(absl::Duration since) {
    absl::MutexLock lock(&worker_->mu_);
    worker_->in_driver_since_ = since;
  }

  Worker* const worker_;
};

absl::Status CudaLane::Worker::SetUp() {
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

CudaLane::Worker::~Worker() {
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

void CudaLane::Worker::Start(const std::shared_ptr<Worker>& self, const std::string& name) {
  self->thread_ = std::thread([self] { self->Run(); });
  pthread_setname_np(self->thread_.native_handle(), name.c_str());
}

void CudaLane::Worker::Add(DeviceCopy copy) {
  EMB_CHECK(copy.bytes > 0);
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(copy));
}

void CudaLane::Worker::Finish() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Duration CudaLane::Worker::Waited() const {
  const absl::Duration now = SystemClock()->MonotonicNow();
  absl::MutexLock lock(&mu_);
  return std::max(now - in_driver_since_, absl::ZeroDuration());
}

std::deque<DeviceCopy> CudaLane::Worker::Abandon() {
  thread_.detach();
  std::deque<DeviceCopy> left;
  absl::MutexLock lock(&mu_);
  abandoned_ = true;
  for (const std::shared_ptr<Batch>& batch : unanswered_) {
    for (DeviceCopy& copy : batch->copies) {
      left.push_back({copy.to, copy.from, copy.bytes, std::move(copy.done)});
    }
  }
  unanswered_.clear();
  for (DeviceCopy& copy : queue_) left.push_back(std::move(copy));
  queue_.clear();
  return left;
}

// --- The thread ---------------------------------------------------------------------------------

void CudaLane::Worker::Run() {
  std::deque<std::shared_ptr<Batch>> on_device;
  std::deque<std::shared_ptr<Batch>> over;
  while (true) {
    if (on_device.size() < kMaxBatches) {
      const bool idle = on_device.empty() && over.empty();
      if (std::shared_ptr<Batch> batch = Take(/*wait=*/idle)) {
        Submit(batch.get());
        on_device.push_back(std::move(batch));
        continue;
      }
      if (idle) return;  // stopping, or abandoned
    }
    if (!over.empty()) {
      // The device has its next work already.
      Answer(over.front().get());
      over.pop_front();
      continue;
    }
    Await(on_device.front().get());
    over.push_back(std::move(on_device.front()));
    on_device.pop_front();
  }
}

std::shared_ptr<CudaLane::Worker::Batch> CudaLane::Worker::Take(bool wait) {
  absl::MutexLock lock(&mu_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || abandoned_ || !queue_.empty();
  };
  if (wait) mu_.Await(absl::Condition(&ready));
  if (queue_.empty()) return nullptr;
  auto batch = std::make_shared<Batch>();
  uint64_t bytes = 0;
  while (!queue_.empty() && batch->copies.size() < kMaxBatchCopies &&
         (batch->copies.empty() || bytes + queue_.front().bytes <= kMaxBatchBytes)) {
    bytes += queue_.front().bytes;
    batch->copies.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  unanswered_.push_back(batch);
  return batch;
}

void CudaLane::Worker::Submit(Batch* batch) {
  const InDriver in_driver(this);
  const CudaContext::Current current(context_.get());
  for (const DeviceCopy& copy : batch->copies) {
    absl::Status started = current.status();
    if (started.ok()) started = context_->lost_status();
    if (started.ok()) {
      started = StartCopy(context_.get(), direction_, stream_, copy.to, copy.from, copy.bytes);
    }
    batch->results.push_back(std::move(started));
  }
  if (!current.status().ok() || context_->lost()) return;
  batch->end = free_events_.back();
  free_events_.pop_back();
  absl::Status recorded =
      context_->Check(context_->driver().cuEventRecord(batch->end, stream_), "cuEventRecord");
  if (recorded.ok()) return;
  // Without the event, the stream itself says when the copies are over; an event never recorded
  // counts as reached.
  absl::Status over =
      context_->Check(context_->driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  for (absl::Status& result : batch->results) result.Update(over);
}

void CudaLane::Worker::Await(Batch* batch) {
  const InDriver in_driver(this);
  const CudaContext::Current current(context_.get());
  absl::Status over = current.status();
  if (over.ok() && batch->end != nullptr) {
    over = context_->Check(context_->driver().cuEventSynchronize(batch->end), "cuEventSynchronize");
    // Whatever this says: nothing may be under way any more when the callers are told.
    if (!over.ok() && !context_->lost()) (void)context_->driver().cuStreamSynchronize(stream_);
  }
  if (context_->lost()) over = context_->lost_status();
  for (absl::Status& result : batch->results) result.Update(over);
  if (batch->end != nullptr) free_events_.push_back(batch->end);
}

void CudaLane::Worker::Answer(Batch* batch) {
  {
    absl::MutexLock lock(&mu_);
    if (abandoned_) return;
    unanswered_.pop_front();
  }
  for (size_t i = 0; i < batch->copies.size(); ++i) {
    if (batch->results[i].ok()) {
      counts_->copies.fetch_add(1, std::memory_order_relaxed);
      counts_->copied_bytes.fetch_add(batch->copies[i].bytes, std::memory_order_relaxed);
    } else {
      counts_->failed_copies.fetch_add(1, std::memory_order_relaxed);
    }
    batch->copies[i].done(std::move(batch->results[i]));
  }
}

// --- The lane -----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<CudaLane>> CudaLane::Create(std::shared_ptr<CudaContext> context,
                                                           CopyDirection direction,
                                                           absl::string_view name) {
  std::unique_ptr<CudaLane> lane(
      new CudaLane(std::move(context), direction, std::string(name.substr(0, 15))));
  auto worker = std::make_shared<Worker>(lane->context_, direction, lane->counts_);
  if (absl::Status ready = worker->SetUp(); !ready.ok()) return ready;
  Worker::Start(worker, lane->name_);
  absl::MutexLock lock(&lane->mu_);
  lane->worker_ = std::move(worker);
  return lane;
}

CudaLane::~CudaLane() {
  std::shared_ptr<Worker> worker;
  {
    absl::MutexLock lock(&mu_);
    worker.swap(worker_);
  }
  if (worker != nullptr) worker->Finish();
}

void CudaLane::Add(DeviceCopy copy) {
  absl::MutexLock lock(&mu_);
  worker_->Add(std::move(copy));
}

absl::Duration CudaLane::Waited() const {
  absl::MutexLock lock(&mu_);
  return worker_->Waited();
}

void CudaLane::Abandon() {
  EMB_CHECK(context_->lost());
  auto heir = std::make_shared<Worker>(context_, direction_, counts_);
  Worker::Start(heir, name_);
  absl::MutexLock lock(&mu_);
  for (DeviceCopy& copy : worker_->Abandon()) heir->Add(std::move(copy));
  worker_ = std::move(heir);
}

}  // namespace embcache
