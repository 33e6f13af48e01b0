// For tests of gpu/cuda_* on the fake driver: a fresh state, and a device of the test's own.

#ifndef EMBCACHE_TESTS_CUDA_CUDA_TEST_SUPPORT_H_
#define EMBCACHE_TESTS_CUDA_CUDA_TEST_SUPPORT_H_

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gpu/cuda_context.h"
#include "gpu/cuda_driver.h"
#include "gpu/gpu_device.h"
#include "gtest/gtest.h"
#include "storage/copy_engine.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/test_support.h"

namespace embcache {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kVramBytes = 256 * kMiB;

// Lines that the device logs.
class LogLines {
 public:
  std::function<void(absl::string_view)> sink() {
    return [this](absl::string_view line) {
      absl::MutexLock lock(&mu_);
      lines_.emplace_back(line);
    };
  }
  std::string text() const {
    absl::MutexLock lock(&mu_);
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

class CudaTest : public testing::Test {
 protected:
  CudaTest() {
    fakecuda::DeviceDirectory();
    fakecuda_reset();
    fakecuda_set_vram(0, kVramBytes);
  }
  ~CudaTest() override {
    fakecuda_release();
    fakecuda_reset();
    fakecuda_set_sticky(getpid(), 0);
  }

  static std::shared_ptr<CudaContext> OpenContext(absl::string_view which = "0") {
    auto driver = CudaDriver::Load("libcuda.so.1");
    EXPECT_TRUE(driver.ok()) << driver.status();
    auto context = CudaContext::Open(*driver, which);
    EXPECT_TRUE(context.ok()) << context.status();
    return context.ok() ? *context : nullptr;
  }
  std::unique_ptr<GpuDevice> OpenDevice(GpuDeviceOptions options = {}) {
    options.log = log_.sink();
    auto device = OpenGpuDevice(options);
    EXPECT_TRUE(device.ok()) << device.status();
    return device.ok() ? *std::move(device) : nullptr;
  }
  static std::unique_ptr<MemorySegment> Allocate(MemoryResource* memory, uint64_t bytes) {
    auto segment = memory->Allocate("test", bytes);
    EXPECT_TRUE(segment.ok()) << segment.status();
    return segment.ok() ? *std::move(segment) : nullptr;
  }
  // Starts something that answers through a Done, and waits for the answer.
  static absl::Status Await(const std::function<void(CopyEngine::Done)>& start) {
    absl::Notification ended;
    absl::Status result;
    start([&](absl::Status status) {
      result = std::move(status);
      ended.Notify();
    });
    ended.WaitForNotification();
    return result;
  }
  static uint64_t Calls(const char* function) { return fakecuda_calls(getpid(), function); }
  static uint64_t AllCalls() { return fakecuda_calls(getpid(), nullptr); }

  LogLines log_;
};

inline std::string Pattern(uint64_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  for (uint64_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>((i + seed) * 0x9E3779B97F4A7C15 >> 56);
  }
  return text;
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_CUDA_CUDA_TEST_SUPPORT_H_
