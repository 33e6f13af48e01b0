#include "server/config.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gpu/host_memory.h"
#include "proto/size_text.h"
#include "server/config_settings.h"
#include "server/start_check.h"
#include "server/unix_listener.h"
#include "storage/memory_tier.h"

namespace embcache {
namespace {

using Values = std::vector<std::string>;
using ValuesByName = std::map<std::string, Values>;

// Values as given, by setting, and what was wrong with how they were given.
struct Source {
  ValuesByName values;
  std::vector<std::string> faults;
};

struct CommandLine {
  ValuesByName flags;
  std::optional<std::string> config_file;
  bool version = false;
  bool check = false;
  bool print = false;
  bool print_reference = false;
};

ConfigOutcome Exit(int exit_code, std::string text) {
  ConfigOutcome outcome;
  outcome.exit_code = exit_code;
  outcome.text = std::move(text);
  return outcome;
}

std::optional<std::string> FindVariable(const std::vector<std::string>& environment,
                                        absl::string_view name) {
  const std::string prefix = absl::StrCat(name, "=");
  for (const std::string& variable : environment) {
    if (absl::StartsWith(variable, prefix)) return variable.substr(prefix.size());
  }
  return std::nullopt;
}

// Variables with our prefix that are no settings of the daemon.
bool IsForeignVariable(absl::string_view name) {
  return name == "EMBCACHE_CONFIG" || name == "EMBCACHE_SOCKET" || name == "EMBCACHE_SEED" ||
         absl::StartsWith(name, "EMBCACHE_TEST") ||
         // Kubernetes describes a Service called "embcache" to every pod of its namespace like
         // this.
         absl::StartsWith(name, "EMBCACHE_SERVICE_") || absl::StartsWith(name, "EMBCACHE_PORT");
}

Source ReadEnvironment(const std::vector<std::string>& environment) {
  Source source;
  std::map<std::string, const Setting*> settings;
  for (const Setting& setting : Settings()) settings[setting.environment_name()] = &setting;
  for (const std::string& variable : environment) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(variable, absl::MaxSplits('=', 1));
    if (!absl::StartsWith(parts.first, "EMBCACHE_") || IsForeignVariable(parts.first)) continue;
    const auto it = settings.find(parts.first);
    if (it == settings.end()) {
      source.faults.push_back(absl::StrCat(parts.first, ": no such setting"));
    } else if (it->second->repeatable) {
      source.values[it->second->name] = absl::StrSplit(parts.second, ',', absl::SkipWhitespace());
    } else {
      source.values[it->second->name] = {parts.second};
    }
  }
  return source;
}

Source ReadFile(const std::string& path) {
  Source source;
  std::ifstream input(path);
  input.peek();  // tells a directory, which can be opened, from a file
  if (!input.is_open() || input.bad()) {
    source.faults.push_back(absl::StrCat(path, ": cannot be read"));
    return source;
  }
  const std::vector<CLI::ConfigItem> items = CLI::ConfigTOML().from_config(input);
  std::map<std::string, const Setting*> settings;
  for (const Setting& setting : Settings()) settings[setting.name] = &setting;
  std::set<std::string> tables;
  for (const CLI::ConfigItem& item : items) {
    if (!item.parents.empty()) {
      // The parser also has items for where a table begins and ends. A table within another is
      // named by the outer one.
      const std::string& table = item.parents.front();
      if (tables.insert(table).second) {
        source.faults.push_back(absl::StrCat(
            path, ": [", table, "]: tables are not settings; write the settings at the top level"));
      }
      continue;
    }
    const std::string& name = item.name;
    const auto it = settings.find(name);
    const auto fault = [&](absl::string_view what) {
      source.faults.push_back(absl::StrCat(path, ": ", name, ": ", what));
    };
    if (it == settings.end()) {
      fault("no such setting");
    } else if (source.values.count(name) != 0 ||
               (item.inputs.size() != 1 && !it->second->repeatable)) {
      fault("must have one value, given once");
    } else if (std::any_of(item.inputs.begin(), item.inputs.end(), [](const std::string& input) {
                 return absl::StrContains(input, '"');
               })) {
      // The parser cuts a line at "#" also inside quotes; a stray quote is how that shows.
      fault("quotes or # inside a value are not supported");
    } else {
      source.values[name] = item.inputs;
    }
  }
  return source;
}

// Fills `line` from the arguments; the outcome is set when that is all there is to do.
std::optional<ConfigOutcome> ReadCommandLine(const Values& arguments, CommandLine* line) {
  CLI::App app(
      "Embedding cache daemon. Every setting can also be given as an environment variable\n"
      "(EMBCACHE_ and the flag's name in capitals) or as a key of the --config file;\n"
      "a flag goes before the environment, the environment before the file.",
      "embcached");
  app.add_option("--config", line->config_file, "TOML file with settings [EMBCACHE_CONFIG]")
      ->type_name("PATH");
  app.add_flag("--version", line->version, "print the version and exit");
  app.add_flag("--check-config", line->check, "check the configuration and exit");
  app.add_flag("--print-config", line->print, "print the effective configuration and exit");
  app.add_flag("--print-config-reference", line->print_reference)->group("");
  std::map<std::string, CLI::Option*> options;
  for (const Setting& setting : Settings()) {
    const std::string flag = absl::StrCat("--", setting.name);
    const std::string help = absl::StrCat(setting.help, " [", setting.default_text, "]");
    CLI::Option* const option = setting.is_switch ? app.add_flag(flag, help) : app.add_option(flag);
    option->description(help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (!setting.is_switch) option->type_name(setting.value)->allow_extra_args(false);
    options[setting.name] = option;
  }
  try {
    Values words;
    for (const std::string& argument : arguments) {
      // CLI11 takes the next argument for the value of "--flag=".
      const bool empty_value = absl::StartsWith(argument, "--") && absl::EndsWith(argument, "=") &&
                               argument.find('=') == argument.size() - 1;
      words.push_back(empty_value ? argument.substr(0, argument.size() - 1) : argument);
      if (empty_value) words.emplace_back();
    }
    std::reverse(words.begin(), words.end());  // as App::parse wants them
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return Exit(0, app.help());
  } catch (const CLI::Error& error) {
    return Exit(kExitUsage, absl::StrCat(error.what(), "\nTry embcached --help.\n"));
  }
  for (const auto& [name, option] : options) {
    if (option->count() > 0) line->flags[name] = option->results();
  }
  return std::nullopt;
}

// --- From values to a Config --------------------------------------------------------------------

std::string DefaultSocketDir(const std::vector<std::string>& environment) {
  if (geteuid() == 0) return "/run/embcache";
  const std::string runtime_dir = FindVariable(environment, "XDG_RUNTIME_DIR").value_or("");
  return runtime_dir.empty() ? "" : absl::StrCat(runtime_dir, "/embcache");
}

std::string DefaultL3Dir(const std::vector<std::string>& environment) {
  const std::string cache_home = FindVariable(environment, "XDG_CACHE_HOME").value_or("");
  if (!cache_home.empty()) return absl::StrCat(cache_home, "/embcache");
  const std::string home = FindVariable(environment, "HOME").value_or("");
  return home.empty() ? "" : absl::StrCat(home, "/.cache/embcache");
}

// Collects what is wrong, so that a person can put all of it right in one go.
class Faults {
 public:
  void Add(std::string fault, int exit_code) {
    // A bad flag is a bad call of the program; anything else is a bad configuration.
    exit_code_ = lines_.empty() ? exit_code : std::max(exit_code_, exit_code);
    lines_.push_back(std::move(fault));
  }
  bool empty() const { return lines_.empty(); }
  ConfigOutcome Outcome() const {
    return Exit(exit_code_,
                absl::StrCat("embcached: ", absl::StrJoin(lines_, "\nembcached: "), "\n"));
  }

 private:
  std::vector<std::string> lines_;
  int exit_code_ = 0;
};

void Apply(const Setting& setting, const CommandLine& line, const Source& environment,
           const Source& file, absl::string_view file_path, Config* config, Faults* faults) {
  const Values* values = nullptr;
  std::string given_as;
  int exit_code = kExitConfig;
  const auto take = [&](const ValuesByName& from, std::string name) {
    const auto it = from.find(setting.name);
    if (values != nullptr || it == from.end()) return false;
    values = &it->second;
    given_as = std::move(name);
    return true;
  };
  if (take(line.flags, absl::StrCat("--", setting.name))) exit_code = kExitUsage;
  take(environment.values, setting.environment_name());
  take(file.values, absl::StrCat(file_path, ": ", setting.name));
  if (values == nullptr) return;
  if (absl::Status parsed = setting.parse(*values, config); !parsed.ok()) {
    faults->Add(absl::StrCat(given_as, ": ", parsed.message()), exit_code);
  }
}

bool IsGiven(const std::string& name, const CommandLine& line, const Source& environment,
             const Source& file) {
  return line.flags.count(name) + environment.values.count(name) + file.values.count(name) > 0;
}

// One fault at most: the next is another run's business.
std::vector<std::string> TcpFaults(const Config& config) {
  const bool tls = !config.tls_cert.empty() || !config.tls_key.empty();
  if (config.tcp_address.empty()) {
    if (tls || !config.tls_client_ca.empty() || config.insecure_tcp) {
      return {"--tls-cert, --tls-key, --tls-client-ca, --insecure-tcp: only with --tcp-address"};
    }
    return {};
  }
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return {"--tls-cert, --tls-key: both or neither"};
  }
  if (!tls && !config.tls_client_ca.empty()) return {"--tls-client-ca: only with --tls-cert"};
  if (tls && config.insecure_tcp) return {"--insecure-tcp: not together with --tls-cert"};
  if (!tls && !config.insecure_tcp) {
    return {"--tcp-address: needs --tls-cert and --tls-key, or --insecure-tcp"};
  }
  return {};
}

// As the tiers are cut into segments at start. On a device L1's least is larger, and asked there.
std::vector<std::string> MemoryFaults(const Config& config) {
  std::vector<std::string> faults;
  const std::string least = FormatSize(HostMemory::kGranularity);
  const auto check = [&](absl::string_view flag, TierId id, uint64_t capacity) {
    if (capacity == 0) return;
    if (capacity < HostMemory::kGranularity) {
      faults.push_back(
          absl::StrCat(flag, ": \"", FormatSize(capacity), "\": must be 0 or at least ", least));
      return;
    }
    if (config.segment_bytes > 0 && config.segment_bytes < HostMemory::kGranularity) return;
    const absl::Status cut =
        CheckSegments(id, {capacity, config.segment_bytes}, HostMemory::kGranularity);
    if (!cut.ok()) faults.push_back(absl::StrCat("--segment-bytes: ", cut.message()));
  };
  if (config.segment_bytes > 0 && config.segment_bytes < HostMemory::kGranularity) {
    faults.push_back(absl::StrCat("--segment-bytes: \"", FormatSize(config.segment_bytes),
                                  "\": must be 0 or at least ", least));
  }
  check("--l1-capacity", TierId::kL1, config.l1_capacity_bytes);
  check("--l2-capacity", TierId::kL2, config.l2_capacity_bytes);
  return faults;
}

// L1 could not have less than a granule of device memory, and whether it will be that is not known.
constexpr uint64_t kLeastIdleBytes = uint64_t{2} << 20;

std::optional<std::string> IdleFault(const Config& config) {
  const uint64_t bytes = config.l1_idle_capacity_bytes;
  if (bytes == 0) return std::nullopt;
  if (config.l1_idle_after == absl::ZeroDuration()) {
    return "--l1-idle-capacity: only with --l1-idle-after";
  }
  if (bytes < kLeastIdleBytes || bytes > config.l1_capacity_bytes) {
    return absl::StrCat("--l1-idle-capacity: ", FormatSize(bytes), "; must be 0, or ",
                        FormatSize(kLeastIdleBytes), " to --l1-capacity, which is ",
                        FormatSize(config.l1_capacity_bytes));
  }
  return std::nullopt;
}

std::vector<std::string> SharedTierFaults(const Config& config) {
  if (config.shared_tier.empty()) return {};
  std::vector<std::string> faults;
  if (config.shared_namespace.empty()) {
    faults.push_back(
        "--shared-tier: needs --shared-namespace. Whoever shares a namespace promises to have the "
        "same weights behind the same model names, so name it after them and change it with them");
  }
  if (!config.shared_user.empty() && config.shared_password_file.empty()) {
    faults.push_back("--shared-user: needs --shared-password-file");
  }
  return faults;
}

// Faults that no single setting has.
std::vector<std::string> CrossFaults(const Config& config) {
  std::vector<std::string> faults;
  if (config.socket_dir.empty()) {
    faults.push_back("--socket-dir: must be given when there is no XDG_RUNTIME_DIR");
  } else if (absl::Status fits = CheckSocketPath(config.socket_dir + "/embcached.sock");
             !fits.ok()) {
    faults.push_back(absl::StrCat("--socket-dir: ", fits.message()));
  }
  if (config.l1_capacity_bytes == 0 && config.l2_capacity_bytes == 0) {
    faults.push_back("--l1-capacity, --l2-capacity: at least one must be above 0");
  }
  for (std::string& fault : MemoryFaults(config)) faults.push_back(std::move(fault));
  if (std::optional<std::string> fault = IdleFault(config)) faults.push_back(*std::move(fault));
  for (std::string& fault : SharedTierFaults(config)) faults.push_back(std::move(fault));
  for (std::string& fault : TcpFaults(config)) faults.push_back(std::move(fault));
  return faults;
}

std::string QuotedForToml(const std::string& value) {
  const bool number = !value.empty() && value.find_first_not_of("0123456789.") == std::string::npos;
  const bool leading_zero = value.size() > 1 && value[0] == '0' && value[1] != '.';
  if ((number && !leading_zero) || value == "true" || value == "false") return value;
  return absl::StrCat("\"", value, "\"");
}

}  // namespace

absl::Status Config::Validate() const {
  std::vector<std::string> faults;
  Config copy = *this;
  for (const Setting& setting : Settings()) {
    const Values shown = setting.show(*this);
    if (shown.empty()) continue;
    if (absl::Status parsed = setting.parse(shown, &copy); !parsed.ok()) {
      faults.push_back(absl::StrCat("--", setting.name, ": ", parsed.message()));
    }
  }
  for (std::string& fault : CrossFaults(*this)) faults.push_back(std::move(fault));
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
}

ConfigOutcome ParseConfig(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
  CommandLine line;
  if (std::optional<ConfigOutcome> done = ReadCommandLine(arguments, &line)) return *done;
  if (line.version) return Exit(0, "embcached " EMBCACHE_VERSION "\n");
  if (line.print_reference) return Exit(0, RenderConfigReference());

  const std::string file_path =
      line.config_file.value_or(FindVariable(environment, "EMBCACHE_CONFIG").value_or(""));
  const Source variables = ReadEnvironment(environment);
  const Source file = file_path.empty() ? Source() : ReadFile(file_path);
  Faults faults;
  for (const Source* source : {&variables, &file}) {
    for (const std::string& fault : source->faults) faults.Add(fault, kExitConfig);
  }

  ConfigOutcome outcome;
  Config& config = outcome.config;
  config.socket_dir = DefaultSocketDir(environment);
  config.l3_dir = DefaultL3Dir(environment);
  for (const Setting& setting : Settings()) {
    Apply(setting, line, variables, file, file_path, &config, &faults);
  }
  if (config.l3_write != Config::L3Write::kOff && config.l3_dir.empty() &&
      !IsGiven("l3-dir", line, variables, file)) {
    faults.Add("--l3-dir: must be given (it may be empty) when there is no HOME", kExitConfig);
  }
  // What a setting that was given wrongly would have meant together with others is not known.
  if (faults.empty()) {
    for (const std::string& fault : CrossFaults(config)) faults.Add(fault, kExitConfig);
  }
  if (!faults.empty()) return faults.Outcome();

  if (line.print) return Exit(0, RenderConfigFile(config));
  if (line.check) {
    for (const std::string& fault : StartFaults(config)) faults.Add(fault, kExitConfig);
    if (!faults.empty()) return faults.Outcome();
  }
  if (line.check) return Exit(0, "the configuration is valid\n");
  outcome.run = true;
  return outcome;
}

std::string RenderConfigFile(const Config& config) {
  std::string text;
  for (const Setting& setting : Settings()) {
    const Values values = setting.show(config);
    if (setting.repeatable && values.empty()) continue;
    const std::string joined =
        absl::StrJoin(values, ", ", [](std::string* out, const std::string& value) {
          absl::StrAppend(out, QuotedForToml(value));
        });
    absl::StrAppend(&text, setting.name, " = ", setting.repeatable ? "[" : "", joined,
                    setting.repeatable ? "]" : "", "\n");
  }
  return text;
}

std::string RenderConfigReference() {
  std::string text =
      "| Flag | Environment | Default | Meaning |\n"
      "|---|---|---|---|\n";
  for (const Setting& setting : Settings()) {
    const std::string value = absl::StrReplaceAll(setting.value, {{"|", "\\|"}});
    const std::string flag = setting.is_switch ? absl::StrCat("--", setting.name)
                                               : absl::StrCat("--", setting.name, "=", value);
    absl::StrAppend(&text, "| `", flag, "` | `", setting.environment_name(), "` | `",
                    setting.default_text, "` | ", setting.help, " |\n");
  }
  return text;
}

}  // namespace embcache
