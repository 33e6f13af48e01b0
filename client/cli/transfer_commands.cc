// import, export and verify: many entries at a time, as safetensors files.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/context.h"
#include "client/cli/entry_file.h"
#include "client/cli/output.h"

namespace embcache::cli {
namespace {

namespace fs = std::filesystem;

// The files of `paths`; of a directory, those below it that end in .safetensors, sorted.
absl::StatusOr<std::vector<std::string>> ExpandPaths(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    fs::recursive_directory_iterator it(path, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (it->path().extension() == ".safetensors" && it->is_regular_file(error)) {
        found.push_back(it->path().string());
      }
    }
    if (error) {
      return absl::UnknownError(absl::StrCat("cannot list ", path, ": ", error.message()));
    }
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

absl::Status ImportFile(client::Client& client, const std::string& path, const KeyOptions& options,
                        uint64_t* bytes) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<FileEntry> entry = EntryFromFile(*file, options);
  absl::Status status = entry.status();
  if (status.ok()) status = client.Put(entry->key, entry->tensors, entry->data, entry->options);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  *bytes += file->all_data().size();
  return absl::OkStatus();
}

// After this the remaining items would fail alike.
bool IsFinal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

int Report(const Context& context, absl::string_view what, uint64_t done, uint64_t failed,
           uint64_t bytes, int worst) {
  if (context.json) {
    Json json;
    json[std::string(what)] = done;
    json["failed"] = failed;
    json["bytes"] = bytes;
    *context.out << Dump(json) << '\n';
  } else {
    *context.out << what << ' ' << done << (done == 1 ? " entry, " : " entries, ")
                 << HumanBytes(bytes) << "; " << failed << " failed\n";
  }
  return worst;
}

int RunImport(const Context& context, const std::vector<std::string>& paths,
              const KeyOptions& options) {
  absl::StatusOr<std::vector<std::string>> files = ExpandPaths(paths);
  if (!files.ok()) return context.Fail(files.status());
  auto client = context.Connect(client::Role::kWriter);
  if (!client.ok()) return context.Fail(client.status());
  uint64_t done = 0, failed = 0, bytes = 0;
  int worst = kExitOk;
  {
    Progress progress(*context.err, files->size());
    for (const std::string& path : *files) {
      absl::Status status = ImportFile(**client, path, options, &bytes);
      progress.Step(path);
      if (status.ok()) {
        ++done;
        continue;
      }
      ++failed;
      worst = context.Fail(status);
      if (IsFinal(status)) break;
    }
  }
  return Report(context, "imported", done, failed, bytes, worst);
}

absl::StatusOr<std::vector<client::Key>> AllKeys(client::Client& client,
                                                 const client::ListOptions& filter) {
  std::vector<client::Key> keys;
  client::ListOptions options = filter;
  options.page_size = 1000;
  do {
    absl::StatusOr<client::ListPage> page = client.List(options);
    if (!page.ok()) return page.status();
    for (client::ListedEntry& entry : page->entries) keys.push_back(std::move(entry.key));
    options.page_token = page->next_page_token;
  } while (!options.page_token.empty());
  return keys;
}

int RunExport(const Context& context, const std::string& directory,
              const client::ListOptions& filter) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return context.Fail(
        absl::UnknownError(absl::StrCat("cannot create ", directory, ": ", error.message())));
  }
  auto client = context.Connect(client::Role::kReader);
  if (!client.ok()) return context.Fail(client.status());
  absl::StatusOr<std::vector<client::Key>> keys = AllKeys(**client, filter);
  if (!keys.ok()) return context.Fail(keys.status());
  uint64_t done = 0, failed = 0, bytes = 0;
  int worst = kExitOk;
  {
    Progress progress(*context.err, keys->size());
    for (const client::Key& key : *keys) {
      const std::string name = EntryFileName(key);
      auto lease = (*client)->Get(key);
      progress.Step(name);
      absl::Status status = lease.status();
      // Evicted since it was listed: there is nothing to export.
      if (status.ok() && !lease->has_value()) continue;
      if (status.ok()) status = WriteEntry((fs::path(directory) / name).string(), **lease);
      if (status.ok()) {
        ++done;
        bytes += (*lease)->bytes();
        continue;
      }
      ++failed;
      worst = context.Fail(absl::Status(status.code(), absl::StrCat(name, ": ", status.message())));
      if (IsFinal(status)) break;
    }
  }
  return Report(context, "exported", done, failed, bytes, worst);
}

// nullopt when the lease holds exactly what the file does, else what differs.
std::optional<std::string> FindDifference(const FileEntry& entry, const client::Lease& lease) {
  if (lease.tensors().size() != entry.tensors.size()) return "number of tensors";
  for (size_t i = 0; i < entry.tensors.size(); ++i) {
    const client::TensorSpec& want = entry.tensors[i];
    const client::TensorSpec& have = lease.tensors()[i];
    if (want.name != have.name || want.dtype != have.dtype || want.shape != have.shape ||
        want.absent != have.absent) {
      return absl::StrCat("tensor ", want.name, ": name, dtype or shape");
    }
    if (lease.data(i) != entry.data[i]) return absl::StrCat("tensor ", want.name, ": bytes");
  }
  return std::nullopt;
}

struct Verified {
  std::string tier = "-";
  uint64_t ns = 0;
  std::string verdict;
  int exit_code = kExitOk;
};

Verified VerifyEntry(client::Client& client, const FileEntry& entry) {
  Verified row;
  const absl::Time start = absl::Now();
  const absl::StatusOr<std::optional<client::Lease>> lease = client.Get(entry.key);
  row.ns = static_cast<uint64_t>(absl::ToInt64Nanoseconds(absl::Now() - start));
  if (!lease.ok()) {
    row.verdict = lease.status().ToString();
    row.exit_code = kExitFailed;
  } else if (!lease->has_value()) {
    row.verdict = "miss";
    row.exit_code = kExitMiss;
  } else {
    row.tier = std::string(client::TierName((*lease)->source()));
    const std::optional<std::string> difference = FindDifference(entry, **lease);
    row.verdict = difference.has_value() ? "DIFFERS: " + *difference : "identical";
    row.exit_code = difference.has_value() ? kExitFailed : kExitOk;
  }
  return row;
}

int RunVerify(const Context& context, const std::vector<std::string>& paths,
              const KeyOptions& options) {
  absl::StatusOr<std::vector<std::string>> files = ExpandPaths(paths);
  if (!files.ok()) return context.Fail(files.status());
  auto client = context.Connect(client::Role::kReader);
  if (!client.ok()) return context.Fail(client.status());
  Table table({"ENTRY", "BYTES", "TIER", "GET", "AGAINST THE FILE"});
  Json rows = Json::array();
  int worst = kExitOk;
  for (const std::string& path : *files) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    absl::StatusOr<FileEntry> entry =
        file.ok() ? EntryFromFile(*file, options) : absl::StatusOr<FileEntry>(file.status());
    if (!entry.ok()) {
      worst = std::max(worst, context.Fail(entry.status()));
      continue;
    }
    const Verified row = VerifyEntry(**client, *entry);
    worst = std::max(worst, row.exit_code);
    const std::string name = fs::path(path).stem().string();
    const uint64_t bytes = file->all_data().size();
    table.Add({name, HumanBytes(bytes), row.tier, HumanNanoseconds(row.ns), row.verdict});
    Json json;
    json["file"] = path;
    json["bytes"] = bytes;
    json["tier"] = row.tier;
    json["ns"] = row.ns;
    json["verdict"] = row.verdict;
    rows.push_back(std::move(json));
  }
  if (context.json) {
    *context.out << Dump(rows) << '\n';
  } else {
    table.Print(*context.out);
  }
  return worst;
}

}  // namespace

void AddTransferCommands(CLI::App& app, const Context& context, Action* action) {
  auto paths = std::make_shared<std::vector<std::string>>();
  auto key = std::make_shared<KeyOptions>();
  CLI::App* command = app.add_subcommand(
      "import",
      "Store many safetensors files; keys and encode costs come from their __metadata__ "
      "as with put. Goes on after a file that fails");
  command->add_option("PATH", *paths, "Files, or directories of *.safetensors")
      ->required()
      ->type_name("");
  command->add_option("--model", key->model, "Model of the keys, instead of the files' own")
      ->type_name("MODEL");
  command->add_option("--variant", key->variant, "Variant of the keys, instead of the files' own")
      ->type_name("TEXT");
  command->callback([&context, action, paths, key] {
    *action = [&context, paths, key] { return RunImport(context, *paths, *key); };
  });

  auto verify_paths = std::make_shared<std::vector<std::string>>();
  auto verify_key = std::make_shared<KeyOptions>();
  command = app.add_subcommand(
      "verify",
      "Get the entries of safetensors files and compare them, in shared memory, with the files, "
      "byte by byte. Exit code 1: one is not there, 4: one differs");
  command->add_option("PATH", *verify_paths, "Files, or directories of *.safetensors")
      ->required()
      ->type_name("");
  command->add_option("--model", verify_key->model, "Model of the keys, instead of the files' own")
      ->type_name("MODEL");
  command
      ->add_option("--variant", verify_key->variant,
                   "Variant of the keys, instead of the files' own")
      ->type_name("TEXT");
  command->callback([&context, action, verify_paths, verify_key] {
    *action = [&context, verify_paths, verify_key] {
      return RunVerify(context, *verify_paths, *verify_key);
    };
  });

  auto directory = std::make_shared<std::string>();
  auto filter = std::make_shared<client::ListOptions>();
  command = app.add_subcommand(
      "export",
      "Write entries as safetensors files, one each, with tensors and metadata as they "
      "were stored. Counts as gets");
  command->add_option("--out", *directory, "Directory to write into")->required()->type_name("DIR");
  command->add_option("--model", filter->model, "Only entries of this model")->type_name("MODEL");
  command
      ->add_option("--prefix", filter->hash_hex_prefix, "Only content hashes that start so, in hex")
      ->check(HexDigits())
      ->type_name("HEX");
  command->callback([&context, action, directory, filter] {
    *action = [&context, directory, filter] { return RunExport(context, *directory, *filter); };
  });
}

}  // namespace embcache::cli
