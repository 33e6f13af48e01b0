// L1 gives its memory back while nobody uses the cache, under clients of a real daemon.

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kLarge = 2 << 20;
constexpr int kKeys = 20;

class ClientIdleTest : public ClientTest {
 protected:
  // L1 is four segments of 16 MiB, of which one stays.
  ClientIdleTest()
      : ClientTest({"--segment-bytes=16MiB", "--l2-capacity=64MiB", "--l1-idle-after=500ms"}) {}

  // Segments of L1 that this process has mapped.
  static int Mapped() {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("memfd:embcache-l1") != std::string::npos ? 1 : 0;
    }
    return count;
  }
  json Stats() {
    const absl::StatusOr<std::string> text = client_->StatsJson();
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? json::parse(*text) : json();
  }
  uint64_t GivenBack() { return Stats()["tiers"][0].value("given_back_bytes", uint64_t{0}); }

  void PutAll() {
    for (int i = 0; i < kKeys; ++i) {
      const std::vector<uint8_t> bytes = Filled(static_cast<uint8_t>(i), kLarge);
      const absl::Status put = client_->Put(MakeKey(i), OneTensor(kLarge), {Bytes(bytes)});
      ASSERT_TRUE(put.ok()) << put;
    }
  }
  void CheckAll() {
    for (int i = 0; i < kKeys; ++i) {
      const Lease lease = MustGet(*client_, MakeKey(i));
      EXPECT_TRUE(AllAre(lease.data(0), static_cast<uint8_t>(i))) << i;
    }
  }
};

TEST_F(ClientIdleTest, MemoryGoesWhenNobodyUsesTheCacheAndComesBackAndEntriesSurvive) {
  PutAll();
  while (GivenBack() != 48 * kMiB && !HasFailure()) std::this_thread::yield();
  EXPECT_EQ(Mapped(), 1);
  const json stats = Stats();
  EXPECT_EQ(stats["tiers"][0]["capacity_bytes"], 16 * kMiB);
  const int in_l1 = stats["tiers"][0]["entries"];
  EXPECT_LE(in_l1, 16 / 2);
  EXPECT_EQ(stats["tiers"][1]["entries"], kKeys - in_l1);
  EXPECT_THAT(daemon_.Log(), HasSubstr("l1: nobody has used the cache for 500ms: has"));
  // Being used is what brings it back, and a hit without a call is a use.
  do {
    CheckAll();
  } while ((GivenBack() != 0 || Mapped() != 4) && !HasFailure());
  EXPECT_THAT(daemon_.Log(), HasSubstr("grown back to 67108864 bytes"));
  PutAll();
  CheckAll();
}

}  // namespace
}  // namespace embcache::client
