// ByteWriter and ByteReader: little-endian numbers and counted strings, as the L3 store's files
// hold them (docs/l3_format.md). A reader never leaves its bytes: what is not there reads as zeros
// and makes ok() false for good.

#ifndef EMBCACHE_STORAGE_BYTE_CODEC_H_
#define EMBCACHE_STORAGE_BYTE_CODEC_H_

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/check.h"

namespace embcache {

class ByteWriter {
 public:
  template <typename T>
  void Number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    }
  }
  // REQUIRES: the length of `text` fits its type.
  template <typename Length>
  void Text(absl::string_view text) {
    EMB_CHECK(text.size() <= std::numeric_limits<Length>::max());
    Number(static_cast<Length>(text.size()));
    bytes_.append(text.data(), text.size());
  }
  // Nanoseconds since 1970; infinite times, and those out of range, become the ends of 64 bits.
  void Time(absl::Time time) { Number(absl::ToUnixNanos(time)); }
  void PadTo(size_t bytes) {
    if (bytes_.size() < bytes) bytes_.resize(bytes, '\0');
  }
  const std::string& bytes() const { return bytes_; }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Number() {
    uint64_t value = 0;
    const absl::string_view from = Take(sizeof(T));
    for (size_t i = 0; i < from.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(from[i])} << (8 * i);
    }
    return static_cast<T>(value);
  }
  template <typename Length>
  absl::string_view Text() {
    return Take(Number<Length>());
  }
  absl::Time Time() {
    const int64_t nanos = Number<int64_t>();
    if (nanos == std::numeric_limits<int64_t>::max()) return absl::InfiniteFuture();
    if (nanos == std::numeric_limits<int64_t>::min()) return absl::InfinitePast();
    return absl::FromUnixNanos(nanos);
  }
  absl::string_view Take(uint64_t bytes) {
    if (!ok_ || bytes > rest_.size()) {
      ok_ = false;
      return absl::string_view();
    }
    const absl::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  bool ok() const { return ok_; }
  absl::string_view rest() const { return rest_; }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_BYTE_CODEC_H_
