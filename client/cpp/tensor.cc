#include "client/cpp/tensor.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace embcache::client {
namespace {

struct DTypeRow {
  uint32_t bits;
  absl::string_view name;
};

// Indexed by DType.
constexpr DTypeRow kDTypes[] = {
    {0, "INVALID"}, {8, "BOOL"},        {8, "U8"},          {8, "I8"},      {16, "U16"},
    {16, "I16"},    {32, "U32"},        {32, "I32"},        {64, "U64"},    {64, "I64"},
    {16, "F16"},    {16, "BF16"},       {32, "F32"},        {64, "F64"},    {8, "F8_E4M3"},
    {8, "F8_E5M2"}, {8, "F8_E8M0"},     {4, "F4"},          {6, "F6_E2M3"}, {6, "F6_E3M2"},
    {64, "C64"},    {8, "F8_E4M3FNUZ"}, {8, "F8_E5M2FNUZ"},
};
constexpr size_t kDTypeCount = sizeof(kDTypes) / sizeof(kDTypes[0]);
static_assert(kDTypeCount == static_cast<size_t>(DType::kF8E5M2FNUZ) + 1);

const DTypeRow& Row(DType dtype) {
  const size_t index = static_cast<size_t>(dtype);
  return kDTypes[index < kDTypeCount ? index : 0];
}

}  // namespace

absl::Span<const DType> AllDTypes() {
  static const std::array<DType, kDTypeCount - 1> all = [] {
    std::array<DType, kDTypeCount - 1> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<DType>(i + 1);
    return values;
  }();
  return all;
}

uint32_t DTypeBits(DType dtype) { return Row(dtype).bits; }

absl::string_view DTypeName(DType dtype) { return Row(dtype).name; }

DType DTypeFromName(absl::string_view name) {
  for (DType dtype : AllDTypes()) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return DType::kInvalid;
}

absl::StatusOr<uint64_t> TensorBytes(DType dtype, absl::Span<const int64_t> shape) {
  uint64_t bits = DTypeBits(dtype);
  if (bits == 0) return absl::InvalidArgumentError("dtype: unknown");
  for (int64_t dimension : shape) {
    if (dimension <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: dimension ", dimension, "; must be positive"));
    }
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(dimension), &bits)) {
      return absl::InvalidArgumentError("shape: the size of the tensor overflows 64 bits");
    }
  }
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", bits, " bits of ", DTypeName(dtype), " are no whole bytes"));
  }
  return bits / 8;
}

}  // namespace embcache::client
