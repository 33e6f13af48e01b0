// The C++ client and a daemon with L1 in device memory, on the fake driver.

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/test_support.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class ClientDeviceMemory : public testing::Test {
 protected:
  ClientDeviceMemory()
      : directory_(fakecuda::DeviceDirectory()),
        daemon_({"--device=cuda:0", "--l1-capacity=16MiB", "--l2-capacity=16MiB"},
                {"/usr/bin/env", "LD_LIBRARY_PATH=" EMBCACHE_FAKE_CUDA_LIBRARY_DIR}) {
    fakecuda_reset();
    const absl::Status started = daemon_.Start();
    EXPECT_TRUE(started.ok()) << started;
  }
  ~ClientDeviceMemory() override { daemon_.Kill(); }

  std::unique_ptr<Client> Connect(bool device_memory = true) const {
    ClientOptions options;
    options.socket_dir = daemon_.socket_dir();
    options.role = Role::kWriter;
    options.device_memory = device_memory;
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  // Writes as a kernel of the caller's that has ended.
  static void PutOnDevice(Client& client, const Key& key, const std::string& text) {
    PutOptions options;
    options.place = Place::kDevice;
    auto place = client.Reserve(key, OneTensor(text.size()), options);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_TRUE(place->tensor(0).empty());
    const auto pointer = place->device_pointer(0);
    ASSERT_TRUE(pointer.ok()) << pointer.status();
    ASSERT_EQ(fakecuda_poke(*pointer, text.data(), text.size()), 0);
    ASSERT_TRUE(place->Commit().ok());
  }
  static std::string OnDevice(const Lease& lease) {
    std::string text(lease.tensors()[0].bytes, '?');
    const auto pointer = lease.device_pointer(0);
    EXPECT_TRUE(pointer.ok()) << pointer.status();
    EXPECT_EQ(fakecuda_peek(pointer.value_or(0), text.data(), text.size()), 0);
    return text;
  }
  static uint64_t OpenHere() { return fakecuda_open_imports(getpid()); }

  const std::string directory_;
  DaemonProcess daemon_;
};

TEST_F(ClientDeviceMemory, AnEntryOnTheDeviceIsReadInPlace) {
  const auto client = Connect();
  PutOnDevice(*client, MakeKey(1), "embedding");
  const Lease lease = MustGet(*client, MakeKey(1));
  EXPECT_EQ(OnDevice(lease), "embedding");
  EXPECT_THAT(lease.device_uuid(), HasSubstr("GPU-"));
  EXPECT_FALSE(lease.mapped());
  EXPECT_TRUE(lease.data(0).empty());
}

TEST_F(ClientDeviceMemory, AHitAfterTheFirstMakesNoDriverCallInClientOrDaemon) {
  const auto client = Connect();
  PutOnDevice(*client, MakeKey(1), "embedding");
  EXPECT_TRUE(MustGet(*client, MakeKey(1)).device_pointer(0).ok());
  const uint64_t here = fakecuda_calls(getpid(), nullptr);
  const uint64_t there = fakecuda_calls(daemon_.pid(), nullptr);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(MustGet(*client, MakeKey(1)).device_pointer(0).ok());
  }
  EXPECT_EQ(fakecuda_calls(getpid(), nullptr), here);
  EXPECT_EQ(fakecuda_calls(daemon_.pid(), nullptr), there);
}

TEST_F(ClientDeviceMemory, AHitOnTheDeviceTakesNoCall) {
  const auto client = Connect();
  PutOnDevice(*client, MakeKey(1), "embedding");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(OnDevice(MustGet(*client, MakeKey(1))), "embedding");
  EXPECT_EQ(json::parse(*client->StatsJson())["fast_hits"], 10);
}

TEST_F(ClientDeviceMemory, TwoClientsOfAProcessOpenASegmentOnceAndCloseItAtTheEnd) {
  auto first = Connect();
  auto second = Connect();
  PutOnDevice(*first, MakeKey(1), "embedding");
  EXPECT_EQ(*MustGet(*first, MakeKey(1)).device_pointer(0),
            *MustGet(*second, MakeKey(1)).device_pointer(0));
  EXPECT_EQ(OpenHere(), 1u);
  first.reset();
  EXPECT_EQ(OpenHere(), 1u);
  second.reset();
  EXPECT_EQ(OpenHere(), 0u);
}

TEST_F(ClientDeviceMemory, HostBytesGoInAndComeOut) {
  const auto client = Connect();
  ASSERT_TRUE(PutFilled(*client, MakeKey(1), 7).ok());
  GetOptions host;
  host.place = Place::kHost;
  auto lease = client->Get(MakeKey(1), host);
  ASSERT_TRUE(lease.ok() && lease->has_value()) << lease.status();
  EXPECT_TRUE(AllAre((*lease)->data(0), 7));
  EXPECT_TRUE(absl::IsFailedPrecondition((*lease)->device_pointer(0).status()));
}

TEST_F(ClientDeviceMemory, AClientWithoutTheDeviceReadsFromTheHost) {
  const auto writer = Connect();
  PutOnDevice(*writer, MakeKey(1), "embedding");
  const auto reader = Connect(/*device_memory=*/false);
  const Lease lease = MustGet(*reader, MakeKey(1));
  EXPECT_TRUE(lease.mapped());
  EXPECT_EQ(std::string(lease.data(0).begin(), lease.data(0).end()), "embedding");
}

TEST_F(ClientDeviceMemory, ADeadDaemonsMemoryIsReadableWhileLeasedAndThenFreeForTheNext) {
  const auto client = Connect();
  PutOnDevice(*client, MakeKey(1), "embedding");
  fakecuda_set_vram(0, fakecuda_used_bytes(0) + 8 * kMiB);  // no room for a second L1
  {
    const Lease lease = MustGet(*client, MakeKey(1));
    ASSERT_TRUE(lease.device_pointer(0).ok());
    daemon_.Kill();
    ASSERT_TRUE(Becomes([&] { return !lease.valid(); }));
    EXPECT_EQ(OnDevice(lease), "embedding");
    EXPECT_EQ(OpenHere(), 1u);
  }
  EXPECT_TRUE(Becomes([] { return OpenHere() == 0; }));
  const absl::Status again = daemon_.Start();
  EXPECT_TRUE(again.ok()) << again;
}

}  // namespace
}  // namespace embcache::client
