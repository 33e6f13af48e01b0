#include "storage/cache_key.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

absl::Status CheckFields(size_t model, size_t content_hash, size_t variant) {
  if (model == 0 || model > kMaxModelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key.model: ", model, " bytes; must be 1 to ", kMaxModelBytes));
  }
  if (content_hash < kMinContentHashBytes || content_hash > kMaxContentHashBytes) {
    return absl::InvalidArgumentError(absl::StrCat("key.content_hash: ", content_hash,
                                                   " bytes; must be ", kMinContentHashBytes, " to ",
                                                   kMaxContentHashBytes));
  }
  if (variant > kMaxVariantBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key.variant: ", variant, " bytes; must be at most ", kMaxVariantBytes));
  }
  return absl::OkStatus();
}

size_t Byte(absl::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

}  // namespace

absl::StatusOr<CacheKey> CacheKey::Create(absl::string_view model, absl::string_view content_hash,
                                          absl::string_view variant) {
  absl::Status fields = CheckFields(model.size(), content_hash.size(), variant.size());
  if (!fields.ok()) return fields;
  std::string encoded;
  encoded.reserve(model.size() + content_hash.size() + variant.size() + 4);
  encoded.push_back(static_cast<char>(model.size()));
  encoded.append(model.data(), model.size());
  encoded.push_back(static_cast<char>(content_hash.size()));
  encoded.append(content_hash.data(), content_hash.size());
  encoded.push_back(static_cast<char>(variant.size() & 0xff));
  encoded.push_back(static_cast<char>(variant.size() >> 8));
  encoded.append(variant.data(), variant.size());
  return CacheKey(std::move(encoded));
}

absl::StatusOr<CacheKey> CacheKey::Decode(absl::string_view encoded) {
  const absl::Status bad = absl::InvalidArgumentError("not an encoded key");
  if (encoded.empty()) return bad;
  const size_t model = Byte(encoded, 0);
  if (encoded.size() < model + 2) return bad;
  const size_t hash = Byte(encoded, 1 + model);
  const size_t variant_at = 2 + model + hash;
  if (encoded.size() < variant_at + 2) return bad;
  const size_t variant = Byte(encoded, variant_at) | Byte(encoded, variant_at + 1) << 8;
  if (encoded.size() != variant_at + 2 + variant) return bad;
  absl::Status fields = CheckFields(model, hash, variant);
  if (!fields.ok()) return fields;
  return CacheKey(std::string(encoded));
}

absl::string_view CacheKey::model() const {
  return absl::string_view(encoded_).substr(1, Byte(encoded_, 0));
}

absl::string_view CacheKey::content_hash() const {
  const size_t at = 1 + Byte(encoded_, 0);
  return absl::string_view(encoded_).substr(at + 1, Byte(encoded_, at));
}

absl::string_view CacheKey::variant() const {
  const size_t at = 1 + Byte(encoded_, 0);
  return absl::string_view(encoded_).substr(at + 1 + Byte(encoded_, at) + 2);
}

std::string CacheKey::DebugString() const {
  return absl::StrCat(model(), "/", absl::BytesToHexString(content_hash()), "/", variant());
}

}  // namespace embcache
