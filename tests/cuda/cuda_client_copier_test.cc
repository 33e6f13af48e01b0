// Copies out of other processes' device memory, on the fake driver.

#include "gpu/cuda_client_copier.h"

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "gmock/gmock.h"
#include "gpu/cuda_memory.h"
#include "tests/cuda/cuda_test_support.h"

namespace embcache {
namespace {

using testing::HasSubstr;

class ClientCopierTest : public CudaTest {
 protected:
  // `bytes` of the peer's memory, filled with `fill`; the handle of it.
  std::string PeerMemory(uint64_t bytes, char fill) {
    address_ = peer_.Run("alloc", bytes).number();
    EXPECT_EQ(peer_.Run("write", address_, std::string(4096, fill)).code, 0);
    return absl::HexStringToBytes(peer_.Run("export", address_).value);
  }
  ClientCopy Make(const std::string& handle, uint64_t offset, uint64_t bytes) {
    ClientCopy copy;
    copy.client = "one";
    copy.ipc_handle = handle;
    copy.offset = offset;
    copy.bytes = bytes;
    copy.parts = {{.from = 0, .to = 0, .bytes = bytes}};
    copy.to = target_.get();
    copy.to_offset = 512;
    return copy;
  }
  absl::Status Copy(CudaClientCopier* copier, ClientCopy copy) {
    return Await([&](CopyEngine::Done done) {
      copy.done = std::move(done);
      copier->Copy(std::move(copy));
    });
  }
  std::string Target(uint64_t offset, uint64_t bytes) {
    std::string text(bytes, '?');
    EXPECT_EQ(fakecuda_peek(DevicePointer(target_.get()) + offset, text.data(), bytes), 0);
    return text;
  }

  std::shared_ptr<CudaContext> context_ = OpenContext();
  CudaMemory device_{context_, {}};
  std::unique_ptr<MemorySegment> target_ = Allocate(&device_, 2 * kMiB);
  fakecuda::Peer peer_{EMBCACHE_BIN "/fake_cuda_peer"};
  uint64_t address_ = 0;
  CudaClientCopier copier_{context_, absl::Seconds(30)};
};

TEST_F(ClientCopierTest, CopiesPartsFromAnOffsetAndClosesWhatItOpened) {
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  ASSERT_EQ(peer_.Run("write", address_ + 100, "0123456789").code, 0);
  ClientCopy copy = Make(handle, 100, 10);
  copy.parts = {{.from = 0, .to = 0, .bytes = 4}, {.from = 4, .to = 256, .bytes = 6}};
  fakecuda_set_delay_us(10'000);
  ASSERT_TRUE(Copy(&copier_, std::move(copy)).ok());
  EXPECT_EQ(Target(512, 4), "0123");
  EXPECT_EQ(Target(512 + 256, 6), "456789");
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
  EXPECT_EQ(copier_.copies(), 1u);
}

TEST_F(ClientCopierTest, CopiesIntoHostMemoryToo) {
  PinnedHostMemory pinned(context_, {}, log_.sink());
  const auto host = Allocate(&pinned, 2 * kMiB);
  ClientCopy copy = Make(PeerMemory(2 * kMiB, 'h'), 0, 100);
  copy.to = host.get();
  ASSERT_TRUE(Copy(&copier_, std::move(copy)).ok());
  EXPECT_EQ(std::string(host->host_data() + 512, 100), std::string(100, 'h'));
}

TEST_F(ClientCopierTest, CopiesAtTheSameTimeShareOneOpening) {
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  fakecuda_reset();
  fakecuda_hold(getpid());
  absl::BlockingCounter left(8);
  for (int i = 0; i < 8; ++i) {
    ClientCopy copy = Make(handle, 0, 100);
    copy.client = absl::StrCat("client ", i % 2);
    copy.to_offset = 4096 * i;
    copy.done = [&](absl::Status copied) {
      EXPECT_TRUE(copied.ok()) << copied;
      left.DecrementCount();
    };
    copier_.Copy(std::move(copy));
  }
  while (Calls("cuEventRecord") < 8) std::this_thread::yield();
  fakecuda_release();
  left.Wait();
  EXPECT_EQ(Calls("cuIpcOpenMemHandle"), 1u);
  EXPECT_EQ(Calls("cuIpcCloseMemHandle"), 1u);
  EXPECT_EQ(Calls("cuStreamCreate"), 2u) << "one for each client";
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
}

TEST_F(ClientCopierTest, WhatTheClientSaysIsCheckedAgainstTheRealAllocation) {
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  for (const auto& [offset, bytes] :
       {std::pair(2 * kMiB, uint64_t{1}), std::pair(2 * kMiB - 10, uint64_t{11}),
        std::pair(UINT64_MAX - 5, uint64_t{5})}) {
    ClientCopy copy = Make(handle, offset, bytes);
    const absl::Status status = Copy(&copier_, std::move(copy));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("offset"));
  }
  EXPECT_EQ(Copy(&copier_, Make("short", 0, 1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
}

TEST_F(ClientCopierTest, MemoryThatCannotBeOpenedIsRefusedWithAdvice) {
  const auto own = Allocate(&device_, 2 * kMiB);
  for (const std::string& handle : {std::string(64, 'z'), std::string(own->cuda_ipc_handle())}) {
    const absl::Status status = Copy(&copier_, Make(handle, 0, 1));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("use Reserve"));
  }
  EXPECT_FALSE(context_->lost());
}

TEST_F(ClientCopierTest, EveryFailureClosesTheMapping) {
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  for (const char* function :
       {"cuCtxPushCurrent", "cuStreamCreate", "cuIpcOpenMemHandle", "cuMemGetAddressRange",
        "cuEventCreate", "cuMemcpyDtoDAsync", "cuEventRecord", "cuEventQuery"}) {
    CudaClientCopier copier(context_, absl::Seconds(30));
    ASSERT_EQ(fakecuda_fail(getpid(), function, 1, CUDA_ERROR_NOT_SUPPORTED), 0);
    const absl::Status status = Copy(&copier, Make(handle, 0, 100));
    EXPECT_FALSE(status.ok()) << function;
    EXPECT_EQ(fakecuda_open_imports(getpid()), 0u) << function;
    EXPECT_TRUE(Copy(&copier, Make(handle, 0, 100)).ok()) << function;
  }
}

TEST_F(ClientCopierTest, ACopyThatHangsIsToldLateDelaysNobodyElseAndIsNotClosedUnderneath) {
  CudaClientCopier copier(context_, absl::Milliseconds(50));
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  fakecuda_hold(getpid());
  absl::Notification late;
  absl::Notification done;
  ClientCopy copy = Make(handle, 0, 100);
  copy.late = [&] { late.Notify(); };
  copy.done = [&](absl::Status copied) {
    EXPECT_TRUE(copied.ok());
    done.Notify();
  };
  copier.Copy(std::move(copy));
  late.WaitForNotification();
  EXPECT_FALSE(done.HasBeenNotified());
  EXPECT_EQ(fakecuda_open_imports(getpid()), 1u);
  ClientCopy bad = Make(std::string(64, 'z'), 0, 1);
  bad.client = "two";
  EXPECT_FALSE(Copy(&copier, std::move(bad)).ok()) << "answered while the other hangs";
  fakecuda_release();
  done.WaitForNotification();
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
  EXPECT_EQ(Target(512, 100), std::string(100, 'a'));
}

TEST_F(ClientCopierTest, AClientThatIsKilledDuringItsCopyHarmsNobody) {
  const std::string handle = PeerMemory(2 * kMiB, 'k');
  fakecuda_hold(getpid());
  absl::Notification done;
  ClientCopy copy = Make(handle, 0, 100);
  copy.done = [&](absl::Status) { done.Notify(); };
  copier_.Copy(std::move(copy));
  while (Calls("cuEventRecord") < 1) std::this_thread::yield();
  peer_.Kill();
  fakecuda_release();
  done.WaitForNotification();
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
  EXPECT_EQ(fakecuda_used_bytes(0), 2 * kMiB) << "the target alone";
  EXPECT_FALSE(context_->lost());
}

TEST_F(ClientCopierTest, CopiesThatDoNotEndFailOnceTheDeviceIsGivenUp) {
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  EXPECT_EQ(copier_.LongestWait(), absl::ZeroDuration());
  fakecuda_hold(getpid());
  absl::Notification ended;
  absl::Status result;
  ClientCopy copy = Make(handle, 0, 100);
  copy.done = [&](absl::Status copied) {
    result = std::move(copied);
    ended.Notify();
  };
  copier_.Copy(std::move(copy));
  while (copier_.LongestWait() < absl::Milliseconds(20)) std::this_thread::yield();
  context_->GiveUp("the test says so");
  ended.WaitForNotification();
  EXPECT_EQ(result.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(fakecuda_open_imports(getpid()), 1u) << "it may still be read";
}

TEST_F(ClientCopierTest, TheLossOfTheDeviceIsAnError) {
  const std::string handle = PeerMemory(2 * kMiB, 'a');
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(Copy(&copier_, Make(handle, 0, 1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Copy(&copier_, Make(handle, 0, 1)).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace embcache
