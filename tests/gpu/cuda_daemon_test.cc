// A daemon with L1 in device memory, on the fake driver, and clients in other processes.

#include <grpcpp/grpcpp.h>
#include <sys/mman.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/daemon.h"
#include "tests/cuda/cuda_test_support.h"
#include "tests/server/control_client.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Health = grpc::health::v1::HealthCheckResponse;

constexpr int32_t kOk = 0;
constexpr auto kFailedPrecondition = static_cast<int32_t>(absl::StatusCode::kFailedPrecondition);
constexpr auto kInvalidArgument = static_cast<int32_t>(absl::StatusCode::kInvalidArgument);

v1::Key KeyOf(const std::string& name) {
  v1::Key key;
  key.set_model("m");
  std::string hash = name;
  hash.resize(16, '.');
  key.set_content_hash(hash);
  return key;
}

v1::PutItem ItemOf(const std::string& name, uint64_t bytes) {
  v1::PutItem item;
  *item.mutable_key() = KeyOf(name);
  v1::Tensor& tensor = *item.add_tensors();
  tensor.set_name("x");
  tensor.set_dtype(v1::U8);
  tensor.add_shape(static_cast<int64_t>(bytes));
  return item;
}

class CudaDaemonTest : public CudaTest {
 protected:
  CudaDaemonTest() {
    char name[] = "/tmp/cuda-daemon.XXXXXX";
    dir_ = mkdtemp(name);
    config_.socket_dir = dir_ + "/run";
    config_.device = "cuda:0";
    config_.l1_capacity_bytes = 8 * kMiB;
    config_.l2_capacity_bytes = 8 * kMiB;
    uuid_ = OpenContext()->uuid();
  }
  ~CudaDaemonTest() override {
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Start() {
    auto daemon = Daemon::Start(config_);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    channel_ = grpc::CreateChannel("unix:" + RpcSocketPath(config_.socket_dir),
                                   grpc::InsecureChannelCredentials());
    cache_ = v1::Cache::NewStub(channel_);
  }

  // A session that says it sees `devices`.
  struct Client {
    explicit Client(const std::string& path) : control(path) {}
    ControlClient control;
    v1::Welcome welcome;
  };
  std::unique_ptr<Client> Connect(const std::vector<std::string>& devices) {
    auto client = std::make_unique<Client>(ControlSocketPath(config_.socket_dir));
    v1::ClientPacket hello = HelloPacket();
    hello.mutable_hello()->set_segment_changes(true);
    for (const std::string& device : devices) hello.mutable_hello()->add_device_uuids(device);
    client->welcome = client->control.SayHello(hello);
    return client;
  }

  static void Use(const Client* client, grpc::ClientContext* context) {
    if (client == nullptr) return;
    context->AddMetadata("embcache-session", TokenToHex(TokenOf(client->welcome)));
  }
  v1::PutResult Put(const Client* client, const v1::PutItem& item) {
    grpc::ClientContext context;
    Use(client, &context);
    v1::PutRequest request;
    *request.add_items() = item;
    v1::PutResponse response;
    const grpc::Status status = cache_->Put(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? response.results(0) : v1::PutResult();
  }
  v1::PutResult PutInline(const std::string& name, const std::string& bytes) {
    v1::PutItem item = ItemOf(name, bytes.size());
    item.set_inline_(bytes);
    return Put(nullptr, item);
  }
  v1::GetResult Get(const Client* client, const std::string& name, uint64_t inline_limit = 0,
                    v1::Place place = v1::PLACE_ANY) {
    grpc::ClientContext context;
    Use(client, &context);
    v1::GetRequest request;
    *request.add_items()->mutable_key() = KeyOf(name);
    request.set_inline_limit(inline_limit);
    request.set_place(place);
    v1::GetResponse response;
    const grpc::Status status = cache_->Get(&context, request, &response);
    if (!status.ok()) {
      v1::GetResult failed;
      failed.set_verdict(v1::GetResult::ERROR);
      failed.mutable_status()->set_code(status.error_code());
      failed.mutable_status()->set_message(status.error_message());
      return failed;
    }
    return response.results(0);
  }
  v1::StatsResponse Stats() {
    grpc::ClientContext context;
    v1::StatsResponse response;
    EXPECT_TRUE(cache_->Stats(&context, {}, &response).ok());
    return response;
  }
  grpc::Status Resize(v1::Tier tier, uint64_t bytes) {
    grpc::ClientContext context;
    v1::ResizeRequest request;
    request.set_tier(tier);
    request.set_capacity_bytes(bytes);
    v1::ResizeResponse response;
    return v1::Admin::NewStub(channel_)->Resize(&context, request, &response);
  }
  Health::ServingStatus HealthOf(const std::string& service) {
    const auto stub = grpc::health::v1::Health::NewStub(channel_);
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    Health response;
    return stub->Check(&context, request, &response).ok() ? response.status() : Health::UNKNOWN;
  }

  std::string dir_;
  std::string uuid_;
  Config config_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> cache_;
};

TEST_F(CudaDaemonTest, OnlySessionsThatSeeTheDeviceAreToldOfItsSegments) {
  Start();
  const auto device = Connect({"GPU-00000000-0000-0000-0000-000000000000", uuid_});
  ASSERT_EQ(device->welcome.segments_size(), 2);
  const v1::Segment& l1 = device->welcome.segments(0).segment();
  EXPECT_EQ(l1.tier(), v1::L1);
  EXPECT_EQ(l1.device_uuid(), uuid_);
  EXPECT_EQ(l1.cuda_ipc_handle().size(), 64u);
  EXPECT_FALSE(device->welcome.segments(0).passed_by_descriptor());
  EXPECT_TRUE(device->welcome.segments(1).passed_by_descriptor());

  for (const std::vector<std::string>& sees :
       {std::vector<std::string>{}, {"GPU-00000000-0000-0000-0000-000000000000"}}) {
    const auto host = Connect(sees);
    ASSERT_EQ(host->welcome.segments_size(), 1);
    EXPECT_EQ(host->welcome.segments(0).segment().tier(), v1::L2);
  }
}

TEST_F(CudaDaemonTest, AnotherProcessReadsAnEntryInPlaceByTheSegmentsHandle) {
  Start();
  ASSERT_EQ(PutInline("a", "0123456789").status().code(), kOk);
  const auto device = Connect({uuid_});
  const v1::GetResult got = Get(device.get(), "a");
  ASSERT_EQ(got.verdict(), v1::GetResult::HIT);
  ASSERT_EQ(got.location().tier(), v1::L1);
  fakecuda::Peer peer(EMBCACHE_BIN "/fake_cuda_peer");
  const std::string handle = device->welcome.segments(0).segment().cuda_ipc_handle();
  const uint64_t base = peer.Run("open", absl::BytesToHexString(handle)).number();
  EXPECT_EQ(peer.Run("peek", base + got.location().offset(), 10).value, "0123456789");
}

TEST_F(CudaDaemonTest, AShrinkFreesDeviceMemoryOnceTheClientHasClosedIt) {
  config_.segment_bytes = 2 * kMiB;
  fakecuda_set_strict(1);  // freeing what the other process has open aborts
  Start();
  ASSERT_EQ(PutInline("a", Pattern(100'000, 1)).status().code(), kOk);
  const auto device = Connect({uuid_});
  ASSERT_EQ(device->welcome.segments_size(), 4 + 4);
  fakecuda::Peer peer(EMBCACHE_BIN "/fake_cuda_peer");
  const std::string handle = device->welcome.segments(3).segment().cuda_ipc_handle();
  const uint64_t base = peer.Run("open", absl::BytesToHexString(handle)).number();
  const uint64_t used = fakecuda_used_bytes(0);
  const uint64_t pinned = fakecuda_pinned_bytes();
  grpc::Status shrunk;
  std::thread call([&] { shrunk = Resize(v1::L1, 4 * kMiB); });
  // They go one by one or together.
  for (int gone = 0; gone < 2;) {
    const auto packet = device->control.Receive();
    ASSERT_TRUE(packet.has_value() && packet->has_segments_changed());
    gone += packet->segments_changed().removed_size();
    EXPECT_EQ(fakecuda_used_bytes(0), used) << "still open elsewhere";
    if (gone == 2) peer.Run("close", base);
    v1::ClientPacket seen;
    seen.mutable_segments_seen()->set_change(packet->segments_changed().change());
    EXPECT_TRUE(device->control.Send(seen));
  }
  call.join();
  EXPECT_TRUE(shrunk.ok()) << shrunk.error_message();
  EXPECT_EQ(fakecuda_used_bytes(0), used - 4 * kMiB);
  EXPECT_TRUE(Get(nullptr, "a", 100'000).inline_() == Pattern(100'000, 1));

  const auto host = Connect({});
  std::thread again([&] { shrunk = Resize(v1::L2, 6 * kMiB); });
  for (const auto* client : {device.get(), host.get()}) {
    const auto packet = const_cast<Client*>(client)->control.Receive();
    ASSERT_TRUE(packet.has_value() && packet->has_segments_changed());
    v1::ClientPacket seen;
    seen.mutable_segments_seen()->set_change(packet->segments_changed().change());
    EXPECT_TRUE(const_cast<Client*>(client)->control.Send(seen));
  }
  again.join();
  EXPECT_TRUE(shrunk.ok()) << shrunk.error_message();
  EXPECT_EQ(fakecuda_pinned_bytes(), pinned - 2 * kMiB);

  const grpc::Status refused = Resize(v1::L1, 2 * kVramBytes);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("are available"));
  EXPECT_TRUE(Resize(v1::L1, 16 * kMiB).ok());
  EXPECT_EQ(fakecuda_used_bytes(0), used + 8 * kMiB);
  // Whoever sees no device is not told of its segments.
  const auto packet = device->control.Receive();
  ASSERT_TRUE(packet.has_value() && packet->has_segments_changed());
  EXPECT_EQ(packet->segments_changed().added_size(), 6);
  EXPECT_EQ(packet->segments_changed().added(0).segment().cuda_ipc_handle().size(), 64u);
  EXPECT_TRUE(host->control.Send(GoodbyePacket()));
  EXPECT_FALSE(host->control.Receive().has_value());
}

TEST_F(CudaDaemonTest, DeviceMemoryOfASessionThatNeverAnswersIsFreedWhenItEnds) {
  config_.segment_bytes = 2 * kMiB;
  Start();
  auto silent = Connect({uuid_});
  const uint64_t used = fakecuda_used_bytes(0);
  const grpc::Status shrunk = Resize(v1::L1, 4 * kMiB);  // waits for some seconds
  EXPECT_TRUE(shrunk.ok()) << shrunk.error_message();
  EXPECT_EQ(Stats().tiers(0).capacity_bytes(), 4 * kMiB);
  EXPECT_EQ(fakecuda_used_bytes(0), used);
  silent.reset();
  while (fakecuda_used_bytes(0) != used - 4 * kMiB) std::this_thread::yield();
}

TEST_F(CudaDaemonTest, WhileIdleTheEngineMayTakeDeviceMemoryAndTheDaemonWaitsForIt) {
  config_.segment_bytes = 2 * kMiB;
  config_.l1_idle_after = absl::Milliseconds(500);
  Start();
  const uint64_t used = fakecuda_used_bytes(0);
  ASSERT_EQ(PutInline("a", Pattern(100'000, 1)).status().code(), kOk);
  while (fakecuda_used_bytes(0) != used - 6 * kMiB) std::this_thread::yield();
  fakecuda_set_vram(0, used - 6 * kMiB);  // the engine has taken the rest
  const uint64_t asked = Calls("cuMemGetInfo");
  while (Calls("cuMemGetInfo") < asked + 2) {
    EXPECT_TRUE(Get(nullptr, "a", 100'000).inline_() == Pattern(100'000, 1));
  }
  EXPECT_EQ(Stats().tiers(0).given_back_bytes(), 6 * kMiB);
  fakecuda_set_vram(0, kVramBytes);
  while (fakecuda_used_bytes(0) != used) {
    EXPECT_TRUE(Get(nullptr, "a", 100'000).inline_() == Pattern(100'000, 1));
  }
}

TEST_F(CudaDaemonTest, AStopFreesNothingThatASessionHasNotGivenUp) {
  config_.segment_bytes = 2 * kMiB;
  fakecuda_set_strict(1);  // freeing what the other process has open aborts
  Start();
  const auto silent = Connect({uuid_});
  fakecuda::Peer peer(EMBCACHE_BIN "/fake_cuda_peer");
  const std::string handle = silent->welcome.segments(3).segment().cuda_ipc_handle();
  EXPECT_NE(peer.Run("open", absl::BytesToHexString(handle)).number(), 0u);
  EXPECT_TRUE(Resize(v1::L1, 4 * kMiB).ok());
  EXPECT_TRUE(daemon_->Stop().ok());
  EXPECT_EQ(fakecuda_used_bytes(0), 2 * kMiB) << "what is open elsewhere";
}

TEST_F(CudaDaemonTest, SmallValuesTravelInlineWithoutASessionAndWithoutL2) {
  config_.l2_capacity_bytes = 0;
  Start();
  ASSERT_EQ(PutInline("a", Pattern(100'000, 1)).status().code(), kOk);
  const v1::GetResult got = Get(nullptr, "a", 100'000);
  ASSERT_EQ(got.verdict(), v1::GetResult::HIT);
  EXPECT_EQ(got.source(), v1::L1);
  EXPECT_TRUE(got.inline_() == Pattern(100'000, 1));
}

TEST_F(CudaDaemonTest, ASessionWithoutTheDeviceReadsAndWritesInL2) {
  Start();
  ASSERT_EQ(PutInline("a", Pattern(5000, 1)).status().code(), kOk);
  const auto host = Connect({});
  const v1::GetResult got = Get(host.get(), "a");
  ASSERT_EQ(got.verdict(), v1::GetResult::HIT) << got.status().message();
  ASSERT_EQ(got.location().tier(), v1::L2);
  ASSERT_EQ(host->control.descriptors().size(), 1u);
  void* const map =
      mmap(nullptr, 8 * kMiB, PROT_READ, MAP_SHARED, host->control.descriptors()[0].get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_TRUE(std::string(static_cast<char*>(map) + got.location().offset(), 5000) ==
              Pattern(5000, 1));
  munmap(map, 8 * kMiB);

  grpc::ClientContext context;
  Use(host.get(), &context);
  v1::ReserveRequest reserve;
  *reserve.add_items() = ItemOf("b", 5000);
  v1::ReserveResponse reserved;
  ASSERT_TRUE(cache_->Reserve(&context, reserve, &reserved).ok());
  EXPECT_EQ(reserved.results(0).location().tier(), v1::L2);

  const v1::GetResult refused = Get(host.get(), "a", 0, v1::PLACE_DEVICE);
  EXPECT_EQ(refused.status().code(), kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr(uuid_));
}

TEST_F(CudaDaemonTest, AnEntryLeasedOnTheDeviceIsRefusedToTheHostWithTheReason) {
  Start();
  ASSERT_EQ(PutInline("a", Pattern(5000, 1)).status().code(), kOk);
  const auto device = Connect({uuid_});
  ASSERT_EQ(Get(device.get(), "a").location().tier(), v1::L1);
  const auto host = Connect({});
  const v1::GetResult refused = Get(host.get(), "a");
  EXPECT_EQ(refused.verdict(), v1::GetResult::ERROR);
  EXPECT_EQ(refused.status().code(), kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("device memory"));
}

TEST_F(CudaDaemonTest, APutOutOfAnotherProcessesDeviceMemory) {
  Start();
  fakecuda::Peer peer(EMBCACHE_BIN "/fake_cuda_peer");
  const uint64_t address = peer.Run("alloc", 2 * kMiB).number();
  ASSERT_EQ(peer.Run("write", address + 64, "from-the-client").code, 0);
  const std::string handle = absl::HexStringToBytes(peer.Run("export", address).value);
  const auto writer = Connect({uuid_});
  v1::PutItem item = ItemOf("a", 15);
  item.mutable_cuda()->set_ipc_handle(handle);
  item.mutable_cuda()->set_offset(64);
  item.mutable_cuda()->set_bytes(15);
  item.mutable_cuda()->set_device_uuid(uuid_);
  const v1::PutResult put = Put(writer.get(), item);
  ASSERT_EQ(put.status().code(), kOk) << put.status().message();
  EXPECT_GT(put.generation(), 0u);
  EXPECT_EQ(Get(nullptr, "a", 100).inline_(), "from-the-client");
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
  EXPECT_EQ(Stats().device().client_copies(), 1u);

  v1::PutItem bad = item;
  bad.mutable_cuda()->set_device_uuid("GPU-1");
  v1::PutResult refused = Put(writer.get(), bad);
  EXPECT_EQ(refused.status().code(), kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("GPU-1"), HasSubstr(uuid_)));
  bad = item;
  bad.mutable_cuda()->set_ipc_handle("short");
  EXPECT_THAT(Put(writer.get(), bad).status().message(), HasSubstr("cuda.ipc_handle: 5 bytes"));
  bad = item;
  bad.mutable_cuda()->set_bytes(14);
  EXPECT_THAT(Put(writer.get(), bad).status().message(), HasSubstr("the tensors take 15"));
  bad = item;
  bad.mutable_cuda()->set_offset(UINT64_MAX);
  EXPECT_THAT(Put(writer.get(), bad).status().message(), HasSubstr("more than 2^64"));
  bad = item;
  bad.mutable_cuda()->set_offset(2 * kMiB - 3);
  refused = Put(writer.get(), bad);
  EXPECT_EQ(refused.status().code(), kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("the allocation has"));
  bad = item;
  bad.set_inline_("012345678901234");
  EXPECT_EQ(Put(writer.get(), bad).status().code(), kInvalidArgument);
  EXPECT_EQ(Put(nullptr, item).status().code(),
            static_cast<int32_t>(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(Stats().reservations(), 0u);
}

TEST_F(CudaDaemonTest, AStickyErrorTurnsTheDeviceOffAndTheHostServesOn) {
  Start();
  const auto host = Connect({});
  ASSERT_EQ(PutInline("host", Pattern(5000, 1)).status().code(), kOk);
  ASSERT_EQ(Get(host.get(), "host").location().tier(), v1::L2);
  ASSERT_EQ(PutInline("device", Pattern(5000, 2)).status().code(), kOk);
  EXPECT_EQ(HealthOf("device"), Health::SERVING);
  fakecuda_set_sticky(getpid(), CUDA_ERROR_ILLEGAL_ADDRESS);
  // The first copy finds out.
  EXPECT_NE(Get(host.get(), "device").verdict(), v1::GetResult::HIT);
  EXPECT_EQ(HealthOf("device"), Health::NOT_SERVING);
  EXPECT_EQ(HealthOf(""), Health::SERVING);
  EXPECT_TRUE(Stats().device().lost());
  const auto device = Connect({uuid_});
  ASSERT_EQ(device->welcome.segments_size(), 1);
  EXPECT_EQ(device->welcome.segments(0).segment().tier(), v1::L2);
  EXPECT_EQ(Get(device.get(), "device").verdict(), v1::GetResult::MISS);
  EXPECT_EQ(Get(device.get(), "host").location().tier(), v1::L2);
  ASSERT_EQ(PutInline("new", Pattern(5000, 3)).status().code(), kOk);
  EXPECT_TRUE(Get(nullptr, "new", 5000).inline_() == Pattern(5000, 3));
}

TEST_F(CudaDaemonTest, AutoTakesTheDeviceWhenThereIsAnL2AndRoom) {
  config_.device = "auto";
  Start();
  EXPECT_EQ(Stats().device().uuid(), uuid_);
  daemon_.reset();
  config_.l2_capacity_bytes = 0;
  Start();
  EXPECT_FALSE(Stats().has_device());
  EXPECT_EQ(HealthOf("device"), Health::UNKNOWN);
  daemon_.reset();
  config_.l2_capacity_bytes = 8 * kMiB;
  fakecuda_set_vram(0, 4 * kMiB);
  Start();
  EXPECT_FALSE(Stats().has_device());
}

TEST_F(CudaDaemonTest, MoreThanTheDeviceHasIsRefusedWithBothSizes) {
  config_.l1_capacity_bytes = 2 * kVramBytes;
  const absl::Status status = Daemon::Start(config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat(2 * kVramBytes)), HasSubstr(absl::StrCat(kVramBytes))));
  config_.device = "cuda:7";
  const absl::Status none = Daemon::Start(config_).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr("cuda:7"), HasSubstr(uuid_)));
}

TEST_F(CudaDaemonTest, EveryFailureOnTheWayUpIsAnErrorOrHostMemoryAndNeverACrash) {
  for (const char* function : {"cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuIpcGetMemHandle",
                               "cuMemGetInfo", "cuStreamCreate", "cuEventCreate"}) {
    ASSERT_EQ(fakecuda_fail_always(getpid(), function, CUDA_ERROR_NOT_SUPPORTED), 0);
    const absl::Status status = Daemon::Start(config_).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_ERROR_NOT_SUPPORTED")) << function;
    EXPECT_EQ(ExitCodeFor(status), kExitConfig) << function;
    EXPECT_EQ(fakecuda_used_bytes(0), 0u) << function;
    fakecuda_reset();
  }
}

// The last one: the device keeps what is given up with it.
TEST_F(CudaDaemonTest, StoppingDoesNotWaitForADeviceThatHasStopped) {
  config_.l3_dir = dir_ + "/l3";
  config_.l3_capacity_bytes = 64 * kMiB;
  Start();
  ASSERT_EQ(PutInline("stored", Pattern(5000, 1)).status().code(), kOk);
  const auto host = Connect({});
  ASSERT_EQ(Get(host.get(), "stored").location().tier(), v1::L2);
  fakecuda_hold(getpid());
  // Its write into L1 does not end; nor would that of L1 to L3, nor its client's wait.
  std::thread client([this] {
    grpc::ClientContext context;
    v1::PutRequest request;
    *request.add_items() = ItemOf("stuck", 5000);
    request.mutable_items(0)->set_inline_(Pattern(5000, 2));
    v1::PutResponse response;
    const grpc::Status status = cache_->Put(&context, request, &response);
    EXPECT_FALSE(status.ok() && response.results(0).status().code() == kOk);
  });
  while (Stats().reservations() == 0) std::this_thread::yield();
  EXPECT_TRUE(daemon_->Stop().ok());
  EXPECT_TRUE(daemon_->device_given_up());
  client.join();
  daemon_.reset();
}

}  // namespace
}  // namespace embcache
