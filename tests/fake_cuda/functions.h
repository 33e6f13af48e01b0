// Every function of the driver that the fake has: its documented name, and the symbol that the CUDA
// 12 and 13 headers give it. Internal to the fake.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_FUNCTIONS_H_
#define EMBCACHE_TESTS_FAKE_CUDA_FUNCTIONS_H_

#include <cuda.h>

#define FAKECUDA_FUNCTIONS(X)                                \
  X(cuInit, cuInit)                                          \
  X(cuDriverGetVersion, cuDriverGetVersion)                  \
  X(cuGetErrorName, cuGetErrorName)                          \
  X(cuGetErrorString, cuGetErrorString)                      \
  X(cuGetProcAddress, cuGetProcAddress_v2)                   \
  X(cuDeviceGetCount, cuDeviceGetCount)                      \
  X(cuDeviceGet, cuDeviceGet)                                \
  X(cuDeviceGetName, cuDeviceGetName)                        \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2)                     \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute)              \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2)                   \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer)            \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)      \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState)  \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2) \
  X(cuCtxSetCurrent, cuCtxSetCurrent)                        \
  X(cuCtxGetCurrent, cuCtxGetCurrent)                        \
  X(cuCtxGetDevice, cuCtxGetDevice)                          \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2)                   \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2)                     \
  X(cuCtxSynchronize, cuCtxSynchronize)                      \
  X(cuMemGetInfo, cuMemGetInfo_v2)                           \
  X(cuMemAlloc, cuMemAlloc_v2)                               \
  X(cuMemFree, cuMemFree_v2)                                 \
  X(cuMemAllocAsync, cuMemAllocAsync)                        \
  X(cuMemFreeAsync, cuMemFreeAsync)                          \
  X(cuMemGetAddressRange, cuMemGetAddressRange_v2)           \
  X(cuMemHostRegister, cuMemHostRegister_v2)                 \
  X(cuMemHostUnregister, cuMemHostUnregister)                \
  X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2) \
  X(cuMemAllocHost, cuMemAllocHost_v2)                       \
  X(cuMemFreeHost, cuMemFreeHost)                            \
  X(cuPointerGetAttribute, cuPointerGetAttribute)            \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle)                    \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2)               \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle)                \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)                 \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)                 \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)                 \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2)                           \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2)                           \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2)                           \
  X(cuMemsetD8Async, cuMemsetD8Async)                        \
  X(cuMemsetD8, cuMemsetD8_v2)                               \
  X(cuStreamCreate, cuStreamCreate)                          \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority)  \
  X(cuStreamDestroy, cuStreamDestroy_v2)                     \
  X(cuStreamSynchronize, cuStreamSynchronize)                \
  X(cuStreamQuery, cuStreamQuery)                            \
  X(cuStreamWaitEvent, cuStreamWaitEvent)                    \
  X(cuLaunchHostFunc, cuLaunchHostFunc)                      \
  X(cuEventCreate, cuEventCreate)                            \
  X(cuEventDestroy, cuEventDestroy_v2)                       \
  X(cuEventRecord, cuEventRecord)                            \
  X(cuEventQuery, cuEventQuery)                              \
  X(cuEventSynchronize, cuEventSynchronize)

namespace fakecuda {

enum Function {
#define FAKECUDA_ENUMERATOR(name, symbol) k_##symbol,
  FAKECUDA_FUNCTIONS(FAKECUDA_ENUMERATOR)
#undef FAKECUDA_ENUMERATOR
      kFunctionCount
};

// By documented name or symbol; -1: unknown.
int FunctionByName(const char* name);

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_FUNCTIONS_H_
