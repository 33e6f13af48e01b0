#include "gpu/available_memory.h"

#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace embcache {
namespace {

// The number that follows `name` at the start of a line; the first word of the file when `name` is
// empty.
std::optional<uint64_t> ReadNumber(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (!name.empty()) {
      if (word != name) continue;
      words >> word;
    }
    uint64_t number = 0;
    if (absl::SimpleAtoi(word, &number)) return number;
    return std::nullopt;
  }
  return std::nullopt;
}

// "/a/b" of the line "0::/a/b", which names the cgroup v2 group.
std::optional<std::string> OwnCgroup(absl::string_view root) {
  std::ifstream file(absl::StrCat(root, "/proc/self/cgroup"));
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view path = line;
    if (absl::ConsumePrefix(&path, "0::")) return std::string(path == "/" ? "" : path);
  }
  return std::nullopt;
}

void Lower(uint64_t bytes, absl::string_view source, AvailableMemory& available) {
  if (bytes >= available.bytes) return;
  available.bytes = bytes;
  available.source = std::string(source);
}

void LowerByCgroup(const std::string& folder, AvailableMemory& available) {
  const std::optional<uint64_t> limit = ReadNumber(absl::StrCat(folder, "/memory.max"), "");
  const std::optional<uint64_t> used = ReadNumber(absl::StrCat(folder, "/memory.current"), "");
  if (!limit.has_value() || !used.has_value()) return;  // "max" is no number
  // Pages of files not used lately are given back before anything is killed.
  const uint64_t cache =
      ReadNumber(absl::StrCat(folder, "/memory.stat"), "inactive_file").value_or(0);
  const uint64_t kept = *used > cache ? *used - cache : 0;
  Lower(*limit > kept ? *limit - kept : 0,
        absl::StrCat(folder, "/memory.max of ", *limit, " bytes less what is in use"), available);
}

}  // namespace

AvailableMemory ReadAvailableMemory(absl::string_view root) {
  AvailableMemory available;
  const std::string meminfo = absl::StrCat(root, "/proc/meminfo");
  const std::optional<uint64_t> kibibytes = ReadNumber(meminfo, "MemAvailable:");
  if (kibibytes.has_value()) {
    Lower(*kibibytes * 1024, absl::StrCat("MemAvailable in ", meminfo), available);
  }
  std::optional<std::string> group = OwnCgroup(root);
  if (!group.has_value()) return available;
  const std::string top = absl::StrCat(root, "/sys/fs/cgroup");
  while (true) {
    LowerByCgroup(absl::StrCat(top, *group), available);
    if (group->empty()) return available;
    const size_t slash = group->rfind('/');
    group->resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace embcache
