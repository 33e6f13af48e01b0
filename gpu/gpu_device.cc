#include "gpu/gpu_device.h"

#include "absl/strings/match.h"

namespace embcache {
namespace {

absl::string_view WithoutPrefix(absl::string_view uuid) {
  for (const absl::string_view prefix : {"GPU-", "MIG-"}) {
    if (absl::StartsWithIgnoreCase(uuid, prefix)) return uuid.substr(prefix.size());
  }
  return uuid;
}

}  // namespace

bool SameDeviceUuid(absl::string_view a, absl::string_view b) {
  return !a.empty() && absl::EqualsIgnoreCase(WithoutPrefix(a), WithoutPrefix(b));
}

}  // namespace embcache
