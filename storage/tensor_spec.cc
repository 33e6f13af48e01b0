#include "storage/tensor_spec.h"

#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace embcache {
namespace {

struct DTypeRow {
  DType dtype;
  uint32_t bits;
  absl::string_view name;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kBool, 8, "BOOL"},
    {DType::kU8, 8, "U8"},
    {DType::kI8, 8, "I8"},
    {DType::kU16, 16, "U16"},
    {DType::kI16, 16, "I16"},
    {DType::kU32, 32, "U32"},
    {DType::kI32, 32, "I32"},
    {DType::kU64, 64, "U64"},
    {DType::kI64, 64, "I64"},
    {DType::kF16, 16, "F16"},
    {DType::kBF16, 16, "BF16"},
    {DType::kF32, 32, "F32"},
    {DType::kF64, 64, "F64"},
    {DType::kF8E4M3, 8, "F8_E4M3"},
    {DType::kF8E5M2, 8, "F8_E5M2"},
    {DType::kF8E8M0, 8, "F8_E8M0"},
    {DType::kF4, 4, "F4"},
    {DType::kF6E2M3, 6, "F6_E2M3"},
    {DType::kF6E3M2, 6, "F6_E3M2"},
    {DType::kC64, 64, "C64"},
    {DType::kF8E4M3FNUZ, 8, "F8_E4M3FNUZ"},
    {DType::kF8E5M2FNUZ, 8, "F8_E5M2FNUZ"},
};

const DTypeRow* FindRow(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxTensorRank) return absl::StrCat("[rank ", shape.size(), "]");
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

uint64_t AlignUp(uint64_t value) {
  return (value + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

absl::Status CheckTensor(size_t index, TensorSpec& tensor) {
  const std::string field = absl::StrCat("tensors[", index, "]");
  if (tensor.name.size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ".name: ", tensor.name.size(), " bytes; must be at most ", kMaxTensorNameBytes));
  }
  if (tensor.absent) {
    if (!tensor.shape.empty() || tensor.bytes != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".absent: an absent tensor has no shape and no bytes"));
    }
    if (tensor.dtype != DType::kInvalid && DTypeBits(tensor.dtype) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".dtype: ", static_cast<int>(tensor.dtype), " is not a known dtype"));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".", bytes.status().message()));
  }
  if (tensor.bytes != 0 && tensor.bytes != *bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".bytes: ", tensor.bytes, " given, but ",
                                                   DTypeName(tensor.dtype), " ",
                                                   ShapeText(tensor.shape), " takes ", *bytes));
  }
  tensor.bytes = *bytes;
  return absl::OkStatus();
}

}  // namespace

uint32_t DTypeBits(DType dtype) {
  const DTypeRow* row = FindRow(dtype);
  return row == nullptr ? 0 : row->bits;
}

absl::string_view DTypeName(DType dtype) {
  const DTypeRow* row = FindRow(dtype);
  return row == nullptr ? "INVALID" : row->name;
}

DType DTypeFromName(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return DType::kInvalid;
}

absl::StatusOr<uint64_t> TensorBytes(DType dtype, const std::vector<int64_t>& shape) {
  const uint64_t bits = DTypeBits(dtype);
  if (bits == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", static_cast<int>(dtype), " is not a known dtype"));
  }
  if (shape.size() > kMaxTensorRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: rank ", shape.size(), "; must be at most ", kMaxTensorRank));
  }
  // Bits, not bytes: 4- and 6-bit elements. The limit leaves room for later sums.
  constexpr uint64_t kMaxBits = uint64_t{1} << 60;
  uint64_t total = bits;
  for (int64_t dimension : shape) {
    if (dimension <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: ", ShapeText(shape), " has a dimension that is not positive"));
    }
    if (static_cast<uint64_t>(dimension) > kMaxBits / total) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: ", ShapeText(shape), " overflows the size of a tensor"));
    }
    total *= static_cast<uint64_t>(dimension);
  }
  if (total % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape: ", DTypeName(dtype), " ", ShapeText(shape), " is not a whole number of bytes"));
  }
  return total / 8;
}

absl::StatusOr<TensorLayout> LayOutTensors(std::vector<TensorSpec> tensors) {
  if (tensors.empty() || tensors.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensors: ", tensors.size(), " given; must be 1 to ", kMaxTensors));
  }
  TensorLayout layout;
  absl::flat_hash_set<absl::string_view> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorSpec& tensor = tensors[i];
    absl::Status checked = CheckTensor(i, tensor);
    if (!checked.ok()) return checked;
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors[", i, "].name: \"", tensor.name, "\" is used twice"));
    }
    tensor.offset = 0;
    if (tensor.absent) continue;
    tensor.offset = AlignUp(layout.payload_bytes);
    layout.payload_bytes = tensor.offset + tensor.bytes;
    if (layout.payload_bytes > uint64_t{1} << 60) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensors: the sum of sizes overflows at tensors[", i, "], of ", tensor.bytes, " bytes"));
    }
  }
  if (layout.payload_bytes == 0) {
    return absl::InvalidArgumentError("tensors: at least one tensor must not be absent");
  }
  layout.tensors = std::move(tensors);
  return layout;
}

absl::Status ValidateLayout(const TensorLayout& layout) {
  absl::StatusOr<TensorLayout> fresh = LayOutTensors(layout.tensors);
  if (!fresh.ok()) return fresh.status();
  if (fresh->tensors != layout.tensors || fresh->payload_bytes != layout.payload_bytes) {
    return absl::InvalidArgumentError("tensors: offsets or sizes are not those of the layout");
  }
  return absl::OkStatus();
}

std::optional<std::string> FindMismatch(const std::vector<TensorSpec>& tensors,
                                        const std::vector<TensorExpectation>& expected) {
  for (const TensorExpectation& want : expected) {
    const TensorSpec* found = nullptr;
    for (const TensorSpec& tensor : tensors) {
      if (want.name.empty() || tensor.name == want.name) {
        found = &tensor;
        break;
      }
    }
    if (found == nullptr) {
      return absl::StrCat("no tensor \"", want.name.substr(0, kMaxTensorNameBytes), "\"");
    }
    const auto differs = [&](absl::string_view what, const auto& have, const auto& expects) {
      return absl::StrCat("tensor \"", found->name, "\": ", what, " ", have, ", expected ",
                          expects);
    };
    if (want.dtype != DType::kInvalid && want.dtype != found->dtype) {
      return differs("dtype", DTypeName(found->dtype), DTypeName(want.dtype));
    }
    if (!want.shape.empty() && want.shape != found->shape) {
      return differs("shape", ShapeText(found->shape), ShapeText(want.shape));
    }
    const int64_t rows = found->shape.empty() ? 1 : found->shape[0];
    if (want.rows != 0 && (found->absent || want.rows != rows)) {
      return differs("rows", found->absent ? 0 : rows, want.rows);
    }
    if (want.bytes != 0 && want.bytes != found->bytes) {
      return differs("bytes", found->bytes, want.bytes);
    }
  }
  return std::nullopt;
}

}  // namespace embcache
