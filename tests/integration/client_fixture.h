// What the tests of the client against a real daemon share.

#ifndef EMBCACHE_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
#define EMBCACHE_TESTS_INTEGRATION_CLIENT_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon_process.h"

namespace embcache::client {

using nlohmann::json;
using testing_support::DaemonProcess;

inline constexpr size_t kBytes = 64 << 10;

inline Key MakeKey(int number) {
  return {"model", absl::StrFormat("hash-%08d", number), "variant"};
}

inline std::vector<TensorSpec> OneTensor(size_t bytes = kBytes) {
  TensorSpec tensor;
  tensor.name = "main";
  tensor.dtype = DType::kU8;
  tensor.shape = {static_cast<int64_t>(bytes)};
  return {tensor};
}

inline std::vector<uint8_t> Filled(uint8_t value, size_t bytes = kBytes) {
  return std::vector<uint8_t>(bytes, value);
}

inline absl::Status PutFilled(Client& client, const Key& key, uint8_t value) {
  const std::vector<uint8_t> bytes = Filled(value);
  return client.Put(key, OneTensor(), {Bytes(bytes)});
}

inline bool AllAre(Bytes bytes, uint8_t value) {
  if (bytes.empty()) return false;
  for (uint8_t byte : bytes) {
    if (byte != value) return false;
  }
  return true;
}

// A lease on `key`, which must be there.
inline Lease MustGet(Client& client, const Key& key) {
  auto lease = client.Get(key);
  EXPECT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(lease.ok() && lease->has_value());
  return **std::move(lease);
}

inline uint64_t PinnedBytes(const json& stats) {
  uint64_t bytes = 0;
  for (const json& tier : stats["tiers"]) bytes += tier["pinned_bytes"].get<uint64_t>();
  return bytes;
}

// Asks until the daemon's counters are as wanted.
inline bool StatsBecome(Client& client, const std::function<bool(const json&)>& wanted) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  std::string last;
  while (absl::Now() < deadline) {
    const absl::StatusOr<std::string> text = client.StatsJson();
    if (!text.ok()) continue;
    last = *text;
    if (wanted(json::parse(last))) return true;
  }
  ADD_FAILURE() << "last counters: " << last;
  return false;
}

inline bool NothingPinned(const json& stats) {
  return PinnedBytes(stats) == 0 && stats["leases"] == 0;
}

inline bool Becomes(const std::function<bool()>& wanted) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (absl::Now() < deadline) {
    if (wanted()) return true;
    std::this_thread::yield();
  }
  return false;
}

class ClientTest : public ::testing::Test {
 protected:
  explicit ClientTest(std::vector<std::string> flags = {}) : daemon_(std::move(flags)) {}
  void SetUp() override {
    const absl::Status status = daemon_.Start();
    ASSERT_TRUE(status.ok()) << status;
    client_ = MustConnect();
  }
  void TearDown() override {
    if (HasFailure()) std::cerr << "--- daemon's log\n" << daemon_.Log() << "---\n";
  }
  std::unique_ptr<Client> MustConnect(Role role = Role::kWriter) {
    auto client = daemon_.Connect(role);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  DaemonProcess daemon_;
  std::unique_ptr<Client> client_;
};

class ClientWithDiskTest : public ClientTest {
 protected:
  ClientWithDiskTest() : ClientTest({"--l3-dir={dir}/l3", "--l3-capacity=256MiB"}) {}
};

}  // namespace embcache::client

#endif  // EMBCACHE_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
