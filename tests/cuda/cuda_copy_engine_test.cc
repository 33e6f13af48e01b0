// CudaCopyEngine on the fake driver: what every CopyEngine promises, between all kinds of memory,
// and what it costs in driver calls.

#include "gpu/cuda_copy_engine.h"

#include <cstring>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "gmock/gmock.h"
#include "gpu/cuda_memory.h"
#include "tests/cuda/cuda_test_support.h"

namespace embcache {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 14 * kMiB;  // more than three staging buffers

class EngineTest : public CudaTest {
 protected:
  EngineTest() {
    auto engine = CudaCopyEngine::Create(context_, 2, log_.sink());
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  void Write(const MemorySegment* to, uint64_t offset, const std::string& bytes) {
    ASSERT_TRUE(Await([&](CopyEngine::Done done) {
                  engine_->Upload(to, offset, bytes.data(), bytes.size(), std::move(done));
                }).ok());
  }
  std::string Read(const MemorySegment* from, uint64_t offset, uint64_t bytes) {
    std::string text(bytes, '?');
    EXPECT_TRUE(Await([&](CopyEngine::Done done) {
                  engine_->Download(text.data(), from, offset, bytes, std::move(done));
                }).ok());
    return text;
  }
  absl::Status Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
                    uint64_t from_offset, uint64_t bytes) {
    return Await([&](CopyEngine::Done done) {
      engine_->Copy(to, to_offset, from, from_offset, bytes, std::move(done));
    });
  }

  std::shared_ptr<CudaContext> context_ = OpenContext();
  CudaMemory device_{context_, {}};
  PinnedHostMemory pinned_{context_, {}, log_.sink()};
  HostMemory pageable_;
  std::unique_ptr<CudaCopyEngine> engine_;
};

class Conformance : public EngineTest,
                    public testing::WithParamInterface<std::pair<const char*, const char*>> {
 protected:
  std::unique_ptr<MemorySegment> Make(const std::string& kind, uint64_t bytes = kBytes) {
    if (kind == "device") return Allocate(&device_, bytes);
    if (kind == "pinned") return Allocate(&pinned_, bytes);
    return Allocate(&pageable_, bytes);
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, Conformance,
    testing::Values(std::pair("device", "pinned"), std::pair("pinned", "device"),
                    std::pair("device", "device"), std::pair("device", "pageable"),
                    std::pair("pageable", "device"), std::pair("pinned", "pageable")),
    [](const auto& info) { return std::string(info.param.first) + "_" + info.param.second; });

TEST_P(Conformance, CopiesExactlyTheRangeAskedFor) {
  const auto from = Make(GetParam().first);
  const auto to = Make(GetParam().second);
  const std::string source = Pattern(kBytes, 1);
  Write(from.get(), 0, source);
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{255}, 4 * kMiB, 12 * kMiB + 1}) {
    // No more than what may be touched, for a sanitizer looks at every byte of it many times.
    std::string expected(777 + bytes + 4096, 'b');
    Write(to.get(), 0, expected);
    ASSERT_TRUE(Copy(to.get(), 777, from.get(), 4096, bytes).ok());
    expected.replace(777, bytes, source, 4096, bytes);
    EXPECT_TRUE(Read(to.get(), 0, expected.size()) == expected) << bytes;
  }
}

TEST_P(Conformance, ACopyOfNothingSucceeds) {
  const auto from = Make(GetParam().first, 2 * kMiB);
  const auto to = Make(GetParam().second, 2 * kMiB);
  EXPECT_TRUE(Copy(to.get(), 2 * kMiB, from.get(), 0, 0).ok());
}

TEST_P(Conformance, EveryDoneRunsExactlyOnceWithManyCallersAndNeverInsideTheCall) {
  constexpr int kCallers = 4;
  constexpr int kCopies = 100;
  const auto from = Make(GetParam().first);
  const auto to = Make(GetParam().second);
  const std::string source = Pattern(kBytes, 4);
  Write(from.get(), 0, source);
  std::vector<std::atomic<int>> ended(kCallers * kCopies);
  std::atomic<bool> inside = false;
  absl::BlockingCounter left(kCallers * kCopies);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      const std::thread::id self = std::this_thread::get_id();
      for (int i = caller * kCopies; i < (caller + 1) * kCopies; ++i) {
        const uint64_t at = static_cast<uint64_t>(i) * 4096;
        engine_->Copy(to.get(), at, from.get(), at, 4096, [&, i, self](absl::Status) {
          if (std::this_thread::get_id() == self) inside = true;
          ++ended[i];
          left.DecrementCount();
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  left.Wait();
  EXPECT_FALSE(inside);
  for (const std::atomic<int>& count : ended) EXPECT_EQ(count, 1);
  const uint64_t bytes = kCallers * kCopies * 4096;
  EXPECT_TRUE(Read(to.get(), 0, bytes) == source.substr(0, bytes));
}

TEST_P(Conformance, ADoneMayStartAnotherCopy) {
  const auto from = Make(GetParam().first, 2 * kMiB);
  const auto to = Make(GetParam().second, 2 * kMiB);
  Write(from.get(), 0, "chain");
  EXPECT_TRUE(Await([&](CopyEngine::Done done) {
                engine_->Copy(to.get(), 100, from.get(), 0, 5,
                              [&, done = std::move(done)](absl::Status) mutable {
                                engine_->Copy(from.get(), 200, to.get(), 100, 5, std::move(done));
                              });
              }).ok());
  EXPECT_EQ(Read(from.get(), 200, 5), "chain");
}

TEST_P(Conformance, TheDestructorFinishesWhatWasQueued) {
  const auto from = Make(GetParam().first, 2 * kMiB);
  const auto to = Make(GetParam().second, 2 * kMiB);
  std::atomic<int> ended = 0;
  for (int i = 0; i < 50; ++i) {
    engine_->Copy(to.get(), 100 * i, from.get(), 0, 100, [&](absl::Status) { ++ended; });
  }
  engine_.reset();
  EXPECT_EQ(ended, 50);
}

// --- What it costs ------------------------------------------------------------------------------

using CostTest = EngineTest;

TEST_F(CostTest, ACopyBetweenDeviceAndPinnedMemoryIsOneCopyAndOneSynchronisation) {
  const auto device = Allocate(&device_, 8 * kMiB);
  const auto pinned = Allocate(&pinned_, 8 * kMiB);
  for (const bool up : {true, false}) {
    fakecuda_reset();
    ASSERT_TRUE((up ? Copy(device.get(), 0, pinned.get(), 0, 8 * kMiB)
                    : Copy(pinned.get(), 0, device.get(), 0, 8 * kMiB))
                    .ok());
    EXPECT_EQ(Calls("cuMemcpyHtoDAsync"), up ? 1u : 0u);
    EXPECT_EQ(Calls("cuMemcpyDtoHAsync"), up ? 0u : 1u);
    EXPECT_EQ(Calls("cuEventRecord"), 1u);
    EXPECT_EQ(Calls("cuEventSynchronize"), 1u);
    EXPECT_EQ(Calls("cuStreamCreate") + Calls("cuEventCreate") + Calls("cuMemHostRegister"), 0u);
    EXPECT_EQ(fakecuda_pageable_copies(getpid()), 0u);
  }
}

TEST_F(CostTest, EachDirectionHasOneStreamForAllItsCopies) {
  EXPECT_EQ(Calls("cuStreamCreate"), 3u);
}

TEST_F(CostTest, SmallCopiesThatWaitTogetherShareASynchronisation) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  fakecuda_reset();
  fakecuda_hold(getpid());
  absl::BlockingCounter left(60);
  for (int i = 0; i < 60; ++i) {
    engine_->Copy(device.get(), 256 * i, pinned.get(), 256 * i, 256, [&](absl::Status copied) {
      EXPECT_TRUE(copied.ok());
      left.DecrementCount();
    });
  }
  fakecuda_release();
  left.Wait();
  EXPECT_EQ(Calls("cuMemcpyHtoDAsync"), 60u);
  EXPECT_LT(Calls("cuEventSynchronize"), 30u);
}

TEST_F(CostTest, OrdinaryMemoryGoesThroughPinnedBuffers) {
  const auto device = Allocate(&device_, 24 * kMiB);
  fakecuda_reset();
  const std::string source = Pattern(20 * kMiB + 5, 7);
  Write(device.get(), 0, source);
  EXPECT_EQ(Calls("cuMemcpyHtoDAsync"), 6u);
  EXPECT_TRUE(Read(device.get(), 0, source.size()) == source);
  EXPECT_EQ(fakecuda_pageable_copies(getpid()), 0u);
}

TEST_F(CostTest, ADoneComesOnlyAfterTheDeviceHasFinished) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  fakecuda_set_delay_us(20'000);
  for (int round = 0; round < 5; ++round) {
    const std::string source = Pattern(2 * kMiB, 100 + round);
    std::memcpy(pinned->host_data(), source.data(), source.size());
    ASSERT_TRUE(Copy(device.get(), 0, pinned.get(), 0, source.size()).ok());
    std::string seen(source.size(), '?');
    ASSERT_EQ(fakecuda_peek(DevicePointer(device.get()), seen.data(), seen.size()), 0);
    EXPECT_TRUE(seen == source) << "a client that reads now reads old bytes";
  }
}

// --- Failures -----------------------------------------------------------------------------------

using FailureTest = EngineTest;

TEST_F(FailureTest, AFailedCallFailsItsCopyAndNoOther) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  ASSERT_EQ(fakecuda_fail(getpid(), "cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE), 0);
  const absl::Status failed = Copy(device.get(), 0, pinned.get(), 0, 100);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cuMemcpyHtoDAsync"));
  EXPECT_TRUE(Copy(device.get(), 0, pinned.get(), 0, 100).ok());
  EXPECT_EQ(engine_->failed_copies(), 1u);
  EXPECT_FALSE(context_->lost());
}

TEST_F(FailureTest, ACopyThatTheDriverWasNeverAskedForFails) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  ASSERT_EQ(fakecuda_fail(getpid(), "cuCtxPushCurrent", 1, CUDA_ERROR_NOT_SUPPORTED), 0);
  const absl::Status failed = Copy(device.get(), 0, pinned.get(), 0, 100);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cuCtxPushCurrent"));
  EXPECT_TRUE(Copy(device.get(), 0, pinned.get(), 0, 100).ok());
}

TEST_F(FailureTest, WithoutAnEventTheStreamItselfIsWaitedFor) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  std::memset(pinned->host_data(), 'x', 100);
  fakecuda_set_delay_us(20'000);
  ASSERT_EQ(fakecuda_fail(getpid(), "cuEventRecord", 1, CUDA_ERROR_INVALID_VALUE), 0);
  EXPECT_TRUE(Copy(device.get(), 0, pinned.get(), 0, 100).ok());
  EXPECT_EQ(Read(device.get(), 0, 100), std::string(100, 'x'));
}

TEST_F(FailureTest, AStagedCopyWhosePartFailsFails) {
  const auto device = Allocate(&device_, 24 * kMiB);
  for (const char* function : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}) {
    ASSERT_EQ(fakecuda_fail(getpid(), function, 2, CUDA_ERROR_INVALID_VALUE), 0);
    std::string bytes(16 * kMiB, 'x');
    const absl::Status up = Await([&](CopyEngine::Done done) {
      engine_->Upload(device.get(), 0, bytes.data(), bytes.size(), std::move(done));
    });
    const absl::Status down = Await([&](CopyEngine::Done done) {
      engine_->Download(bytes.data(), device.get(), 0, bytes.size(), std::move(done));
    });
    EXPECT_NE(up.ok(), down.ok()) << function;
  }
}

TEST_F(FailureTest, AStickyErrorEndsTheDeviceAndIsToldOnce) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  const auto pageable = Allocate(&pageable_, 2 * kMiB);
  std::atomic<int> told = 0;
  context_->OnLost([&](const absl::Status& why) {
    ++told;
    EXPECT_THAT(std::string(why.message()), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  });
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  for (int i = 0; i < 3; ++i) {
    const absl::Status lost = Copy(device.get(), 0, pinned.get(), 0, 100);
    EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  }
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(context_->lost());
  EXPECT_EQ(Copy(pinned.get(), 0, device.get(), 0, 100).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Copy(pageable.get(), 0, pinned.get(), 0, 100).ok()) << "without the device";
  const uint64_t calls = AllCalls();
  EXPECT_FALSE(Copy(device.get(), 0, pinned.get(), 0, 100).ok());
  EXPECT_EQ(AllCalls(), calls) << "nobody calls a driver that is lost";
  bool at_once = false;
  context_->OnLost([&](const absl::Status&) { at_once = true; });
  EXPECT_TRUE(at_once);
}

TEST_F(FailureTest, CopiesUnderWayWhenTheDeviceIsLostFail) {
  const auto device = Allocate(&device_, 2 * kMiB);
  const auto pinned = Allocate(&pinned_, 2 * kMiB);
  fakecuda_hold(getpid());
  absl::BlockingCounter left(10);
  std::atomic<int> failed = 0;
  for (int i = 0; i < 10; ++i) {
    engine_->Copy(device.get(), 256 * i, pinned.get(), 0, 256, [&](absl::Status copied) {
      if (absl::IsUnavailable(copied)) ++failed;
      left.DecrementCount();
    });
  }
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  fakecuda_release();
  left.Wait();
  EXPECT_EQ(failed, 10);
}

}  // namespace
}  // namespace embcache
