// What `embcachectl top` shows, as lines of text; reading the daemon and the terminal is
// top_command.cc's.

#ifndef EMBCACHE_CLIENT_CLI_TOP_H_
#define EMBCACHE_CLIENT_CLI_TOP_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "embcache/v1/admin.pb.h"
#include "embcache/v1/embcache.pb.h"

namespace embcache::cli {

namespace v1 = embcache::v1;

struct TopSample {
  absl::Time time;
  v1::StatsResponse stats;  // with models
  v1::SessionsResponse sessions;
};

struct TopLine {
  std::string text;
  bool heading = false;
};

struct TopSize {
  size_t columns = 100;
  size_t lines = 0;  // 0: as many as there are
};

// Rates are those between the two samples; without `before`, averages since the daemon's start. No
// line is wider than `size` and none has control characters.
std::vector<TopLine> TopFrame(const std::optional<TopSample>& before, const TopSample& now,
                              const TopSize& size);

}  // namespace embcache::cli

#endif  // EMBCACHE_CLIENT_CLI_TOP_H_
