#include "proto/size_text.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

constexpr absl::string_view kPrefixes = "kmgtpe";
constexpr size_t kLargestFormatted = 4;  // TiB

// How often 1024; -1: no unit.
int Exponent(absl::string_view unit) {
  const std::string small = absl::AsciiStrToLower(unit);
  if (small.empty() || small == "b") return 0;
  const size_t prefix = kPrefixes.find(small[0]);
  const absl::string_view rest = absl::string_view(small).substr(1);
  if (prefix == absl::string_view::npos ||
      !(rest.empty() || rest == "b" || rest == "i" || rest == "ib")) {
    return -1;
  }
  return static_cast<int>(prefix) + 1;
}

absl::Status Bad(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", why));
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const auto digits_end = std::find_if_not(trimmed.begin(), trimmed.end(), absl::ascii_isdigit);
  const auto digits = static_cast<size_t>(digits_end - trimmed.begin());
  const int exponent = Exponent(absl::StripLeadingAsciiWhitespace(trimmed.substr(digits)));
  if (digits == 0 || exponent < 0) {
    return Bad(text, "not a size; write 8GiB, 512MiB, 64KiB or plain bytes");
  }
  uint64_t number = 0;
  const int shift = 10 * exponent;
  if (!absl::SimpleAtoi(trimmed.substr(0, digits), &number) ||
      number > std::numeric_limits<uint64_t>::max() >> shift) {
    return Bad(text, "too large");
  }
  return number << shift;
}

std::string FormatSize(uint64_t bytes) {
  for (size_t exponent = kLargestFormatted; exponent > 0; --exponent) {
    const uint64_t unit = uint64_t{1} << (10 * exponent);
    if (bytes < unit || bytes % unit != 0) continue;
    const std::string prefix(1, absl::ascii_toupper(kPrefixes[exponent - 1]));
    return absl::StrCat(bytes / unit, prefix, "iB");
  }
  return absl::StrCat(bytes);
}

}  // namespace embcache
