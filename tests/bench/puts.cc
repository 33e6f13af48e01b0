// put-16mb, put-l3: a put against copying the bytes, and with the SSD tier against without.

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

using client::Client;
using testing_support::DaemonProcess;

constexpr uint64_t kBytes = 16 << 20;
constexpr int kPutsPerRound = 24;

absl::Status ReserveCopyCommit(Client& client, uint64_t number,
                               const std::vector<uint8_t>& payload) {
  auto reservation = client.Reserve(MakeKey(number), MakeTensors(payload.size()), MakePutOptions());
  if (!reservation.ok()) return reservation.status();
  absl::Status written = reservation->Write(0, payload);
  return written.ok() ? reservation->Commit().status() : written;
}

// A round of puts under keys never used before. They are deleted afterwards, outside the timing, so
// that no put has to make room.
Round Puts(Client* client, const std::vector<uint8_t>* payload) {
  auto next = std::make_shared<uint64_t>(0);
  const Round timed = MedianLatency(kPutsPerRound, [client, payload, next] {
    return ReserveCopyCommit(*client, (*next)++, *payload);
  });
  return [client, next, timed]() -> absl::StatusOr<double> {
    const uint64_t begin = *next;
    const absl::StatusOr<double> median = timed();
    for (uint64_t number = begin; number < *next; ++number) {
      const absl::StatusOr<bool> existed = client->Delete(MakeKey(number));
      if (!existed.ok()) return existed.status();
      if (!*existed) return absl::InternalError("an entry of the round was evicted");
    }
    return median;
  };
}

// Copies into as much memory as the puts write to, all of it touched before: into one buffer the
// processor's cache would help.
Round Copies(Client* client, const std::vector<uint8_t>* payload, std::vector<uint8_t>* target) {
  auto slot = std::make_shared<int>(0);
  return MedianLatency(kPutsPerRound, [client, payload, target, slot] {
    uint8_t* const to = target->data() + kBytes * (*slot)++;
    *slot %= kPutsPerRound;
    std::memcpy(to, payload->data(), kBytes);
    KeepWrites(to);
    absl::Status status = client->Ping();
    return status.ok() ? client->Ping() : status;
  });
}

}  // namespace

absl::Status Put16Mb(Report* report) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=1GiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  auto client = daemon.Connect(client::Role::kWriter, "bench");
  if (!client.ok()) return client.status();
  const std::vector<uint8_t> payload = MakePayload(kBytes);
  std::vector<uint8_t> target(kBytes * kPutsPerRound, 1);
  const Round puts = Puts(client->get(), &payload);
  const absl::StatusOr<double> first = puts();
  if (!first.ok()) return first.status();
  const auto compared = Interleave(15, puts, Copies(client->get(), &payload, &target));
  if (!compared.ok()) return compared.status();
  report->Add({"put-16mb", compared->value, "us", compared->baseline, compared->ratio, AtMost(1.2),
               absl::StrCat("reserve, write into place, commit, against memcpy into warm memory "
                            "and two empty calls; while the client touches the daemon's memory for "
                            "the first time a put takes ",
                            static_cast<int>(*first), " us")});
  return absl::OkStatus();
}

absl::Status PutL3(Report* report) {
  constexpr int kRounds = 9;
  DaemonProcess without({"--l3-write=off", "--l1-capacity=1GiB"});
  DaemonProcess with({"--l3-write=through", "--l1-capacity=1GiB", "--l3-dir={dir}/l3",
                      "--l3-capacity=4GiB", "--l3-queue-bytes=512MiB"});
  absl::Status status = without.Start();
  if (status.ok()) status = with.Start();
  if (!status.ok()) return status;
  auto client_without = without.Connect(client::Role::kWriter, "bench");
  if (!client_without.ok()) return client_without.status();
  auto client_with = with.Connect(client::Role::kWriter, "bench");
  if (!client_with.ok()) return client_with.status();
  const std::vector<uint8_t> payload = MakePayload(kBytes);
  const auto compared = Interleave(kRounds, Puts(client_with->get(), &payload),
                                   Puts(client_without->get(), &payload));
  if (!compared.ok()) return compared.status();
  const absl::StatusOr<std::string> stats = (*client_with)->StatsJson();
  if (!stats.ok()) return stats.status();
  const nlohmann::json l3 = nlohmann::json::parse(*stats)["l3"];
  report->Add({"put-l3", compared->value, "us", compared->baseline, compared->ratio, AtMost(1.1),
               absl::StrCat("16 MiB, back to back, while the SSD tier writes what was put; of ",
                            kPutsPerRound * (kRounds + 1), " entries ", l3["writes"].dump(),
                            " were stored, the others deleted before their turn")});
  return absl::OkStatus();
}

}  // namespace embcache::bench
