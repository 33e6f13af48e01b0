#include "storage/entry.h"

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace embcache {

absl::Status ValidateMetadata(const Metadata& metadata) {
  size_t total = 0;
  for (const auto& [name, value] : metadata) total += name.size() + value.size();
  if (total > kMaxMetadataBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: ", total, " bytes; must be at most ", kMaxMetadataBytes));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (size_t i = 0; i < metadata.size(); ++i) {
    const absl::string_view name = metadata[i].first;
    if (name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("metadata[", i, "]: the name is empty"));
    }
    if (!names.insert(name).second) {
      // Cut, since an error travels in a header of a few kilobytes.
      return absl::InvalidArgumentError(
          absl::StrCat("metadata[", i, "]: the name \"", name.substr(0, 64), "\" is used twice"));
    }
  }
  return absl::OkStatus();
}

uint64_t ChargedHeapBytes(const CacheKey& key, const TensorLayout& layout,
                          const Metadata& metadata) {
  constexpr uint64_t kFree = 1024;
  constexpr uint64_t kAllocation = 32;  // what malloc adds, about
  uint64_t bytes = key.encoded().size();
  for (const auto& [name, value] : metadata) {
    bytes += sizeof(Metadata::value_type) + name.size() + value.size() + 2 * kAllocation;
  }
  for (const TensorSpec& tensor : layout.tensors) {
    bytes += sizeof(TensorSpec) + tensor.name.size() + tensor.shape.size() * sizeof(int64_t) +
             2 * kAllocation;
  }
  return bytes > kFree ? bytes - kFree : 0;
}

uint64_t ChargedHeapBytes(const EntryInfo& info) {
  return ChargedHeapBytes(info.key, info.layout, info.metadata);
}

absl::string_view TierName(TierId tier) {
  switch (tier) {
    case TierId::kL1:
      return "l1";
    case TierId::kL2:
      return "l2";
    case TierId::kL3:
      return "l3";
  }
  return "?";
}

}  // namespace embcache
