// Reading and writing safetensors files: 8 bytes of header length (little endian), a JSON header of
// that length, then the tensors' bytes.
//
// Files come from anywhere, so reading is strict: every size and offset is checked before use,
// tensors must cover the data exactly, in some order and without overlap, and names may not repeat.
// Empty tensors (a dimension of 0) are refused, because an entry of the cache cannot hold them.

#ifndef EMBCACHE_CLIENT_CLI_SAFETENSORS_H_
#define EMBCACHE_CLIENT_CLI_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/client.h"

namespace embcache::cli {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // as in the reference library

struct SafetensorsHeader {
  std::vector<client::TensorSpec>
      tensors;  // in the order of their bytes; offsets count from the data
  client::Metadata metadata;
};

// `json` is the header, `data_bytes` what follows it in the file. INVALID_ARGUMENT names the
// tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes);

// A file mapped for reading. Movable; views end with it. Whoever shortens the file meanwhile kills
// the reader, as with any mapped file.
class SafetensorsFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT, each with the path.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const std::vector<client::TensorSpec>& tensors() const { return header_.tensors; }
  const client::Metadata& metadata() const { return header_.metadata; }
  client::Bytes data(size_t index) const;
  client::Bytes all_data() const;

 private:
  SafetensorsFile() = default;

  uint8_t* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t data_start_ = 0;
  SafetensorsHeader header_;
};

// Writes `path` as a whole or not at all (a temporary file beside it, then a rename). One view per
// tensor; absent tensors are left out. INVALID_ARGUMENT when a name or metadata is not UTF-8.
absl::Status WriteSafetensors(const std::string& path,
                              const std::vector<client::TensorSpec>& tensors,
                              const std::vector<client::Bytes>& data,
                              const client::Metadata& metadata);

}  // namespace embcache::cli

#endif  // EMBCACHE_CLIENT_CLI_SAFETENSORS_H_
