#include <string.h>

#include "tests/fake_cuda/device_test.h"

namespace fakecuda {
namespace {

using FakeCudaIpc = DeviceTest;

TEST_F(FakeCudaIpc, AnotherProcessSeesTheSameBytesAtAnotherAddress) {
  const CUdeviceptr address = Alloc(4 * kMiB);
  Write(address + kMiB, "embedding");
  Peer peer(peer_program_);
  const Answer opened = peer.Run("open", ExportHex(address));
  ASSERT_EQ(opened.code, CUDA_SUCCESS);
  EXPECT_NE(opened.number(), address);
  EXPECT_EQ(peer.Run("read", opened.number() + kMiB, 9).value, "embedding");
  ASSERT_EQ(peer.Run("write", opened.number() + kMiB, "replaced").code, CUDA_SUCCESS);
  EXPECT_EQ(Peek(address + kMiB, 8), "replaced");
  EXPECT_EQ(peer.Run("range", opened.number() + 5).value,
            std::to_string(opened.number()) + " " + std::to_string(4 * kMiB));
}

TEST_F(FakeCudaIpc, TheExporterCannotOpenItsOwnHandle) {
  CUdeviceptr opened = 0;
  EXPECT_EQ(Open(Export(Alloc(4 * kMiB)), &opened), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCudaIpc, OpeningNeedsACurrentContextInTheThread) {
  Peer peer(peer_program_);
  const Answer handle = peer.Run("export", peer.Run("alloc", 4 * kMiB).value);
  CUresult result = CUDA_SUCCESS;
  std::thread([&] {
    CUdeviceptr opened = 0;
    result = Open(FromHex(handle.value), &opened);
  }).join();
  EXPECT_EQ(result, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCudaIpc, OpeningTwiceGivesTheSameAddressAndNeedsTwoCloses) {
  Peer peer(peer_program_);
  const std::string exported = peer.Run("alloc", 4 * kMiB).value;
  const CUipcMemHandle handle = FromHex(peer.Run("export", exported).value);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_EQ(Open(handle, &first), CUDA_SUCCESS);
  ASSERT_EQ(Open(handle, &second), CUDA_SUCCESS);
  EXPECT_EQ(first, second);
  EXPECT_EQ(fakecuda_open_imports(getpid()), 2u);
  EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_EQ(Peek(first, 1).size(), 1u);
  EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  char byte = 0;
  EXPECT_EQ(fakecuda_peek(first, &byte, 1), -1);
  EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaIpc, AnUnknownHandleIsRefused) {
  CUipcMemHandle handle = {};
  CUdeviceptr opened = 0;
  EXPECT_EQ(Open(handle, &opened), CUDA_ERROR_INVALID_VALUE);
  memset(&handle, 0x5a, sizeof(handle));
  EXPECT_EQ(Open(handle, &opened), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaIpc, AHandleOfFreedMemoryIsRefused) {
  Peer peer(peer_program_);
  const std::string address = peer.Run("alloc", 4 * kMiB).value;
  const CUipcMemHandle handle = FromHex(peer.Run("export", address).value);
  ASSERT_EQ(peer.Run("free", address).code, CUDA_SUCCESS);
  CUdeviceptr opened = 0;
  EXPECT_EQ(Open(handle, &opened), CUDA_ERROR_MAP_FAILED);
}

TEST_F(FakeCudaIpc, AHandleOfADeadProcessIsRefusedAndItsMemoryIsFree) {
  const size_t before = FreeBytes();
  Peer peer(peer_program_);
  const CUipcMemHandle handle =
      FromHex(peer.Run("export", peer.Run("alloc", 4 * kMiB).value).value);
  EXPECT_EQ(FreeBytes(), before - 4 * kMiB);
  peer.Kill();
  CUdeviceptr opened = 0;
  EXPECT_EQ(Open(handle, &opened), CUDA_ERROR_MAP_FAILED);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(FakeCudaIpc, MemoryOfADeadProcessStaysUsedWhileAnotherHasItOpen) {
  const size_t before = FreeBytes();
  Peer peer(peer_program_);
  const std::string address = peer.Run("alloc", 4 * kMiB).value;
  ASSERT_EQ(peer.Run("write", address, "kept").code, CUDA_SUCCESS);
  CUdeviceptr opened = 0;
  ASSERT_EQ(Open(FromHex(peer.Run("export", address).value), &opened), CUDA_SUCCESS);
  peer.Kill();
  EXPECT_EQ(Peek(opened, 4), "kept");
  EXPECT_EQ(FreeBytes(), before - 4 * kMiB);
  EXPECT_EQ(cuIpcCloseMemHandle(opened), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(FakeCudaIpc, MemoryFreedWhileOpenElsewhereStaysUsedUntilTheImporterDies) {
  const size_t before = FreeBytes();
  const CUdeviceptr address = Alloc(4 * kMiB);
  Peer peer(peer_program_);
  ASSERT_EQ(peer.Run("open", ExportHex(address)).code, CUDA_SUCCESS);
  EXPECT_EQ(fakecuda_open_imports(peer.pid()), 1u);
  ASSERT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), before - 4 * kMiB);
  peer.Kill();
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(FakeCudaIpc, StrictModeAbortsAFreeWhileOpenElsewhere) {
  const CUdeviceptr address = Alloc(4 * kMiB);
  Peer importer(peer_program_);
  Peer exporter(peer_program_);
  fakecuda_set_strict(1);
  const std::string theirs = exporter.Run("alloc", 4 * kMiB).value;
  ASSERT_EQ(importer.Run("open", exporter.Run("export", theirs).value).code, CUDA_SUCCESS);
  EXPECT_EQ(exporter.Run("free", theirs).code, -1);
  EXPECT_EQ(WTERMSIG(exporter.Wait()), SIGABRT);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
}

TEST_F(FakeCudaIpc, AnInteriorPointerExportsItsAllocation) {
  const CUdeviceptr address = Alloc(4 * kMiB);
  const CUipcMemHandle base = Export(address);
  const CUipcMemHandle interior = Export(address + kMiB);
  EXPECT_EQ(memcmp(&base, &interior, sizeof(base)), 0);
}

TEST_F(FakeCudaIpc, ExportingASmallAllocationShowsItsNeighboursToo) {
  const CUdeviceptr first = Alloc(512);
  const CUdeviceptr second = Alloc(512);
  ASSERT_EQ(second, first + 512);
  Write(second, "secret");
  Peer peer(peer_program_);
  const Answer opened = peer.Run("open", ExportHex(first));
  ASSERT_EQ(opened.code, CUDA_SUCCESS);
  EXPECT_EQ(peer.Run("peek", opened.number() + 512, 6).value, "secret");
  EXPECT_EQ(peer.Run("read", opened.number() + 512, 6).code, CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaIpc, MemoryIsOnlyOpenedOnItsDevice) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  Peer peer(peer_program_);
  const CUipcMemHandle handle =
      FromHex(peer.Run("export", peer.Run("alloc", 4 * kMiB).value).value);
  ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
  CUdeviceptr opened = 0;
  EXPECT_EQ(Open(handle, &opened), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

}  // namespace
}  // namespace fakecuda
