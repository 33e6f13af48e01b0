// Config: every option of the daemon, and how a command line, the environment and a file become
// one.
//
// A setting can be given as a flag (--l1-capacity=8GiB), as an environment variable
// (EMBCACHE_L1_CAPACITY) or as a key of the TOML file named by --config (l1-capacity = "8GiB"); the
// first of these that has it wins, then the default. All three, the help and the reference for the
// documentation come from the one table of config_settings.cc.

#ifndef EMBCACHE_SERVER_CONFIG_H_
#define EMBCACHE_SERVER_CONFIG_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/logging.h"

namespace embcache {

// What embcached exits with, after sysexits.h. Supervisors should not restart after 64 and 78.
inline constexpr int kExitUsage = 64;
inline constexpr int kExitInternal = 70;
inline constexpr int kExitLocked = 75;  // another daemon serves the socket directory
inline constexpr int kExitConfig =
    78;  // the configuration, or the memory it asks for, is impossible

struct Config {
  enum class L3Write { kThrough, kEvict, kOff };
  enum class L3Admit { kAlways, kSecondHit };
  enum class L3Read { kBuffered, kDirect };

  // Where it listens.
  std::string socket_dir;
  uint32_t socket_mode = 0660;
  std::vector<uint32_t> allow_uids;  // both empty: whom the socket's mode lets in
  std::vector<uint32_t> allow_gids;
  std::string http_address = "unix";  // as ParseHttpAddress takes it
  std::vector<uint32_t> admin_uids;   // beside root and the daemon's own
  std::vector<uint32_t> admin_gids;
  std::string socket_owner;  // name or number; empty = as files are made
  std::string socket_group;
  std::string tcp_address;  // "host:port"; empty = no TCP
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  bool insecure_tcp = false;

  // Memory.
  std::string device = "auto";
  uint64_t l1_capacity_bytes = uint64_t{1} << 30;
  uint64_t l1_max_entries = 0;                          // 0 = no bound but the bytes
  absl::Duration l1_idle_after = absl::ZeroDuration();  // 0 = never
  uint64_t l1_idle_capacity_bytes = 0;                  // 0 = one segment
  uint64_t l2_capacity_bytes = 0;
  uint64_t l2_max_entries = 0;
  uint64_t segment_bytes = 0;  // 0 = by the tier's size
  bool huge_pages = false;
  bool fast_path = true;
  uint64_t fast_index_entries = 0;  // 0 = by the capacities

  // SSD. An empty directory means none.
  std::string l3_dir;
  uint64_t l3_capacity_bytes = uint64_t{10} << 30;
  L3Write l3_write = L3Write::kThrough;
  L3Admit l3_admit = L3Admit::kAlways;
  L3Read l3_read = L3Read::kBuffered;
  uint64_t l3_queue_entries = 4096;
  uint64_t l3_queue_bytes = uint64_t{1} << 30;

  // The tier shared by many nodes. An empty address means none.
  std::string shared_tier;
  std::string shared_namespace;
  std::string shared_user;
  std::string shared_password_file;
  absl::Duration shared_timeout = absl::Milliseconds(200);
  absl::Duration shared_ttl = absl::Hours(24);
  uint64_t shared_max_bytes = uint64_t{64} << 20;
  uint64_t shared_threads = 4;
  uint64_t shared_queue_entries = 4096;
  uint64_t shared_queue_bytes = uint64_t{1} << 30;

  // Limits.
  uint64_t max_batch = 1024;
  uint64_t inline_limit_bytes = uint64_t{1} << 20;
  uint64_t max_sessions = 1024;
  uint64_t max_sessions_per_uid = 1024;
  uint64_t max_connections = 4096;
  uint64_t max_connections_per_uid = 2048;
  uint64_t max_calls_in_flight = 1024;
  uint64_t max_unread_bytes = uint64_t{256} << 20;
  uint64_t max_unread_bytes_per_connection = uint64_t{32} << 20;
  uint64_t max_leases_per_session = 65536;
  double max_pinned_fraction = 0.5;  // of L1 + L2, per session
  uint64_t max_claims_per_session = 1024;
  uint64_t max_waiters = 8192;
  uint64_t max_watchers = 64;

  // Times.
  absl::Duration lease_ttl = absl::ZeroDuration();  // 0 = until released
  absl::Duration reservation_ttl = absl::Seconds(30);
  absl::Duration claim_ttl = absl::Seconds(30);
  absl::Duration max_wait = absl::Minutes(1);
  absl::Duration quarantine = absl::Milliseconds(100);
  absl::Duration drain_timeout = absl::Seconds(10);

  // Threads.
  uint64_t rpc_threads = 2;
  uint64_t copy_threads = 2;
  uint64_t io_threads = 4;

  // Log.
  std::string log_level = "info";
  LogFormat log_format = LogFormat::kAuto;

  bool l3_enabled() const { return !l3_dir.empty() && l3_write != L3Write::kOff; }
  // INVALID_ARGUMENT has every fault, one a line.
  absl::Status Validate() const;
};

// What the caller of ParseConfig is to do: run with `config`, or write `text` (to stdout when
// exit_code is 0, else to stderr) and exit.
struct ConfigOutcome {
  bool run = false;
  Config config;
  int exit_code = 0;
  std::string text;
};

// `arguments` without the program's name; `environment` as "NAME=value". Reads the file and nothing
// else of the machine, but for the effective uid and, with --check-config, what StartFaults does.
ConfigOutcome ParseConfig(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment);

// The effective configuration as a file that ParseConfig reads back.
std::string RenderConfigFile(const Config& config);
// The table of all settings for the documentation, in Markdown.
std::string RenderConfigReference();

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CONFIG_H_
