#include "tests/bench/bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace embcache::bench {
namespace {

using Json = nlohmann::ordered_json;

// Enough digits to see a difference, few enough to read.
double Rounded(double value) {
  if (value == 0) return 0;
  const double scale = std::pow(10, 3 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

Json Number(std::optional<double> value) { return value ? Json(Rounded(*value)) : Json(); }

std::string Describe(const Result& result) {
  return absl::StrCat(
      result.ratio ? "ratio" : "value",
      result.target->bound == Target::Bound::kAtMost ? " <= " : " >= ", result.target->limit);
}

// Spreads a number over all 64 bits.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

bool Result::pass() const {
  if (!target) return true;
  const double judged = ratio.value_or(value);
  return target->bound == Target::Bound::kAtMost ? judged <= target->limit
                                                 : judged >= target->limit;
}

void Report::Add(const Result& result) {
  Json json;
  json["name"] = result.name;
  json["value"] = Rounded(result.value);
  json["unit"] = result.unit;
  json["baseline"] = Number(result.baseline);
  json["ratio"] = Number(result.ratio);
  json["target"] = result.target ? Json(Describe(result)) : Json();
  json["pass"] = result.pass();
  if (!result.note.empty()) json["note"] = result.note;
  std::cout << json.dump() << std::endl;
  all_passed_ = all_passed_ && result.pass();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double NowMicros() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

absl::StatusOr<Comparison> Interleave(int rounds, const Round& value, const Round& baseline) {
  std::vector<double> values, baselines, ratios;
  for (int i = -1; i < rounds; ++i) {
    const bool value_first = i % 2 == 0;
    const absl::StatusOr<double> first = value_first ? value() : baseline();
    if (!first.ok()) return first.status();
    const absl::StatusOr<double> second = value_first ? baseline() : value();
    if (!second.ok()) return second.status();
    if (i < 0) continue;
    values.push_back(value_first ? *first : *second);
    baselines.push_back(value_first ? *second : *first);
    ratios.push_back(values.back() / baselines.back());
  }
  return Comparison{Median(values), Median(baselines), Median(ratios)};
}

Round MedianLatency(int calls, Operation operation) {
  return [calls, operation = std::move(operation)]() -> absl::StatusOr<double> {
    std::vector<double> times;
    times.reserve(calls);
    for (int i = 0; i < calls; ++i) {
      const double start = NowMicros();
      absl::Status status = operation();
      times.push_back(NowMicros() - start);
      if (!status.ok()) return status;
    }
    return Median(std::move(times));
  };
}

Round CallRate(int threads, double seconds, std::function<absl::Status(int thread)> operation) {
  return [threads, seconds, operation = std::move(operation)]() -> absl::StatusOr<double> {
    std::atomic<uint64_t> calls{0};
    std::atomic<bool> failed{false};
    std::vector<absl::Status> statuses(threads);
    std::vector<std::thread> running;
    const double start = NowMicros();
    const double end = start + seconds * 1e6;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        uint64_t done = 0;
        while (NowMicros() < end && !failed.load(std::memory_order_relaxed)) {
          statuses[t] = operation(t);
          if (!statuses[t].ok()) failed.store(true);
          ++done;
        }
        calls.fetch_add(done);
      });
    }
    for (std::thread& thread : running) thread.join();
    const double took = (NowMicros() - start) / 1e6;
    for (absl::Status& status : statuses) {
      if (!status.ok()) return std::move(status);
    }
    return static_cast<double>(calls.load()) / took;
  };
}

client::Key MakeKey(uint64_t number) {
  client::Key key;
  key.model = "Qwen2.5-VL-7B-Instruct";
  for (uint64_t part = 0; part < 4; ++part) {
    const uint64_t word = Mix(number * 4 + part);
    key.content_hash.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return key;
}

std::vector<client::TensorSpec> MakeTensors(uint64_t bytes) {
  client::TensorSpec tensor;
  tensor.name = "main";
  tensor.dtype = client::DType::kBF16;
  tensor.shape = {static_cast<int64_t>(bytes / 4096), 2048};
  return {tensor};
}

client::PutOptions MakePutOptions() {
  client::PutOptions options;
  options.metadata["grid_thw"] = "1,64,64";
  options.encode_cost_us = 100'000;
  return options;
}

std::vector<uint8_t> MakePayload(uint64_t bytes) {
  std::vector<uint8_t> payload(bytes);
  for (uint64_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    const uint64_t word = Mix(i);
    std::memcpy(payload.data() + i, &word, sizeof(word));
  }
  return payload;
}

absl::Status PutEntry(client::Client& client, uint64_t number,
                      const std::vector<uint8_t>& payload) {
  return client.Put(MakeKey(number), MakeTensors(payload.size()), {client::Bytes(payload)},
                    MakePutOptions());
}

absl::Status Hit(client::Client& client, const client::Key& key) {
  auto lease = client.Get(key);
  if (!lease.ok()) return lease.status();
  return lease->has_value() ? absl::OkStatus()
                            : absl::NotFoundError("an entry of the benchmark was evicted");
}

}  // namespace embcache::bench
