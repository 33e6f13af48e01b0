// Entry points: copies, streams and events.

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/process.h"
#include "tests/fake_cuda/streams.h"

using fakecuda::attachment;
using fakecuda::CurrentContext;
using fakecuda::Memory;
using fakecuda::Streams;
using fakecuda::Ticket;

namespace {

uint64_t Address(const void* host) { return reinterpret_cast<uint64_t>(host); }

void CountIfPageable(const void* host, size_t bytes) {
  if (!Memory::Get().IsPinned(host, bytes)) attachment()->process().pageable_copies.fetch_add(1);
}

bool IsDeviceRange(CUdeviceptr address, size_t bytes) {
  return Memory::Get().Contains(address, bytes);
}

CUresult QueueCopy(uint64_t to, uint64_t from, size_t bytes, CUstream stream,
                   Ticket* ticket = nullptr) {
  return Streams::Get().Queue(
      stream, [=] { return Memory::Get().Copy(to, from, bytes); }, ticket);
}

// On the default stream, and waits.
CUresult CopyNow(uint64_t to, uint64_t from, size_t bytes) {
  Ticket ticket;
  const CUresult result = QueueCopy(to, from, bytes, nullptr, &ticket);
  if (result != CUDA_SUCCESS) return result;
  Streams::Get().Wait(ticket);
  return fakecuda::StickyError();
}

CUresult QueueFill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Streams::Get().Queue(stream, [=] { return Memory::Get().Fill(to, value, bytes); });
}

}  // namespace

extern "C" {

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKECUDA_BEGIN(cuMemcpyDtoDAsync_v2, kContext);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(to, bytes) || !IsDeviceRange(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return QueueCopy(to, from, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  FAKECUDA_BEGIN(cuMemcpyHtoDAsync_v2, kContext);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  CountIfPageable(from, bytes);
  return QueueCopy(to, Address(from), bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKECUDA_BEGIN(cuMemcpyDtoHAsync_v2, kContext);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  CountIfPageable(to, bytes);
  return QueueCopy(Address(to), from, bytes, stream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  FAKECUDA_BEGIN(cuMemcpyHtoD_v2, kContext);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  CountIfPageable(from, bytes);
  return CopyNow(to, Address(from), bytes);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  FAKECUDA_BEGIN(cuMemcpyDtoH_v2, kContext);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  CountIfPageable(to, bytes);
  return CopyNow(Address(to), from, bytes);
}

// Unlike the copies from and to the host, this one and a fill do not wait for their end.
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  FAKECUDA_BEGIN(cuMemcpyDtoD_v2, kContext);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDeviceRange(to, bytes) || !IsDeviceRange(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return QueueCopy(to, from, bytes, nullptr);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
  FAKECUDA_BEGIN(cuMemsetD8_v2, kContext);
  return QueueFill(to, value, bytes, nullptr);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  FAKECUDA_BEGIN(cuMemsetD8Async, kContext);
  return QueueFill(to, value, bytes, stream);
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  FAKECUDA_BEGIN(cuStreamCreate, kContext);
  if ((flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  *stream = Streams::Get().Create(CurrentContext()->device, flags != CU_STREAM_NON_BLOCKING);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  FAKECUDA_BEGIN(cuStreamCreateWithPriority, kContext);
  if ((flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  *stream = Streams::Get().Create(CurrentContext()->device, flags != CU_STREAM_NON_BLOCKING);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  FAKECUDA_BEGIN(cuStreamDestroy_v2, kContext);
  return Streams::Get().Destroy(stream);
}

CUresult cuStreamSynchronize(CUstream stream) {
  FAKECUDA_BEGIN(cuStreamSynchronize, kContext);
  return Streams::Get().Synchronize(stream);
}

CUresult cuStreamQuery(CUstream stream) {
  FAKECUDA_BEGIN(cuStreamQuery, kContext);
  return Streams::Get().Query(stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  FAKECUDA_BEGIN(cuStreamWaitEvent, kContext);
  return Streams::Get().WaitEvent(stream, event);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  FAKECUDA_BEGIN(cuLaunchHostFunc, kContext);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Streams::Get().Queue(stream, [function, data] {
    fakecuda::InHostFunction() = true;
    function(data);
    fakecuda::InHostFunction() = false;
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  FAKECUDA_BEGIN(cuEventCreate, kContext);
  *event = Streams::Get().CreateEvent();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  FAKECUDA_BEGIN(cuEventDestroy_v2, kContext);
  return Streams::Get().DestroyEvent(event);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAKECUDA_BEGIN(cuEventRecord, kContext);
  return Streams::Get().Record(event, stream);
}

CUresult cuEventQuery(CUevent event) {
  FAKECUDA_BEGIN(cuEventQuery, kContext);
  return Streams::Get().CheckEvent(event, false);
}

CUresult cuEventSynchronize(CUevent event) {
  FAKECUDA_BEGIN(cuEventSynchronize, kContext);
  return Streams::Get().CheckEvent(event, true);
}

}  // extern "C"
