// events: what happens to entries, as it happens.

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "client/cpp/convert.h"
#include "embcache/v1/embcache.grpc.pb.h"

namespace embcache::cli {
namespace {

namespace v1 = embcache::v1;
using client::internal::FromProto;

struct EventsArguments {
  v1::WatchRequest request;
  uint64_t count = 0;
};

std::string TierText(v1::Tier tier) { return std::string(client::TierName(FromProto(tier))); }

std::string KeyText(const v1::Key& key) {
  return absl::StrCat(key.model(), " ", absl::BytesToHexString(key.content_hash()), " ",
                      VariantText(key.variant()));
}

std::string ReasonText(v1::Event::RemoveReason reason) {
  switch (reason) {
    case v1::Event::REPLACED:
      return "replaced";
    case v1::Event::DELETED:
      return "deleted";
    case v1::Event::CAPACITY:
      return "capacity";
    case v1::Event::EXPIRED:
      return "expired";
    case v1::Event::EPOCH:
      return "epoch";
    case v1::Event::REMOVED_MISMATCH:
      return "mismatch";
    case v1::Event::REMOVED_DAMAGED:
      return "damaged";
    default:
      return "unknown";
  }
}

std::string OccupancyText(const v1::EventSnapshot& snapshot) {
  std::string text;
  for (const v1::TierOccupancy& tier : snapshot.tiers()) {
    absl::StrAppend(&text, ", ", TierText(tier.tier()), " ", HumanBytes(tier.used_bytes()), " of ",
                    HumanBytes(tier.capacity_bytes()));
  }
  return text;
}

std::string Sentence(const v1::Event& event) {
  switch (event.event_case()) {
    case v1::Event::kStored:
      return absl::StrCat("stored ", TierText(event.stored().tier()), " ",
                          HumanBytes(event.stored().bytes()), " ", KeyText(event.stored().key()));
    case v1::Event::kRemoved:
      return absl::StrCat("removed (", ReasonText(event.removed().reason()), ") ",
                          KeyText(event.removed().key()));
    case v1::Event::kMoved:
      return absl::StrCat("moved ", TierText(event.moved().from()), " to ",
                          TierText(event.moved().to()), " ", KeyText(event.moved().key()));
    case v1::Event::kEpochAdvanced:
      return absl::StrCat("epoch ", event.epoch_advanced().model_epoch(), " of ",
                          event.epoch_advanced().model());
    case v1::Event::kSnapshot:
      return absl::StrCat(event.snapshot().end() ? "snapshot ends" : "snapshot begins",
                          OccupancyText(event.snapshot()));
    case v1::Event::kGap:
      return absl::StrCat("gap: ", event.gap().lost(), " events lost");
    case v1::Event::EVENT_NOT_SET:
      break;
  }
  return "unknown";
}

// Key, and what else the kinds of events have in common.
Json EntryJson(const char* kind, const v1::Key& key, uint64_t generation) {
  Json json;
  json["event"] = kind;
  json.update(KeyJson(FromProto(key)));
  json["generation"] = generation;
  return json;
}

Json SnapshotJson(const v1::EventSnapshot& snapshot) {
  Json json;
  json["event"] = snapshot.end() ? "snapshot_end" : "snapshot_begin";
  json["epoch"] = absl::BytesToHexString(snapshot.epoch());
  json["tiers"] = Json::array();
  for (const v1::TierOccupancy& tier : snapshot.tiers()) {
    Json one;
    one["tier"] = TierText(tier.tier());
    one["capacity_bytes"] = tier.capacity_bytes();
    one["used_bytes"] = tier.used_bytes();
    one["entries"] = tier.entries();
    json["tiers"].push_back(std::move(one));
  }
  return json;
}

Json EventJson(const v1::Event& event) {
  Json json;
  switch (event.event_case()) {
    case v1::Event::kStored:
      json = EntryJson("stored", event.stored().key(), event.stored().generation());
      json["tier"] = TierText(event.stored().tier());
      json["bytes"] = event.stored().bytes();
      json["encode_cost_us"] = event.stored().encode_cost_us();
      break;
    case v1::Event::kRemoved:
      json = EntryJson("removed", event.removed().key(), event.removed().generation());
      json["reason"] = ReasonText(event.removed().reason());
      break;
    case v1::Event::kMoved:
      json = EntryJson("moved", event.moved().key(), event.moved().generation());
      json["from"] = TierText(event.moved().from());
      json["to"] = TierText(event.moved().to());
      break;
    case v1::Event::kEpochAdvanced:
      json["event"] = "epoch";
      json["model"] = event.epoch_advanced().model();
      json["model_epoch"] = event.epoch_advanced().model_epoch();
      break;
    case v1::Event::kSnapshot:
      json = SnapshotJson(event.snapshot());
      break;
    case v1::Event::kGap:
      json["event"] = "gap";
      json["lost"] = event.gap().lost();
      break;
    case v1::Event::EVENT_NOT_SET:
      json["event"] = "unknown";
      break;
  }
  json["sequence"] = event.sequence();
  json["unix_ms"] = event.unix_ms();
  return json;
}

int RunEvents(const Context& context, const EventsArguments& arguments) {
  const auto stub = v1::Cache::NewStub(context.Channel());
  grpc::ClientContext call;  // without a deadline: until ^C or the daemon's end
  const auto reader = stub->Watch(&call, arguments.request);
  v1::WatchResponse response;
  uint64_t told = 0;
  while (reader->Read(&response)) {
    for (const v1::Event& event : response.events()) {
      if (context.json) {
        *context.out << Dump(EventJson(event)) << '\n';
      } else {
        *context.out << event.sequence() << ' '
                     << absl::FormatTime("%H:%M:%E3S", absl::FromUnixMillis(event.unix_ms()),
                                         absl::LocalTimeZone())
                     << ' ' << Sentence(event) << '\n';
      }
      if (++told == arguments.count) {
        call.TryCancel();
        context.out->flush();
        return kExitOk;
      }
    }
    context.out->flush();
  }
  return context.Fail(context.FromCall(reader->Finish()));
}

}  // namespace

void AddEventsCommand(CLI::App& app, const Context& context, Action* action) {
  auto arguments = std::make_shared<EventsArguments>();
  CLI::App* command = app.add_subcommand(
      "events", "Tell what is there and what happens to entries, until ^C; with --json one a line");
  command
      ->add_option_function<std::string>(
          "--model", [arguments](const std::string& text) { arguments->request.set_model(text); },
          "Only entries of this model")
      ->type_name("MODEL");
  command->add_flag_callback(
      "--no-snapshot", [arguments] { arguments->request.set_no_snapshot(true); },
      "Only what happens from now on");
  command->add_option("--count", arguments->count, "Stop after so many")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->callback([&context, action, arguments] {
    *action = [&context, arguments] { return RunEvents(context, *arguments); };
  });
}

}  // namespace embcache::cli
