// l3-memory: what the daemon takes beside the memory of its tiers while the SSD tier writes as fast
// as it can.

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 8 * kMiB;
constexpr uint64_t kPuts = 384;
constexpr uint64_t kQueueMiB = 256;
constexpr uint64_t kSegmentMiB = 64;  // that of any capacity above 4 GiB

// Pages of its own; those of the memory tiers are shared ones.
uint64_t AnonymousMiB(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    if (!absl::ConsumePrefix(&text, "RssAnon:") || !absl::ConsumeSuffix(&text, "kB")) continue;
    uint64_t kib = 0;
    if (absl::SimpleAtoi(text, &kib)) return kib / 1024;
  }
  return 0;
}

}  // namespace

absl::Status L3Memory(Report* report) {
  testing_support::DaemonProcess daemon({"--l3-dir={dir}/l3", "--l3-capacity=8GiB",
                                         "--l1-capacity=1GiB",
                                         absl::StrCat("--l3-queue-bytes=", kQueueMiB, "MiB")});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  auto client = daemon.Connect(client::Role::kWriter, "bench");
  if (!client.ok()) return client.status();
  const std::vector<uint8_t> payload = MakePayload(kBytes);
  const uint64_t idle = AnonymousMiB(daemon.pid());
  std::atomic<bool> done{false};
  uint64_t peak = 0;
  std::thread sampler([&] {
    while (!done) {
      peak = std::max(peak, AnonymousMiB(daemon.pid()));
      absl::SleepFor(absl::Milliseconds(2));  // the sampling period
    }
  });
  for (uint64_t number = 0; status.ok() && number < kPuts; ++number) {
    status = PutEntry(**client, number, payload);
  }
  done = true;
  sampler.join();
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> stats = (*client)->StatsJson();
  if (!stats.ok()) return stats.status();
  const nlohmann::json l3 = nlohmann::json::parse(*stats)["l3"];
  report->Add({"l3-memory", static_cast<double>(peak - idle), "MiB", std::nullopt, std::nullopt,
               AtMost(kQueueMiB + 2 * kSegmentMiB),
               absl::StrCat("peak of the daemon's own memory above the ", idle,
                            " MiB of an idle one; ", kPuts, " puts of 8 MiB, ", l3["writes"].dump(),
                            " written, ", l3["dropped_writes"].dump(),
                            " dropped; the queue may take 256 MiB, a segment file has 64")});
  return absl::OkStatus();
}

}  // namespace embcache::bench
