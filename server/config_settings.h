// The table of the daemon's settings. One row makes a flag, an environment variable, a file key, a
// line of the help and a row of the reference.

#ifndef EMBCACHE_SERVER_CONFIG_SETTINGS_H_
#define EMBCACHE_SERVER_CONFIG_SETTINGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/config.h"

namespace embcache {

struct Setting {
  std::string name;   // of the flag without dashes, and of the file key
  std::string value;  // placeholder for help
  std::string help;
  std::string default_text;
  bool is_switch = false;   // the bare flag means true
  bool repeatable = false;  // comma-separated in the environment, an array in the file
  // Takes at least one value. Errors say what is wrong with it, not whose it is.
  std::function<absl::Status(const std::vector<std::string>&, Config*)> parse;
  std::function<std::vector<std::string>(const Config&)> show;

  std::string environment_name() const;  // EMBCACHE_L1_CAPACITY
};

// In the order in which people should read them.
const std::vector<Setting>& Settings();

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CONFIG_SETTINGS_H_
