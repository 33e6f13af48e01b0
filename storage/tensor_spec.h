// TensorSpec: one named tensor of an entry, and where its bytes lie inside the entry.
//
// An entry's payload is one contiguous range. Tensors follow each other in the order given, each
// starting at a multiple of kTensorAlignment bytes from the start of the payload. A tensor may be
// absent (half of a pair that an encoder did not produce): it has a name, no shape and no bytes,
// and comes back absent.

#ifndef EMBCACHE_STORAGE_TENSOR_SPEC_H_
#define EMBCACHE_STORAGE_TENSOR_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace embcache {

inline constexpr uint64_t kTensorAlignment = 256;  // bytes
inline constexpr size_t kMaxTensors = 1024;
inline constexpr size_t kMaxTensorNameBytes = 128;
inline constexpr size_t kMaxTensorRank = 8;

// The element types of safetensors. The numbers are stored on disk and sent in messages: never
// renumber.
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

// Bits of one element; 0 for kInvalid and numbers that are no DType.
uint32_t DTypeBits(DType dtype);
// The safetensors name ("BF16"); "INVALID" for others.
absl::string_view DTypeName(DType dtype);
// kInvalid for an unknown name.
DType DTypeFromName(absl::string_view name);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;  // every dimension > 0; empty means one element
  bool absent = false;
  uint64_t offset = 0;  // bytes from the start of the payload
  uint64_t bytes = 0;   // exact size; 0 only when absent

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

struct TensorLayout {
  std::vector<TensorSpec> tensors;
  uint64_t payload_bytes = 0;  // end of the last tensor, not rounded up
};

// Bytes of a dense tensor. INVALID_ARGUMENT for a dimension <= 0, an unknown dtype, a rank over the
// limit, a size that overflows, or (4- and 6-bit types) a size that is no whole number of bytes.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, const std::vector<int64_t>& shape);

// Checks the tensors of a put and gives each its offset. `bytes` of each may be 0 (computed) or the
// caller's own idea of the size, which must then agree with dtype and shape. INVALID_ARGUMENT names
// the tensor and the field: no tensors at all, only absent ones, duplicate or over-long names, an
// absent tensor with a shape.
absl::StatusOr<TensorLayout> LayOutTensors(std::vector<TensorSpec> tensors);

// Checks a layout that came from outside (a disk record): the same rules, and the offsets must be
// the ones LayOutTensors gives.
absl::Status ValidateLayout(const TensorLayout& layout);

// What a get expects of an entry; every part is optional.
struct TensorExpectation {
  std::string name;  // which tensor; empty means the first one
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;  // empty: any
  int64_t rows = 0;            // first dimension; 0: any
  uint64_t bytes = 0;          // 0: any
};

// nullopt when `tensors` meet every expectation, else a sentence that says what differs.
std::optional<std::string> FindMismatch(const std::vector<TensorSpec>& tensors,
                                        const std::vector<TensorExpectation>& expected);

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_TENSOR_SPEC_H_
