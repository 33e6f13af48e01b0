// Entries as safetensors files: how a file's metadata gives a key, and how an entry becomes a file.
//
// clang-format off
//   model       --model,   else __metadata__["embcache.model"], else ["model"]
//   hash (hex)  --hash,    else ["embcache.content_hash"], else ["image_sha256"], else the SHA-256 of
//                          the tensors' bytes
//   variant     --variant, else ["embcache.variant_hex"], else ["preprocess"], else empty
//   cost        ["embcache.encode_cost_us"], else ["encode_ms"] (decimal milliseconds), else unknown
//   absent      ["embcache.absent"]: a JSON list of tensor names
// clang-format on
//
// All metadata without the prefix "embcache." travel as the entry's metadata. Export adds those
// with the prefix only where the entry's own metadata would not give the same key and cost again,
// so that a file that was imported is exported with the metadata it had.

#ifndef EMBCACHE_CLIENT_CLI_ENTRY_FILE_H_
#define EMBCACHE_CLIENT_CLI_ENTRY_FILE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/safetensors.h"
#include "client/cpp/client.h"

namespace embcache::cli {

struct KeyOptions {
  std::string model;
  std::string hash_hex;
  std::string variant;
  std::string variant_hex;
};

// Check of option values: an even number of hexadecimal digits.
CLI::Validator HexDigits();

// Adds --model, --hash, --variant and --variant-hex. `required`: the first two.
void AddKeyOptions(CLI::App* command, KeyOptions* options, bool required);
client::Key ToKey(const KeyOptions& options);

std::string Sha256(absl::string_view bytes);  // 32 raw bytes
// Of the tensors' bytes, one after another, in hex.
std::string PayloadSha256Hex(const client::Lease& lease);

struct FileEntry {
  client::Key key;
  std::vector<client::TensorSpec> tensors;
  std::vector<client::Bytes> data;  // views into the file
  client::PutOptions options;
};

// INVALID_ARGUMENT names what is missing or malformed.
absl::StatusOr<FileEntry> EntryFromFile(const SafetensorsFile& file, const KeyOptions& options);

// The __metadata__ of the file to be written for an entry.
client::Metadata FileMetadata(const client::Key& key,
                              const std::vector<client::TensorSpec>& tensors,
                              const client::Metadata& metadata, uint64_t encode_cost_us);
absl::Status WriteEntry(const std::string& path, const client::Lease& lease);
// The same key always gives the same name, different keys different ones.
std::string EntryFileName(const client::Key& key);

}  // namespace embcache::cli

#endif  // EMBCACHE_CLIENT_CLI_ENTRY_FILE_H_
