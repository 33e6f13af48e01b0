// clear, flush, l3, resize, epoch, drain, log-level: what changes the daemon as a whole.

#include <algorithm>
#include <memory>
#include <string>

#include "client/cli/context.h"
#include "client/cli/output.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"

namespace embcache::cli {
namespace {

namespace v1 = embcache::v1;

// Makes one call of the Admin service; `report` fills what is printed.
template <typename Method, typename Request, typename Response, typename Report>
int RunAdmin(const Context& context, Method method, const Request& request, Response response,
             Report report) {
  const auto stub = v1::Admin::NewStub(context.Channel());
  absl::Status status = CallDaemon(context, *stub, method, request, &response);
  if (!status.ok()) return context.Fail(status);
  Json json = Json::object();
  report(response, &json);
  if (context.json) {
    *context.out << Dump(json) << '\n';
    return kExitOk;
  }
  for (const auto& [name, value] : json.items()) {
    *context.out << name << ' ' << (value.is_string() ? std::string(value) : Dump(value)) << '\n';
  }
  return kExitOk;
}

int RunClear(const Context& context, const v1::ClearRequest& request) {
  return RunAdmin(
      context, &v1::Admin::Stub::Clear, request, v1::ClearResponse(),
      [](const v1::ClearResponse& response, Json* json) { (*json)["models"] = response.models(); });
}

int RunEpoch(const Context& context, const std::string& model) {
  const auto stub = v1::Cache::NewStub(context.Channel());
  v1::AdvanceEpochRequest request;
  request.set_model(model);
  v1::AdvanceEpochResponse response;
  absl::Status status =
      CallDaemon(context, *stub, &v1::Cache::Stub::AdvanceEpoch, request, &response);
  if (!status.ok()) return context.Fail(status);
  if (context.json) {
    Json json;
    json["model"] = model;
    json["model_epoch"] = response.model_epoch();
    *context.out << Dump(json) << '\n';
  } else {
    *context.out << "model_epoch " << response.model_epoch() << '\n';
  }
  return kExitOk;
}

// As long as the disk takes, unless --timeout asks for more.
constexpr double kVerifyTimeoutSeconds = 3600;

int RunVerifyL3(const Context& given) {
  Context context = given;
  context.timeout_s = std::max(context.timeout_s, kVerifyTimeoutSeconds);
  int worst = kExitOk;
  const int called =
      RunAdmin(context, &v1::Admin::Stub::VerifyL3, v1::VerifyL3Request(), v1::VerifyL3Response(),
               [&worst](const v1::VerifyL3Response& response, Json* json) {
                 (*json)["records"] = response.records();
                 (*json)["bytes"] = response.bytes();
                 (*json)["damaged"] = response.damaged();
                 (*json)["unreadable"] = response.unreadable();
                 if (response.damaged() + response.unreadable() > 0) {
                   worst = kExitFailed;
                 }
               });
  return std::max(called, worst);
}

int RunStatL3(const Context& context) {
  auto client = context.Connect(client::Role::kReader);
  if (!client.ok()) return context.Fail(client.status());
  const absl::StatusOr<std::string> text = (*client)->StatsJson();
  if (!text.ok()) return context.Fail(text.status());
  const Json stats = Json::parse(*text);
  Json l3 = stats.value("l3", Json::object());
  for (const Json& tier : stats.value("tiers", Json::array())) {
    if (tier.value("tier", "") != "L3") continue;
    for (const char* name : {"entries", "used_bytes", "capacity_bytes", "hits", "evictions"}) {
      if (tier.contains(name)) l3[name] = tier[name];
    }
  }
  if (context.json) {
    *context.out << Dump(l3) << '\n';
    return kExitOk;
  }
  for (const auto& [name, value] : l3.items()) *context.out << name << ' ' << Dump(value) << '\n';
  return kExitOk;
}

void AddL3Commands(CLI::App& app, const Context& context, Action* action) {
  CLI::App* l3 = app.add_subcommand("l3", "The SSD tier");
  l3->require_subcommand(1);
  CLI::App* command = l3->add_subcommand(
      "verify",
      "Read and check all that is on the SSD; what is damaged is removed. Exit code 4: some was");
  command->callback([&context, action] { *action = [&context] { return RunVerifyL3(context); }; });
  command = l3->add_subcommand("stat", "Show its counters");
  command->callback([&context, action] { *action = [&context] { return RunStatL3(context); }; });
}

void AddResizeCommand(CLI::App& app, const Context& context, Action* action) {
  auto request = std::make_shared<v1::ResizeRequest>();
  auto bytes = std::make_shared<uint64_t>(0);
  CLI::App* command = app.add_subcommand(
      "resize",
      "Give memory of a tier back while the daemon serves, or take more. What is pinned is waited "
      "for as long as --timeout allows");
  CLI::Option_group* which = command->add_option_group("Which", "One of these is needed");
  const auto add = [&](const char* option, v1::Tier tier, const char* help) {
    which->add_option(option, *bytes, help)
        ->transform(SizeText())
        ->type_name("SIZE")
        ->each([request, tier](const std::string&) { request->set_tier(tier); });
  };
  add("--l1", v1::L1, "The first tier's capacity; 512MiB may be written so");
  add("--l2", v1::L2, "The second tier's capacity");
  which->require_option(1);
  command->callback([&context, action, request, bytes] {
    request->set_capacity_bytes(*bytes);
    *action = [&context, request] {
      return RunAdmin(context, &v1::Admin::Stub::Resize, *request, v1::ResizeResponse(),
                      [](const v1::ResizeResponse& response, Json* json) {
                        (*json)["previous_bytes"] = response.previous_bytes();
                        (*json)["capacity_bytes"] = response.capacity_bytes();
                      });
    };
  });
}

}  // namespace

void AddAdminCommands(CLI::App& app, const Context& context, Action* action) {
  auto clear = std::make_shared<v1::ClearRequest>();
  CLI::App* command =
      app.add_subcommand("clear", "Remove every entry of one model, or all entries");
  CLI::Option_group* which = command->add_option_group("Which", "One of these is needed");
  which
      ->add_option_function<std::string>(
          "--model", [clear](const std::string& text) { clear->set_model(text); }, "This model")
      ->type_name("MODEL");
  which->add_flag_callback(
      "--all", [clear] { clear->set_all(true); }, "Every model");
  which->require_option(1);
  command->callback([&context, action, clear] {
    *action = [&context, clear] { return RunClear(context, *clear); };
  });

  command = app.add_subcommand("flush", "Wait until everything stored before is on disk");
  command->callback([&context, action] {
    *action = [&context] {
      return RunAdmin(context, &v1::Admin::Stub::Flush, v1::FlushRequest(), v1::FlushResponse(),
                      [](const v1::FlushResponse&, Json* json) { (*json)["flushed"] = true; });
    };
  });

  AddL3Commands(app, context, action);
  AddResizeCommand(app, context, action);

  auto model = std::make_shared<std::string>();
  command = app.add_subcommand(
      "epoch", "Advance a model's epoch: nothing stored for it before is returned again");
  command->add_option("--model", *model, "The model")->required()->type_name("MODEL");
  command->callback([&context, action, model] {
    *action = [&context, model] { return RunEpoch(context, *model); };
  });

  command =
      app.add_subcommand("drain", "Make the daemon refuse new work. Only a restart ends this");
  command->callback([&context, action] {
    *action = [&context] {
      return RunAdmin(context, &v1::Admin::Stub::Drain, v1::DrainRequest(), v1::DrainResponse(),
                      [](const v1::DrainResponse&, Json* json) { (*json)["draining"] = true; });
    };
  });

  auto level = std::make_shared<v1::SetLogLevelRequest>();
  command = app.add_subcommand("log-level", "Change how much the daemon logs");
  command
      ->add_option_function<std::string>(
          "LEVEL", [level](const std::string& text) { level->set_level(text); }, "The new level")
      ->required()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  command->callback([&context, action, level] {
    *action = [&context, level] {
      return RunAdmin(context, &v1::Admin::Stub::SetLogLevel, *level, v1::SetLogLevelResponse(),
                      [](const v1::SetLogLevelResponse& response, Json* json) {
                        (*json)["previous"] = response.previous();
                      });
    };
  });
}

}  // namespace embcache::cli
