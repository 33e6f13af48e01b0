// What the benchmarks share: a result and how it is printed, interleaved measuring, and the entries
// that are put.
//
// Every benchmark measures a baseline and the product in turn, a round of one and then a round of
// the other, so that both see the same machine. A figure is the median over the rounds; the ratio
// is the median of the rounds' own ratios, which a drift of the machine does not touch.

#ifndef EMBCACHE_TESTS_BENCH_BENCH_H_
#define EMBCACHE_TESTS_BENCH_BENCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/client.h"

namespace embcache::bench {

// --- Results ------------------------------------------------------------------------------------

// A bound on a result's ratio or, where there is no baseline, on its value.
struct Target {
  enum class Bound { kAtMost, kAtLeast };
  Bound bound = Bound::kAtMost;
  double limit = 0;
};
constexpr Target AtMost(double limit) { return {Target::Bound::kAtMost, limit}; }
constexpr Target AtLeast(double limit) { return {Target::Bound::kAtLeast, limit}; }

struct Result {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> baseline;  // in the same unit
  std::optional<double> ratio;     // value / baseline
  std::optional<Target> target;    // none: for information
  std::string note;                // what exactly was compared

  bool pass() const;
};

// Prints each result as one line of JSON as soon as it is there.
class Report {
 public:
  void Add(const Result& result);
  bool all_passed() const { return all_passed_; }

 private:
  bool all_passed_ = true;
};

// --- Measuring ----------------------------------------------------------------------------------

double Median(std::vector<double> values);

// Microseconds since some fixed time, of a clock that only goes forward.
double NowMicros();

using Operation = std::function<absl::Status()>;
// Gives the figure of one round.
using Round = std::function<absl::StatusOr<double>()>;

struct Comparison {
  double value = 0;
  double baseline = 0;
  double ratio = 0;
};

// One round of each to warm up, which does not count, then `rounds` of each in turn, beginning with
// the one and the other alternately.
absl::StatusOr<Comparison> Interleave(int rounds, const Round& value, const Round& baseline);

// A round that times `operation` `calls` times and gives the median in microseconds.
Round MedianLatency(int calls, Operation operation);

// A round in which `threads` threads repeat `operation(thread)` for `seconds`; gives the calls per
// second of all together.
Round CallRate(int threads, double seconds, std::function<absl::Status(int thread)> operation);

// Keeps the compiler from leaving out the writing of `data`, which nobody reads.
inline void KeepWrites(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

// --- Entries ------------------------------------------------------------------------------------

// Keys and entries as a server of a vision-language model has them: a hash of 32 bytes, one BF16
// tensor in rows of 2048, the patch grid as metadata. `bytes` is a multiple of 4 KiB.
client::Key MakeKey(uint64_t number);
std::vector<client::TensorSpec> MakeTensors(uint64_t bytes);
client::PutOptions MakePutOptions();
// Pages written to, so that they are there.
std::vector<uint8_t> MakePayload(uint64_t bytes);

absl::Status PutEntry(client::Client& client, uint64_t number, const std::vector<uint8_t>& payload);
// A get that must hit, and the end of its lease.
absl::Status Hit(client::Client& client, const client::Key& key);

// --- The benchmarks -----------------------------------------------------------------------------

absl::Status FastHit4k(Report* report);
absl::Status FastHit1m(Report* report);
absl::Status FastHitCall(Report* report);
absl::Status FastEvictions(Report* report);
absl::Status HitLatency(Report* report);
absl::Status HitThroughput(Report* report);
absl::Status Overload(Report* report);
absl::Status Redis2Mb(Report* report);
absl::Status Redis16Mb(Report* report);
absl::Status Put16Mb(Report* report);
absl::Status PutL3(Report* report);
absl::Status Entries(Report* report);
absl::Status Arena(Report* report);
absl::Status File2Mb(Report* report);
absl::Status L3Write(Report* report);
absl::Status L3ReadWarm2Mb(Report* report);
absl::Status L3ReadWarm16Mb(Report* report);
absl::Status L3ReadCold(Report* report);
absl::Status L3ReadDirect(Report* report);
absl::Status L3Open(Report* report);
absl::Status L3WriteAmplification(Report* report);
absl::Status L3Memory(Report* report);

}  // namespace embcache::bench

#endif  // EMBCACHE_TESTS_BENCH_BENCH_H_
