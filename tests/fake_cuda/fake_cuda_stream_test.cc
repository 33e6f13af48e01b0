#include <string.h>

#include <atomic>

#include "tests/fake_cuda/device_test.h"

namespace fakecuda {
namespace {

using FakeCudaStream = DeviceTest;

// A host buffer that the driver knows.
class Pinned {
 public:
  explicit Pinned(const std::string& text) : bytes_(text.size()) {
    EXPECT_EQ(cuMemAllocHost(&data_, bytes_), CUDA_SUCCESS);
    memcpy(data_, text.data(), bytes_);
  }
  ~Pinned() { cuMemFreeHost(data_); }
  void* data() { return data_; }
  std::string text() const { return std::string(static_cast<char*>(data_), bytes_); }

 private:
  void* data_ = nullptr;
  const size_t bytes_;
};

TEST_F(FakeCudaStream, ACopyIsNotDoneWhenTheCallReturns) {
  const CUdeviceptr address = Alloc(kMiB);
  Write(address, "before");
  Pinned host("after!");
  const CUstream stream = NewStream();
  fakecuda_hold(getpid());
  ASSERT_EQ(cuMemcpyHtoDAsync(address, host.data(), 6, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Peek(address, 6), "before") << "what a reader gets that did not synchronise";
  fakecuda_release();
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(Peek(address, 6), "after!");
}

TEST_F(FakeCudaStream, ASourceThatIsReusedTooEarlyShowsAsWrongBytes) {
  const CUdeviceptr address = Alloc(kMiB);
  Pinned host("first");
  const CUstream stream = NewStream();
  fakecuda_hold(getpid());
  ASSERT_EQ(cuMemcpyHtoDAsync(address, host.data(), 5, stream), CUDA_SUCCESS);
  memcpy(host.data(), "other", 5);
  fakecuda_release();
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Peek(address, 5), "other");
}

TEST_F(FakeCudaStream, OperationsOfAStreamAreDoneInOrder) {
  const CUdeviceptr address = Alloc(kMiB);
  const CUstream stream = NewStream();
  Pinned host("......");
  ASSERT_EQ(cuMemsetD8Async(address, 'a', 6, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(address + 3, 'b', 3, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host.data(), address, 6, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(host.text(), "aaabbb");
}

TEST_F(FakeCudaStream, AnEventIsPendingUntilWhatWasBeforeItIsDone) {
  const CUdeviceptr address = Alloc(kMiB);
  const CUstream stream = NewStream();
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS) << "never recorded";
  fakecuda_hold(getpid());
  ASSERT_EQ(cuMemsetD8Async(address, 1, 100, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  fakecuda_release();
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCudaStream, AStreamWaitsForAnotherOnesEvent) {
  const CUdeviceptr address = Alloc(kMiB);
  const CUstream first = NewStream();
  const CUstream second = NewStream();
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  fakecuda_set_delay_us(2000);
  ASSERT_EQ(cuMemsetD8Async(address, 'x', 4, first), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, first), CUDA_SUCCESS);
  fakecuda_set_delay_us(0);
  Pinned host("....");
  ASSERT_EQ(cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host.data(), address, 4, second), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
  EXPECT_EQ(host.text(), "xxxx");
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

TEST_F(FakeCudaStream, TheDefaultStreamWaitsForBlockingStreamsOnly) {
  const CUdeviceptr address = Alloc(kMiB);
  Write(address, "....");
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  fakecuda_set_delay_us(20000);
  ASSERT_EQ(cuMemsetD8Async(address, 'x', 4, blocking), CUDA_SUCCESS);
  fakecuda_set_delay_us(0);
  Pinned host("....");
  ASSERT_EQ(cuMemcpyDtoH(host.data(), address, 4), CUDA_SUCCESS);
  EXPECT_EQ(host.text(), "xxxx");
  const CUstream apart = NewStream(CU_STREAM_NON_BLOCKING);
  fakecuda_set_delay_us(2000000);
  ASSERT_EQ(cuMemsetD8Async(address, 'y', 4, apart), CUDA_SUCCESS);
  fakecuda_set_delay_us(0);
  ASSERT_EQ(cuMemcpyDtoH(host.data(), address, 4), CUDA_SUCCESS);
  EXPECT_EQ(host.text(), "xxxx");
}

TEST_F(FakeCudaStream, CopiesBetweenDeviceAddressesAndFillsDoNotWaitForTheirEnd) {
  const CUdeviceptr from = Alloc(kMiB);
  const CUdeviceptr to = Alloc(kMiB);
  Write(from, "new");
  Write(to, "old");
  fakecuda_hold(getpid());
  ASSERT_EQ(cuMemcpyDtoD(to, from, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(from, 'z', 3), CUDA_SUCCESS);
  EXPECT_EQ(Peek(to, 3), "old");
  fakecuda_release();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Peek(to, 3), "new");
  EXPECT_EQ(Peek(from, 3), "zzz");
}

TEST_F(FakeCudaStream, AHostFunctionRunsInItsTurnAndMayNotCallTheDriver) {
  struct Seen {
    CUdeviceptr address = 0;
    std::string bytes = "....";
    CUresult result = CUDA_SUCCESS;
    bool other_thread = false;
    std::thread::id caller = std::this_thread::get_id();
  } seen;
  seen.address = Alloc(kMiB);
  const CUstream stream = NewStream();
  ASSERT_EQ(cuMemsetD8Async(seen.address, 'h', 4, stream), CUDA_SUCCESS);
  const CUhostFn look = [](void* data) {
    auto* seen = static_cast<Seen*>(data);
    fakecuda_peek(seen->address, seen->bytes.data(), 4);
    size_t unused = 0;
    seen->result = cuMemGetInfo(&unused, &unused);
    seen->other_thread = std::this_thread::get_id() != seen->caller;
  };
  ASSERT_EQ(cuLaunchHostFunc(stream, look, &seen), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(seen.bytes, "hhhh");
  EXPECT_EQ(seen.result, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(seen.other_thread);
}

TEST_F(FakeCudaStream, AfterAStickyErrorNothingQueuedIsDoneAndNoHostFunctionRuns) {
  Peer peer(peer_program_);
  const std::string theirs = peer.Run("alloc", 4 * kMiB).value;
  ASSERT_EQ(peer.Run("write", theirs, "kept").code, CUDA_SUCCESS);
  CUdeviceptr opened = 0;
  ASSERT_EQ(Open(FromHex(peer.Run("export", theirs).value), &opened), CUDA_SUCCESS);
  const CUstream stream = NewStream();
  std::atomic<bool> ran{false};
  fakecuda_hold(getpid());
  ASSERT_EQ(cuMemsetD8Async(opened, 'x', 4, stream), CUDA_SUCCESS);
  const CUhostFn mark = [](void* data) { static_cast<std::atomic<bool>*>(data)->store(true); };
  ASSERT_EQ(cuLaunchHostFunc(stream, mark, &ran), CUDA_SUCCESS);
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);  // waits for the streams
  EXPECT_EQ(peer.Run("read", theirs, 4).value, "kept");
  EXPECT_FALSE(ran.load());
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
}

TEST_F(FakeCudaStream, ClosingMemoryThatIsStillBeingCopiedBreaksTheContext) {
  Peer peer(peer_program_);
  const CUipcMemHandle handle =
      FromHex(peer.Run("export", peer.Run("alloc", 4 * kMiB).value).value);
  CUdeviceptr opened = 0;
  ASSERT_EQ(Open(handle, &opened), CUDA_SUCCESS);
  const CUdeviceptr address = Alloc(4 * kMiB);
  const CUstream stream = NewStream();
  fakecuda_hold(getpid());
  ASSERT_EQ(cuMemcpyDtoDAsync(address, opened, kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuIpcCloseMemHandle(opened), CUDA_SUCCESS);
  fakecuda_release();
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaStream, FreeingWaitsForWhatIsQueued) {
  const CUdeviceptr address = Alloc(kMiB);
  Pinned host("....");
  const CUstream stream = NewStream();
  ASSERT_EQ(cuMemsetD8Async(address, 'x', 4, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync(host.data(), address, 4, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(host.text(), "xxxx");
}

TEST_F(FakeCudaStream, ADestroyedStreamFinishesItsWork) {
  const CUdeviceptr address = Alloc(kMiB);
  const CUstream stream = NewStream();
  ASSERT_EQ(cuMemsetD8Async(address, 'x', 4, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(address, 'y', 4, stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Peek(address, 4), "xxxx");
}

}  // namespace
}  // namespace fakecuda
