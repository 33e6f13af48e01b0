// What a running daemon tells about its users' data outside of the cache: nothing.

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/http_get.h"

namespace embcache::client {
namespace {

using ::testing::HasSubstr;

class LogTest : public ClientTest {
 protected:
  LogTest()
      : ClientTest({"--l3-dir={dir}/l3", "--l3-capacity=64MiB", "--l1-capacity=1MiB",
                    "--log-level=debug"}) {}
  std::string Page(const std::string& path) const {
    return testing_support::GetUnix(daemon_.socket_dir() + "/http.sock", path).body;
  }
};

TEST_F(LogTest, NeitherTheLogNorAnyPageHoldsKeysMetadataOrContents) {
  const Key key = {"public-model", "secret-content-hash", "secret-variant"};
  const std::vector<uint8_t> bytes(kBytes, 'S');
  PutOptions options;
  options.metadata = {{"secret-name", "secret-value"}};
  ASSERT_TRUE(client_->Put(key, OneTensor(), {Bytes(bytes)}, options).ok());
  MustGet(*client_, key);
  // All that goes wrong around an entry: a mismatch, no room, an old epoch, a delete, bad requests.
  GetOptions other;
  other.expect.push_back({.bytes = 1});
  ASSERT_TRUE(client_->Get(key, other).ok());
  EXPECT_FALSE(client_->Put(key, OneTensor(4 << 20), {Bytes(Filled(1, 4 << 20))}, options).ok());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(client_
                    ->Put({"public-model", absl::StrCat("secret-hash-", i), "secret-variant"},
                          OneTensor(), {Bytes(bytes)}, options)
                    .ok());
  }
  auto reservation = client_->Reserve(key, OneTensor(), options);
  ASSERT_TRUE(reservation.ok());
  ASSERT_TRUE(client_->AdvanceEpoch("public-model").ok());
  EXPECT_FALSE(reservation->Commit().ok());
  ASSERT_TRUE(client_->Delete(key).ok());
  EXPECT_FALSE(client_->Get({"public-model", "short", "secret-variant"}).ok());
  const std::string hex = absl::BytesToHexString("secret");
  for (const std::string& told :
       {daemon_.Log(), Page("/stats.json"), Page("/metrics"), Page("/")}) {
    ASSERT_NE(told, "");
    EXPECT_FALSE(absl::StrContains(told, "secret")) << told;
    EXPECT_FALSE(absl::StrContains(told, hex)) << told;
    EXPECT_FALSE(absl::StrContains(told, "SSSS")) << told;
  }
  EXPECT_THAT(Page("/metrics"), HasSubstr("model=\"public-model\""));
}

}  // namespace
}  // namespace embcache::client
