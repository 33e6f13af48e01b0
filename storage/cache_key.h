// CacheKey: the identity of an entry, (model, content hash, variant).
//
// A key is an immutable value. It keeps one string, the length-prefixed encoding of its three
// fields, so that ("a:b", "c") and ("a", "b:c") are different keys, comparing is one memcmp, and no
// hash is ever shortened. Encoding:
//
//   u8 model length | model | u8 hash length | content hash | u16 (little endian) variant length |
//   variant
//
// Thread-safe as any const value.

#ifndef EMBCACHE_STORAGE_CACHE_KEY_H_
#define EMBCACHE_STORAGE_CACHE_KEY_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

inline constexpr size_t kMaxModelBytes = 255;
inline constexpr size_t kMinContentHashBytes = 8;
inline constexpr size_t kMaxContentHashBytes = 64;
inline constexpr size_t kMaxVariantBytes = 1024;

class CacheKey {
 public:
  // INVALID_ARGUMENT names the field and its limit.
  static absl::StatusOr<CacheKey> Create(absl::string_view model, absl::string_view content_hash,
                                         absl::string_view variant);
  // The inverse of encoded(). INVALID_ARGUMENT when `encoded` is not exactly one key.
  static absl::StatusOr<CacheKey> Decode(absl::string_view encoded);

  absl::string_view model() const;
  absl::string_view content_hash() const;  // raw bytes
  absl::string_view variant() const;
  absl::string_view encoded() const { return encoded_; }

  // "model/hex of hash/variant", for people; not an identity.
  std::string DebugString() const;

  friend bool operator==(const CacheKey& a, const CacheKey& b) { return a.encoded_ == b.encoded_; }
  friend bool operator!=(const CacheKey& a, const CacheKey& b) { return !(a == b); }
  friend bool operator<(const CacheKey& a, const CacheKey& b) { return a.encoded_ < b.encoded_; }
  template <typename H>
  friend H AbslHashValue(H h, const CacheKey& key) {
    return H::combine(std::move(h), key.encoded_);
  }

 private:
  explicit CacheKey(std::string encoded) : encoded_(std::move(encoded)) {}

  std::string encoded_;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_CACHE_KEY_H_
