// The fixture of the fake driver's own tests: initialised, with device 0's context current.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_DEVICE_TEST_H_
#define EMBCACHE_TESTS_FAKE_CUDA_DEVICE_TEST_H_

#include <cuda.h>

#include <string>
#include <thread>

#include "tests/fake_cuda/test_support.h"

namespace fakecuda {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class DeviceTest : public testing::Test {
 protected:
  DeviceTest() {
    DeviceDirectory();
    setenv("EMBCACHE_TEST_FAKE_CUDA_DEVICES", "2", 1);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    fakecuda_reset();
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  // Gives up the context, and with it all memory of the test's.
  ~DeviceTest() override {
    fakecuda_release();
    fakecuda_set_sticky(getpid(), 0);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  }

  static CUdeviceptr Alloc(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  static CUipcMemHandle Export(CUdeviceptr address) {
    CUipcMemHandle handle = {};
    EXPECT_EQ(cuIpcGetMemHandle(&handle, address), CUDA_SUCCESS);
    return handle;
  }
  static std::string ExportHex(CUdeviceptr address) {
    const CUipcMemHandle handle = Export(address);
    std::string hex;
    for (char byte : handle.reserved) {
      char digits[3];
      snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
      hex += digits;
    }
    return hex;
  }
  static CUipcMemHandle FromHex(const std::string& hex) {
    CUipcMemHandle handle = {};
    for (size_t i = 0; i < sizeof(handle); ++i) {
      handle.reserved[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    }
    return handle;
  }
  static CUresult Open(const CUipcMemHandle& handle, CUdeviceptr* address) {
    return cuIpcOpenMemHandle(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  static std::string Peek(CUdeviceptr address, size_t bytes) {
    std::string text(bytes, '?');
    EXPECT_EQ(fakecuda_peek(address, text.data(), bytes), 0);
    return text;
  }
  static void Write(CUdeviceptr address, const std::string& text) {
    EXPECT_EQ(cuMemcpyHtoD(address, text.data(), text.size()), CUDA_SUCCESS);
  }
  static CUstream NewStream(unsigned int flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  static size_t FreeBytes() {
    size_t free_bytes = 0;
    size_t total = 0;
    EXPECT_EQ(cuMemGetInfo(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
  }

  const std::string peer_program_ = EMBCACHE_BIN "/fake_cuda_peer";
  CUcontext context_ = nullptr;
};

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_DEVICE_TEST_H_
