// hit-latency, hit-throughput: a hit by call against the least that a call can cost.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

using client::Client;
using testing_support::DaemonProcess;

constexpr uint64_t kBytes = 2 << 20;
constexpr int kThreads = 16;
constexpr double kTarget = 0.7;

using Clients = std::vector<std::unique_ptr<Client>>;

absl::Status AddClient(const DaemonProcess& daemon, Clients* clients) {
  auto client = daemon.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
  if (!client.ok()) return client.status();
  clients->push_back(*std::move(client));
  return absl::OkStatus();
}

// `clients` are shared evenly by the threads.
absl::StatusOr<Comparison> CompareRates(const Clients& clients,
                                        const std::vector<client::Key>& keys) {
  const auto of_thread = [&](int thread) -> Client& { return *clients[thread % clients.size()]; };
  return Interleave(
      11, CallRate(kThreads, 0.4, [&](int thread) { return Hit(of_thread(thread), keys[thread]); }),
      CallRate(kThreads, 0.4, [&](int thread) { return of_thread(thread).Ping(); }));
}

}  // namespace

absl::Status HitLatency(Report* report) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=1GiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  Clients clients;
  status = AddClient(daemon, &clients);
  if (!status.ok()) return status;
  Client& client = *clients[0];
  status = PutEntry(client, 1, MakePayload(kBytes));
  if (!status.ok()) return status;
  const client::Key key = MakeKey(1);
  // Long rounds, so that giving the leases back in the background falls into those of the hits.
  const auto compared = Interleave(41, MedianLatency(500, [&] { return Hit(client, key); }),
                                   MedianLatency(500, [&] { return client.Ping(); }));
  if (!compared.ok()) return compared.status();
  report->Add({"hit-latency", compared->value, "us", compared->baseline, compared->ratio,
               AtMost(1.3), "one caller; get and end of the lease against an empty call"});
  return absl::OkStatus();
}

absl::Status HitThroughput(Report* report) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=1GiB"});
  absl::Status status = daemon.Start();
  Clients clients;
  if (status.ok()) status = AddClient(daemon, &clients);
  if (!status.ok()) return status;
  const std::vector<uint8_t> payload = MakePayload(kBytes);
  std::vector<client::Key> keys;
  for (int i = 0; i < kThreads; ++i) {
    status = PutEntry(*clients[0], i, payload);
    if (!status.ok()) return status;
    keys.push_back(MakeKey(i));
  }
  auto compared = CompareRates(clients, keys);
  if (!compared.ok()) return compared.status();
  report->Add({"hit-throughput", compared->value, "calls/s", compared->baseline, compared->ratio,
               AtLeast(kTarget),
               "16 threads share one client, as those of one server do; baseline: empty calls"});
  while (clients.size() < kThreads) {
    status = AddClient(daemon, &clients);
    if (!status.ok()) return status;
  }
  compared = CompareRates(clients, keys);
  if (!compared.ok()) return compared.status();
  report->Add({"hit-throughput-16-clients", compared->value, "calls/s", compared->baseline,
               compared->ratio, std::nullopt, "the same, each thread with a client of its own"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
