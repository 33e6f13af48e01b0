#include "client/cli/safetensors.h"

#include <endian.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/unique_fd.h"

namespace embcache::cli {
namespace {

using client::TensorSpec;
using client::internal::UniqueFd;
using nlohmann::json;

constexpr char kMetadataName[] = "__metadata__";
constexpr int kMaxDepth = 3;  // header, tensor, list

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::Status FromErrno(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// Parses with what JSON libraries leave open settled: no repeated names, no deep nesting.
absl::StatusOr<json> ParseStrictly(absl::string_view text) {
  std::vector<std::set<std::string>> names;
  std::string repeated;
  bool deep = false;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) deep = true;
    if (event == json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.back().insert(name).second) repeated = name;
    }
    return true;
  };
  json header = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (header.is_discarded()) return Bad("header: not valid JSON");
  if (!header.is_object()) return Bad("header: not a JSON object");
  if (!repeated.empty()) return Bad(absl::StrCat("header: the name ", repeated, " is repeated"));
  if (deep) return Bad("header: nested too deeply");
  return header;
}

absl::Status ParseMetadata(const json& value, client::Metadata* metadata) {
  if (!value.is_object()) return Bad("__metadata__: not an object");
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) return Bad(absl::StrCat("__metadata__: ", name, " is not a string"));
    (*metadata)[name] = text.get<std::string>();
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorSpec> ParseTensor(const std::string& name, const json& value) {
  const auto bad = [&](absl::string_view what) {
    return Bad(absl::StrCat("tensor ", name, ": ", what));
  };
  if (!value.is_object()) return bad("not an object");
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) return bad("dtype: missing or not a string");
  if (shape == value.end() || !shape->is_array()) return bad("shape: missing or not a list");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return bad("data_offsets: missing or not two offsets");
  }
  TensorSpec tensor;
  tensor.name = name;
  tensor.dtype = client::DTypeFromName(dtype->get_ref<const std::string&>());
  if (tensor.dtype == client::DType::kInvalid) {
    return bad(absl::StrCat("dtype: ", dtype->get_ref<const std::string&>(), " is not known"));
  }
  for (const json& dimension : *shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > INT64_MAX) {
      return bad("shape: a dimension is not a non-negative integer");
    }
    tensor.shape.push_back(dimension.get<int64_t>());
  }
  absl::StatusOr<uint64_t> bytes = client::TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return bad(bytes.status().message());
  const uint64_t begin = (*offsets)[0].get<uint64_t>();
  const uint64_t end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end - begin != *bytes) {
    return bad(absl::StrCat("data_offsets: [", begin, ", ", end, "] do not hold the ", *bytes,
                            " bytes that dtype and shape take"));
  }
  tensor.offset = begin;
  tensor.bytes = *bytes;
  return tensor;
}

bool WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    size -= written;
  }
  return true;
}

// The header as text, padded so that the data starts at a multiple of 8.
absl::StatusOr<std::string> HeaderText(const std::vector<TensorSpec>& tensors,
                                       const client::Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.absent) continue;
    if (tensor.name == kMetadataName || header.contains(tensor.name)) {
      return Bad(absl::StrCat("tensor ", tensor.name, ": the name is taken"));
    }
    header[tensor.name] = {{"dtype", std::string(client::DTypeName(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  try {
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    return text;
  } catch (const json::exception& error) {
    return Bad("a tensor's name or a metadata value is not UTF-8; safetensors cannot hold it");
  }
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text,
                                                         uint64_t data_bytes) {
  if (text.empty() || text[0] != '{') return Bad("header: does not start with '{'");
  absl::StatusOr<json> parsed = ParseStrictly(text);
  if (!parsed.ok()) return parsed.status();
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed->items()) {
    if (name == kMetadataName) {
      absl::Status status = ParseMetadata(value, &header.metadata);
      if (!status.ok()) return status;
      continue;
    }
    absl::StatusOr<TensorSpec> tensor = ParseTensor(name, value);
    if (!tensor.ok()) return tensor.status();
    header.tensors.push_back(*std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (const TensorSpec& tensor : header.tensors) {
    if (tensor.offset != end) {
      return Bad(absl::StrCat(
          "tensor ", tensor.name, ": starts at ", tensor.offset,
          tensor.offset < end ? ", inside the one before, which ends at " : ", behind a gap after ",
          end));
    }
    end = tensor.offset + tensor.bytes;
    if (end > data_bytes) {
      return Bad(absl::StrCat("tensor ", tensor.name, ": ends at ", end, "; the file has ",
                              data_bytes, " bytes of data"));
    }
  }
  if (end != data_bytes) {
    return Bad(absl::StrCat("data: ", data_bytes, " bytes, of which tensors cover ", end));
  }
  return header;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return FromErrno("cannot open", path);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return FromErrno("cannot stat", path);
  if (!S_ISREG(info.st_mode)) return Bad(absl::StrCat(path, ": not a regular file"));
  SafetensorsFile file;
  file.size_ = static_cast<uint64_t>(info.st_size);
  if (file.size_ < 8) {
    return Bad(absl::StrCat(path, ": not a safetensors file: ", file.size_,
                            " bytes; too short for a header"));
  }
  void* base = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (base == MAP_FAILED) return FromErrno("cannot map", path);
  file.base_ = static_cast<uint8_t*>(base);
  uint64_t length = 0;
  std::memcpy(&length, file.base_, sizeof(length));
  length = le64toh(length);
  if (length > kMaxSafetensorsHeader || length > file.size_ - 8) {
    return Bad(absl::StrCat(path, ": not a safetensors file: header of ", length,
                            " bytes; the file has ", file.size_, ", and the limit is ",
                            kMaxSafetensorsHeader));
  }
  file.data_start_ = 8 + length;
  absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensorsHeader(absl::string_view(reinterpret_cast<char*>(file.base_) + 8, length),
                             file.size_ - file.data_start_);
  if (!header.ok()) {
    return Bad(absl::StrCat(path, ": not a safetensors file: ", header.status().message()));
  }
  file.header_ = *std::move(header);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept { *this = std::move(other); }

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(data_start_, other.data_start_);
  std::swap(header_, other.header_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (base_ != nullptr) munmap(base_, size_);
}

client::Bytes SafetensorsFile::data(size_t index) const {
  const TensorSpec& tensor = header_.tensors[index];
  return {base_ + data_start_ + tensor.offset, tensor.bytes};
}

client::Bytes SafetensorsFile::all_data() const {
  return {base_ + data_start_, size_ - data_start_};
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorSpec>& tensors,
                              const std::vector<client::Bytes>& data,
                              const client::Metadata& metadata) {
  if (data.size() != tensors.size()) {
    return Bad(absl::StrCat("data: ", data.size(), " views for ", tensors.size(), " tensors"));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (data[i].size() != tensors[i].bytes) {
      return Bad(absl::StrCat("tensor ", tensors[i].name, ": ", data[i].size(), " bytes given, ",
                              tensors[i].bytes, " declared"));
    }
  }
  absl::StatusOr<std::string> header = HeaderText(tensors, metadata);
  if (!header.ok()) return header.status();
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.ok()) return FromErrno("cannot create", temporary);
  const uint64_t length = htole64(header->size());
  bool written = WriteAll(fd.get(), &length, sizeof(length)) &&
                 WriteAll(fd.get(), header->data(), header->size());
  for (const client::Bytes& bytes : data) {
    written = written && WriteAll(fd.get(), bytes.data(), bytes.size());
  }
  if (!written || fchmod(fd.get(), 0644) != 0 || rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status = FromErrno("cannot write", path);
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace embcache::cli
