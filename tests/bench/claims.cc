// claims: a hundred callers that want one new image at the same time.

#include <algorithm>
#include <atomic>
#include <functional>
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

using Clients = std::vector<std::unique_ptr<Client>>;

// Stands for an encoder that keeps a device busy for so long, and not this machine's cores.
void Encode() {
  absl::Notification never;
  never.WaitForNotificationWithTimeout(kEncode);
}

struct Burst {
  double begun = 0;  // microseconds
  double ended = 0;  // by the last
};

// All clients at once do `get`, each in a thread of its own. What they get is kept in `held`, as by
// somebody who uses it: its release would fall into what is measured.
absl::StatusOr<Burst> GetAtOnce(const Clients& clients,
                                const std::function<absl::StatusOr<client::Lease>(Client&)>& get,
                                std::vector<client::Lease>* held) {
  std::vector<absl::StatusOr<client::Lease>> leases(clients.size());
  std::vector<double> ended(clients.size());
  // Each deletes itself with the last of those who wait. No thread ends before all have their
  // value: a thread's end costs as much as a call.
  auto* const start = new absl::Barrier(static_cast<int>(clients.size()));
  auto* const end = new absl::Barrier(static_cast<int>(clients.size()));
  std::atomic<double> begun = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      if (start->Block()) delete start;
      double none = 0;
      begun.compare_exchange_strong(none, NowMicros());
      leases[i] = get(*clients[i]);
      ended[i] = NowMicros();
      if (end->Block()) delete end;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& lease : leases) {
    if (!lease.ok()) return lease.status();
    held->push_back(*std::move(lease));
  }
  return Burst{begun, *std::max_element(ended.begin(), ended.end())};
}

struct Cold {
  double ms = 0;
  double wake_ms = 0;  // from the end of the encode until the last has the value
  int encodes = 0;
};

absl::StatusOr<Cold> GetCold(const Clients& clients, const client::Key& key,
                             std::vector<client::Lease>* held) {
  std::atomic<int> encodes = 0;
  std::atomic<double> encoded = 0;
  const auto encode = [&](client::Claim& claim) -> absl::StatusOr<client::Reservation> {
    ++encodes;
    auto place = claim.Reserve(MakeTensors(kBytes), MakePutOptions());
    if (place.ok()) Encode();
    encoded = NowMicros();
    return place;
  };
  const absl::StatusOr<Burst> burst = GetAtOnce(
      clients, [&](Client& client) { return client.GetOrEncode(key, encode); }, held);
  if (!burst.ok()) return burst.status();
  return Cold{(burst->ended - burst->begun) / 1e3, (burst->ended - encoded) / 1e3, encodes};
}

// The same clients, and nothing to wait for.
absl::StatusOr<double> GetWarm(const Clients& clients, const client::Key& key,
                               std::vector<client::Lease>* held) {
  const auto get = [&](Client& client) -> absl::StatusOr<client::Lease> {
    auto found = client.Get(key);
    if (!found.ok()) return found.status();
    if (!found->has_value()) return absl::NotFoundError("a miss");
    return **std::move(found);
  };
  const absl::StatusOr<Burst> burst = GetAtOnce(clients, get, held);
  if (!burst.ok()) return burst.status();
  return (burst->ended - burst->begun) / 1e3;
}

}  // namespace

absl::Status Claims(Report* report) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=256MiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  Clients clients;
  for (int i = 0; i < kClients; ++i) {
    auto client = daemon.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
  }
  std::vector<client::Lease> held;
  std::vector<double> excess, wakes, hits;
  int most = 0;
  for (int round = 0; round < kRounds; ++round) {
    const client::Key key = MakeKey(static_cast<uint64_t>(round));
    const absl::StatusOr<Cold> cold = GetCold(clients, key, &held);
    if (!cold.ok()) return cold.status();
    most = std::max(most, cold->encodes);
    const absl::StatusOr<double> warm = GetWarm(clients, key, &held);
    if (!warm.ok()) return warm.status();
    if (round == 0) continue;  // opens each client's connection for calls that wait
    excess.push_back(cold->ms - absl::ToDoubleMilliseconds(kEncode));
    wakes.push_back(cold->wake_ms);
    hits.push_back(*warm);
  }
  report->Add({"claims-encodes", static_cast<double>(most), "encodes", std::nullopt, std::nullopt,
               AtMost(1), "100 clients, 1 cold key: the most of all rounds"});
  report->Add({"claims-excess", Median(excess), "ms", std::nullopt, std::nullopt, AtMost(20),
               "until the last of them has the value, beyond the encode's 100 ms"});
  report->Add(
      {"claims-wake", Median(wakes), "ms", std::nullopt, std::nullopt, AtMost(10),
       "from the end of the encode, over commit and wake-up, until the last has the value"});
  report->Add({"claims-hits", Median(hits), "ms", std::nullopt, std::nullopt, std::nullopt,
               "until the last of the same 100 has it when it is there: what 100 calls take here"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
