// What becomes of copies on a device that has stopped, on the fake driver. Apart from other tests
// of the engine, for what such a device may still touch stays registered with the driver.

#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "gmock/gmock.h"
#include "gpu/cuda_copy_engine.h"
#include "gpu/cuda_memory.h"
#include "tests/cuda/cuda_test_support.h"

namespace embcache {
namespace {

using testing::HasSubstr;

class GivenUpTest : public CudaTest {
 protected:
  GivenUpTest() {
    auto engine = CudaCopyEngine::Create(context_, 2, log_.sink());
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  absl::Status Copy(const MemorySegment* to, const MemorySegment* from, uint64_t bytes) {
    return Await(
        [&](CopyEngine::Done done) { engine_->Copy(to, 0, from, 0, bytes, std::move(done)); });
  }

  std::shared_ptr<CudaContext> context_ = OpenContext();
  CudaMemory device_{context_, {}};
  PinnedHostMemory pinned_{context_, {}, log_.sink()};
  HostMemory pageable_;
  std::unique_ptr<CudaCopyEngine> engine_;
};

TEST_F(GivenUpTest, CopiesOfADeviceThatStoppedFailOnceItIsGivenUp) {
  const auto device = Allocate(&device_, 24 * kMiB);
  const auto source = Allocate(&device_, 24 * kMiB);
  const auto pinned = Allocate(&pinned_, 24 * kMiB);
  const auto pageable = Allocate(&pageable_, 24 * kMiB);
  const auto target = Allocate(&pageable_, 24 * kMiB);
  EXPECT_EQ(engine_->LongestWait(), absl::ZeroDuration());
  fakecuda_hold(getpid());
  constexpr int kCopies = 300;  // on the device, and behind it
  absl::BlockingCounter left(kCopies + 2);
  std::atomic<int> failed = 0;
  const auto count = [&](absl::Status copied) {
    if (absl::IsUnavailable(copied)) ++failed;
    left.DecrementCount();
  };
  for (int i = 0; i < kCopies; ++i) {
    engine_->Copy(device.get(), 256 * i, pinned.get(), 0, 256, count);
  }
  engine_->Copy(device.get(), 0, pageable.get(), 0, 20 * kMiB, count);
  engine_->Copy(target.get(), 0, source.get(), 0, 20 * kMiB, count);
  while (engine_->LongestWait() < absl::Milliseconds(50)) std::this_thread::yield();
  context_->GiveUp("the test says so");
  engine_->Abandon();
  left.Wait();
  EXPECT_EQ(failed, kCopies + 2);
  EXPECT_EQ(Copy(device.get(), pinned.get(), 100).code(), absl::StatusCode::kUnavailable);
  const absl::Status host = Copy(target.get(), pinned.get(), 100);
  EXPECT_EQ(host.code(), absl::StatusCode::kUnavailable) << "into what may still be written to";
  EXPECT_THAT(std::string(host.message()), HasSubstr("the test says so"));
  engine_.reset();
}

TEST_F(GivenUpTest, WhatAStoppedDeviceStillWritesHarmsNobody) {
  auto device = Allocate(&device_, 2 * kMiB);
  auto pinned = Allocate(&pinned_, 2 * kMiB);
  ASSERT_TRUE(IsPinned(pinned.get()));
  ASSERT_EQ(fakecuda_poke(DevicePointer(device.get()), std::string(100, 'x').data(), 100), 0);
  fakecuda_hold(getpid());
  absl::Notification failed;
  engine_->Copy(pinned.get(), 0, device.get(), 0, 100, [&](absl::Status) { failed.Notify(); });
  while (engine_->LongestWait() == absl::ZeroDuration()) std::this_thread::yield();
  context_->GiveUp("the test says so");
  engine_->Abandon();
  failed.WaitForNotification();
  engine_.reset();
  device.reset();
  pinned.reset();
  fakecuda_release();
  // The memory is still there, so the copy can end, and with it the thread that waited for it: then
  // the test's three alone have the context.
  while (context_.use_count() > 3) std::this_thread::yield();
}

}  // namespace
}  // namespace embcache
