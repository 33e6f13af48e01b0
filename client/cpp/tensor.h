// DType and TensorSpec: the vocabulary of tensors shared by the client's API and its tools.

#ifndef EMBCACHE_CLIENT_CPP_TENSOR_H_
#define EMBCACHE_CLIENT_CPP_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace embcache::client {

// The element types of safetensors, numbered as in the daemon's messages.
enum class DType : uint8_t {
  kInvalid = 0,
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kU32 = 6,
  kI32 = 7,
  kU64 = 8,
  kI64 = 9,
  kF16 = 10,
  kBF16 = 11,
  kF32 = 12,
  kF64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
  kF8E8M0 = 16,
  kF4 = 17,
  kF6E2M3 = 18,
  kF6E3M2 = 19,
  kC64 = 20,
  kF8E4M3FNUZ = 21,
  kF8E5M2FNUZ = 22,
};

// Every valid DType, in the order of their numbers.
absl::Span<const DType> AllDTypes();
// Bits of one element; 0 for kInvalid.
uint32_t DTypeBits(DType dtype);
// The safetensors name ("BF16"); "INVALID" for kInvalid.
absl::string_view DTypeName(DType dtype);
// kInvalid for an unknown name.
DType DTypeFromName(absl::string_view name);

// One tensor of an entry. In a put, `offset` is ignored and `bytes` may be 0; the daemon fills
// both.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;  // every dimension > 0; empty: one element
  bool absent = false;         // the half of a pair that there is not: a name without bytes
  uint64_t offset = 0;         // from the start of the entry
  uint64_t bytes = 0;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Size of a dense tensor. INVALID_ARGUMENT for an unknown dtype, a dimension <= 0, a size that
// overflows or is no whole number of bytes.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, absl::Span<const int64_t> shape);

}  // namespace embcache::client

#endif  // EMBCACHE_CLIENT_CPP_TENSOR_H_
