#include "server/shared_value.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/byte_codec.h"
#include "storage/check.h"
#include "storage/record_format.h"

namespace embcache {
namespace {

constexpr absl::string_view kMagic = "EMS1";
constexpr uint64_t kPrefixBytes = 8;

std::string HeaderOf(const EntryInfo& info, const PayloadHash& hash) {
  // The caller's, which outlives the record.
  const std::shared_ptr<const EntryInfo> borrowed(std::shared_ptr<void>(), &info);
  return EncodeHeader({.info = borrowed, .generation = 0, .model_epoch = 0}, hash);
}

}  // namespace

uint64_t SharedValueBytes(const EntryInfo& info) {
  return kPrefixBytes + HeaderOf(info, {}).size() + info.payload_bytes();
}

SharedValue MakeSharedValue(const EntryInfo& info) {
  SharedValue value;
  value.size = SharedValueBytes(info);
  value.payload_at = value.size - info.payload_bytes();
  value.bytes = std::make_unique_for_overwrite<char[]>(value.size);
  return value;
}

void SealSharedValue(const EntryInfo& info, SharedValue* value) {
  uint64_t end = 0;
  for (const TensorSpec& tensor : info.layout.tensors) {
    if (tensor.absent) continue;
    std::memset(value->payload() + end, 0, tensor.offset - end);
    end = tensor.offset + tensor.bytes;
  }
  const std::string header = HeaderOf(info, HashPayload(value->payload(), info.payload_bytes()));
  EMB_CHECK(kPrefixBytes + header.size() == value->payload_at);
  ByteWriter size;
  size.Number(static_cast<uint32_t>(header.size()));
  std::memcpy(value->bytes.get(), kMagic.data(), kMagic.size());
  std::memcpy(value->bytes.get() + kMagic.size(), size.bytes().data(), size.bytes().size());
  std::memcpy(value->bytes.get() + kPrefixBytes, header.data(), header.size());
}

absl::StatusOr<CheckedSharedValue> CheckSharedValue(const CacheKey& key, absl::string_view bytes) {
  ByteReader reader(bytes);
  const bool magic = reader.Take(kMagic.size()) == kMagic;
  const absl::string_view header_bytes = reader.Text<uint32_t>();
  if (!magic || !reader.ok()) return absl::DataLossError("shared value: not one");
  absl::StatusOr<RecordHeader> header = DecodeHeader(header_bytes);
  if (!header.ok()) return header.status();
  CheckedSharedValue value;
  value.info = std::move(header->record.info);
  value.payload = reader.rest();
  if (value.info->key != key) {
    return absl::DataLossError(
        absl::StrCat("shared value: it is that of ", value.info->key.DebugString()));
  }
  if (value.payload.size() < value.info->payload_bytes()) {
    return absl::OutOfRangeError(absl::StrCat("shared value: ", value.payload.size(), " bytes of ",
                                              value.info->payload_bytes()));
  }
  if (value.payload.size() > value.info->payload_bytes() ||
      !(HashPayload(value.payload.data(), value.payload.size()) == header->hash)) {
    return absl::DataLossError("shared value: the payload is damaged");
  }
  return value;
}

}  // namespace embcache
