// Entry points: device memory, pinned host memory, and memory of other processes.

#include <string.h>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/process.h"
#include "tests/fake_cuda/streams.h"

using fakecuda::attachment;
using fakecuda::CurrentContext;
using fakecuda::Memory;
using fakecuda::Range;
using fakecuda::Streams;

namespace {

// What the 64 bytes of an IPC handle hold.
struct HandleContent {
  char magic[8];
  uint64_t secret;  // of the fake device: a handle of another is unknown
  uint64_t allocation_id;
  char rest[40];
};
static_assert(sizeof(HandleContent) == sizeof(CUipcMemHandle));
constexpr char kMagic[8] = {'F', 'A', 'K', 'E', 'C', 'U', 'D', 'A'};

bool IsDevice(const Range& range) { return range.allocation_id != 0; }

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  FAKECUDA_BEGIN(cuMemGetInfo_v2, kContext);
  fakecuda::SharedLock lock(attachment()->shared());
  const int device = CurrentContext()->device;
  *total = attachment()->shared()->vram[device];
  const uint64_t used = attachment()->UsedBytes(device);
  *free_bytes = used < *total ? *total - used : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  FAKECUDA_BEGIN(cuMemAlloc_v2, kContext);
  uint64_t at = 0;
  const CUresult result = Memory::Get().Allocate(CurrentContext(), bytes, true, &at);
  if (result == CUDA_SUCCESS) *address = at;
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  FAKECUDA_BEGIN(cuMemFree_v2, kContext);
  if (address == 0) return CUDA_SUCCESS;
  Streams::Get().WaitForDevice(CurrentContext()->device);
  return Memory::Get().Free(address);
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  FAKECUDA_BEGIN(cuMemAllocAsync, kContext);
  uint64_t at = 0;
  const CUresult result = Memory::Get().Allocate(CurrentContext(), bytes, false, &at);
  if (result == CUDA_SUCCESS) *address = at;
  return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  FAKECUDA_BEGIN(cuMemFreeAsync, kContext);
  Range range;
  if (!Memory::Get().Find(address, &range) || range.base != address || range.imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Streams::Get().Queue(stream, [address] { return Memory::Get().Free(address); });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  FAKECUDA_BEGIN(cuMemGetAddressRange_v2, kContext);
  Range range;
  if (!Memory::Get().Find(address, &range)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range.base;
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  FAKECUDA_BEGIN(cuPointerGetAttribute, kContext);
  Range range;
  if (!Memory::Get().Find(address, &range)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned int*>(data) =
          IsDevice(range) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      for (int ordinal = 0; ordinal < fakecuda::VisibleDevices(); ++ordinal) {
        if (fakecuda::DeviceOfOrdinal(ordinal) == range.device) *static_cast<int*>(data) = ordinal;
      }
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = range.allocation_id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = IsDevice(range) && range.exportable;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = range.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = range.bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned int flags) {
  FAKECUDA_BEGIN(cuMemHostRegister_v2, kContext);
  return Memory::Get().Pin(address, bytes);
}

CUresult cuMemHostUnregister(void* address) {
  FAKECUDA_BEGIN(cuMemHostUnregister, kContext);
  Streams::Get().WaitForDevice(CurrentContext()->device);
  return Memory::Get().Unpin(address);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* address, unsigned int flags) {
  FAKECUDA_BEGIN(cuMemHostGetDevicePointer_v2, kContext);
  if (flags != 0 || !Memory::Get().IsPinned(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  FAKECUDA_BEGIN(cuMemAllocHost_v2, kContext);
  return Memory::Get().AllocateHost(bytes, address);
}

CUresult cuMemFreeHost(void* address) {
  FAKECUDA_BEGIN(cuMemFreeHost, kContext);
  Streams::Get().WaitForDevice(CurrentContext()->device);
  return Memory::Get().FreeHost(address);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  FAKECUDA_BEGIN(cuIpcGetMemHandle, kContext);
  Range range;
  if (!Memory::Get().Find(address, &range) || !range.exportable) return CUDA_ERROR_INVALID_VALUE;
  HandleContent content = {};
  memcpy(content.magic, kMagic, sizeof(kMagic));
  content.secret = attachment()->shared()->secret;
  content.allocation_id = range.allocation_id;
  memcpy(handle, &content, sizeof(content));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  FAKECUDA_BEGIN(cuIpcOpenMemHandle_v2, kContext);
  HandleContent content;
  memcpy(&content, &handle, sizeof(content));
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (memcmp(content.magic, kMagic, sizeof(kMagic)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (content.secret != attachment()->shared()->secret) return CUDA_ERROR_INVALID_VALUE;
  uint64_t at = 0;
  const CUresult result = Memory::Get().Open(CurrentContext(), content.allocation_id, &at);
  if (result == CUDA_SUCCESS) *address = at;
  return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  FAKECUDA_BEGIN(cuIpcCloseMemHandle, kContext);
  return Memory::Get().Close(address);
}

}  // extern "C"
