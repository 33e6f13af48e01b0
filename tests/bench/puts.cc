// put-16mb, put-l3, put-l3-paced: a put against copying the bytes, and with the SSD tier against
// without, in bursts and at an encoder's pace.

#include <grpcpp/grpcpp.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "embcache/v1/admin.grpc.pb.h"
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

// Returns when the daemon's SSD tier has written all that was put.
absl::Status Flush(const DaemonProcess& daemon) {
  const auto channel =
      grpc::CreateChannel(absl::StrCat("unix:", daemon.socket_dir(), "/embcached.sock"),
                          grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::FlushResponse response;
  const grpc::Status status =
      v1::Admin::NewStub(channel)->Flush(&context, v1::FlushRequest(), &response);
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.error_message());
}

// Of several, each in its turn: one alone would stay in the processor's cache.
using Payloads = std::vector<std::vector<uint8_t>>;

// A round of puts under keys never used before, `interval` apart. `settle` is called after them,
// and then they are deleted, so that no put has to make room; neither is timed.
Round Puts(
    Client* client, const Payloads* payloads, absl::Duration interval = {},
    Operation settle = [] { return absl::OkStatus(); }) {
  auto next = std::make_shared<uint64_t>(0);
  return [=]() -> absl::StatusOr<double> {
    const uint64_t begin = *next;
    std::vector<double> times;
    absl::Time due = absl::Now();
    for (int i = 0; i < kPutsPerRound; ++i, due += interval) {
      absl::SleepFor(due - absl::Now());  // the pace that is measured; not at all back to back
      const double start = NowMicros();
      const absl::Status put =
          ReserveCopyCommit(*client, *next, (*payloads)[*next % payloads->size()]);
      ++*next;
      times.push_back(NowMicros() - start);
      if (!put.ok()) return put;
    }
    if (const absl::Status settled = settle(); !settled.ok()) return settled;
    for (uint64_t number = begin; number < *next; ++number) {
      const absl::StatusOr<bool> existed = client->Delete(MakeKey(number));
      if (!existed.ok()) return existed.status();
      if (!*existed) return absl::InternalError("an entry of the round was evicted");
    }
    return Median(std::move(times));
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
  const Payloads payloads(1, MakePayload(kBytes));
  std::vector<uint8_t> target(kBytes * kPutsPerRound, 1);
  const Round puts = Puts(client->get(), &payloads);
  const absl::StatusOr<double> first = puts();
  if (!first.ok()) return first.status();
  const auto compared = Interleave(15, puts, Copies(client->get(), &payloads.front(), &target));
  if (!compared.ok()) return compared.status();
  report->Add({"put-16mb", compared->value, "us", compared->baseline, compared->ratio, AtMost(1.2),
               absl::StrCat("reserve, write into place, commit, against memcpy into warm memory "
                            "and two empty calls; while the client touches the daemon's memory for "
                            "the first time a put takes ",
                            static_cast<int>(*first), " us")});
  return absl::OkStatus();
}

namespace {

// One daemon with the SSD tier and one without, fresh ones each time: which is started first
// decides where its memory lies, and that alone made up to 20% of a put's time.
absl::StatusOr<Comparison> CompareWithAndWithoutL3(bool with_first, int rounds,
                                                   absl::Duration interval) {
  DaemonProcess without({"--l3-write=off", "--l1-capacity=1GiB"});
  DaemonProcess with({"--l3-write=through", "--l1-capacity=1GiB", "--l3-dir={dir}/l3",
                      "--l3-capacity=4GiB", "--l3-queue-bytes=512MiB"});
  absl::Status status = (with_first ? with : without).Start();
  if (status.ok()) status = (with_first ? without : with).Start();
  if (!status.ok()) return status;
  auto client_without = without.Connect(client::Role::kWriter, "bench");
  if (!client_without.ok()) return client_without.status();
  auto client_with = with.Connect(client::Role::kWriter, "bench");
  if (!client_with.ok()) return client_with.status();
  const Payloads payloads(8, MakePayload(kBytes));
  auto compared = Interleave(
      rounds, Puts(client_with->get(), &payloads, interval, [&with] { return Flush(with); }),
      Puts(client_without->get(), &payloads, interval));
  if (!compared.ok()) return compared.status();
  const absl::StatusOr<std::string> stats = (*client_with)->StatsJson();
  if (!stats.ok()) return stats.status();
  const nlohmann::json l3 = nlohmann::json::parse(*stats)["l3"];
  if (l3["writes"] != kPutsPerRound * (rounds + 1)) {
    return absl::InternalError(absl::StrCat("not all was written: ", l3.dump()));
  }
  return compared;
}

absl::Status AddPutL3(Report* report, const char* name, int rounds, absl::Duration interval,
                      absl::string_view how) {
  constexpr int kPairs = 6;
  std::vector<double> values, baselines, ratios;
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto compared = CompareWithAndWithoutL3(pair % 2 == 1, rounds, interval);
    if (!compared.ok()) return compared.status();
    values.push_back(compared->value);
    baselines.push_back(compared->baseline);
    ratios.push_back(compared->ratio);
  }
  report->Add({name, Median(values), "us", Median(baselines), Median(ratios), AtMost(1.1),
               absl::StrCat("16 MiB, ", how, ", all of it written to the SSD meanwhile or after; ",
                            kPairs, " pairs of daemons, either one started first in turn")});
  return absl::OkStatus();
}

}  // namespace

absl::Status PutL3(Report* report) {
  absl::Status status = AddPutL3(report, "put-l3", 3, absl::ZeroDuration(), "24 back to back");
  if (!status.ok()) return status;
  return AddPutL3(report, "put-l3-paced", 2, absl::Milliseconds(40), "24, one every 40 ms");
}

}  // namespace embcache::bench
