// claims: a hundred callers that want one new image at the same time.

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

using client::Client;
using testing_support::DaemonProcess;

constexpr int kClients = 100;
constexpr int kRounds = 9;
constexpr absl::Duration kEncode = absl::Milliseconds(100);
constexpr uint64_t kBytes = 2 << 20;

struct Cold {
  double ms = 0;
  double wake_ms = 0;  // from the end of the encode until the last has the value
  int encodes = 0;
};

// Stands for an encoder that keeps a device busy for so long, and not this machine's cores.
void Encode() {
  absl::Notification never;
  never.WaitForNotificationWithTimeout(kEncode);
}

absl::StatusOr<Cold> OneRound(const std::vector<std::unique_ptr<Client>>& clients,
                              const client::Key& key) {
  std::atomic<int> encodes = 0;
  std::vector<absl::Status> failures(clients.size());
  std::vector<double> ended(clients.size());
  // Deletes itself with the last of those who wait.
  auto* const start = new absl::Barrier(static_cast<int>(clients.size()));
  std::atomic<double> begun = 0, encoded = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      if (start->Block()) delete start;
      double none = 0;
      begun.compare_exchange_strong(none, NowMicros());
      const auto lease = clients[i]->GetOrEncode(
          key, [&](client::Claim& claim) -> absl::StatusOr<client::Reservation> {
            ++encodes;
            auto place = claim.Reserve(MakeTensors(kBytes), MakePutOptions());
            if (place.ok()) Encode();
            encoded = NowMicros();
            return place;
          });
      ended[i] = NowMicros();
      failures[i] = lease.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& failure : failures) {
    if (!failure.ok()) return failure;
  }
  const double last = *std::max_element(ended.begin(), ended.end());
  return Cold{(last - begun) / 1e3, (last - encoded) / 1e3, encodes};
}

}  // namespace

absl::Status Claims(Report* report) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=256MiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    auto client = daemon.Connect(client::Role::kWriter, "bench");
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  std::vector<double> excess, wakes;
  int most = 0;
  for (int round = 0; round < kRounds; ++round) {
    const absl::StatusOr<Cold> cold = OneRound(clients, MakeKey(static_cast<uint64_t>(round)));
    if (!cold.ok()) return cold.status();
    most = std::max(most, cold->encodes);
    if (round == 0) continue;  // opens each client's connection for calls that wait
    excess.push_back(cold->ms - absl::ToDoubleMilliseconds(kEncode));
    wakes.push_back(cold->wake_ms);
  }
  report->Add({"claims-encodes", static_cast<double>(most), "encodes", std::nullopt, std::nullopt,
               AtMost(1), "100 clients, 1 cold key: the most of all rounds"});
  report->Add({"claims-excess", Median(excess), "ms", std::nullopt, std::nullopt, AtMost(20),
               "until the last of them has the value, beyond the encode's 100 ms"});
  report->Add(
      {"claims-wake", Median(wakes), "ms", std::nullopt, std::nullopt, AtMost(10),
       "from the end of the encode, over commit and wake-up, until the last has the value"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
