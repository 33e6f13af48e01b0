// size: how much memory and disk a cache needs. Needs no daemon.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "client/cli/reuse_distances.h"

namespace embcache::cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// What L3 keeps free of its capacity: the smaller of the two.
constexpr uint64_t kL3ReserveBytes = 8 * kMiB;
constexpr uint64_t kL3ReserveShare = 16;
constexpr uint64_t kLeastL3Bytes = 16 * kMiB;  // that embcached takes

struct SizeArguments {
  uint64_t entry_bytes = 0;
  std::string image;
  double patch = 28;
  uint64_t hidden = 0;
  uint64_t value_bytes = 2;
  double per_hour = 0;
  std::string l1_for = "10m", l2_for = "0", l3_for = "24h";
  std::string trace;
  std::vector<uint64_t> capacities;
};

// "1280x960" as its sides.
bool ParseImage(const std::string& text, double* width, double* height) {
  const std::vector<std::string> sides = absl::StrSplit(text, 'x');
  uint64_t w = 0, h = 0;
  if (sides.size() != 2 || !absl::SimpleAtoi(sides[0], &w) || !absl::SimpleAtoi(sides[1], &h) ||
      w == 0 || h == 0 || w > 1'000'000 || h > 1'000'000) {
    return false;
  }
  *width = static_cast<double>(w);
  *height = static_cast<double>(h);
  return true;
}

bool ParseTime(const std::string& text, absl::Duration* time) {
  return absl::ParseDuration(text, time) && *time >= absl::ZeroDuration() &&
         *time <= absl::Hours(24 * 366);
}

uint64_t EntryBytes(const SizeArguments& arguments) {
  if (arguments.image.empty()) return arguments.entry_bytes;
  double width = 0, height = 0;
  ParseImage(arguments.image, &width, &height);
  const double rows = std::max(1.0, std::round(width / arguments.patch)) *
                      std::max(1.0, std::round(height / arguments.patch));
  return static_cast<uint64_t>(rows) * arguments.hidden * arguments.value_bytes;
}

// Of all that comes in within `time`, rounded up to whole MiB.
uint64_t CapacityFor(double bytes_per_hour, absl::Duration time) {
  const double bytes = bytes_per_hour * absl::ToDoubleHours(time);
  return static_cast<uint64_t>(std::ceil(bytes / kMiB)) * kMiB;
}

int RunRate(const Context& context, const SizeArguments& arguments) {
  absl::Duration l1_for, l2_for, l3_for;
  ParseTime(arguments.l1_for, &l1_for);
  ParseTime(arguments.l2_for, &l2_for);
  ParseTime(arguments.l3_for, &l3_for);
  const uint64_t entry_bytes = EntryBytes(arguments);
  const double bytes_per_hour = static_cast<double>(entry_bytes) * arguments.per_hour;
  if (bytes_per_hour * 24 * 366 > 1e18) {
    return context.Fail(absl::InvalidArgumentError("more than an exabyte a year"));
  }
  const uint64_t l1 = CapacityFor(bytes_per_hour, l1_for);
  // L1 and L2 hold different entries, L3 those of both too.
  const uint64_t l2 = l2_for > l1_for ? CapacityFor(bytes_per_hour, l2_for - l1_for) : 0;
  uint64_t l3 = CapacityFor(bytes_per_hour, l3_for);
  if (l3 > 0) {
    l3 += std::max(kMiB, std::min(kL3ReserveBytes, l3 / kL3ReserveShare));
    l3 = std::max(l3, kLeastL3Bytes);
  }
  const auto written_per_day = static_cast<uint64_t>(l3 > 0 ? bytes_per_hour * 24 : 0);
  if (context.json) {
    Json json;
    json["entry_bytes"] = entry_bytes;
    json["l1_capacity"] = l1;
    json["l2_capacity"] = l2;
    json["l3_capacity"] = l3;
    json["l3_written_per_day"] = written_per_day;
    *context.out << Dump(json) << '\n';
    return kExitOk;
  }
  *context.out << "an entry takes " << HumanBytes(entry_bytes) << "\n";
  Table table({"TIER", "FINDS AGAIN WITHIN", "CAPACITY", "SETTING"});
  const auto add = [&table](const std::string& tier, absl::Duration time, uint64_t bytes) {
    if (bytes == 0) return;
    table.Add({tier, absl::FormatDuration(time), HumanBytes(bytes),
               absl::StrCat("--", tier, "-capacity=", bytes / kMiB, "MiB")});
  };
  add("l1", l1_for, l1);
  add("l2", l2_for, l2);
  add("l3", l3_for, l3);
  table.Print(*context.out);
  if (l3 > 0) *context.out << "the SSD gets " << HumanBytes(written_per_day) << " a day\n";
  return kExitOk;
}

// Doubling, from the largest entry up to where everything fits.
std::vector<uint64_t> DefaultCapacities(const ReuseDistances& trace) {
  std::vector<uint64_t> capacities;
  uint64_t capacity = kMiB;
  while (capacity < trace.largest_bytes()) capacity *= 2;
  for (; capacity < trace.distinct_bytes(); capacity *= 2) capacities.push_back(capacity);
  capacities.push_back(capacity);
  return capacities;
}

std::string Percent(double part, double whole) {
  return whole == 0 ? "-" : absl::StrFormat("%.1f%%", 100 * part / whole);
}

int RunTrace(const Context& context, const SizeArguments& arguments) {
  std::ifstream file(arguments.trace);
  if (!file)
    return context.Fail(absl::NotFoundError(absl::StrCat("cannot read ", arguments.trace)));
  const auto uses = ReadTrace(file);
  if (!uses.ok()) {
    return context.Fail(
        absl::InvalidArgumentError(absl::StrCat(arguments.trace, ": ", uses.status().message())));
  }
  const ReuseDistances trace(*uses);
  const std::vector<uint64_t> capacities =
      arguments.capacities.empty() ? DefaultCapacities(trace) : arguments.capacities;
  for (const uint64_t capacity : capacities) {
    if (capacity < trace.largest_bytes()) {
      return context.Fail(absl::InvalidArgumentError(absl::StrCat(
          "--capacity: ", capacity, " bytes; the largest entry takes ", trace.largest_bytes())));
    }
  }
  Json lines = Json::array();
  Table table({"CAPACITY", "HITS", "HIT RATIO", "COST SAVED"});
  for (const uint64_t capacity : capacities) {
    const ReuseDistances::Found found = trace.FoundWith(capacity);
    Json line;
    line["capacity"] = capacity;
    line["hits"] = found.hits;
    line["cost_saved"] = found.cost;
    lines.push_back(line);
    table.Add({HumanBytes(capacity), absl::StrCat(found.hits),
               Percent(static_cast<double>(found.hits), static_cast<double>(trace.uses())),
               Percent(found.cost, trace.cost())});
  }
  if (context.json) {
    Json json;
    json["uses"] = trace.uses();
    json["cost"] = trace.cost();
    json["keys"] = trace.keys();
    json["distinct_bytes"] = trace.distinct_bytes();
    json["capacities"] = lines;
    *context.out << Dump(json) << '\n';
    return kExitOk;
  }
  *context.out << trace.uses() << " uses of " << trace.keys() << " keys, "
               << HumanBytes(trace.distinct_bytes()) << "\n";
  table.Print(*context.out);
  return kExitOk;
}

CLI::Validator Check(bool (*good)(const std::string&), const std::string& wanted) {
  return CLI::Validator(
      [good, wanted](std::string& text) -> std::string {
        return good(text) ? "" : absl::StrCat(text, " is not ", wanted);
      },
      "");
}

CLI::Validator Time() {
  return Check(
      [](const std::string& text) {
        absl::Duration time;
        return ParseTime(text, &time);
      },
      "a time of at most a year, as in 90s, 10m or 24h");
}

// The two ways to say how large an entry is.
struct EntryOptions {
  CLI::Option* entry;
  CLI::Option* image;
};

EntryOptions AddEntryOptions(CLI::App* command, SizeArguments* arguments) {
  EntryOptions options;
  options.entry = command
                      ->add_option("--entry", arguments->entry_bytes,
                                   "Bytes of an entry; 2MiB may be written so")
                      ->transform(SizeText())
                      ->check(CLI::PositiveNumber)
                      ->type_name("SIZE");
  options.image = command
                      ->add_option("--image", arguments->image,
                                   "Instead of --entry: the sides of an image in pixels")
                      ->check(Check(
                          [](const std::string& text) {
                            double width = 0, height = 0;
                            return ParseImage(text, &width, &height);
                          },
                          "WIDTHxHEIGHT"))
                      ->excludes(options.entry)
                      ->type_name("WIDTHxHEIGHT");
  CLI::Option* const hidden =
      command->add_option("--hidden", arguments->hidden, "With --image: values a row (token) has")
          ->check(CLI::Range(1, 1 << 20))
          ->needs(options.image);
  options.image->needs(hidden);
  command
      ->add_option("--patch", arguments->patch, "With --image: pixels a row stands for, each way")
      ->check(CLI::Range(1.0, 4096.0))
      ->needs(options.image)
      ->capture_default_str();
  command->add_option("--value-bytes", arguments->value_bytes, "With --image: bytes of a value")
      ->check(CLI::Range(1, 8))
      ->needs(options.image)
      ->capture_default_str();
  return options;
}

void AddTimeOption(CLI::App* command, const std::string& name, const std::string& where,
                   CLI::Option* rate, std::string* time) {
  command
      ->add_option(name, *time,
                   absl::StrCat("How long after its last use an image is found ", where))
      ->check(Time())
      ->needs(rate)
      ->type_name("TIME")
      ->capture_default_str();
}

}  // namespace

void AddSizeCommand(CLI::App& app, const Context& context, Action* action) {
  auto arguments = std::make_shared<SizeArguments>();
  CLI::App* command = app.add_subcommand(
      "size",
      "Say what capacities a traffic needs: from the rate of different images, or by replaying a "
      "trace against caches of several sizes that evict the least recently used. Needs no daemon");
  const EntryOptions sizes = AddEntryOptions(command, arguments.get());
  CLI::Option* const rate = command
                                ->add_option("--distinct-per-hour", arguments->per_hour,
                                             "Different images that come in an hour")
                                ->check(CLI::Range(0.001, 1e12))
                                ->type_name("N");
  AddTimeOption(command, "--l1-for", "in L1", rate, &arguments->l1_for);
  AddTimeOption(command, "--l2-for", "in L1 or L2", rate, &arguments->l2_for);
  AddTimeOption(command, "--l3-for", "at all", rate, &arguments->l3_for);
  CLI::Option* const trace =
      command
          ->add_option("--trace", arguments->trace,
                       "CSV file with the columns key, bytes and, if wanted, cost; a line a use")
          ->excludes(rate)
          ->excludes(sizes.entry)
          ->excludes(sizes.image)
          ->type_name("FILE");
  command
      ->add_option("--capacity", arguments->capacities,
                   "With --trace: a size to try; repeatable. Default: doubling until all fits")
      ->transform(SizeText())
      ->needs(trace)
      ->type_name("SIZE");
  command->callback([&context, action, arguments, trace, rate, sizes] {
    const bool sized = sizes.entry->count() + sizes.image->count() > 0;
    if (trace->count() == 0 && (rate->count() == 0 || !sized)) {
      throw CLI::RequiredError("--distinct-per-hour with --entry or --image, or --trace,");
    }
    *action = [&context, arguments] {
      return arguments->trace.empty() ? RunRate(context, *arguments)
                                      : RunTrace(context, *arguments);
    };
  });
}

}  // namespace embcache::cli
