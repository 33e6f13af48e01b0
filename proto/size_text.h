// Sizes as people write them, for the daemon's settings and embcachectl alike.

#ifndef EMBCACHE_PROTO_SIZE_TEXT_H_
#define EMBCACHE_PROTO_SIZE_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

// "8GiB", "512MiB", "64KiB" or plain bytes; units up to EiB. Units are always powers of 1024, and
// may be in small letters, after a space, and shorter: "8GB", "8g".
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);
// The largest unit up to TiB that divides it.
std::string FormatSize(uint64_t bytes);

}  // namespace embcache

#endif  // EMBCACHE_PROTO_SIZE_TEXT_H_
