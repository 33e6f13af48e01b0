#include "gpu/cuda_client_copier.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/cuda_lane.h"
#include "gpu/cuda_memory.h"
#include "storage/check.h"
#include "storage/clock.h"

namespace embcache {
namespace {

constexpr size_t kMaxQueued = 16384;
// How soon the thread looks again: often at first, for most copies take less than a millisecond.
constexpr absl::Duration kShortestPoll = absl::Microseconds(20);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(2);
// Of one client, under way at a time.
constexpr int kMaxCopiesPerClient = 1024;
// A client's stream is kept for its next copies for so long.
constexpr absl::Duration kKeepStream = absl::Seconds(10);

constexpr char kAdvice[] =
    "memory of cudaMallocAsync, of memory pools, of PyTorch's expandable_segments and of the "
    "daemon's own process cannot be opened by handle; use Reserve and copy into the range it gives";

absl::Status CheckCopy(const ClientCopy& copy) {
  if (copy.ipc_handle.size() != GpuDevice::kIpcHandleBytes) {
    return absl::InvalidArgumentError(absl::StrCat("ipc_handle: ", copy.ipc_handle.size(),
                                                   " bytes; must be ", GpuDevice::kIpcHandleBytes));
  }
  if (copy.offset + copy.bytes < copy.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset: ", copy.offset, " + ", copy.bytes, " bytes is more than 2^64"));
  }
  for (const ClientCopy::Part& part : copy.parts) {
    EMB_CHECK(part.from <= copy.bytes && part.bytes <= copy.bytes - part.from);
    EMB_CHECK(copy.to_offset + part.to + part.bytes <= copy.to->bytes());
  }
  return absl::OkStatus();
}

}  // namespace

CudaClientCopier::CudaClientCopier(std::shared_ptr<CudaContext> context, absl::Duration timeout)
    : context_(std::move(context)), timeout_(timeout), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "client-copies");
}

CudaClientCopier::~CudaClientCopier() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void CudaClientCopier::Copy(ClientCopy copy) {
  absl::Status refused = CheckCopy(copy);
  {
    absl::MutexLock lock(&mu_);
    if (refused.ok() && queue_.size() >= kMaxQueued) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat(kMaxQueued, " copies out of clients' memory are waiting already"));
    }
    if (refused.ok()) {
      Job job{.copy = std::move(copy), .deadline = SystemClock()->MonotonicNow() + timeout_};
      queue_.push_back(std::move(job));
      return;
    }
  }
  copy.done(std::move(refused));
}

absl::Duration CudaClientCopier::LongestWait() const {
  const absl::Duration now = SystemClock()->MonotonicNow();
  absl::MutexLock lock(&mu_);
  return std::max(now - oldest_, absl::ZeroDuration());
}

// --- The thread ---------------------------------------------------------------------------------

void CudaClientCopier::Run() {
  absl::Duration pause = kShortestPoll;
  while (true) {
    std::deque<Job> jobs;
    const absl::Duration longest = !running_.empty()  ? pause
                                   : clients_.empty() ? absl::InfiniteDuration()
                                                      : kKeepStream;
    if (!TakeQueued(longest, &jobs)) break;
    const bool started = !jobs.empty();
    for (Job& job : jobs) Start(std::move(job));
    const bool ended = Poll();
    pause = started || ended ? kShortestPoll : std::min(2 * pause, kLongestPoll);
    CloseIdleClients();
  }
  for (auto& [name, client] : clients_) client.idle_since = -absl::InfiniteDuration();
  CloseIdleClients();
}

bool CudaClientCopier::TakeQueued(absl::Duration longest, std::deque<Job>* jobs) {
  absl::MutexLock lock(&mu_);
  oldest_ = running_.empty() ? absl::InfiniteDuration() : running_.front().started;
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return (stopping_ && running_.empty()) || !queue_.empty();
  };
  mu_.AwaitWithTimeout(absl::Condition(&ready), longest);
  jobs->swap(queue_);
  return !stopping_ || !jobs->empty() || !running_.empty();
}

void CudaClientCopier::Start(Job job) {
  absl::Status started = StartLocal(&job);
  if (started.ok()) {
    job.started = SystemClock()->MonotonicNow();
    running_.push_back(std::move(job));
  } else if (job.copy.done) {
    job.copy.done(std::move(started));
  }
}

// Leaves nothing open and nothing under way on failure.
absl::Status CudaClientCopier::StartLocal(Job* job) {
  const CudaContext::Current current(context_.get());
  if (!current.status().ok()) return current.status();
  const ClientCopy& copy = job->copy;
  absl::StatusOr<Client*> client = FindClient(copy.client);
  if (!client.ok()) return client.status();
  if ((*client)->copies >= kMaxCopiesPerClient) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxCopiesPerClient, " copies of this client are under way already"));
  }
  absl::StatusOr<Mapping*> mapping = OpenMapping(copy.ipc_handle);
  if (!mapping.ok()) return mapping.status();
  const uint64_t available = (*mapping)->bytes;
  absl::Status status;
  if (copy.offset > available || copy.bytes > available - copy.offset) {
    status = absl::InvalidArgumentError(absl::StrCat("offset: ", copy.offset, " + ", copy.bytes,
                                                     " bytes, but the allocation has ", available));
  }
  const CudaDriver& driver = context_->driver();
  if (status.ok()) {
    status =
        context_->Check(driver.cuEventCreate(&job->end, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  const CUdeviceptr device_to = DevicePointer(copy.to);
  const CopyDirection direction =
      device_to != 0 ? CopyDirection::kDeviceToDevice : CopyDirection::kDeviceToHost;
  const uint64_t to = device_to != 0 ? device_to : reinterpret_cast<uint64_t>(copy.to->host_data());
  bool under_way = false;
  for (const ClientCopy::Part& part : copy.parts) {
    if (!status.ok()) break;
    if (part.bytes == 0) continue;
    status = StartCopy(context_.get(), direction, (*client)->stream, to + copy.to_offset + part.to,
                       (*mapping)->pointer + copy.offset + part.from, part.bytes);
    under_way = under_way || status.ok();
  }
  if (status.ok()) {
    status = context_->Check(driver.cuEventRecord(job->end, (*client)->stream), "cuEventRecord");
  }
  if (status.ok()) {
    ++(*client)->copies;
    return status;
  }
  if (under_way && !context_->lost()) (void)driver.cuStreamSynchronize((*client)->stream);
  if (job->end != nullptr && !context_->lost()) (void)driver.cuEventDestroy_v2(job->end);
  CloseMapping(copy.ipc_handle);
  return status;
}

absl::StatusOr<CudaClientCopier::Mapping*> CudaClientCopier::OpenMapping(
    const std::string& handle) {
  std::unique_ptr<Mapping>& mapping = mappings_[handle];
  if (mapping != nullptr) {
    ++mapping->users;
    return mapping.get();
  }
  const CudaDriver& driver = context_->driver();
  CUipcMemHandle ipc;
  std::memcpy(ipc.reserved, handle.data(), sizeof(ipc.reserved));
  auto opened = std::make_unique<Mapping>();
  const CUresult result =
      driver.cuIpcOpenMemHandle_v2(&opened->pointer, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  // What a client sends must not condemn the device, and some drivers answer "unknown" to a handle.
  absl::Status status = result == CUDA_ERROR_UNKNOWN
                            ? driver.ToStatus(result, "cuIpcOpenMemHandle")
                            : context_->Check(result, "cuIpcOpenMemHandle");
  if (!status.ok()) {
    mappings_.erase(handle);
    if (context_->lost()) return status;
    return absl::FailedPreconditionError(
        absl::StrCat("ipc_handle: ", status.message(), "; ", kAdvice));
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  status = context_->Check(driver.cuMemGetAddressRange_v2(&base, &size, opened->pointer),
                           "cuMemGetAddressRange");
  if (!status.ok()) {
    if (!context_->lost()) (void)driver.cuIpcCloseMemHandle(opened->pointer);
    mappings_.erase(handle);
    return status;
  }
  opened->bytes = base + size - opened->pointer;
  opened->users = 1;
  mapping = std::move(opened);
  return mapping.get();
}

void CudaClientCopier::CloseMapping(const std::string& handle) {
  auto it = mappings_.find(handle);
  EMB_CHECK(it != mappings_.end());
  if (--it->second->users > 0) return;
  if (!context_->lost()) {
    (void)context_->Check(context_->driver().cuIpcCloseMemHandle(it->second->pointer),
                          "cuIpcCloseMemHandle");
  }
  mappings_.erase(it);
}

absl::StatusOr<CudaClientCopier::Client*> CudaClientCopier::FindClient(const std::string& name) {
  Client& client = clients_[name];
  if (client.stream != nullptr) return &client;
  absl::Status status = context_->Check(
      context_->driver().cuStreamCreate(&client.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (status.ok()) return &client;
  clients_.erase(name);
  return status;
}

void CudaClientCopier::CloseIdleClients() {
  const absl::Duration now = SystemClock()->MonotonicNow();
  absl::erase_if(clients_, [&](auto& entry) {
    Client& client = entry.second;
    if (client.copies > 0 || now - client.idle_since < kKeepStream) return false;
    const CudaContext::Current current(context_.get());
    if (current.status().ok()) {
      (void)context_->Check(context_->driver().cuStreamDestroy_v2(client.stream),
                            "cuStreamDestroy");
    }
    return true;
  });
}

bool CudaClientCopier::Poll() {
  bool ended = false;
  for (auto it = running_.begin(); it != running_.end();) {
    absl::Status result;
    bool over = true;
    {
      const CudaContext::Current current(context_.get());
      result = current.status();
      if (result.ok()) {
        const CUresult queried = context_->driver().cuEventQuery(it->end);
        over = queried != CUDA_ERROR_NOT_READY;
        if (over) result = context_->Check(queried, "cuEventQuery");
        if (over && !result.ok() && !context_->lost()) {
          // It cannot be known by the event, so it is waited for.
          (void)context_->driver().cuStreamSynchronize(clients_.at(it->copy.client).stream);
        }
      }
    }
    if (!over) {
      if (!it->told_late && SystemClock()->MonotonicNow() >= it->deadline) {
        it->told_late = true;
        if (it->copy.late) it->copy.late();
      }
      ++it;
      continue;
    }
    Job job = std::move(*it);
    it = running_.erase(it);
    Finish(std::move(job), std::move(result));
    ended = true;
  }
  return ended;
}

void CudaClientCopier::Finish(Job job, absl::Status result) {
  {
    const CudaContext::Current current(context_.get());
    if (current.status().ok()) {
      (void)context_->Check(context_->driver().cuEventDestroy_v2(job.end), "cuEventDestroy");
    }
    CloseMapping(job.copy.ipc_handle);
  }
  Client& client = clients_.at(job.copy.client);
  if (--client.copies == 0) client.idle_since = SystemClock()->MonotonicNow();
  if (result.ok()) copies_.fetch_add(1, std::memory_order_relaxed);
  job.copy.done(std::move(result));
}

}  // namespace embcache
