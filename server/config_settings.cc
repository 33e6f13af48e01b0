#include "server/config_settings.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "proto/size_text.h"
#include "server/device_choice.h"
#include "server/http_endpoint.h"
#include "server/redis_connection.h"
#include "server/shared_store.h"
#include "server/tcp_listener.h"
#include "storage/rocksdb_store.h"

namespace embcache {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTiB = uint64_t{1} << 40;
// More than any machine this runs on has; catches a forgotten or doubled unit.
constexpr uint64_t kMaxMemoryBytes = 64 * kTiB;
constexpr uint64_t kMaxDiskBytes = 1024 * kTiB;

absl::Status Bad(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", why));
}

// Digits only: no sign, no spaces, no overflow.
absl::StatusOr<uint64_t> ParseCount(absl::string_view text) {
  uint64_t number = 0;
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number)) {
    return Bad(text, "not a whole number of at least 0");
  }
  return number;
}

template <typename T, typename Format>
absl::Status CheckRange(absl::string_view text, T value, T low, T high, Format format) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Bad(text, absl::StrCat("must be ", format(low), " to ", format(high)));
}

// A setting whose one value is a member of Config, read by `read` and written by `write`.
template <typename T, typename Read, typename Write>
Setting Scalar(std::string name, std::string value, T Config::*member, std::string help, Read read,
               Write write) {
  Setting setting;
  setting.name = std::move(name);
  setting.value = std::move(value);
  setting.help = std::move(help);
  setting.default_text = write(Config().*member);
  setting.parse = [member, read](const std::vector<std::string>& values, Config* config) {
    absl::StatusOr<T> parsed = read(values.back());
    if (!parsed.ok()) return parsed.status();
    config->*member = *std::move(parsed);
    return absl::OkStatus();
  };
  setting.show = [member, write](const Config& config) {
    return std::vector<std::string>{write(config.*member)};
  };
  return setting;
}

Setting Size(std::string name, uint64_t Config::*member, uint64_t low, uint64_t high,
             std::string help) {
  return Scalar(
      std::move(name), "SIZE", member, std::move(help),
      [low, high](absl::string_view text) -> absl::StatusOr<uint64_t> {
        absl::StatusOr<uint64_t> bytes = ParseSize(text);
        if (!bytes.ok()) return bytes;
        absl::Status in_range = CheckRange(text, *bytes, low, high, FormatSize);
        if (!in_range.ok()) return in_range;
        return bytes;
      },
      FormatSize);
}

std::string FormatCount(uint64_t count) { return absl::StrCat(count); }

Setting Count(std::string name, uint64_t Config::*member, uint64_t low, uint64_t high,
              std::string help) {
  return Scalar(
      std::move(name), "N", member, std::move(help),
      [low, high](absl::string_view text) -> absl::StatusOr<uint64_t> {
        absl::StatusOr<uint64_t> count = ParseCount(text);
        if (!count.ok()) return count;
        absl::Status in_range = CheckRange(text, *count, low, high, FormatCount);
        if (!in_range.ok()) return in_range;
        return count;
      },
      FormatCount);
}

Setting Time(std::string name, absl::Duration Config::*member, absl::Duration low,
             absl::Duration high, std::string help) {
  return Scalar(
      std::move(name), "TIME", member, std::move(help),
      [low, high](absl::string_view text) -> absl::StatusOr<absl::Duration> {
        absl::Duration duration;
        if (!absl::ParseDuration(text, &duration)) {
          return Bad(text, "not a time; write 100ms, 30s, 5m or 1h");
        }
        absl::Status in_range = CheckRange(text, duration, low, high, absl::FormatDuration);
        if (!in_range.ok()) return in_range;
        return duration;
      },
      absl::FormatDuration);
}

Setting Fraction(std::string name, double Config::*member, double low, double high,
                 std::string help) {
  const auto format = [](double number) { return absl::StrCat(number); };
  return Scalar(
      std::move(name), "FRACTION", member, std::move(help),
      [low, high, format](absl::string_view text) -> absl::StatusOr<double> {
        double number = 0;
        if (!absl::SimpleAtod(text, &number)) return Bad(text, "not a number");
        absl::Status in_range = CheckRange(text, number, low, high, format);
        if (!in_range.ok()) return in_range;
        return number;
      },
      format);
}

// `check` gives a Status.
template <typename Check>
Setting Text(std::string name, std::string value, std::string Config::*member, std::string help,
             Check check) {
  return Scalar(
      std::move(name), std::move(value), member, std::move(help),
      [check](absl::string_view text) -> absl::StatusOr<std::string> {
        if (absl::Status ok = check(text); !ok.ok()) return ok;
        return std::string(text);
      },
      [](const std::string& text) { return text; });
}

Setting Path(std::string name, std::string Config::*member, std::string help,
             std::string default_text) {
  Setting setting =
      Text(std::move(name), "PATH", member, std::move(help), [](absl::string_view text) {
        // A relative path would mean something else for every client.
        if (text.empty() || text[0] == '/') return absl::OkStatus();
        return Bad(text, "must be an absolute path");
      });
  setting.default_text = std::move(default_text);
  return setting;
}

Setting Switch(std::string name, bool Config::*member, std::string help) {
  Setting setting = Scalar(
      std::move(name), "BOOL", member, std::move(help),
      [](absl::string_view text) -> absl::StatusOr<bool> {
        if (text == "true" || text == "on") return true;
        if (text == "false" || text == "off") return false;
        return Bad(text, "must be true or false");
      },
      [](bool on) { return std::string(on ? "true" : "false"); });
  setting.is_switch = true;
  return setting;
}

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

template <typename T>
Setting Choice(std::string name, T Config::*member, const Choices<T>& choices, std::string help) {
  std::string all = absl::StrJoin(
      choices, "|", [](std::string* out, const auto& choice) { out->append(choice.first); });
  return Scalar(
      std::move(name), all, member, std::move(help),
      [choices, all](absl::string_view text) -> absl::StatusOr<T> {
        for (const auto& [choice, value] : choices) {
          if (choice == text) return value;
        }
        return Bad(text, absl::StrCat("must be one of ", all));
      },
      [choices](T value) {
        for (const auto& [choice, named] : choices) {
          if (named == value) return choice;
        }
        return std::string("?");
      });
}

Setting Ids(std::string name, std::vector<uint32_t> Config::*member, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.value = "ID";
  setting.help = std::move(help);
  setting.default_text = "none";
  setting.repeatable = true;
  setting.parse = [member](const std::vector<std::string>& values, Config* config) {
    std::vector<uint32_t> ids;
    for (const std::string& value : values) {
      const absl::StatusOr<uint64_t> id = ParseCount(value);
      // The largest number stands for "no id" in system calls.
      if (!id.ok() || *id >= std::numeric_limits<uint32_t>::max()) {
        return Bad(value, "not a numeric user or group id");
      }
      ids.push_back(static_cast<uint32_t>(*id));
    }
    config->*member = std::move(ids);
    return absl::OkStatus();
  };
  setting.show = [member](const Config& config) {
    std::vector<std::string> shown;
    for (const uint32_t id : config.*member) shown.push_back(absl::StrCat(id));
    return shown;
  };
  return setting;
}

Setting SocketMode() {
  return Scalar(
      "socket-mode", "MODE", &Config::socket_mode,
      "access to the sockets, octal; connecting takes the write bit",
      [](absl::string_view text) -> absl::StatusOr<uint32_t> {
        uint32_t mode = 0;
        bool octal = !text.empty() && text.size() <= 4;
        for (const char digit : text) {
          octal = octal && digit >= '0' && digit <= '7';
          mode = mode * 8 + static_cast<uint32_t>(digit - '0');
        }
        if (!octal || mode > 0777) return Bad(text, "not an octal mode of at most 0777");
        if ((mode & 0600) != 0600) return Bad(text, "must let the owner read and write (0600)");
        return mode;
      },
      [](uint32_t mode) { return absl::StrFormat("%04o", mode); });
}

absl::Status CheckHttpAddress(absl::string_view text) {
  const absl::StatusOr<HttpAddress> address = ParseHttpAddress(text, /*socket_dir=*/"");
  return address.ok() ? absl::OkStatus() : Bad(text, address.status().message());
}

absl::Status CheckDevice(absl::string_view device) {
  const absl::Status checked = CheckDeviceName(device);
  return checked.ok() ? checked : Bad(device, checked.message());
}

absl::Status CheckTcpAddress(absl::string_view address) {
  return address.empty() ? absl::OkStatus() : ParseTcpAddress(address).status();
}

absl::Status CheckUserName(absl::string_view name) {
  if (absl::StrContains(name, ':')) return Bad(name, "not the name or number of a user or group");
  return absl::OkStatus();
}

std::vector<Setting> AccessSettings() {
  return {
      Ids("admin-uid", &Config::admin_uids,
          "user who may administer (clear, flush, drain, ...) and write without a session, beside "
          "root and the daemon's user; repeatable"),
      Ids("admin-gid", &Config::admin_gids, "group whose members may do the same; repeatable"),
      Text("socket-owner", "USER", &Config::socket_owner,
           "owner of the sockets, name or number; empty = the daemon's user", CheckUserName),
      Text("socket-group", "GROUP", &Config::socket_group,
           "group of the sockets, and of socket-dir when it is made; empty = the daemon's group",
           CheckUserName),
      Text("tcp-address", "HOST:PORT", &Config::tcp_address,
           "serve calls that change nothing over TCP, too; empty = do not", CheckTcpAddress),
      Path("tls-cert", &Config::tls_cert,
           "certificate chain for TCP, PEM; read again when it changes", "none"),
      Path("tls-key", &Config::tls_key, "its private key, PEM", "none"),
      Path("tls-client-ca", &Config::tls_client_ca,
           "clients over TCP must show a certificate of this authority, PEM", "none"),
      Switch("insecure-tcp", &Config::insecure_tcp, "let TCP be without TLS"),
  };
}

std::vector<Setting> PlaceAndMemorySettings() {
  return {
      Path("socket-dir", &Config::socket_dir,
           "directory of the sockets and the lock; made if missing",
           "/run/embcache for root, else $XDG_RUNTIME_DIR/embcache"),
      SocketMode(),
      Ids("allow-uid", &Config::allow_uids,
          "user who may connect; repeatable. Without allow-uid and allow-gid: everybody whom "
          "the socket's mode lets in"),
      Ids("allow-gid", &Config::allow_gids, "group whose members may connect; repeatable"),
      Text("http-address", "ADDRESS", &Config::http_address,
           "where metrics, probes and the status page are served: unix (http.sock in socket-dir), "
           "unix:/path, host:port or off",
           CheckHttpAddress),
      Text("device", "auto|host|cuda:INDEX|cuda:UUID", &Config::device,
           "where L1 lies: in host memory or in a device's; auto = the first device's, if there is "
           "one with room for L1, and an L2",
           CheckDevice),
      Size("l1-capacity", &Config::l1_capacity_bytes, 0, kMaxMemoryBytes,
           "memory of the first tier, reserved at start; 0 = no such tier"),
      Count("l1-max-entries", &Config::l1_max_entries, 0, uint64_t{1} << 40,
            "entries in L1; 0 = bound by bytes alone"),
      Time(
          "l1-idle-after", &Config::l1_idle_after, absl::ZeroDuration(), absl::Hours(24 * 7),
          "without a put or a get for so long, L1 gives memory back until the next one; 0 = never"),
      Size("l1-idle-capacity", &Config::l1_idle_capacity_bytes, 0, kMaxMemoryBytes,
           "what L1 keeps then; 0 = one segment"),
      Size("l2-capacity", &Config::l2_capacity_bytes, 0, kMaxMemoryBytes,
           "memory of the second tier, reserved at start; 0 = no such tier"),
      Count("l2-max-entries", &Config::l2_max_entries, 0, uint64_t{1} << 40,
            "entries in L2; 0 = bound by bytes alone"),
      Size("segment-bytes", &Config::segment_bytes, 0, kMaxMemoryBytes,
           "a tier larger than this is several segments; bounds the largest entry, and what a "
           "resize gives back at a time; 0 = an eighth of the tier, from 256MiB to 16GiB"),
      Switch("huge-pages", &Config::huge_pages, "ask for transparent huge pages"),
      Switch("fast-path", &Config::fast_path,
             "let clients read hits from a shared index, without a call; not with a lease-ttl. "
             "--fast-path=false turns it off"),
      Count(
          "fast-index-entries", &Config::fast_index_entries, 0, uint64_t{1} << 24,
          "entries that they can find so, 640 bytes of memory each as they come; 0 = one for every "
          "64 KiB of L1 + L2, at most 1048576"),
      Path("l3-dir", &Config::l3_dir, "directory of the SSD tier; empty = no such tier",
           "$XDG_CACHE_HOME/embcache, else $HOME/.cache/embcache"),
      Size("l3-capacity", &Config::l3_capacity_bytes, kMinStoreBytes, kMaxDiskBytes,
           "bound on everything in l3-dir"),
      Choice<Config::L3Write>("l3-write", &Config::l3_write,
                              {{"through", Config::L3Write::kThrough},
                               {"evict", Config::L3Write::kEvict},
                               {"off", Config::L3Write::kOff}},
                              "when an entry is written to L3: after its commit, when memory "
                              "evicts it, or never (no L3)"),
      Choice<Config::L3Admit>(
          "l3-admit", &Config::l3_admit,
          {{"always", Config::L3Admit::kAlways}, {"second-hit", Config::L3Admit::kSecondHit}},
          "which entries are written to L3: all, or those that are asked for "
          "or put a second time, which spares the SSD"),
      Choice<Config::L3Read>(
          "l3-read", &Config::l3_read,
          {{"buffered", Config::L3Read::kBuffered}, {"direct", Config::L3Read::kDirect}},
          "whether reads of L3 go through the page cache or around it"),
      Count("l3-queue-entries", &Config::l3_queue_entries, 1, 1'000'000,
            "writes waiting for the SSD; more are dropped"),
      Size("l3-queue-bytes", &Config::l3_queue_bytes, kMiB, kMaxMemoryBytes,
           "bytes of them; more are dropped"),
  };
}

std::vector<Setting> SharedTierSettings() {
  return {
      Text("shared-tier", "ADDRESS", &Config::shared_tier,
           "Redis or Valkey, alone or a Cluster, in which nodes share entries: host:port or "
           "unix:/path; empty = none",
           [](absl::string_view text) {
             return text.empty() ? absl::OkStatus() : ParseRedisAddress(text).status();
           }),
      Text("shared-namespace", "NAME", &Config::shared_namespace,
           "nodes with the same one share; it stands for the weights behind the model names",
           [](absl::string_view text) {
             const absl::Status good = CheckSharedNamespace(text);
             return good.ok() ? good : Bad(text, good.message());
           }),
      Text("shared-user", "USER", &Config::shared_user, "whom to log in there as; empty = default",
           [](absl::string_view) { return absl::OkStatus(); }),
      Path("shared-password-file", &Config::shared_password_file,
           "file with the password; read at every connection", "none"),
      Time("shared-timeout", &Config::shared_timeout, absl::Milliseconds(1), absl::Minutes(1),
           "how long a get waits for it at most, before it is a miss"),
      Time("shared-ttl", &Config::shared_ttl, absl::Seconds(1), absl::Hours(24 * 365),
           "how long an entry lives there; its own time to live may be shorter"),
      Size("shared-max-bytes", &Config::shared_max_bytes, kMiB, 512 * kMiB,
           "largest entry that is shared, with its description; the same on all nodes"),
      Count("shared-threads", &Config::shared_threads, 1, 256, "threads that read from it"),
      Count("shared-queue-entries", &Config::shared_queue_entries, 1, 1'000'000,
            "writes waiting for it; more are dropped"),
      Size("shared-queue-bytes", &Config::shared_queue_bytes, kMiB, kMaxMemoryBytes,
           "bytes of them, which stay where they are in the cache; more are dropped"),
  };
}

std::vector<Setting> LimitAndTimeSettings() {
  return {
      Count("max-batch", &Config::max_batch, 1, 16384, "items of one call"),
      Size("inline-limit", &Config::inline_limit_bytes, 0, 64 * kMiB,
           "largest value that travels inside a message"),
      Count("max-sessions", &Config::max_sessions, 1, 65536, "sessions at a time"),
      Count("max-sessions-per-uid", &Config::max_sessions_per_uid, 1, 65536,
            "of those, of one user"),
      Count("max-connections", &Config::max_connections, 1, 65536,
            "connections for calls at a time, of each of the two kinds of sockets"),
      Count("max-connections-per-uid", &Config::max_connections_per_uid, 1, 65536,
            "of those to the unix socket, of one user"),
      Count("max-calls-in-flight", &Config::max_calls_in_flight, 1, 65536,
            "calls being handled; more are refused at once"),
      Size("max-unread-bytes", &Config::max_unread_bytes, kMiB, kMaxMemoryBytes,
           "answers that clients have not read yet; beyond, who does not read is disconnected"),
      Size("max-unread-bytes-per-connection", &Config::max_unread_bytes_per_connection, kMiB,
           kMaxMemoryBytes, "of those, of one connection; beyond, its calls are refused"),
      Count("max-leases-per-session", &Config::max_leases_per_session, 1, 16'777'216,
            "leases and reservations of one session"),
      Fraction("max-pinned-fraction", &Config::max_pinned_fraction, 0.001, 1.0,
               "share of L1 + L2 that one session may pin"),
      Count("max-claims-per-session", &Config::max_claims_per_session, 1, 65536,
            "keys that one session may be encoding at a time"),
      Count("max-waiters", &Config::max_waiters, 2, 1'000'000,
            "gets that wait for another's encode; sessions share them evenly when they are short"),
      Count("max-watchers", &Config::max_watchers, 0, 10'000, "callers that are told of events"),
      Time("lease-ttl", &Config::lease_ttl, absl::ZeroDuration(), absl::Hours(24),
           "how long a lease lasts; 0 = until released"),
      Time("reservation-ttl", &Config::reservation_ttl, absl::Milliseconds(100), absl::Hours(1),
           "how long a reservation waits for its commit"),
      Time("claim-ttl", &Config::claim_ttl, absl::Milliseconds(10), absl::Hours(1),
           "how long whoever claimed a key has for encoding it"),
      Time("max-wait", &Config::max_wait, absl::ZeroDuration(), absl::Hours(1),
           "longest wait of a get for another's encode"),
      Time("quarantine", &Config::quarantine, absl::ZeroDuration(), absl::Minutes(1),
           "how long pins outlive the process that held them"),
      Time("drain-timeout", &Config::drain_timeout, absl::ZeroDuration(), absl::Hours(1),
           "how long SIGTERM waits for leases to be released"),
      Count("rpc-threads", &Config::rpc_threads, 1, 256, "threads that answer calls"),
      Count("copy-threads", &Config::copy_threads, 1, 256, "threads that copy between tiers"),
      Count("io-threads", &Config::io_threads, 1, 256, "threads that read and write the SSD"),
      Text("log-level", "LEVEL", &Config::log_level, "trace, debug, info, warn, error or off",
           CheckLogLevel),
      Choice<LogFormat>(
          "log-format", &Config::log_format,
          {{"auto", LogFormat::kAuto}, {"text", LogFormat::kText}, {"json", LogFormat::kJson}},
          "auto = text on a terminal, else json"),
  };
}

}  // namespace

std::string Setting::environment_name() const {
  return absl::StrCat("EMBCACHE_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

const std::vector<Setting>& Settings() {
  static const auto& settings = *new std::vector<Setting>([] {
    std::vector<Setting> all = PlaceAndMemorySettings();
    for (Setting& setting : SharedTierSettings()) all.push_back(std::move(setting));
    for (Setting& setting : AccessSettings()) all.push_back(std::move(setting));
    for (Setting& setting : LimitAndTimeSettings()) all.push_back(std::move(setting));
    return all;
  }());
  return settings;
}

}  // namespace embcache
