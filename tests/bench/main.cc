// embcache_bench NAME...: runs benchmarks, all of them without a name. Exits with 1 when one falls
// short of its target, 2 when one could not be run.

#include <malloc.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/bench/bench.h"

namespace embcache::bench {
namespace {

struct Benchmark {
  absl::string_view name;
  absl::string_view help;
  absl::Status (*run)(Report*);
};

constexpr Benchmark kBenchmarks[] = {
    {"fast-hit-4k", "a hit without a call among 4,096 entries, against a bare look", FastHit4k},
    {"fast-hit-1m", "the same among 1,048,576", FastHit1m},
    {"fast-hit-call", "a hit without a call, against a hit by call", FastHitCall},
    {"fast-evictions", "evictions with 16 sessions mapped, against none", FastEvictions},
    {"hit-latency", "a hit of 2 MiB by call and the end of its lease, against an empty call",
     HitLatency},
    {"hit-throughput", "hits by call a second of 16 threads, against empty calls", HitThroughput},
    {"overload", "hits of 16 clients beside 1,000 idle and 50 slow ones, against alone", Overload},
    {"claims", "100 clients that want one new key: encodes, and time beyond the encode's", Claims},
    {"redis-2mb", "a hit of 2 MiB, against a GET of the same bytes from Redis", Redis2Mb},
    {"redis-16mb", "a hit of 16 MiB, against a GET of the same bytes from Redis", Redis16Mb},
    {"put-16mb", "a put of 16 MiB, against memcpy and two empty calls", Put16Mb},
    {"put-l3", "a put of 16 MiB with the SSD tier on, against off", PutL3},
    {"entries", "heap of an entry, and a hit's time, at 100,000 entries", Entries},
    {"arena", "share of the memory in use when an allocation first finds no room", Arena},
    {"file-2mb", "a hit of 2 MiB, against reading a file from the page cache", File2Mb},
    {"l3-write", "the SSD tier's writes, against plain files", L3Write},
    {"l3-read-warm-2mb", "its reads of 2 MiB from the page cache", L3ReadWarm2Mb},
    {"l3-read-warm-16mb", "its reads of 16 MiB from the page cache", L3ReadWarm16Mb},
    {"l3-read-cold", "its reads through an empty page cache", L3ReadCold},
    {"l3-read-direct", "its reads around the page cache", L3ReadDirect},
    {"l3-open", "its start, and its heap, with 1,000,000 entries", L3Open},
    {"l3-write-amplification", "bytes it writes per byte put", L3WriteAmplification},
    {"l3-memory", "what the daemon takes while it writes at full speed", L3Memory},
};

const Benchmark* Find(absl::string_view name) {
  for (const Benchmark& benchmark : kBenchmarks) {
    if (benchmark.name == name) return &benchmark;
  }
  return nullptr;
}

void PrintList(std::ostream& out) {
  for (const Benchmark& benchmark : kBenchmarks) {
    out << benchmark.name << std::string(24 - benchmark.name.size(), ' ') << benchmark.help << "\n";
  }
}

int Main(const std::vector<std::string>& words) {
  std::vector<const Benchmark*> chosen;
  for (const std::string& word : words) {
    if (word == "--list") {
      PrintList(std::cout);
      return 0;
    }
    const Benchmark* benchmark = Find(word);
    if (benchmark == nullptr) {
      std::cerr << "embcache_bench: no benchmark called " << word << "; there are\n";
      PrintList(std::cerr);
      return 64;
    }
    chosen.push_back(benchmark);
  }
  if (chosen.empty()) {
    for (const Benchmark& benchmark : kBenchmarks) chosen.push_back(&benchmark);
  }
  // As the daemon does: the SSD tier is measured in this process.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  std::string load;
  std::getline(std::ifstream("/proc/loadavg") >> std::ws, load);
  std::cerr << "embcache_bench: load average at the start " << load << "\n";
  Report report;
  bool failed = false;
  for (const Benchmark* benchmark : chosen) {
    const absl::Status status = benchmark->run(&report);
    if (status.ok()) continue;
    std::cerr << "embcache_bench: " << benchmark->name << ": " << status << "\n";
    failed = true;
  }
  if (failed) return 2;
  return report.all_passed() ? 0 : 1;
}

}  // namespace
}  // namespace embcache::bench

int main(int argc, char** argv) { return embcache::bench::Main({argv + 1, argv + argc}); }
