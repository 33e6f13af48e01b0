// entries: what 100,000 resident entries cost the daemon, in heap and in the time of a hit.

#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

using client::Client;
using testing_support::DaemonProcess;

constexpr uint64_t kBytes = 4096;
constexpr uint64_t kFew = 1'000;
constexpr uint64_t kMany = 100'000;
constexpr int kThreads = 8;

// Anonymous memory of a process: its heap, and not the entries' bytes, which are in a memfd.
absl::StatusOr<uint64_t> AnonymousBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() == 3 && words[0] == "RssAnon:" && absl::SimpleAtoi(words[1], &kib)) {
      return kib << 10;
    }
  }
  return absl::NotFoundError("no RssAnon in /proc/PID/status");
}

absl::Status Fill(Client& client, uint64_t begin, uint64_t end) {
  const std::vector<uint8_t> payload = MakePayload(kBytes);
  std::atomic<uint64_t> next{begin};
  std::vector<absl::Status> statuses(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t number = next++; number < end && statuses[t].ok(); number = next++) {
        statuses[t] = PutEntry(client, number, payload);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (absl::Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return absl::OkStatus();
}

// A daemon with room for all entries, and a client of it.
struct Stock {
  DaemonProcess daemon{{"--l3-write=off", "--l1-capacity=512MiB"}};
  std::unique_ptr<Client> client;
  std::mt19937_64 random{1};

  // With `kFew` entries. They are put twice, so that the memory which calls take is there already.
  absl::Status Start() {
    absl::Status status = daemon.Start();
    if (!status.ok()) return status;
    auto connected = daemon.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
    if (!connected.ok()) return connected.status();
    client = *std::move(connected);
    status = Fill(*client, 0, kFew);
    return status.ok() ? Fill(*client, 0, kFew) : status;
  }

  Round Hits(uint64_t entries) {
    return MedianLatency(500,
                         [this, entries] { return Hit(*client, MakeKey(random() % entries)); });
  }
};

}  // namespace

absl::Status Entries(Report* report) {
  Stock few, many;
  absl::Status status = few.Start();
  if (status.ok()) status = many.Start();
  if (!status.ok()) return status;
  const absl::StatusOr<uint64_t> before = AnonymousBytes(many.daemon.pid());
  status = Fill(*many.client, kFew, kMany);
  if (!status.ok()) return status;
  const absl::StatusOr<uint64_t> after = AnonymousBytes(many.daemon.pid());
  if (!before.ok() || !after.ok()) return after.status().ok() ? before.status() : after.status();
  const double heap = static_cast<double>(*after) - static_cast<double>(*before);
  report->Add(
      {"entries-heap", heap / static_cast<double>(kMany - kFew), "bytes", std::nullopt,
       std::nullopt, AtMost(1024),
       "growth of the daemon's RssAnon for each entry of one tensor and one metadata item"});
  const auto compared = Interleave(21, many.Hits(kMany), few.Hits(kFew));
  if (!compared.ok()) return compared.status();
  report->Add({"entries-latency", compared->value, "us", compared->baseline, compared->ratio,
               AtMost(1.2), "hits of random keys among 100,000 entries, against among 1,000"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
