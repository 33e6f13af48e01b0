// bench: what the cache costs on this machine, each figure beside the least that it could cost.
//
// Prints JSON lines: name, value, unit, baseline (what the name of the figure is compared with, in
// the same unit) and ratio (value / baseline).

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/context.h"
#include "client/cli/entry_file.h"
#include "client/cli/output.h"

namespace embcache::cli {
namespace {

using client::Bytes;
using client::Client;
using client::Key;
using client::TensorSpec;

constexpr char kModel[] = "embcachectl-bench";

struct BenchArguments {
  std::string what = "all";
  double seconds = 2;
  int callers = 16;
  uint64_t bytes = 1 << 20;
  int keys = 16;
};

struct Bench {
  const Context& context;
  const BenchArguments& arguments;
  Client& client;
  std::vector<uint8_t> payload;
  std::vector<TensorSpec> tensors;

  Key KeyAt(int i) const { return {kModel, Sha256(absl::StrCat("bench ", i)), ""}; }
  absl::Status Put(int i) { return client.Put(KeyAt(i), tensors, {Bytes(payload)}, {}); }
  void Print(absl::string_view name, double value, absl::string_view unit, double baseline) const {
    Json json;
    json["name"] = std::string(name);
    json["value"] = value;
    json["unit"] = std::string(unit);
    json["baseline"] = baseline;
    json["ratio"] = baseline > 0 ? Json(value / baseline) : Json();
    *context.out << Dump(json) << std::endl;
  }
};

double Percentile(std::vector<double>& samples, double fraction) {
  const size_t index = std::min(samples.size() - 1, static_cast<size_t>(samples.size() * fraction));
  std::nth_element(samples.begin(), samples.begin() + index, samples.end());
  return samples[index];
}

absl::Status GetOnce(Client& client, const Key& key) {
  auto lease = client.Get(key);
  if (!lease.ok()) return lease.status();
  return lease->has_value() ? absl::OkStatus()
                            : absl::NotFoundError("an entry of the benchmark was evicted");
}

// Calls `work` and adds the microseconds it took.
template <typename Work>
absl::Status Time(std::vector<double>* samples, Work work) {
  const int64_t start = absl::GetCurrentTimeNanos();
  absl::Status status = work();
  samples->push_back(static_cast<double>(absl::GetCurrentTimeNanos() - start) / 1e3);
  return status;
}

// A hit (get and release) beside an empty call, turn by turn, so that both see the same machine.
absl::Status BenchHits(Bench& bench) {
  std::vector<double> hits, pings;
  const Key key = bench.KeyAt(0);
  const absl::Time end = absl::Now() + absl::Seconds(bench.arguments.seconds);
  while (absl::Now() < end) {
    absl::Status status = Time(&hits, [&] { return GetOnce(bench.client, key); });
    if (!status.ok()) return status;
    status = Time(&pings, [&] { return bench.client.Ping(); });
    if (!status.ok()) return status;
  }
  bench.Print("hit_latency_p50", Percentile(hits, 0.50), "us", Percentile(pings, 0.50));
  bench.Print("hit_latency_p99", Percentile(hits, 0.99), "us", Percentile(pings, 0.99));
  return absl::OkStatus();
}

// Calls per second of `callers` threads that each repeat `work`.
absl::StatusOr<double> CallRate(const BenchArguments& arguments,
                                const std::function<absl::Status(int)>& work) {
  std::atomic<uint64_t> calls{0};
  std::atomic<bool> failed{false};
  std::vector<absl::Status> statuses(arguments.callers);
  std::vector<std::thread> threads;
  const absl::Time start = absl::Now();
  const absl::Time end = start + absl::Seconds(arguments.seconds);
  for (int t = 0; t < arguments.callers; ++t) {
    threads.emplace_back([&, t] {
      uint64_t done = 0;
      for (int i = t; absl::Now() < end && !failed.load(std::memory_order_relaxed); ++i, ++done) {
        statuses[t] = work(i);
        if (!statuses[t].ok()) failed.store(true);
      }
      calls.fetch_add(done);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return static_cast<double>(calls.load()) / seconds;
}

absl::Status BenchThroughput(Bench& bench) {
  const BenchArguments& arguments = bench.arguments;
  absl::StatusOr<double> pings = CallRate(arguments, [&](int) { return bench.client.Ping(); });
  if (!pings.ok()) return pings.status();
  std::vector<Key> keys;
  for (int i = 0; i < arguments.keys; ++i) keys.push_back(bench.KeyAt(i));
  absl::StatusOr<double> gets =
      CallRate(arguments, [&](int i) { return GetOnce(bench.client, keys[i % keys.size()]); });
  if (!gets.ok()) return gets.status();
  bench.Print(absl::StrCat("hit_throughput_", arguments.callers, "_callers"), *gets, "calls/s",
              *pings);
  return absl::OkStatus();
}

absl::Status BenchPut(Bench& bench) {
  std::vector<double> puts, copies;
  std::vector<uint8_t> target(bench.payload.size());
  const absl::Time end = absl::Now() + absl::Seconds(bench.arguments.seconds);
  while (absl::Now() < end) {
    absl::Status status = Time(&puts, [&] { return bench.Put(0); });
    if (!status.ok()) return status;
    status = Time(&copies, [&] {
      std::memcpy(target.data(), bench.payload.data(), target.size());
      // Keeps the copy: nobody else reads it.
      asm volatile("" : : "r"(target.data()) : "memory");
      return absl::OkStatus();
    });
  }
  bench.Print("put_latency_p50", Percentile(puts, 0.50), "us", Percentile(copies, 0.50));
  bench.Print("put_latency_p99", Percentile(puts, 0.99), "us", Percentile(copies, 0.99));
  return absl::OkStatus();
}

int RunBench(const Context& context, const BenchArguments& arguments) {
  auto client = context.Connect(client::Role::kWriter);
  if (!client.ok()) return context.Fail(client.status());
  Bench bench{context, arguments, **client, std::vector<uint8_t>(arguments.bytes, 0x5a), {}};
  TensorSpec tensor;
  tensor.name = "main";
  tensor.dtype = client::DType::kU8;
  tensor.shape = {static_cast<int64_t>(arguments.bytes)};
  bench.tensors.push_back(tensor);
  absl::Status status;
  for (int i = 0; i < arguments.keys && status.ok(); ++i) status = bench.Put(i);
  const auto wanted = [&](absl::string_view name) {
    return status.ok() && (arguments.what == "all" || arguments.what == name);
  };
  if (wanted("hits")) status = BenchHits(bench);
  if (wanted("throughput")) status = BenchThroughput(bench);
  if (wanted("put")) status = BenchPut(bench);
  for (int i = 0; i < arguments.keys; ++i) {
    (*client)->Delete(bench.KeyAt(i)).status().IgnoreError();  // the measurement stands without
  }
  return status.ok() ? kExitOk : context.Fail(status);
}

}  // namespace

void AddBenchCommand(CLI::App& app, const Context& context, Action* action) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure this daemon: hits beside empty calls, puts beside memcpy. Prints JSON lines "
      "of name, value, unit, baseline, ratio. Uses, and then deletes, keys of the model "
      "embcachectl-bench");
  command->add_option("WHAT", arguments->what, "hits, throughput, put, or all")
      ->check(CLI::IsMember({"hits", "throughput", "put", "all"}))
      ->capture_default_str();
  command->add_option("--seconds", arguments->seconds, "How long each measurement runs")
      ->check(MoreThanZero())
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--callers", arguments->callers, "Threads of the throughput measurement")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--bytes", arguments->bytes, "Size of an entry; 1MiB may be written so")
      ->transform(SizeText())
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--keys", arguments->keys, "How many entries")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->callback([&context, action, arguments] {
    *action = [&context, arguments] { return RunBench(context, *arguments); };
  });
}

}  // namespace embcache::cli
