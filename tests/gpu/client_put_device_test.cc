// Puts out of the C++ client's own device memory, with a daemon whose L1 is in device memory, on
// the fake driver.

#include <cuda.h>
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/test_support.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ClientPutDevice : public testing::Test {
 protected:
  ClientPutDevice()
      : directory_(fakecuda::DeviceDirectory()),
        two_devices_(setenv("EMBCACHE_TEST_FAKE_CUDA_DEVICES", "2", 1)),
        daemon_({"--device=cuda:0", "--l1-capacity=16MiB", "--l2-capacity=16MiB"},
                {"/usr/bin/env", "LD_LIBRARY_PATH=" EMBCACHE_FAKE_CUDA_LIBRARY_DIR}) {
    fakecuda_reset();
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    const absl::Status started = daemon_.Start();
    EXPECT_TRUE(started.ok()) << started;
    client_ = Connect(/*device_memory=*/true);
  }
  ~ClientPutDevice() override {
    client_.reset();
    fakecuda_release();
    cuDevicePrimaryCtxRelease(0);
    daemon_.Kill();
  }

  std::unique_ptr<Client> Connect(bool device_memory, Role role = Role::kWriter) const {
    ClientOptions options;
    options.socket_dir = daemon_.socket_dir();
    options.role = role;
    options.device_memory = device_memory;
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  // Memory of the test's own, with `text` at its start, as a kernel that has ended left it.
  uint64_t Memory(const std::string& text) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuCtxPushCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&address, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(fakecuda_poke(address, text.data(), text.size()), 0);
    return address;
  }
  static std::string OnDevice(const Lease& lease, size_t index = 0) {
    std::string text(lease.tensors()[index].bytes, '?');
    const auto pointer = lease.device_pointer(index);
    EXPECT_TRUE(pointer.ok()) << pointer.status();
    EXPECT_EQ(fakecuda_peek(pointer.value_or(0), text.data(), text.size()), 0);
    return text;
  }
  // Two tensors of 5 and 4 bytes, and an absent one between them.
  static std::vector<TensorSpec> Pair() {
    std::vector<TensorSpec> tensors = {OneTensor(5)[0], OneTensor(1)[0], OneTensor(4)[0]};
    tensors[1] = {.name = "none", .absent = true};
    tensors[2].name = "deep";
    return tensors;
  }
  uint64_t Reservations() {
    return json::parse(*client_->StatsJson())["reservations"].get<uint64_t>();
  }

  const std::string directory_;
  const int two_devices_;
  DaemonProcess daemon_;
  CUcontext context_ = nullptr;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientPutDevice, BytesGoFromDeviceToDeviceAndAreThereWhenItReturns) {
  const uint64_t first = Memory("....embed");
  const uint64_t second = Memory("ding");
  fakecuda_set_delay_us(20'000);  // a copy not waited for would be seen
  const absl::Status put =
      client_->PutDevice(MakeKey(1), Pair(), {DeviceBytes{first + 4, 5}, {}, {second, 4}});
  ASSERT_TRUE(put.ok()) << put;
  const Lease lease = MustGet(*client_, MakeKey(1));
  EXPECT_EQ(lease.source(), Tier::kL1);
  EXPECT_EQ(OnDevice(lease, 0), "embed");
  EXPECT_EQ(OnDevice(lease, 2), "ding");
  EXPECT_EQ(fakecuda_calls(getpid(), "cuMemcpyDtoH"), 0u);
}

TEST_F(ClientPutDevice, AClientWithoutTheDevicePutsIntoHostMemory) {
  const uint64_t memory = Memory("embedding");
  const auto host = Connect(/*device_memory=*/false);
  const absl::Status put = host->PutDevice(MakeKey(1), OneTensor(9), {DeviceBytes{memory, 9}});
  ASSERT_TRUE(put.ok()) << put;
  const Lease lease = MustGet(*host, MakeKey(1));
  EXPECT_EQ(std::string(lease.data(0).begin(), lease.data(0).end()), "embedding");
}

TEST_F(ClientPutDevice, AReservationIsWrittenOutOfDeviceMemory) {
  const uint64_t memory = Memory("embedding");
  for (const Place place : {Place::kDevice, Place::kHost}) {
    PutOptions options;
    options.place = place;
    auto reserved = client_->Reserve(MakeKey(1), OneTensor(9), options);
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    const absl::Status written = reserved->WriteDevice(0, {memory, 9});
    EXPECT_TRUE(written.ok()) << written;
    auto lease = reserved->Commit(/*keep_lease=*/true);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const Bytes host = (*lease)->data(0);
    EXPECT_EQ(place == Place::kHost ? std::string(host.begin(), host.end()) : OnDevice(**lease),
              "embedding");
  }
}

TEST_F(ClientPutDevice, WhatCannotBeCopiedIsRefusedWithTheReasonAndLeavesNothing) {
  const uint64_t memory = Memory("embedding");
  const auto put = [&](DeviceBytes data) {
    return client_->PutDevice(MakeKey(1), OneTensor(9), {data});
  };
  absl::Status refused = put({memory, 8});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Message(refused), AllOf(HasSubstr("9 bytes"), HasSubstr("8 given")));
  refused = put({0x1234, 9});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("0x1234 is no address"));
  refused = put({memory + 2 * kMiB - 8, 9});  // one byte more than there is
  EXPECT_THAT(Message(refused), HasSubstr("cuMemcpyDtoD: CUDA_ERROR_INVALID_VALUE"));
  refused = client_->PutDevice(MakeKey(1), OneTensor(9), {});
  EXPECT_THAT(Message(refused), HasSubstr("0 ranges for 1 tensors"));
  EXPECT_TRUE(absl::IsPermissionDenied(
      Connect(true, Role::kReader)->PutDevice(MakeKey(1), OneTensor(9), {{{memory, 9}}})));
  EXPECT_FALSE(client_->Contains(MakeKey(1))->has_value());
  EXPECT_EQ(Reservations(), 0u);
}

TEST_F(ClientPutDevice, BytesOnAnotherDeviceAreRefusedNamingBoth) {
  CUcontext other = nullptr;
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&memory, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  const absl::Status refused = client_->PutDevice(MakeKey(1), OneTensor(9), {{{memory, 9}}});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  const auto place = client_->Reserve(MakeKey(2), OneTensor(9), {.place = Place::kDevice});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(Message(refused),
              AllOf(HasSubstr("bytes are on device GPU-"), HasSubstr(place->device_uuid())));
  EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(ClientPutDevice, TheDaemonCopiesWhatIsExportedAndClosesIt) {
  const uint64_t memory = Memory("....embedding");
  const absl::Status put = client_->PutExported(MakeKey(1), Pair(), {memory + 4, 9});
  ASSERT_TRUE(put.ok()) << put;
  EXPECT_EQ(fakecuda_calls(getpid(), "cuMemcpyDtoD"), 0u);
  const Lease lease = MustGet(*client_, MakeKey(1));
  EXPECT_EQ(OnDevice(lease, 0), "embed");
  EXPECT_EQ(OnDevice(lease, 2), "ding");
  EXPECT_EQ(fakecuda_open_imports(daemon_.pid()), 0u);
}

TEST_F(ClientPutDevice, WhatCannotBeExportedIsRefusedWithAdvice) {
  fakecuda_set_exportable(0);
  const uint64_t pool = Memory("embedding");
  fakecuda_set_exportable(1);
  absl::Status refused = client_->PutExported(MakeKey(1), OneTensor(9), {pool, 9});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), AllOf(HasSubstr("expandable_segments"), HasSubstr("PutDevice")));
  EXPECT_TRUE(client_->PutDevice(MakeKey(1), OneTensor(9), {{{pool, 9}}}).ok());
  refused = client_->PutExported(MakeKey(2), OneTensor(9), {0x1234, 9});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  refused = client_->PutExported(MakeKey(2), OneTensor(9), {Memory("x"), 8});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("cuda.bytes: 8, but the tensors take 9"));
  refused = Connect(true, Role::kReader)->PutExported(MakeKey(2), OneTensor(9), {pool, 9});
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
}

}  // namespace
}  // namespace embcache::client
