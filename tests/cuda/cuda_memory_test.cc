// The driver table, the context, device memory and pinned memory, on the fake driver.

#include "gpu/cuda_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/cuda/cuda_test_support.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

using CudaDriverTest = CudaTest;

TEST_F(CudaDriverTest, WithoutADriverTheErrorNamesTheLibrary) {
  const absl::Status status = CudaDriver::Load("libcuda-not-there.so.1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("libcuda-not-there.so.1"));
}

TEST_F(CudaDriverTest, ALibraryThatIsNoDriverIsRefusedWithWhatItLacks) {
  const absl::Status status = CudaDriver::Load("libm.so.6").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("lacks cuInit"));
}

TEST_F(CudaDriverTest, ErrorsHaveTheCallAndTheDriversNameAndText) {
  auto driver = CudaDriver::Load("libcuda.so.1");
  ASSERT_TRUE(driver.ok()) << driver.status();
  const absl::Status status = (*driver)->ToStatus(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(status), AllOf(HasSubstr("cuMemAlloc"), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"),
                                  HasSubstr("(2)")));
}

TEST_F(CudaDriverTest, ADeviceIsFoundByIndexAndByUuid) {
  const auto by_index = OpenContext("0");
  ASSERT_NE(by_index, nullptr);
  EXPECT_THAT(by_index->uuid(), testing::MatchesRegex("GPU-[0-9a-f]{8}-[0-9a-f-]{27}"));
  const auto by_uuid = OpenContext(by_index->uuid());
  ASSERT_NE(by_uuid, nullptr);
  EXPECT_EQ(by_uuid->uuid(), by_index->uuid());
  auto driver = CudaDriver::Load("libcuda.so.1");
  const absl::Status none =
      CudaContext::Open(*driver, "GPU-00000000-0000-0000-0000-0000000000ff").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(none), HasSubstr(by_index->uuid())) << "what is there";
}

TEST_F(CudaDriverTest, UuidsAreComparedWithoutCaseAndPrefix) {
  EXPECT_TRUE(SameDeviceUuid("GPU-0a1b", "0A1B"));
  EXPECT_TRUE(SameDeviceUuid("MIG-0a1b", "MIG-0a1b"));
  EXPECT_FALSE(SameDeviceUuid("GPU-0a1b", "GPU-0a1c"));
  EXPECT_FALSE(SameDeviceUuid("", ""));
}

TEST_F(CudaDriverTest, EveryFailureOnTheWayToADeviceIsAnErrorAndLeaksNothing) {
  for (const char* function :
       {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid", "cuDeviceGetName",
        "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuStreamCreate", "cuEventCreate"}) {
    ASSERT_EQ(fakecuda_fail(getpid(), function, 1, CUDA_ERROR_NOT_SUPPORTED), 0) << function;
    const absl::Status status = OpenGpuDevice({}).status();
    EXPECT_FALSE(status.ok()) << function;
    EXPECT_THAT(Text(status), HasSubstr("CUDA_ERROR_NOT_SUPPORTED")) << function;
    EXPECT_EQ(fakecuda_used_bytes(0), 0u) << function;
    EXPECT_EQ(fakecuda_pinned_bytes(), 0u) << function;
    fakecuda_reset();
    EXPECT_NE(OpenDevice(), nullptr) << function;
  }
}

class CudaMemoryTest : public CudaTest {
 protected:
  std::shared_ptr<CudaContext> context_ = OpenContext();
  std::vector<absl::Duration> waits_;
  CudaMemory memory_{context_,
                     {.patience = absl::Seconds(5),
                      .log = log_.sink(),
                      .wait = [this](absl::Duration wait) { waits_.push_back(wait); }}};
};

TEST_F(CudaMemoryTest, ASegmentIsExportedOnceAndUnseenByTheCpu) {
  const auto segment = Allocate(&memory_, 4 * kMiB);
  EXPECT_EQ(segment->bytes(), 4 * kMiB);
  EXPECT_EQ(segment->host_data(), nullptr);
  EXPECT_EQ(segment->writable_fd(), -1);
  EXPECT_EQ(segment->cuda_ipc_handle().size(), GpuDevice::kIpcHandleBytes);
  EXPECT_EQ(segment->cuda_ipc_handle(), segment->cuda_ipc_handle());
  EXPECT_EQ(Calls("cuIpcGetMemHandle"), 1u);
  EXPECT_EQ(memory_.device_uuid(), context_->uuid());
  EXPECT_EQ(fakecuda_used_bytes(0), 4 * kMiB);
}

TEST_F(CudaMemoryTest, SizesAreMultiplesOfTheDriversBlocks) {
  for (const uint64_t bytes : {uint64_t{0}, kMiB, 3 * kMiB}) {
    const absl::Status status = memory_.Allocate("odd", bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(status), HasSubstr(absl::StrCat(CudaMemory::kGranularity)));
  }
}

TEST_F(CudaMemoryTest, ADestroyedSegmentGivesItsMemoryBack) {
  for (int i = 0; i < 5; ++i) Allocate(&memory_, 128 * kMiB);
  EXPECT_EQ(fakecuda_used_bytes(0), 0u);
}

TEST_F(CudaMemoryTest, MemoryThatOthersMayHaveMappedIsLeftToTheEndOfTheProcess) {
  auto segment = Allocate(&memory_, 4 * kMiB);
  memory_.KeepUntilExit();
  segment.reset();
  EXPECT_EQ(Calls("cuMemFree"), 0u);
}

TEST_F(CudaMemoryTest, WhatExceedsTheDeviceIsRefusedAtOnceWithBothSizes) {
  const absl::Status status = memory_.Allocate("greedy", 2 * kVramBytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(status), AllOf(HasSubstr("greedy"), HasSubstr(absl::StrCat(2 * kVramBytes)),
                                  HasSubstr(absl::StrCat("of ", kVramBytes))));
  EXPECT_TRUE(waits_.empty());
}

TEST_F(CudaMemoryTest, MemoryThatIsNotFreeYetIsWaitedForWithGrowingPauses) {
  auto holder = Allocate(&memory_, 200 * kMiB);
  CudaMemory patient(
      context_,
      {.patience = absl::Seconds(5), .log = log_.sink(), .wait = [&](absl::Duration wait) {
         waits_.push_back(wait);
         if (waits_.size() == 4) holder.reset();
       }});
  EXPECT_NE(Allocate(&patient, 200 * kMiB), nullptr);
  ASSERT_EQ(waits_.size(), 4u);
  EXPECT_LT(waits_[0], waits_[3]);
  EXPECT_THAT(log_.text(), HasSubstr("trying again"));
}

TEST_F(CudaMemoryTest, PatienceEndsWithBothSizes) {
  const auto holder = Allocate(&memory_, 200 * kMiB);
  const absl::Status status = memory_.Allocate("late", 100 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(status), AllOf(HasSubstr(absl::StrCat(100 * kMiB)),
                                  HasSubstr(absl::StrCat("only ", 56 * kMiB))));
  absl::Duration total;
  for (const absl::Duration wait : waits_) total += wait;
  EXPECT_EQ(total, absl::Seconds(5));
}

TEST_F(CudaMemoryTest, EveryFailureOfAnAllocationIsAnErrorAndLeaksNothing) {
  for (const char* function :
       {"cuCtxPushCurrent", "cuMemGetInfo", "cuMemAlloc", "cuIpcGetMemHandle"}) {
    ASSERT_EQ(fakecuda_fail(getpid(), function, 1, CUDA_ERROR_NOT_SUPPORTED), 0);
    const absl::Status status = memory_.Allocate("test", 4 * kMiB).status();
    EXPECT_THAT(Text(status), AllOf(HasSubstr(function), HasSubstr("CUDA_ERROR_NOT_SUPPORTED")));
    EXPECT_EQ(fakecuda_used_bytes(0), 0u) << function;
    EXPECT_FALSE(context_->lost());
  }
}

class PinnedMemoryTest : public CudaTest {
 protected:
  std::shared_ptr<CudaContext> context_ = OpenContext();
  PinnedHostMemory memory_{context_, {}, log_.sink()};
};

TEST_F(PinnedMemoryTest, ASegmentIsPinnedAndSharedByDescriptor) {
  auto segment = Allocate(&memory_, 3 * kMiB);
  EXPECT_TRUE(IsPinned(segment.get()));
  EXPECT_GE(segment->writable_fd(), 0);
  EXPECT_EQ(fakecuda_pinned_bytes(), 3 * kMiB);
  EXPECT_EQ(memory_.pinned_bytes(), 3 * kMiB);
  std::memset(segment->host_data(), 1, 3 * kMiB);
  segment.reset();
  EXPECT_EQ(fakecuda_pinned_bytes(), 0u) << "unregistered before it is unmapped";
}

TEST_F(PinnedMemoryTest, WhatCannotBePinnedIsOrdinaryMemoryLoggedAndCounted) {
  fakecuda_set_host_limit(kMiB);
  const auto segment = Allocate(&memory_, 3 * kMiB);
  ASSERT_NE(segment, nullptr);
  EXPECT_FALSE(IsPinned(segment.get()));
  EXPECT_EQ(memory_.pageable_bytes(), 3 * kMiB);
  EXPECT_THAT(log_.text(), AllOf(HasSubstr("RLIMIT_MEMLOCK"), HasSubstr("cuMemHostRegister")));
}

}  // namespace
}  // namespace embcache
