// Entry points: initialisation, errors, devices and contexts.

#include <stdio.h>
#include <string.h>

#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/process.h"
#include "tests/fake_cuda/streams.h"

using fakecuda::attachment;
using fakecuda::ContextStack;
using fakecuda::CurrentContext;
using fakecuda::DeviceOfOrdinal;
using fakecuda::PrimaryContext;

namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

// The driver's own names and texts.
constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* FindError(CUresult code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

struct Symbol {
  const char* name;
  void* address;
};

constexpr int kOldestVersion = 4000;  // of the functions' versions that the fake has

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  FAKECUDA_BEGIN(cuInit, kNothing);
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : fakecuda::Initialise();
}

CUresult cuDriverGetVersion(int* version) {
  FAKECUDA_BEGIN(cuDriverGetVersion, kNothing);
  *version = attachment() == nullptr ? 12090 : attachment()->shared()->driver_version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  FAKECUDA_BEGIN(cuGetErrorName, kNothing);
  const ErrorText* error = FindError(code);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  FAKECUDA_BEGIN(cuGetErrorString, kNothing);
  const ErrorText* error = FindError(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  FAKECUDA_BEGIN(cuGetProcAddress_v2, kNothing);
  static const Symbol kSymbols[] = {
#define FAKECUDA_SYMBOL(name, symbol) {#name, reinterpret_cast<void*>(&symbol)},
      FAKECUDA_FUNCTIONS(FAKECUDA_SYMBOL)
#undef FAKECUDA_SYMBOL
  };
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  CUdriverProcAddressQueryResult unused;
  if (status == nullptr) status = &unused;
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Symbol& known : kSymbols) {
    if (strcmp(known.name, symbol) != 0) continue;
    if (version < kOldestVersion) {
      *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      return CUDA_ERROR_NOT_FOUND;
    }
    *function = known.address;
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuDeviceGetCount(int* count) {
  FAKECUDA_BEGIN(cuDeviceGetCount, kInit);
  *count = fakecuda::VisibleDevices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKECUDA_BEGIN(cuDeviceGet, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  FAKECUDA_BEGIN(cuDeviceGetName, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(length), "Fake device %d", DeviceOfOrdinal(ordinal));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  FAKECUDA_BEGIN(cuDeviceGetUuid_v2, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = fakecuda::UuidOfDevice(DeviceOfOrdinal(ordinal));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  FAKECUDA_BEGIN(cuDeviceGetAttribute, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  FAKECUDA_BEGIN(cuDeviceTotalMem_v2, kInit);
  const int device = DeviceOfOrdinal(ordinal);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  fakecuda::SharedLock lock(attachment()->shared());
  *bytes = attachment()->shared()->vram[device];
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice ordinal, CUdevice peer) {
  FAKECUDA_BEGIN(cuDeviceCanAccessPeer, kInit);
  if (DeviceOfOrdinal(ordinal) < 0 || DeviceOfOrdinal(peer) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *can = ordinal != peer;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  FAKECUDA_BEGIN(cuDevicePrimaryCtxRetain, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *context = PrimaryContext(ordinal);
  ++(*context)->retained;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  FAKECUDA_BEGIN(cuDevicePrimaryCtxRelease_v2, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  const CUcontext context = PrimaryContext(ordinal);
  if (context->retained.load() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->retained.load() == 1) {
    fakecuda::Streams::Get().WaitForDevice(context->device);
    fakecuda::Memory::Get().DropDevice(context->device);
  }
  --context->retained;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags, int* active) {
  FAKECUDA_BEGIN(cuDevicePrimaryCtxGetState, kInit);
  if (DeviceOfOrdinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = PrimaryContext(ordinal)->retained.load() > 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKECUDA_BEGIN(cuCtxSetCurrent, kInit);
  if (!ContextStack().empty()) ContextStack().pop_back();
  if (context != nullptr) ContextStack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKECUDA_BEGIN(cuCtxGetCurrent, kInit);
  *context = CurrentContext();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKECUDA_BEGIN(cuCtxGetDevice, kContext);
  *device = CurrentContext()->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKECUDA_BEGIN(cuCtxPushCurrent_v2, kInit);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context->retained.load() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  ContextStack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  FAKECUDA_BEGIN(cuCtxPopCurrent_v2, kInit);
  if (CurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = CurrentContext();
  ContextStack().pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  FAKECUDA_BEGIN(cuCtxSynchronize, kContext);
  fakecuda::Streams::Get().WaitForDevice(CurrentContext()->device);
  return fakecuda::StickyError();
}

}  // extern "C"
