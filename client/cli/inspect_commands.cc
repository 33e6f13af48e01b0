// ls, stat, sessions, health, version: what the daemon holds and how it is.

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/context.h"
#include "client/cli/entry_file.h"
#include "client/cli/output.h"
#include "client/cpp/convert.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/message_json.h"

namespace embcache::cli {
namespace {

namespace v1 = embcache::v1;
using client::internal::FromProto;

Json ListedJson(const client::ListedEntry& entry) {
  Json json = KeyJson(entry.key);
  json["tier"] = std::string(client::TierName(entry.tier));
  json["bytes"] = entry.bytes;
  json["generation"] = entry.generation;
  json["on_disk"] = entry.on_disk;
  json["pins"] = entry.pins;
  json["created_unix_ms"] = entry.created_unix_ms;
  json["encode_cost_us"] = entry.encode_cost_us;
  return json;
}

int RunList(const Context& context, const v1::ListRequest& filter) {
  const auto stub = v1::Cache::NewStub(context.Channel());
  v1::ListRequest request = filter;
  request.set_page_size(1000);
  Table table({"MODEL", "HASH", "VARIANT", "TIER", "DISK", "BYTES", "PINS", "COST"});
  do {
    v1::ListResponse response;
    absl::Status status = CallDaemon(context, *stub, &v1::Cache::Stub::List, request, &response);
    if (!status.ok()) return context.Fail(status);
    for (const v1::ListedEntry& listed : response.entries()) {
      const client::ListedEntry entry = FromProto(listed);
      if (context.json) {
        *context.out << Dump(ListedJson(entry)) << '\n';
        continue;
      }
      table.Add({entry.key.model, absl::BytesToHexString(entry.key.content_hash),
                 VariantText(entry.key.variant), std::string(client::TierName(entry.tier)),
                 entry.on_disk ? "yes" : "no", absl::StrCat(entry.bytes), absl::StrCat(entry.pins),
                 // Not given, or not known to L3's list.
                 entry.encode_cost_us == 0 ? "-" : HumanNanoseconds(entry.encode_cost_us * 1000)});
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (!context.json) table.Print(*context.out);
  return kExitOk;
}

struct StatArguments {
  v1::StatsRequest request;
  bool models = false;
  bool latencies = false;
  double watch_s = 0;
  uint64_t count = 0;
};

std::string Rate(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : absl::StrFormat("%.1f%%", 100.0 * part / whole);
}

void PrintTiers(std::ostream& out, const v1::StatsResponse& stats) {
  Table table({"TIER", "CAPACITY", "USED", "PINNED", "RESERVED", "ENTRIES", "HITS", "EVICTED",
               "EXPIRED", "FRAGMENTED"});
  for (const v1::TierStats& tier : stats.tiers()) {
    table.Add({std::string(client::TierName(FromProto(tier.tier()))),
               HumanBytes(tier.capacity_bytes()), HumanBytes(tier.used_bytes()),
               HumanBytes(tier.pinned_bytes()), HumanBytes(tier.reserved_bytes()),
               absl::StrCat(tier.entries()), absl::StrCat(tier.hits()),
               absl::StrCat(tier.evictions_capacity()), absl::StrCat(tier.evictions_expired()),
               absl::StrFormat("%.0f%%", 100 * tier.fragmentation())});
  }
  table.Print(out);
  for (const v1::TierStats& tier : stats.tiers()) {
    if (tier.given_back_bytes() == 0) continue;
    out << client::TierName(FromProto(tier.tier())) << " has given back "
        << HumanBytes(tier.given_back_bytes()) << " for want of use; the next use takes it to "
        << HumanBytes(tier.capacity_bytes() + tier.given_back_bytes()) << '\n';
  }
}

void PrintStats(std::ostream& out, const v1::StatsResponse& stats, const StatArguments& show) {
  out << "embcached " << stats.version() << ", up "
      << absl::FormatDuration(absl::Milliseconds(stats.uptime_ms()))
      << (stats.draining() ? ", draining" : "") << '\n';
  out << "gets " << stats.gets() << ", hits " << stats.hits() << " ("
      << Rate(stats.hits(), stats.gets()) << "), misses " << stats.misses() << " (mismatches "
      << stats.mismatches() << "), encode time saved " << HumanNanoseconds(stats.saved_us() * 1000)
      << '\n';
  out << "puts " << stats.saves() << " (replaced " << stats.replaced() << ", rejected "
      << stats.rejected_puts() << "), deletes " << stats.deletes() << ", promotions "
      << stats.promotions() << ", demotions " << stats.demotions() << '\n';
  out << "sessions " << stats.sessions() << ", leases " << stats.leases() << ", reservations "
      << stats.reservations() << ", in quarantine " << HumanBytes(stats.quarantined_bytes())
      << '\n';
  PrintTiers(out, stats);
  const v1::L3Stats& l3 = stats.l3();
  if (l3.enabled()) {
    out << "L3 " << (l3.writable() ? "writable" : "NOT WRITABLE") << ": loads " << l3.loads()
        << ", writes " << l3.writes() << " (failed " << l3.write_failures() << ", dropped "
        << l3.dropped_writes() << ", queued " << l3.queued_writes() << "), files " << l3.files()
        << ", corruptions " << l3.corruptions() << ", I/O errors " << l3.io_errors() << '\n';
  }
  if (show.models) {
    Table table({"MODEL", "EPOCH", "GETS", "HITS", "RATE", "PUTS", "ENTRIES", "BYTES", "SAVED"});
    for (const v1::ModelStats& model : stats.models()) {
      table.Add({model.model(), absl::StrCat(model.model_epoch()), absl::StrCat(model.gets()),
                 absl::StrCat(model.hits()), Rate(model.hits(), model.gets()),
                 absl::StrCat(model.saves()), absl::StrCat(model.entries()),
                 HumanBytes(model.bytes()), HumanNanoseconds(model.saved_us() * 1000)});
    }
    table.Print(out);
  }
  if (show.latencies) {
    Table table({"OPERATION", "COUNT", "MEAN", "P50", "P99", "MAX"});
    for (const v1::LatencyStats& row : stats.latencies()) {
      const uint64_t mean = row.count() == 0 ? 0 : row.sum_ns() / row.count();
      table.Add({row.operation(), absl::StrCat(row.count()), HumanNanoseconds(mean),
                 HumanNanoseconds(row.p50_ns()), HumanNanoseconds(row.p99_ns()),
                 HumanNanoseconds(row.max_ns())});
    }
    table.Print(out);
  }
}

int RunStat(const Context& context, const StatArguments& arguments) {
  const auto stub = v1::Cache::NewStub(context.Channel());
  v1::StatsRequest request;
  request.set_per_model(arguments.models);
  request.set_latencies(arguments.latencies);
  const bool watch = arguments.watch_s > 0;
  for (uint64_t round = 1;; ++round) {
    v1::StatsResponse stats;
    absl::Status status = CallDaemon(context, *stub, &v1::Cache::Stub::Stats, request, &stats);
    if (!status.ok()) return context.Fail(status);
    if (context.json) {
      *context.out << MessageToJson(stats) << '\n';
    } else {
      PrintStats(*context.out, stats, arguments);
      if (watch) *context.out << '\n';
    }
    context.out->flush();
    if (!watch || round == arguments.count) return kExitOk;
    absl::SleepFor(absl::Seconds(arguments.watch_s));
  }
}

int RunSessions(const Context& context) {
  const auto stub = v1::Admin::NewStub(context.Channel());
  v1::SessionsResponse response;
  absl::Status status =
      CallDaemon(context, *stub, &v1::Admin::Stub::Sessions, v1::SessionsRequest(), &response);
  if (!status.ok()) return context.Fail(status);
  if (context.json) {
    *context.out << MessageToJson(response) << '\n';
    return kExitOk;
  }
  Table table({"NAME", "ROLE", "PID", "UID", "STATE", "LEASES", "RESERVATIONS", "PINNED", "AGE"});
  for (const v1::SessionInfo& session : response.sessions()) {
    table.Add({session.name(), session.writer() ? "writer" : "reader", absl::StrCat(session.pid()),
               absl::StrCat(session.uid()), session.state(), absl::StrCat(session.leases()),
               absl::StrCat(session.reservations()), HumanBytes(session.pinned_bytes()),
               absl::FormatDuration(absl::Milliseconds(session.age_ms()))});
  }
  table.Print(*context.out);
  return kExitOk;
}

int RunHealth(const Context& context) {
  namespace health = grpc::health::v1;
  const auto stub = health::Health::NewStub(context.Channel());
  health::HealthCheckResponse response;
  absl::Status status = CallDaemon(context, *stub, &health::Health::Stub::Check,
                                   health::HealthCheckRequest(), &response);
  if (!status.ok()) return context.Fail(status);
  const std::string text = health::HealthCheckResponse::ServingStatus_Name(response.status());
  if (context.json) {
    Json json;
    json["status"] = text;
    *context.out << Dump(json) << '\n';
  } else {
    *context.out << text << '\n';
  }
  return response.status() == health::HealthCheckResponse::SERVING ? kExitOk : kExitUnreachable;
}

int RunVersion(const Context& context) {
  const auto stub = v1::Cache::NewStub(context.Channel());
  v1::StatsResponse stats;
  absl::Status status =
      CallDaemon(context, *stub, &v1::Cache::Stub::Stats, v1::StatsRequest(), &stats);
  if (context.json) {
    Json json;
    json["client"] = EMBCACHE_VERSION;
    json["daemon"] = status.ok() ? Json(stats.version()) : Json();
    *context.out << Dump(json) << '\n';
  } else {
    *context.out << "embcachectl " EMBCACHE_VERSION "\n";
    if (status.ok()) *context.out << "embcached " << stats.version() << '\n';
  }
  return status.ok() ? kExitOk : context.Fail(status);
}

}  // namespace

void AddInspectCommands(CLI::App& app, const Context& context, Action* action) {
  auto filter = std::make_shared<v1::ListRequest>();
  CLI::App* command =
      app.add_subcommand("ls", "List entries in the order of their keys; with --json one per line");
  command
      ->add_option_function<std::string>(
          "--model", [filter](const std::string& text) { filter->set_model(text); },
          "Only entries of this model")
      ->type_name("MODEL");
  command
      ->add_option_function<std::string>(
          "--prefix",
          [filter](const std::string& text) { filter->set_content_hash_hex_prefix(text); },
          "Only content hashes that start so, in hex")
      ->check(HexDigits())
      ->type_name("HEX");
  command->callback([&context, action, filter] {
    *action = [&context, filter] { return RunList(context, *filter); };
  });

  auto stat = std::make_shared<StatArguments>();
  command = app.add_subcommand("stat",
                               "Print the daemon's counters (JSON: as StatsResponse in "
                               "embcache.proto)");
  command->add_flag("--models", stat->models, "Also per model");
  command->add_flag("--latencies", stat->latencies, "Also latencies per operation");
  auto* watch =
      command->add_option("--watch", stat->watch_s, "Print again after this time, until ^C")
          ->check(MoreThanZero())
          ->type_name("SECONDS");
  command->add_option("--count", stat->count, "With --watch: stop after so many")
      ->check(CLI::PositiveNumber)
      ->needs(watch)
      ->type_name("N");
  command->callback(
      [&context, action, stat] { *action = [&context, stat] { return RunStat(context, *stat); }; });

  command = app.add_subcommand("sessions", "List who is connected and what they hold");
  command->callback([&context, action] { *action = [&context] { return RunSessions(context); }; });

  command =
      app.add_subcommand("health", "Say whether the daemon serves; exit code 0 if so, else 3");
  command->callback([&context, action] { *action = [&context] { return RunHealth(context); }; });

  command = app.add_subcommand("version", "Print the versions of this program and of the daemon");
  command->callback([&context, action] { *action = [&context] { return RunVersion(context); }; });
}

}  // namespace embcache::cli
