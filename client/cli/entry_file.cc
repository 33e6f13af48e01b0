#include "client/cli/entry_file.h"

#include <openssl/evp.h>

#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace embcache::cli {
namespace {

using client::Metadata;

constexpr char kPrefix[] = "embcache.";
constexpr char kModel[] = "embcache.model";
constexpr char kContentHash[] = "embcache.content_hash";
constexpr char kVariantHex[] = "embcache.variant_hex";
constexpr char kCost[] = "embcache.encode_cost_us";
constexpr char kAbsent[] = "embcache.absent";

const std::string* Find(const Metadata& metadata, const char* name) {
  const auto it = metadata.find(name);
  return it == metadata.end() ? nullptr : &it->second;
}

bool IsHex(absl::string_view text) {
  if (text.size() % 2 != 0) return false;
  for (char c : text) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

absl::StatusOr<std::string> Unhex(absl::string_view field, absl::string_view text) {
  if (!IsHex(text)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", text, " is not hexadecimal"));
  }
  return absl::HexStringToBytes(text);
}

// What the file's metadata alone say of the key and cost.
absl::StatusOr<std::string> HashFrom(const Metadata& metadata) {
  for (const char* name : {kContentHash, "image_sha256", "image_hash"}) {
    if (const std::string* hex = Find(metadata, name)) return Unhex(name, *hex);
  }
  return std::string();
}

std::string ModelFrom(const Metadata& metadata) {
  const std::string* model = Find(metadata, kModel);
  if (model == nullptr) model = Find(metadata, "model");
  if (model == nullptr) model = Find(metadata, "model_name");
  return model == nullptr ? "" : *model;
}

absl::StatusOr<std::string> VariantFrom(const Metadata& metadata) {
  if (const std::string* hex = Find(metadata, kVariantHex)) return Unhex(kVariantHex, *hex);
  const std::string* preprocess = Find(metadata, "preprocess");
  return preprocess == nullptr ? "" : *preprocess;
}

absl::StatusOr<uint64_t> CostFrom(const Metadata& metadata) {
  if (const std::string* text = Find(metadata, kCost)) {
    uint64_t cost = 0;
    if (absl::SimpleAtoi(*text, &cost)) return cost;
    return absl::InvalidArgumentError(absl::StrCat(kCost, ": ", *text, " is not a number"));
  }
  const std::string* text = Find(metadata, "encode_ms");
  if (text == nullptr) return 0;
  double ms = 0;
  if (!absl::SimpleAtod(*text, &ms) || !(ms >= 0 && ms < 1e12)) {
    return absl::InvalidArgumentError(
        absl::StrCat("encode_ms: ", *text, " is not a time in milliseconds"));
  }
  return static_cast<uint64_t>(std::llround(ms * 1000));
}

absl::Status AddAbsent(const Metadata& metadata, FileEntry* entry) {
  const std::string* text = Find(metadata, kAbsent);
  if (text == nullptr) return absl::OkStatus();
  const auto names = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!names.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(kAbsent, ": not a JSON list"));
  }
  for (const auto& name : names) {
    if (!name.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(kAbsent, ": not a list of names"));
    }
    client::TensorSpec tensor;
    tensor.name = name.get<std::string>();
    tensor.absent = true;
    entry->tensors.push_back(std::move(tensor));
    entry->data.emplace_back();
  }
  return absl::OkStatus();
}

// The daemon refuses others too; here it is the command line that is wrong.
CLI::Validator ContentHash() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (IsHex(text) && text.size() >= 16 && text.size() <= 128) return "";
        return text + " is not 16 to 128 hexadecimal digits (8 to 64 bytes)";
      },
      "");
}

}  // namespace

CLI::Validator HexDigits() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        return IsHex(text) ? "" : text + " is not an even number of hexadecimal digits";
      },
      "");
}

void AddKeyOptions(CLI::App* command, KeyOptions* options, bool required) {
  auto* model =
      command->add_option("--model", options->model, "Model of the key")->type_name("MODEL");
  auto* hash = command->add_option("--hash", options->hash_hex, "Content hash of the key, in hex")
                   ->check(ContentHash())
                   ->type_name("HEX");
  auto* variant = command->add_option("--variant", options->variant, "Variant of the key");
  command->add_option("--variant-hex", options->variant_hex, "The same, when it is no text")
      ->check(HexDigits())
      ->type_name("HEX")
      ->excludes(variant);
  if (required) {
    model->required();
    hash->required();
  }
}

client::Key ToKey(const KeyOptions& options) {
  return {
      options.model, absl::HexStringToBytes(options.hash_hex),
      options.variant_hex.empty() ? options.variant : absl::HexStringToBytes(options.variant_hex)};
}

std::string Sha256(absl::string_view bytes) {
  unsigned char digest[32];
  EVP_Digest(bytes.data(), bytes.size(), digest, nullptr, EVP_sha256(), nullptr);
  return std::string(reinterpret_cast<char*>(digest), sizeof(digest));
}

std::string PayloadSha256Hex(const client::Lease& lease) {
  EVP_MD_CTX* state = EVP_MD_CTX_new();
  EVP_DigestInit_ex(state, EVP_sha256(), nullptr);
  for (size_t i = 0; i < lease.tensors().size(); ++i) {
    EVP_DigestUpdate(state, lease.data(i).data(), lease.data(i).size());
  }
  unsigned char digest[32];
  EVP_DigestFinal_ex(state, digest, nullptr);
  EVP_MD_CTX_free(state);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(digest), 32));
}

absl::StatusOr<FileEntry> EntryFromFile(const SafetensorsFile& file, const KeyOptions& options) {
  const Metadata& metadata = file.metadata();
  FileEntry entry;
  entry.key = ToKey(options);
  if (entry.key.model.empty()) entry.key.model = ModelFrom(metadata);
  if (entry.key.model.empty()) {
    return absl::InvalidArgumentError("no model in the file's metadata; give --model");
  }
  if (entry.key.content_hash.empty()) {
    absl::StatusOr<std::string> hash = HashFrom(metadata);
    if (!hash.ok()) return hash.status();
    const client::Bytes all = file.all_data();
    entry.key.content_hash =
        hash->empty() ? Sha256({reinterpret_cast<const char*>(all.data()), all.size()}) : *hash;
  }
  if (entry.key.variant.empty()) {
    absl::StatusOr<std::string> variant = VariantFrom(metadata);
    if (!variant.ok()) return variant.status();
    entry.key.variant = *std::move(variant);
  }
  absl::StatusOr<uint64_t> cost = CostFrom(metadata);
  if (!cost.ok()) return cost.status();
  entry.options.encode_cost_us = *cost;
  for (const auto& [name, value] : metadata) {
    if (!absl::StartsWith(name, kPrefix)) entry.options.metadata[name] = value;
  }
  entry.tensors = file.tensors();
  for (size_t i = 0; i < entry.tensors.size(); ++i) entry.data.push_back(file.data(i));
  absl::Status status = AddAbsent(metadata, &entry);
  if (!status.ok()) return status;
  return entry;
}

Metadata FileMetadata(const client::Key& key, const std::vector<client::TensorSpec>& tensors,
                      const Metadata& metadata, uint64_t encode_cost_us) {
  Metadata out = metadata;
  if (ModelFrom(metadata) != key.model) out[kModel] = key.model;
  if (HashFrom(metadata).value_or("") != key.content_hash) {
    out[kContentHash] = absl::BytesToHexString(key.content_hash);
  }
  const absl::StatusOr<std::string> variant = VariantFrom(metadata);
  if (!variant.ok() || *variant != key.variant) {
    out[kVariantHex] = absl::BytesToHexString(key.variant);
  }
  const absl::StatusOr<uint64_t> cost = CostFrom(metadata);
  if (!cost.ok() || *cost != encode_cost_us) out[kCost] = absl::StrCat(encode_cost_us);
  nlohmann::json absent = nlohmann::json::array();
  for (const client::TensorSpec& tensor : tensors) {
    if (tensor.absent) absent.push_back(tensor.name);
  }
  if (!absent.empty())
    out[kAbsent] = absent.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return out;
}

absl::Status WriteEntry(const std::string& path, const client::Lease& lease) {
  if (!lease.mapped()) {
    return absl::FailedPreconditionError("the entry lies in device memory, which is not mapped");
  }
  std::vector<client::Bytes> data;
  for (size_t i = 0; i < lease.tensors().size(); ++i) data.push_back(lease.data(i));
  return WriteSafetensors(
      path, lease.tensors(), data,
      FileMetadata(lease.key(), lease.tensors(), lease.metadata(), lease.encode_cost_us()));
}

std::string EntryFileName(const client::Key& key) {
  // The lengths keep ("ab", "c") and ("a", "bc") apart.
  const std::string rest = Sha256(absl::StrCat(key.model.size(), ":", key.model, key.variant));
  return absl::StrCat(absl::BytesToHexString(key.content_hash), "-",
                      absl::BytesToHexString(rest.substr(0, 8)), ".safetensors");
}

}  // namespace embcache::cli
