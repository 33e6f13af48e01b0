// ReuseDistances: how much a cache that evicts the least recently used would have found of a trace,
// for every capacity at once.
//
// An entry is still there when all that was used since its last use, itself included, fits: the sum
// of the bytes of those entries is the distance of the use. This holds exactly for capacities that
// take the largest entry. One thread.

#ifndef EMBCACHE_CLIENT_CLI_REUSE_DISTANCES_H_
#define EMBCACHE_CLIENT_CLI_REUSE_DISTANCES_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache::cli {

class ReuseDistances {
 public:
  // A use of the entry `key`, which takes `bytes` and `cost` to make (in any unit, at least 0).
  struct Use {
    std::string key;
    uint64_t bytes = 0;
    double cost = 0;
  };
  struct Found {
    uint64_t hits = 0;
    double cost = 0;  // of the hits: what the cache saves
  };

  explicit ReuseDistances(const std::vector<Use>& uses);

  // REQUIRES: capacity >= largest_bytes().
  Found FoundWith(uint64_t capacity) const;

  uint64_t uses() const { return uses_; }
  double cost() const { return cost_; }  // of all uses
  uint64_t keys() const { return keys_; }
  uint64_t distinct_bytes() const { return distinct_bytes_; }
  uint64_t largest_bytes() const { return largest_bytes_; }

 private:
  struct Repeat {
    uint64_t distance = 0;
    Found up_to;  // this one and all of smaller distance
  };

  std::vector<Repeat> repeats_;  // by distance
  uint64_t uses_ = 0;
  double cost_ = 0;
  uint64_t keys_ = 0;
  uint64_t distinct_bytes_ = 0;
  uint64_t largest_bytes_ = 0;
};

// A trace in CSV, in the order of the uses: the first line names the columns, of which "key" and
// "bytes" are needed and "cost" is optional; others are ignored. No quotes. INVALID_ARGUMENT names
// the line.
absl::StatusOr<std::vector<ReuseDistances::Use>> ReadTrace(std::istream& input);

}  // namespace embcache::cli

#endif  // EMBCACHE_CLIENT_CLI_REUSE_DISTANCES_H_
