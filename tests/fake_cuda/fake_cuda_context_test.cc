#include <string.h>

#include <thread>

#include "tests/fake_cuda/device_test.h"

namespace fakecuda {
namespace {

using FakeCudaContext = DeviceTest;

TEST_F(FakeCudaContext, EachThreadNeedsACurrentContextOfItsOwn) {
  CUresult without = CUDA_SUCCESS;
  CUresult with = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    CUdeviceptr address = 0;
    without = cuMemAlloc(&address, 1024);
    cuCtxSetCurrent(context_);
    with = cuMemAlloc(&address, 1024);
  }).join();
  EXPECT_EQ(without, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(with, CUDA_SUCCESS);
}

TEST_F(FakeCudaContext, NothingWorksBeforeCuInit) {
  // A fork has not initialised the driver either, and may not use its parent's.
  const pid_t pid = fork();
  if (pid == 0) {
    int count = 0;
    _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(FakeCudaContext, PushedContextsArePoppedInTurn) {
  CUcontext popped = nullptr;
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
  CUdevice device = -1;
  ASSERT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  ASSERT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, other);
  ASSERT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(FakeCudaContext, TheLastReleaseOfAPrimaryContextFreesItsMemory) {
  const size_t before = FreeBytes();
  Alloc(4 * kMiB);
  EXPECT_EQ(FreeBytes(), before - 4 * kMiB);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  size_t unused = 0;
  EXPECT_EQ(cuMemGetInfo(&unused, &unused), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(FakeCudaContext, DevicesHaveUuidsThatVisibleDevicesDoesNotChange) {
  CUuuid first = {};
  CUuuid second = {};
  ASSERT_EQ(cuDeviceGetUuid_v2(&first, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetUuid_v2(&second, 1), CUDA_SUCCESS);
  EXPECT_NE(memcmp(&first, &second, sizeof(first)), 0);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  Peer peer(peer_program_);  // its ordinal 0 is this process's ordinal 1
  const Answer alloc = peer.Run("alloc", 4 * kMiB);
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_EQ(alloc.code, CUDA_SUCCESS);
  EXPECT_EQ(fakecuda_used_bytes(0), 0u);
  EXPECT_EQ(fakecuda_used_bytes(1), 4 * kMiB);
}

TEST_F(FakeCudaContext, FunctionsAreLookedUpByTheirDocumentedNames) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAlloc));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(cuGetProcAddress("cuNoSuchThing", &function, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_F(FakeCudaContext, ErrorsHaveTheDriversNamesAndTexts) {
  const char* name = nullptr;
  const char* text = nullptr;
  ASSERT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name), CUDA_SUCCESS);
  ASSERT_EQ(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_STREQ(text, "an illegal memory access was encountered");
}

TEST_F(FakeCudaContext, AStickyErrorAnswersEveryCallThatNeedsTheContext) {
  const CUdeviceptr address = Alloc(kMiB);
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  size_t unused = 0;
  EXPECT_EQ(cuMemGetInfo(&unused, &unused), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemFree(address), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
}

TEST_F(FakeCudaContext, AStickyErrorStaysInItsProcess) {
  Peer peer(peer_program_);
  ASSERT_EQ(peer.Run("info").code, CUDA_SUCCESS);
  fakecuda_set_sticky(peer.pid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(peer.Run("info").code, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_GT(FreeBytes(), 0u);
}

TEST_F(FakeCudaContext, TheNthCallOfAFunctionFailsOnDemand) {
  ASSERT_EQ(fakecuda_fail(0, "cuMemGetInfo", 2, CUDA_ERROR_UNKNOWN), 0);
  size_t unused = 0;
  EXPECT_EQ(cuMemGetInfo(&unused, &unused), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetInfo(&unused, &unused), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuMemGetInfo(&unused, &unused), CUDA_SUCCESS);
  EXPECT_EQ(fakecuda_fail(0, "cuNoSuchThing", 1, CUDA_ERROR_UNKNOWN), -1);
}

TEST_F(FakeCudaContext, CallsOfAnotherProcessFailOnDemand) {
  Peer peer(peer_program_);
  ASSERT_EQ(peer.Run("info").code, CUDA_SUCCESS);
  ASSERT_EQ(fakecuda_fail_always(peer.pid(), "cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY), 0);
  EXPECT_EQ(peer.Run("alloc", 1024).code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(peer.Run("alloc", 1024).code, CUDA_ERROR_OUT_OF_MEMORY);
  Alloc(1024);
  ASSERT_EQ(fakecuda_fail_always(peer.pid(), "cuMemAlloc", 0), 0);
  EXPECT_EQ(peer.Run("alloc", 1024).code, CUDA_SUCCESS);
}

TEST_F(FakeCudaContext, CallsAreCountedForEachProcess) {
  Peer peer(peer_program_);
  ASSERT_EQ(peer.Run("info").code, CUDA_SUCCESS);
  ASSERT_EQ(peer.Run("info").code, CUDA_SUCCESS);
  FreeBytes();
  EXPECT_EQ(fakecuda_calls(peer.pid(), "cuMemGetInfo"), 2u);
  EXPECT_EQ(fakecuda_calls(getpid(), "cuMemGetInfo_v2"), 1u);
  EXPECT_EQ(fakecuda_calls(0, "cuMemGetInfo"), 3u);
  EXPECT_GT(fakecuda_calls(peer.pid(), nullptr), 4u);
}

}  // namespace
}  // namespace fakecuda
