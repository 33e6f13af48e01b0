// Tiers that shrink and grow under clients of a real daemon.

#include <atomic>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embcache/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using testing::HasSubstr;
namespace v1 = embcache::v1;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kLarge = 2 << 20;

class ClientResizeTest : public ClientTest {
 protected:
  // L1 is four segments of 16 MiB.
  ClientResizeTest() : ClientTest({"--segment-bytes=16MiB", "--l2-capacity=32MiB"}) {}

  struct Answer {
    grpc::Status status;
    v1::ResizeResponse response;
  };
  Answer Resize(uint64_t mib, v1::Tier tier = v1::L1, absl::Duration timeout = absl::Minutes(2)) {
    const auto stub = v1::Admin::NewStub(grpc::CreateChannel(
        "unix:" + daemon_.socket_dir() + "/embcached.sock", grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::ResizeRequest request;
    request.set_tier(tier);
    request.set_capacity_bytes(mib * kMiB);
    Answer answer;
    answer.status = stub->Resize(&context, request, &answer.response);
    return answer;
  }
  void MustResize(uint64_t mib, v1::Tier tier = v1::L1) {
    const Answer answer = Resize(mib, tier);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.response.capacity_bytes(), mib * kMiB);
  }

  // Segments of the daemon that this process has mapped.
  static int Mapped(const std::string& tier) {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("memfd:embcache-" + tier) != std::string::npos ? 1 : 0;
    }
    return count;
  }

  absl::Status PutLarge(Client& client, int key) {
    const std::vector<uint8_t> bytes = Filled(static_cast<uint8_t>(key), kLarge);
    return client.Put(MakeKey(key), OneTensor(kLarge), {Bytes(bytes)});
  }
};

TEST_F(ClientResizeTest, AfterAShrinkTheClientHasUnmappedAndFindsWhatItPut) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(PutLarge(*client_, i).ok());
  EXPECT_EQ(Mapped("l1"), 4);
  MustResize(16);
  EXPECT_EQ(Mapped("l1"), 1) << "the answer came when the memory was given back";
  for (int i = 0; i < 20; ++i) {
    const Lease lease = MustGet(*client_, MakeKey(i));
    EXPECT_TRUE(AllAre(lease.data(0), static_cast<uint8_t>(i))) << i;
  }
  EXPECT_TRUE(client_->Ping().ok());
  EXPECT_THAT(daemon_.Log(), HasSubstr("l1: resized from 67108864 to 16777216 bytes"));
  EXPECT_THAT(daemon_.Log(), testing::Not(HasSubstr("has not given up")));
}

TEST_F(ClientResizeTest, NewSegmentsAreUsedByClientsThatWereThereBefore) {
  const std::unique_ptr<Client> reader = MustConnect(Role::kReader);
  MustResize(128);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(PutLarge(*client_, i).ok());
  for (int i = 0; i < 60; ++i) {
    const Lease lease = MustGet(*reader, MakeKey(i));
    EXPECT_EQ(lease.source(), Tier::kL1);
    EXPECT_TRUE(AllAre(lease.data(0), static_cast<uint8_t>(i))) << i;
  }
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) {
    return stats["tiers"][0]["capacity_bytes"] == std::to_string(128 * kMiB) ||
           stats["tiers"][0]["capacity_bytes"] == 128 * kMiB;
  }));
}

TEST_F(ClientResizeTest, ALeaseKeepsItsBytesAndTheAnswerSaysSo) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(PutLarge(*client_, i).ok());
  std::vector<Lease> leases;
  for (int i = 0; i < 20; ++i) leases.push_back(MustGet(*client_, MakeKey(i)));
  const Answer refused = Resize(16, v1::L1, absl::Seconds(1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("instead of 16777216"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(AllAre(leases[static_cast<size_t>(i)].data(0), static_cast<uint8_t>(i))) << i;
  }
  std::thread release([&leases] { leases.clear(); });
  MustResize(16);
  release.join();
}

TEST_F(ClientResizeTest, ClientsUnderLoadNoticeNothing) {
  constexpr int kKeys = 16;
  std::atomic<bool> over{false};
  std::atomic<int> gets{0};
  std::vector<std::thread> threads;
  for (const bool fast : {true, false}) {
    threads.emplace_back([&, fast] {
      auto client = daemon_.Connect(Role::kWriter, "load", fast);
      ASSERT_TRUE(client.ok()) << client.status();
      for (int i = 0; !over; i = (i + 1) % kKeys) {
        const auto lease = (*client)->Get(MakeKey(i));
        ASSERT_TRUE(lease.ok()) << lease.status();
        if (lease->has_value()) {
          ASSERT_TRUE(AllAre((*lease)->data(0), static_cast<uint8_t>(i))) << i;
          ++gets;
        } else {
          ASSERT_TRUE(PutLarge(**client, i).ok());
        }
      }
    });
  }
  for (int round = 0; round < 8; ++round) {
    const int before = gets;
    MustResize(round % 2 == 0 ? 24 : 88);
    MustResize(round % 2 == 0 ? 16 : 48, v1::L2);
    while (gets < before + kKeys && !HasFailure()) std::this_thread::yield();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  // A connection lost on the way would have failed a call.
  EXPECT_TRUE(StatsBecome(*client_, NothingPinned));
}

TEST_F(ClientResizeTest, AClientThatEndsDuringAShrinkDoesNotHoldItUp) {
  auto other = MustConnect();
  ASSERT_TRUE(PutLarge(*other, 1).ok());
  std::optional<Lease> lease = MustGet(*other, MakeKey(1));
  std::thread end([&] {
    lease.reset();
    other.reset();
  });
  MustResize(16);
  end.join();
}

}  // namespace
}  // namespace embcache::client
