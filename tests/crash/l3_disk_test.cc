// L3 of a real daemon on a file system of its own: it never takes more than --l3-capacity, and a
// full disk stops nothing but L3's own writes.
//
// EMBCACHE_TEST_FULL=1 tries the bound with ten times the capacity and the sizes of values.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/context.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "tests/crash/own_file_system.h"
#include "tests/integration/daemon_process.h"

namespace embcache {
namespace {

using client::Client;
using testing_support::DaemonProcess;
using testing_support::OwnFileSystem;

constexpr uint64_t kMiB = 1 << 20;

client::Key KeyOf(uint64_t number) { return {"model", absl::StrCat("content hash ", number), ""}; }

// Not compressible, and every value another.
absl::Status Put(Client& client, uint64_t number, uint64_t bytes) {
  client::TensorSpec tensor;
  tensor.name = "main";
  tensor.dtype = client::DType::kU8;
  tensor.shape = {static_cast<int64_t>(bytes)};
  auto reservation = client.Reserve(KeyOf(number), {tensor});
  if (!reservation.ok()) return reservation.status();
  std::mt19937_64 random(number);
  const client::MutableBytes to = reservation->tensor(0);
  for (uint64_t at = 0; at + 8 <= to.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(to.data() + at, &word, sizeof(word));
  }
  return reservation->Commit().status();
}

bool IsRight(client::Bytes bytes, uint64_t number) {
  std::mt19937_64 random(number);
  for (uint64_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = random();
    if (std::memcmp(bytes.data() + at, &word, sizeof(word)) != 0) return false;
  }
  return true;
}

class L3DiskTest : public ::testing::Test {
 protected:
  // A disk of `disk_bytes` and a daemon that may take `capacity` of it.
  void Prepare(uint64_t disk_bytes, uint64_t capacity, const std::string& l1_capacity) {
    daemon_ = std::make_unique<DaemonProcess>(
        std::vector<std::string>{"--l3-dir={dir}/disk/l3", absl::StrCat("--l3-capacity=", capacity),
                                 absl::StrCat("--l1-capacity=", l1_capacity),
                                 "--l3-queue-bytes=1GiB", "--max-pinned-fraction=1"});
    disk_ = std::make_unique<OwnFileSystem>(daemon_->directory() + "/disk");
    const absl::Status mounted = disk_->Mount(disk_bytes);
    ASSERT_TRUE(mounted.ok()) << mounted << ": this test needs a file system of its own";
  }
  void Start() {
    const absl::Status started = daemon_->Start();
    ASSERT_TRUE(started.ok()) << started;
    auto client = daemon_->Connect();
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  nlohmann::json L3() {
    const absl::StatusOr<std::string> text = client_->StatsJson();
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? nlohmann::json::parse(*text)["l3"] : nlohmann::json();
  }
  absl::Status Flush() {
    const cli::Context context{.socket_dir = daemon_->socket_dir(), .timeout_s = 60};
    const auto admin = v1::Admin::NewStub(context.Channel());
    v1::FlushResponse response;
    return cli::CallDaemon(context, *admin, &v1::Admin::Stub::Flush, v1::FlushRequest(), &response);
  }
  // Seconds until L3's counters are as wanted; negative when that takes over a minute.
  double SecondsUntil(const std::function<bool(const nlohmann::json&)>& wanted) {
    const absl::Time begin = absl::Now();
    while (absl::Now() < begin + absl::Minutes(1)) {
      if (wanted(L3())) return absl::ToDoubleSeconds(absl::Now() - begin);
      usleep(20'000);
    }
    return -1;
  }
  void ExpectServes(uint64_t number) {
    const absl::Status put = Put(*client_, number, 200'000);
    EXPECT_TRUE(put.ok()) << put;
    ExpectHas(number);
  }
  void ExpectHas(uint64_t number) {
    const auto got = client_->Get(KeyOf(number));
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_TRUE(got->has_value()) << number;
    EXPECT_TRUE(IsRight((*got)->data(0), number)) << number;
  }
  void ExpectBackWithinTenSeconds() {
    disk_->Empty();
    const double seconds = SecondsUntil([](const auto& l3) { return l3["writable"] == true; });
    EXPECT_GE(seconds, 0) << "L3 never came back";
    EXPECT_LE(seconds, 10);
    std::printf("back %.1f s after the space\n", seconds);
    ExpectServes(777);
    EXPECT_TRUE(Flush().ok());
    EXPECT_EQ(L3()["corruptions"], 0);
    daemon_->Kill();
    client_ = nullptr;
    ASSERT_NO_FATAL_FAILURE(Start());
    ExpectHas(777);
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<OwnFileSystem> disk_;
  std::unique_ptr<Client> client_;
};

TEST_F(L3DiskTest, NeverTakesMoreThanItsCapacity) {
  const uint64_t scale = std::getenv("EMBCACHE_TEST_FULL") != nullptr ? 10 : 1;
  const uint64_t capacity = 64 * kMiB * scale;
  ASSERT_NO_FATAL_FAILURE(Prepare(3 * capacity, capacity, absl::StrCat(48 * scale, "MiB")));
  ASSERT_NO_FATAL_FAILURE(Start());
  std::atomic<bool> done{false};
  uint64_t peak = 0;
  uint64_t samples = 0;
  std::thread sampler([&] {
    for (; !done; ++samples) {
      peak = std::max(peak, disk_->UsedBytes());
      usleep(200);
    }
  });
  std::mt19937_64 random(7);
  uint64_t put_bytes = 0;
  uint64_t hits = 0;
  for (uint64_t number = 0; put_bytes < 50 * capacity; ++number) {
    // From 0.03 to 6 MB, small ones as often as large ones.
    const double exponent = static_cast<double>(random() % 1000) / 1000;
    const auto bytes = static_cast<uint64_t>(30'000 * scale * std::pow(200, exponent)) & ~7ull;
    const absl::Status put = Put(*client_, number, bytes);
    ASSERT_TRUE(put.ok()) << put;
    put_bytes += bytes;
    if (number % 10 < 3) {
      const uint64_t old = number - random() % std::min<uint64_t>(number + 1, 150);
      const auto got = client_->Get(KeyOf(old));
      ASSERT_TRUE(got.ok()) << got.status();
      if (got->has_value()) {
        ++hits;
        ASSERT_TRUE(IsRight((*got)->data(0), old)) << old;
      }
    }
    if (number % 16 == 15) {
      ASSERT_TRUE(Flush().ok());
    }
  }
  ASSERT_TRUE(Flush().ok());
  done = true;
  sampler.join();
  const nlohmann::json l3 = L3();
  std::printf(
      "peak %.4f of the capacity in %llu samples; %.1f MB put, %.1f MB written, "
      "%llu of the re-reads hit, %s from disk\n",
      static_cast<double>(peak) / static_cast<double>(capacity),
      static_cast<unsigned long long>(samples), static_cast<double>(put_bytes) / 1e6,
      l3["disk_bytes_written"].get<double>() / 1e6, static_cast<unsigned long long>(hits),
      l3["loads"].dump().c_str());
  EXPECT_LE(peak, capacity);
  EXPECT_GT(peak, capacity / 2);
  EXPECT_GT(samples, 1000);
  EXPECT_GE(l3["disk_bytes_written"], 45 * capacity);
  EXPECT_EQ(l3["write_failures"], 0);
  EXPECT_EQ(l3["io_errors"], 0);
  EXPECT_EQ(l3["corruptions"], 0);
  EXPECT_GT(l3["loads"], 10);
}

TEST_F(L3DiskTest, ADiskThatFillsUpStopsOnlyTheWritesAndTheyResumeWhenThereIsSpace) {
  ASSERT_NO_FATAL_FAILURE(Prepare(192 * kMiB, 64 * kMiB, "64MiB"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectServes(1);
  ASSERT_TRUE(Flush().ok());
  disk_->Fill();
  ASSERT_EQ(disk_->FreeBytes(), 0);
  ExpectServes(2);
  EXPECT_FALSE(Flush().ok());
  EXPECT_EQ(L3()["writable"], false);
  ExpectServes(3);
  ExpectHas(1);
  ExpectHas(2);
  // Long enough for the pauses between two tries to have become long.
  EXPECT_GE(SecondsUntil([](const auto& l3) { return l3["io_errors"] >= 4; }), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectBackWithinTenSeconds());
  ExpectHas(1);
}

TEST_F(L3DiskTest, ADiskThatIsFullAtTheStartIsReadAndWrittenWhenThereIsSpace) {
  ASSERT_NO_FATAL_FAILURE(Prepare(192 * kMiB, 64 * kMiB, "64MiB"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectServes(1);
  ASSERT_TRUE(Flush().ok());
  daemon_->Kill();
  client_ = nullptr;
  disk_->Fill();
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(L3()["writable"], false);
  ExpectHas(1);
  ExpectServes(2);
  ASSERT_NO_FATAL_FAILURE(ExpectBackWithinTenSeconds());
}

TEST_F(L3DiskTest, ADiskThatIsFullAtTheFirstStartIsNoReasonNotToStart) {
  ASSERT_NO_FATAL_FAILURE(Prepare(192 * kMiB, 64 * kMiB, "64MiB"));
  disk_->Fill();
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(L3()["writable"], false);
  ExpectServes(2);
  ASSERT_NO_FATAL_FAILURE(ExpectBackWithinTenSeconds());
}

TEST_F(L3DiskTest, AReadOnlyFileSystemIsReadAndWrittenWhenItTakesWritesAgain) {
  ASSERT_NO_FATAL_FAILURE(Prepare(192 * kMiB, 64 * kMiB, "64MiB"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectServes(1);
  ASSERT_TRUE(Flush().ok());
  client_ = nullptr;
  daemon_->Kill();
  const absl::Status sealed = disk_->SetReadOnly(true);
  ASSERT_TRUE(sealed.ok()) << sealed;
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(L3()["enabled"], true);
  EXPECT_EQ(L3()["writable"], false);
  ExpectHas(1);
  ExpectServes(2);
  EXPECT_FALSE(Flush().ok());
  ASSERT_TRUE(disk_->SetReadOnly(false).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectBackWithinTenSeconds());
  ExpectHas(1);
}

TEST_F(L3DiskTest, ADirectoryThatCannotBeMadeAtTheStartIsMadeWhenItCan) {
  ASSERT_NO_FATAL_FAILURE(Prepare(192 * kMiB, 64 * kMiB, "64MiB"));
  ASSERT_TRUE(disk_->SetReadOnly(true).ok());
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(L3()["enabled"], true);
  EXPECT_EQ(L3()["writable"], false);
  ExpectServes(2);
  EXPECT_FALSE(Flush().ok());
  ASSERT_TRUE(disk_->SetReadOnly(false).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectBackWithinTenSeconds());
}

}  // namespace
}  // namespace embcache
