#include "tests/fake_cuda/streams.h"

#include <pthread.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace fakecuda {

using std::chrono::microseconds;
using std::chrono::steady_clock;

Streams& Streams::Get() {
  static auto* streams = new Streams;
  return *streams;
}

CUstream Streams::Create(int device, bool blocking) {
  std::lock_guard<std::mutex> lock(mutex_);
  return CreateLocked(device, blocking);
}

CUstream Streams::CreateLocked(int device, bool blocking) {
  auto* stream = new CUstream_st;
  stream->device = device;
  stream->blocking = blocking;
  streams_.insert(stream);
  std::thread([this, stream] { Run(stream); }).detach();
  return stream;
}

CUresult Streams::Destroy(CUstream stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  // A default stream is not its user's to destroy.
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return CUDA_ERROR_INVALID_HANDLE;
  if (streams_.count(stream) == 0 || stream->ending) return CUDA_ERROR_INVALID_HANDLE;
  stream->ending = true;
  changed_.notify_all();
  return CUDA_SUCCESS;
}

CUstream Streams::Resolve(CUstream handle) {
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    CUstream& stream = default_[CurrentContext()->device];
    if (stream == nullptr) stream = CreateLocked(CurrentContext()->device, true);
    return stream;
  }
  return streams_.count(handle) == 0 || handle->ending ? nullptr : handle;
}

Ticket Streams::QueueLocked(CUstream stream, std::function<CUresult()> run) {
  CUstream_st::Operation operation;
  operation.run = std::move(run);
  operation.due = steady_clock::now() + microseconds(attachment()->shared()->delay_us.load());
  const CUstream legacy = default_[stream->device];
  if (stream == legacy) {
    for (CUstream other : streams_) {
      if (other->blocking && other->device == stream->device && other != stream) {
        operation.after.push_back({other, other->queued});
      }
    }
  } else if (stream->blocking && legacy != nullptr) {
    operation.after.push_back({legacy, legacy->queued});
  }
  stream->operations.push_back(std::move(operation));
  ++stream->queued;
  changed_.notify_all();
  return {stream, stream->queued};
}

CUresult Streams::Queue(CUstream handle, std::function<CUresult()> run, Ticket* ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  const CUstream stream = Resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Ticket made = QueueLocked(stream, std::move(run));
  if (ticket != nullptr) *ticket = made;
  return CUDA_SUCCESS;
}

bool Streams::Done(const Ticket& ticket) const {
  // A stream that is gone has done all it had.
  return ticket.sequence == 0 || streams_.count(ticket.stream) == 0 ||
         ticket.stream->done >= ticket.sequence;
}

void Streams::Wait(Ticket ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!Done(ticket)) changed_.wait(lock);
}

CUresult Streams::Synchronize(CUstream handle) {
  Ticket last;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const CUstream stream = Resolve(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    // What the default stream would wait for is waited for with it.
    if (stream == default_[stream->device]) QueueLocked(stream, [] { return CUDA_SUCCESS; });
    last = {stream, stream->queued};
  }
  Wait(last);
  return StickyError();
}

CUresult Streams::Query(CUstream handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  const CUstream stream = Resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return stream->done == stream->queued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

void Streams::WaitForDevice(int device) {
  std::vector<Ticket> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (CUstream stream : streams_) {
      if (stream->device == device) all.push_back({stream, stream->queued});
    }
  }
  for (const Ticket& ticket : all) Wait(ticket);
}

CUevent Streams::CreateEvent() {
  std::lock_guard<std::mutex> lock(mutex_);
  auto* event = new CUevent_st;
  events_.insert(event);
  return event;
}

CUresult Streams::DestroyEvent(CUevent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

CUresult Streams::Record(CUevent event, CUstream handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  const CUstream stream = Resolve(handle);
  if (stream == nullptr || events_.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  event->recorded = QueueLocked(stream, [] { return CUDA_SUCCESS; });
  return CUDA_SUCCESS;
}

CUresult Streams::WaitEvent(CUstream handle, CUevent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  const CUstream stream = Resolve(handle);
  if (stream == nullptr || events_.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  QueueLocked(stream, [] { return CUDA_SUCCESS; });
  stream->operations.back().after.push_back(event->recorded);
  return CUDA_SUCCESS;
}

CUresult Streams::CheckEvent(CUevent event, bool wait) {
  Ticket recorded;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    recorded = event->recorded;
    if (!wait) return Done(recorded) ? StickyError() : CUDA_ERROR_NOT_READY;
  }
  Wait(recorded);
  return StickyError();
}

bool Streams::MayBegin(const CUstream_st::Operation& operation) const {
  if (StickyError() != CUDA_SUCCESS) return true;  // to be dropped
  const int held = attachment()->shared()->held_pid.load();
  if (held == 0 || held == getpid()) return false;
  if (steady_clock::now() < operation.due) return false;
  for (const Ticket& ticket : operation.after) {
    if (!Done(ticket)) return false;
  }
  return true;
}

void Streams::Run(CUstream stream) {
  pthread_setname_np(pthread_self(), "fake-stream");
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (stream->operations.empty() && !stream->ending) changed_.wait(lock);
    if (stream->operations.empty()) break;
    if (!MayBegin(stream->operations.front())) {
      // Other processes may release what is held, which nothing announces.
      changed_.wait_for(lock, microseconds(100));
      continue;
    }
    CUstream_st::Operation operation = std::move(stream->operations.front());
    stream->operations.pop_front();
    lock.unlock();
    CUresult result = StickyError();
    if (result == CUDA_SUCCESS) result = operation.run();
    if (result != CUDA_SUCCESS) SetStickyError(result);
    operation.run = nullptr;
    lock.lock();
    ++stream->done;
    changed_.notify_all();
  }
  streams_.erase(stream);
  ended_.push_back(stream);
  changed_.notify_all();
}

}  // namespace fakecuda
