#include "server/user_names.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace embcache {
namespace {

constexpr size_t kRecordBytes = size_t{64} * 1024;

std::optional<uint32_t> Number(const std::string& text) {
  uint32_t number = 0;
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number) || number == UINT32_MAX) return std::nullopt;
  return number;
}

}  // namespace

std::optional<uid_t> FindUser(const std::string& name_or_number) {
  if (const auto number = Number(name_or_number)) return number;
  std::vector<char> buffer(kRecordBytes);
  passwd record;
  passwd* found = nullptr;
  if (getpwnam_r(name_or_number.c_str(), &record, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr) {
    return std::nullopt;
  }
  return found->pw_uid;
}

std::optional<gid_t> FindGroup(const std::string& name_or_number) {
  if (const auto number = Number(name_or_number)) return number;
  std::vector<char> buffer(kRecordBytes);
  group record;
  group* found = nullptr;
  if (getgrnam_r(name_or_number.c_str(), &record, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr) {
    return std::nullopt;
  }
  return found->gr_gid;
}

}  // namespace embcache
