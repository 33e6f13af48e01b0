// put, get, contains, rm: one key at a time.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/context.h"
#include "client/cli/entry_file.h"
#include "client/cli/output.h"

namespace embcache::cli {
namespace {

struct PutArguments {
  KeyOptions key;
  std::vector<std::string> files;
  double ttl_s = 0;
};

int RunPut(const Context& context, const PutArguments& arguments) {
  if (arguments.files.size() > 1 && !arguments.key.hash_hex.empty()) {
    *context.err << "embcachectl: --hash names one entry; give one file with it\n";
    return kExitUsage;
  }
  std::unique_ptr<client::Client> client;
  for (const std::string& path : arguments.files) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (!file.ok()) return context.Fail(file.status());
    absl::StatusOr<FileEntry> entry = EntryFromFile(*file, arguments.key);
    if (!entry.ok()) {
      return context.Fail(
          absl::InvalidArgumentError(absl::StrCat(path, ": ", entry.status().message())));
    }
    entry->options.ttl = absl::Seconds(arguments.ttl_s);
    if (client == nullptr) {
      auto connected = context.Connect(client::Role::kWriter);
      if (!connected.ok()) return context.Fail(connected.status());
      client = *std::move(connected);
    }
    absl::Status status = client->Put(entry->key, entry->tensors, entry->data, entry->options);
    if (!status.ok()) return context.Fail(status);
    Json json = KeyJson(entry->key);
    if (context.json) {
      json["file"] = path;
      *context.out << Dump(json) << '\n';
    } else {
      *context.out << "stored " << path << " as " << TerminalText(entry->key.model) << ' '
                   << json["hash"].get<std::string>() << '\n';
    }
  }
  return kExitOk;
}

Json LeaseJson(const client::Lease& lease, double lookup_us) {
  Json json = KeyJson(lease.key());
  json["hit"] = true;
  json["tier"] = std::string(client::TierName(lease.source()));
  json["lookup_us"] = lookup_us;
  json["bytes"] = lease.bytes();
  json["generation"] = lease.generation();
  json["encode_cost_us"] = lease.encode_cost_us();
  json["tensors"] = TensorsJson(lease.tensors());
  json["metadata"] = lease.metadata();
  if (lease.mapped()) json["sha256"] = PayloadSha256Hex(lease);
  return json;
}

void PrintLease(std::ostream& out, const client::Lease& lease, double lookup_us) {
  out << "hit in " << client::TierName(lease.source()) << ", looked up in " << lookup_us << " us, "
      << HumanBytes(lease.bytes()) << ", encoding took " << lease.encode_cost_us() << " us\n";
  Table tensors({"TENSOR", "DTYPE", "SHAPE", "BYTES"});
  for (const client::TensorSpec& tensor : lease.tensors()) {
    if (tensor.absent) {
      tensors.Add({tensor.name, "absent", "", "0"});
    } else {
      tensors.Add({tensor.name, std::string(client::DTypeName(tensor.dtype)),
                   ShapeText(tensor.shape), absl::StrCat(tensor.bytes)});
    }
  }
  tensors.Print(out);
  for (const auto& [name, value] : lease.metadata()) {
    out << TerminalText(name) << " = " << VariantText(value) << '\n';
  }
  if (lease.mapped()) out << "sha256 " << PayloadSha256Hex(lease) << '\n';
}

int ReportMiss(const Context& context, const client::Key& key, absl::string_view field) {
  Json json = KeyJson(key);
  json[std::string(field)] = false;
  if (context.json) {
    *context.out << Dump(json) << '\n';
  } else {
    *context.err << "embcachectl: not in the cache: model " << TerminalText(key.model) << ", hash "
                 << json["hash"].get<std::string>() << ", variant \"" << VariantText(key.variant)
                 << "\"\n";
  }
  return kExitMiss;
}

int RunGet(const Context& context, const KeyOptions& options, const std::string& path) {
  auto client = context.Connect(client::Role::kReader);
  if (!client.ok()) return context.Fail(client.status());
  const client::Key key = ToKey(options);
  const absl::Time start = absl::Now();
  auto lease = (*client)->Get(key);
  const double lookup_us = absl::ToDoubleMicroseconds(absl::Now() - start);
  if (!lease.ok()) return context.Fail(lease.status());
  if (!lease->has_value()) return ReportMiss(context, key, "hit");
  if (!path.empty()) {
    absl::Status status = WriteEntry(path, **lease);
    if (!status.ok()) return context.Fail(status);
  }
  if (context.json) {
    Json json = LeaseJson(**lease, lookup_us);
    if (!path.empty()) json["file"] = path;
    *context.out << Dump(json) << '\n';
  } else if (!path.empty()) {
    *context.out << "wrote " << path << '\n';
  } else {
    PrintLease(*context.out, **lease, lookup_us);
  }
  return kExitOk;
}

int RunContains(const Context& context, const KeyOptions& options) {
  auto client = context.Connect(client::Role::kReader);
  if (!client.ok()) return context.Fail(client.status());
  const client::Key key = ToKey(options);
  auto tier = (*client)->Contains(key);
  if (!tier.ok()) return context.Fail(tier.status());
  if (!tier->has_value()) return ReportMiss(context, key, "present");
  if (context.json) {
    Json json = KeyJson(key);
    json["present"] = true;
    json["tier"] = std::string(client::TierName(**tier));
    *context.out << Dump(json) << '\n';
  } else {
    *context.out << "in " << client::TierName(**tier) << '\n';
  }
  return kExitOk;
}

int RunRemove(const Context& context, const KeyOptions& options) {
  auto client = context.Connect(client::Role::kWriter);
  if (!client.ok()) return context.Fail(client.status());
  const client::Key key = ToKey(options);
  absl::StatusOr<bool> existed = (*client)->Delete(key);
  if (!existed.ok()) return context.Fail(existed.status());
  if (!*existed) return ReportMiss(context, key, "removed");
  if (context.json) {
    Json json = KeyJson(key);
    json["removed"] = true;
    *context.out << Dump(json) << '\n';
  }
  return kExitOk;
}

}  // namespace

void AddDataCommands(CLI::App& app, const Context& context, Action* action) {
  auto put = std::make_shared<PutArguments>();
  CLI::App* command = app.add_subcommand(
      "put",
      "Store safetensors files. What the key options leave open comes from the file's "
      "__metadata__: model, image_sha256 (else the SHA-256 of the data), preprocess");
  AddKeyOptions(command, &put->key, /*required=*/false);
  command->add_option("FILE", put->files, "safetensors files")->required()->type_name("");
  command->add_option("--ttl", put->ttl_s, "When the entry expires; 0: never")
      ->check(ZeroOrMore())
      ->type_name("SECONDS");
  command->callback(
      [&context, action, put] { *action = [&context, put] { return RunPut(context, *put); }; });

  auto key = std::make_shared<KeyOptions>();  // of the one command that is run
  auto out = std::make_shared<std::string>();
  command =
      app.add_subcommand("get", "Look an entry up; print what it holds, or write it to a file");
  AddKeyOptions(command, key.get(), /*required=*/true);
  command->add_option("--out", *out, "Write the entry to this safetensors file")->type_name("FILE");
  command->callback([&context, action, key, out] {
    *action = [&context, key, out] { return RunGet(context, *key, *out); };
  });

  command = app.add_subcommand(
      "contains", "Say whether a key is in the cache, without counting a hit or a miss");
  AddKeyOptions(command, key.get(), /*required=*/true);
  command->callback([&context, action, key] {
    *action = [&context, key] { return RunContains(context, *key); };
  });

  command = app.add_subcommand("rm", "Remove an entry from every tier");
  AddKeyOptions(command, key.get(), /*required=*/true);
  command->callback(
      [&context, action, key] { *action = [&context, key] { return RunRemove(context, *key); }; });
}

}  // namespace embcache::cli
