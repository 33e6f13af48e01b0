#include "server/proto_convert.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace embcache {
namespace {

using google::protobuf::RepeatedPtrField;

static_assert(static_cast<int>(DType::kBool) == v1::BOOL);
static_assert(static_cast<int>(DType::kBF16) == v1::BF16);
static_assert(static_cast<int>(DType::kC64) == v1::C64);
static_assert(static_cast<int>(DType::kF8E5M2FNUZ) == v1::F8_E5M2FNUZ);

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Proto enums are open: any int32 may arrive. kInvalid for what is no dtype of ours.
DType DTypeFromProto(v1::DType dtype) {
  return v1::DType_IsValid(dtype) ? static_cast<DType>(dtype) : DType::kInvalid;
}

absl::Status CheckTensorLimits(const v1::Tensor& tensor) {
  if (tensor.name().size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name: ", tensor.name().size(), " bytes; must be at most ", kMaxTensorNameBytes));
  }
  if (static_cast<size_t>(tensor.shape_size()) > kMaxTensorRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: rank ", tensor.shape_size(), "; must be at most ", kMaxTensorRank));
  }
  if (!tensor.absent() && DTypeFromProto(tensor.dtype()) == DType::kInvalid) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", static_cast<int>(tensor.dtype()), " is not a known dtype"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorLayout> LayoutFromProto(const RepeatedPtrField<v1::Tensor>& tensors) {
  if (static_cast<size_t>(tensors.size()) > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensors: ", tensors.size(), " given; must be 1 to ", kMaxTensors));
  }
  std::vector<TensorSpec> specs;
  specs.reserve(static_cast<size_t>(tensors.size()));
  for (const v1::Tensor& tensor : tensors) {
    absl::Status limits = CheckTensorLimits(tensor);
    if (!limits.ok()) return InField("tensors", static_cast<int>(specs.size()), "", limits);
    specs.push_back({.name = tensor.name(),
                     .dtype = DTypeFromProto(tensor.dtype()),
                     .shape = {tensor.shape().begin(), tensor.shape().end()},
                     .absent = tensor.absent(),
                     .bytes = tensor.bytes()});
  }
  return LayOutTensors(std::move(specs));
}

absl::StatusOr<Metadata> MetadataFromProto(
    const google::protobuf::Map<std::string, std::string>& from) {
  size_t bytes = 0;
  for (const auto& [name, value] : from) bytes += name.size() + value.size();
  if (bytes > kMaxMetadataBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: ", bytes, " bytes; must be at most ", kMaxMetadataBytes));
  }
  Metadata metadata(from.begin(), from.end());
  // The map's order differs from run to run; equal puts should be stored equally.
  std::sort(metadata.begin(), metadata.end());
  absl::Status valid = ValidateMetadata(metadata);
  if (!valid.ok()) return valid;
  return metadata;
}

absl::Duration TtlFromMs(uint64_t ttl_ms) {
  if (ttl_ms == 0 || ttl_ms > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InfiniteDuration();
  }
  return absl::Milliseconds(static_cast<int64_t>(ttl_ms));
}

absl::StatusOr<TensorExpectation> ExpectationFromProto(const v1::Expectation& expect) {
  if (expect.tensor().size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor: ", expect.tensor().size(), " bytes; must be at most ", kMaxTensorNameBytes));
  }
  if (!v1::DType_IsValid(expect.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", static_cast<int>(expect.dtype()), " is not a known dtype"));
  }
  if (static_cast<size_t>(expect.shape_size()) > kMaxTensorRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: rank ", expect.shape_size(), "; must be at most ", kMaxTensorRank));
  }
  for (int64_t dimension : expect.shape()) {
    if (dimension <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: has the dimension ", dimension, "; must be positive"));
    }
  }
  if (expect.rows() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows: ", expect.rows(), "; must not be negative"));
  }
  return TensorExpectation{.name = expect.tensor(),
                           .dtype = DTypeFromProto(expect.dtype()),
                           .shape = {expect.shape().begin(), expect.shape().end()},
                           .rows = expect.rows(),
                           .bytes = expect.bytes()};
}

}  // namespace

absl::Status InField(absl::string_view field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ".", status.message()));
}

absl::Status InField(absl::string_view list, int index, absl::string_view field,
                     const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(list, "[", index, "].", field,
                                                  field.empty() ? "" : ".", status.message()));
}

absl::StatusOr<std::string> BytesFromHex(absl::string_view hex) {
  if (hex.size() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("odd number of digits, ", hex.size()));
  }
  std::string bytes(hex.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) return absl::InvalidArgumentError("not hexadecimal");
    bytes[i] = static_cast<char>(high * 16 + low);
  }
  return bytes;
}

absl::StatusOr<CacheKey> KeyFromProto(const v1::Key& key) {
  std::string from_hex;
  const std::string* content_hash = &key.content_hash();
  if (!key.content_hash_hex().empty()) {
    if (key.content_hash_hex().size() > 2 * kMaxContentHashBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("content_hash_hex: ", key.content_hash_hex().size(),
                       " digits; must be at most ", 2 * kMaxContentHashBytes));
    }
    absl::StatusOr<std::string> bytes = BytesFromHex(key.content_hash_hex());
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("content_hash_hex: ", bytes.status().message()));
    }
    // Both are welcome when they agree, so that a key from an answer can be sent back as it is.
    if (!key.content_hash().empty() && key.content_hash() != *bytes) {
      return absl::InvalidArgumentError("content_hash_hex: differs from content_hash; give one");
    }
    from_hex = *std::move(bytes);
    content_hash = &from_hex;
  }
  absl::StatusOr<CacheKey> made = CacheKey::Create(key.model(), *content_hash, key.variant());
  if (!made.ok()) {
    return absl::Status(made.status().code(), absl::StripPrefix(made.status().message(), "key."));
  }
  return made;
}

absl::StatusOr<std::vector<TensorExpectation>> ExpectationsFromProto(
    const RepeatedPtrField<v1::Expectation>& expect) {
  std::vector<TensorExpectation> expectations;
  if (static_cast<size_t>(expect.size()) > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("expect: ", expect.size(), " given; must be at most ", kMaxTensors));
  }
  expectations.reserve(static_cast<size_t>(expect.size()));
  for (int i = 0; i < expect.size(); ++i) {
    absl::StatusOr<TensorExpectation> made = ExpectationFromProto(expect[i]);
    if (!made.ok()) return InField("expect", i, "", made.status());
    expectations.push_back(*std::move(made));
  }
  return expectations;
}

absl::StatusOr<ReserveRequest> ReserveRequestFromProto(const v1::PutItem& item) {
  absl::StatusOr<CacheKey> key = KeyFromProto(item.key());
  if (!key.ok()) return InField("key", key.status());
  absl::StatusOr<TensorLayout> layout = LayoutFromProto(item.tensors());
  if (!layout.ok()) return layout.status();
  absl::StatusOr<Metadata> metadata = MetadataFromProto(item.metadata());
  if (!metadata.ok()) return metadata.status();
  return ReserveRequest{.key = *std::move(key),
                        .layout = *std::move(layout),
                        .metadata = *std::move(metadata),
                        .encode_cost_us = item.encode_cost_us(),
                        .ttl = TtlFromMs(item.ttl_ms())};
}

void KeyToProto(const CacheKey& key, v1::Key* to) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const absl::string_view hash = key.content_hash();
  to->set_model(key.model().data(), key.model().size());
  to->set_content_hash(hash.data(), hash.size());
  std::string* hex = to->mutable_content_hash_hex();
  hex->resize(2 * hash.size());
  for (size_t i = 0; i < hash.size(); ++i) {
    const auto byte = static_cast<unsigned char>(hash[i]);
    (*hex)[2 * i] = kDigits[byte >> 4];
    (*hex)[2 * i + 1] = kDigits[byte & 15];
  }
  to->set_variant(key.variant().data(), key.variant().size());
}

void TensorsToProto(const TensorLayout& layout, RepeatedPtrField<v1::Tensor>* to) {
  to->Reserve(static_cast<int>(layout.tensors.size()));
  for (const TensorSpec& tensor : layout.tensors) {
    v1::Tensor* added = to->Add();
    added->set_name(tensor.name);
    added->set_dtype(static_cast<v1::DType>(tensor.dtype));
    added->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    added->set_absent(tensor.absent);
    added->set_offset(tensor.offset);
    added->set_bytes(tensor.bytes);
  }
}

void EntryToProto(const EntryInfo& info, v1::Entry* to) {
  TensorsToProto(info.layout, to->mutable_tensors());
  for (const auto& [name, value] : info.metadata) (*to->mutable_metadata())[name] = value;
  to->set_encode_cost_us(info.encode_cost_us);
  to->set_created_unix_ms(absl::ToUnixMillis(info.created));
  if (info.expires != absl::InfiniteFuture()) {
    to->set_expires_unix_ms(absl::ToUnixMillis(info.expires));
  }
  to->set_bytes(info.payload_bytes());
}

void LocationToProto(const Location& location, v1::Location* to) {
  to->set_tier(TierToProto(location.tier));
  to->set_segment(location.segment);
  to->set_segment_generation(location.segment_generation);
  to->set_offset(location.offset);
  to->set_bytes(location.bytes);
}

v1::Tier TierToProto(TierId tier) {
  switch (tier) {
    case TierId::kL1:
      return v1::L1;
    case TierId::kL2:
      return v1::L2;
    case TierId::kL3:
      return v1::L3;
  }
  return v1::TIER_UNSPECIFIED;
}

v1::GetResult::MissReason MissReasonToProto(MissReason reason) {
  switch (reason) {
    case MissReason::kAbsent:
      return v1::GetResult::ABSENT;
    case MissReason::kMismatch:
      return v1::GetResult::MISMATCH;
    case MissReason::kExpired:
      return v1::GetResult::EXPIRED;
    case MissReason::kDamaged:
      return v1::GetResult::DAMAGED;
  }
  return v1::GetResult::MISS_REASON_UNSPECIFIED;
}

void StatusToProto(const absl::Status& status, v1::ItemStatus* to) {
  to->set_code(status.raw_code());
  to->set_message(status.message().data(), status.message().size());
}

}  // namespace embcache
