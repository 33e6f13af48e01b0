#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "tests/fake_cuda/device_test.h"

namespace fakecuda {
namespace {

using FakeCudaMemory = DeviceTest;

TEST_F(FakeCudaMemory, AllocationsCountAgainstTheDevice) {
  fakecuda_set_vram(0, 16 * kMiB);
  EXPECT_EQ(FreeBytes(), 16 * kMiB);
  const CUdeviceptr address = Alloc(9 * kMiB);
  EXPECT_EQ(FreeBytes(), 6 * kMiB) << "rounded up to 2 MiB";
  CUdeviceptr refused = 0;
  EXPECT_EQ(cuMemAlloc(&refused, 7 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), 16 * kMiB);
}

TEST_F(FakeCudaMemory, TheCpuCannotTouchDeviceMemory) {
  const CUdeviceptr address = Alloc(4 * kMiB);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
}

TEST_F(FakeCudaMemory, TheCpuCannotTouchImportedMemory) {
  Peer peer(peer_program_);
  const Answer opened = peer.Run("open", ExportHex(Alloc(4 * kMiB)));
  ASSERT_EQ(opened.code, CUDA_SUCCESS);
  EXPECT_EQ(peer.Run("touch", opened.value).code, -1);
  EXPECT_NE(peer.Wait(), 0);
}

TEST_F(FakeCudaMemory, SmallAllocationsShareABlock) {
  const size_t before = FreeBytes();
  const CUdeviceptr first = Alloc(1000);
  const CUdeviceptr second = Alloc(1000);
  EXPECT_EQ(FreeBytes(), before - 2 * kMiB);
  EXPECT_EQ(first / (2 * kMiB), second / (2 * kMiB));
  EXPECT_EQ(cuMemFree(first), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before - 2 * kMiB);
  EXPECT_EQ(cuMemFree(second), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(FakeCudaMemory, ARangeIsTheAllocationsAndCopiesBeyondItAreRefused) {
  const CUdeviceptr address = Alloc(3 * kMiB);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuMemGetAddressRange(&base, &bytes, address + kMiB), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 3 * kMiB);
  std::vector<char> host(2 * kMiB);
  EXPECT_EQ(cuMemcpyDtoH(host.data(), address + 2 * kMiB, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(host.data(), address + 2 * kMiB, kMiB + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, 4096), CUDA_ERROR_NOT_FOUND);
}

TEST_F(FakeCudaMemory, OnlyAnAllocationsBaseIsFreedAndOnlyOnce) {
  const CUdeviceptr address = Alloc(3 * kMiB);
  EXPECT_EQ(cuMemFree(address + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemory, HostMemoryIsRegisteredOnceAndUpToALimit) {
  std::vector<char> host(64 * 1024);
  fakecuda_set_host_limit(48 * 1024);
  EXPECT_EQ(cuMemHostRegister(host.data(), host.size(), 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemHostRegister(host.data(), 32 * 1024, 0), CUDA_SUCCESS);
  EXPECT_EQ(fakecuda_pinned_bytes(), 32 * 1024u);
  EXPECT_EQ(cuMemHostRegister(host.data() + 4096, 4096, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(host.data() + 4096), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(host.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(host.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(fakecuda_pinned_bytes(), 0u);
}

TEST_F(FakeCudaMemory, PinnedMemoryHasADeviceAddressAndCopiesFromOtherMemoryAreCounted) {
  const CUdeviceptr address = Alloc(kMiB);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 8192), CUDA_SUCCESS);
  CUdeviceptr device = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer(&device, pinned, 0), CUDA_SUCCESS);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(pinned));
  EXPECT_EQ(cuMemcpyHtoD(address, pinned, 8192), CUDA_SUCCESS);
  EXPECT_EQ(fakecuda_pageable_copies(getpid()), 0u);
  std::vector<char> pageable(8192);
  EXPECT_EQ(cuMemcpyHtoD(address, pageable.data(), 8192), CUDA_SUCCESS);
  EXPECT_EQ(fakecuda_pageable_copies(getpid()), 1u);
  EXPECT_EQ(cuMemHostGetDevicePointer(&device, pageable.data(), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(FakeCudaMemory, PointersTellWhatTheyPointTo) {
  const CUdeviceptr address = Alloc(kMiB);
  unsigned int type = 0;
  ASSERT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 5),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned int>(CU_MEMORYTYPE_DEVICE));
  int ordinal = -1;
  ASSERT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  char local = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&local)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaMemory, PoolAndVirtualMemoryCannotBeExported) {
  CUipcMemHandle handle = {};
  CUdeviceptr pool = 0;
  ASSERT_EQ(cuMemAllocAsync(&pool, kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, pool), CUDA_ERROR_INVALID_VALUE);
  int capable = 1;
  ASSERT_EQ(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pool),
            CUDA_SUCCESS);
  EXPECT_EQ(capable, 0);
  EXPECT_EQ(cuMemFreeAsync(pool, nullptr), CUDA_SUCCESS);
  fakecuda_set_exportable(0);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, Alloc(4 * kMiB)), CUDA_ERROR_INVALID_VALUE);
  fakecuda_set_exportable(1);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, Alloc(4 * kMiB)), CUDA_SUCCESS);
}

}  // namespace
}  // namespace fakecuda
