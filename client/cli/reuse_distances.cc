#include "client/cli/reuse_distances.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace embcache::cli {
namespace {

// Sums over a growing prefix of numbers, each of which may change (a Fenwick tree).
class PrefixSums {
 public:
  explicit PrefixSums(size_t size) : tree_(size + 1) {}

  // Modulo 2^64, so a number can be taken away by adding its complement.
  void Add(size_t at, uint64_t number) {
    for (size_t i = at + 1; i < tree_.size(); i += i & -i) tree_[i] += number;
  }
  // Of the numbers before `end`.
  uint64_t SumBefore(size_t end) const {
    uint64_t sum = 0;
    for (size_t i = end; i > 0; i -= i & -i) sum += tree_[i];
    return sum;
  }

 private:
  std::vector<uint64_t> tree_;
};

absl::Status BadLine(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

}  // namespace

ReuseDistances::ReuseDistances(const std::vector<Use>& uses) : uses_(uses.size()) {
  struct LastUse {
    size_t at;
    uint64_t bytes;
  };
  absl::flat_hash_map<absl::string_view, LastUse> last_uses;
  // The bytes of every key, at its last use.
  PrefixSums bytes(uses.size());
  for (size_t now = 0; now < uses.size(); ++now) {
    const Use& use = uses[now];
    cost_ += use.cost;
    largest_bytes_ = std::max(largest_bytes_, use.bytes);
    const auto [last, first_use] = last_uses.try_emplace(use.key, LastUse{now, use.bytes});
    if (!first_use) {
      repeats_.push_back({bytes.SumBefore(now) - bytes.SumBefore(last->second.at), {1, use.cost}});
      bytes.Add(last->second.at, -last->second.bytes);
      last->second = {now, use.bytes};
    }
    bytes.Add(now, use.bytes);
  }
  keys_ = last_uses.size();
  distinct_bytes_ = bytes.SumBefore(uses.size());
  std::sort(repeats_.begin(), repeats_.end(),
            [](const Repeat& a, const Repeat& b) { return a.distance < b.distance; });
  Found sum;
  for (Repeat& repeat : repeats_) {
    sum.hits += repeat.up_to.hits;
    sum.cost += repeat.up_to.cost;
    repeat.up_to = sum;
  }
}

ReuseDistances::Found ReuseDistances::FoundWith(uint64_t capacity) const {
  const auto beyond = std::upper_bound(
      repeats_.begin(), repeats_.end(), capacity,
      [](uint64_t bytes, const Repeat& repeat) { return bytes < repeat.distance; });
  return beyond == repeats_.begin() ? Found() : std::prev(beyond)->up_to;
}

absl::StatusOr<std::vector<ReuseDistances::Use>> ReadTrace(std::istream& input) {
  std::string line;
  std::getline(input, line);
  const std::vector<std::string> names = absl::StrSplit(absl::StripAsciiWhitespace(line), ',');
  const auto column = [&names](absl::string_view name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const size_t key = column("key"), bytes = column("bytes"), cost = column("cost");
  if (key == names.size() || bytes == names.size()) {
    return BadLine(1, "names no columns \"key\" and \"bytes\"");
  }
  std::vector<ReuseDistances::Use> uses;
  for (size_t number = 2; std::getline(input, line); ++number) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(absl::StripAsciiWhitespace(line), ',');
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (fields.size() != names.size()) {
      return BadLine(number, absl::StrCat(fields.size(), " fields; must be ", names.size()));
    }
    ReuseDistances::Use use;
    use.key = std::string(fields[key]);
    if (!absl::SimpleAtoi(fields[bytes], &use.bytes)) {
      return BadLine(number, absl::StrCat("bytes: \"", fields[bytes], "\" is not a number"));
    }
    if (cost < names.size() &&
        (!absl::SimpleAtod(fields[cost], &use.cost) || !std::isfinite(use.cost) || use.cost < 0)) {
      return BadLine(number, absl::StrCat("cost: \"", fields[cost], "\" is not a number from 0"));
    }
    uses.push_back(std::move(use));
  }
  if (uses.empty()) return absl::InvalidArgumentError("no uses");
  return uses;
}

}  // namespace embcache::cli
