#include "storage/record_format.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/byte_codec.h"
#include "storage/check.h"

namespace embcache {
namespace {

constexpr uint32_t kHeaderMagic = 0x31524d45;   // "EMR1"
constexpr uint32_t kFooterMagic1 = 0x31464d45;  // "EMF1", without positions and heap bytes
constexpr uint32_t kFooterMagic2 = 0x32464d45;  // "EMF2", without heap bytes
constexpr uint32_t kFooterMagic = 0x33464d45;   // "EMF3"
constexpr size_t kHashBytes = 8;
constexpr size_t kFooterFixedBytes =
    4 + 6 * 8 + 8 + 4 + 1 + 1 + 4 + 2;  // of one entry, beside its key

// `writer`'s bytes and their checksum.
std::string Seal(ByteWriter writer) {
  const uint64_t hash = XXH3_64bits(writer.bytes().data(), writer.bytes().size());
  writer.Number(hash);
  return std::move(writer).Take();
}

// The content of a sealed byte string, which begins with its magic; DATA_LOSS when the hash
// differs.
absl::StatusOr<absl::string_view> Unseal(absl::string_view bytes, absl::string_view what) {
  if (bytes.size() < sizeof(uint32_t) + kHashBytes) {
    return absl::DataLossError(absl::StrCat(what, ": only ", bytes.size(), " bytes"));
  }
  const absl::string_view content = bytes.substr(0, bytes.size() - kHashBytes);
  if (ByteReader(bytes.substr(content.size())).Number<uint64_t>() !=
      XXH3_64bits(content.data(), content.size())) {
    return absl::DataLossError(absl::StrCat(what, ": checksum differs"));
  }
  return content;
}

absl::Status WrongMagic(absl::string_view what) {
  return absl::DataLossError(absl::StrCat(what, ": not one, by its first bytes"));
}

void WriteTensor(const TensorSpec& tensor, ByteWriter& writer) {
  writer.Text<uint8_t>(tensor.name);
  writer.Number(static_cast<uint8_t>(tensor.dtype));
  writer.Number(static_cast<uint8_t>(tensor.absent));
  writer.Number(static_cast<uint8_t>(tensor.shape.size()));
  for (int64_t dimension : tensor.shape) writer.Number(dimension);
  writer.Number(tensor.offset);
  writer.Number(tensor.bytes);
}

TensorSpec ReadTensor(ByteReader& reader) {
  TensorSpec tensor;
  tensor.name = std::string(reader.Text<uint8_t>());
  tensor.dtype = static_cast<DType>(reader.Number<uint8_t>());
  tensor.absent = reader.Number<uint8_t>() != 0;
  const size_t rank = reader.Number<uint8_t>();
  for (size_t i = 0; i < rank && reader.ok(); ++i) tensor.shape.push_back(reader.Number<int64_t>());
  tensor.offset = reader.Number<uint64_t>();
  tensor.bytes = reader.Number<uint64_t>();
  return tensor;
}

}  // namespace

PayloadHash HashPayload(const char* data, uint64_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

PayloadHasher::PayloadHasher() : state_(XXH3_createState()) {
  EMB_CHECK(state_ != nullptr);
  XXH3_128bits_reset(state_);
}

PayloadHasher::~PayloadHasher() { XXH3_freeState(state_); }

void PayloadHasher::Add(const char* data, uint64_t bytes) {
  XXH3_128bits_update(state_, data, bytes);
}

PayloadHash PayloadHasher::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  return {hash.low64, hash.high64};
}

std::string EncodeHeader(const StoredRecord& record, const PayloadHash& hash) {
  const EntryInfo& info = *record.info;
  ByteWriter writer;
  writer.Number(kHeaderMagic);
  writer.Number(record.generation);
  writer.Number(record.model_epoch);
  writer.Number(hash.low);
  writer.Number(hash.high);
  writer.Number(info.payload_bytes());
  writer.Number(info.encode_cost_us);
  writer.Time(info.created);
  writer.Time(info.expires);
  writer.Text<uint16_t>(info.key.encoded());
  writer.Number(static_cast<uint16_t>(info.layout.tensors.size()));
  for (const TensorSpec& tensor : info.layout.tensors) WriteTensor(tensor, writer);
  writer.Number(static_cast<uint32_t>(info.metadata.size()));
  for (const auto& [name, value] : info.metadata) {
    writer.Text<uint32_t>(name);
    writer.Text<uint32_t>(value);
  }
  return Seal(std::move(writer));
}

absl::StatusOr<RecordHeader> DecodeHeader(absl::string_view bytes) {
  absl::StatusOr<absl::string_view> content = Unseal(bytes, "record header");
  if (!content.ok()) return content.status();
  ByteReader reader(*content);
  if (reader.Number<uint32_t>() != kHeaderMagic) return WrongMagic("record header");
  RecordHeader header;
  header.record.generation = reader.Number<uint64_t>();
  header.record.model_epoch = reader.Number<uint64_t>();
  header.hash.low = reader.Number<uint64_t>();
  header.hash.high = reader.Number<uint64_t>();
  TensorLayout layout;
  layout.payload_bytes = reader.Number<uint64_t>();
  const uint64_t cost = reader.Number<uint64_t>();
  const absl::Time created = reader.Time();
  const absl::Time expires = reader.Time();
  absl::StatusOr<CacheKey> key = CacheKey::Decode(reader.Text<uint16_t>());
  const size_t tensors = reader.Number<uint16_t>();
  for (size_t i = 0; i < tensors && reader.ok(); ++i) layout.tensors.push_back(ReadTensor(reader));
  Metadata metadata;
  const size_t pairs = reader.Number<uint32_t>();
  for (size_t i = 0; i < pairs && reader.ok(); ++i) {
    std::string name(reader.Text<uint32_t>());
    std::string value(reader.Text<uint32_t>());
    metadata.emplace_back(std::move(name), std::move(value));
  }
  if (!reader.ok() || !reader.rest().empty() || !key.ok() || !ValidateLayout(layout).ok() ||
      !ValidateMetadata(metadata).ok()) {
    return absl::DataLossError("record header: fields out of range");
  }
  header.record.info = std::make_shared<const EntryInfo>(
      EntryInfo{*std::move(key), std::move(layout), std::move(metadata), cost, created, expires});
  return header;
}

std::string EncodeFooter(uint64_t file, const std::vector<FooterEntry>& entries) {
  ByteWriter writer;
  writer.Number(kFooterMagic);
  writer.Number(file);
  writer.Number(static_cast<uint32_t>(entries.size()));
  for (const FooterEntry& entry : entries) {
    writer.Number(entry.entry);
    writer.Number(entry.payload_bytes);
    writer.Number(entry.generation);
    writer.Number(entry.model_epoch);
    writer.Time(entry.created);
    writer.Time(entry.expires);
    writer.Time(entry.last_access);
    writer.Number(entry.position.header);
    writer.Number(entry.position.header_bytes);
    writer.Number(entry.position.first_gap);
    writer.Number(entry.position.second_gap);
    writer.Number(entry.heap_bytes);
    writer.Text<uint16_t>(entry.key.encoded());
  }
  writer.PadTo(kFooterMinBytes);
  return Seal(std::move(writer));
}

absl::StatusOr<std::vector<FooterEntry>> DecodeFooter(uint64_t file, absl::string_view bytes) {
  absl::StatusOr<absl::string_view> content = Unseal(bytes, "file footer");
  if (!content.ok()) return content.status();
  ByteReader reader(*content);
  const uint32_t magic = reader.Number<uint32_t>();
  if (magic != kFooterMagic && magic != kFooterMagic2 && magic != kFooterMagic1) {
    return WrongMagic("file footer");
  }
  const uint64_t written_for = reader.Number<uint64_t>();
  const uint32_t count = reader.Number<uint32_t>();
  std::vector<FooterEntry> entries;
  entries.reserve(std::min<size_t>(count, content->size() / kFooterFixedBytes + 1));
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    const uint32_t number = reader.Number<uint32_t>();
    const uint64_t payload_bytes = reader.Number<uint64_t>();
    const uint64_t generation = reader.Number<uint64_t>();
    const uint64_t model_epoch = reader.Number<uint64_t>();
    const absl::Time created = reader.Time();
    const absl::Time expires = reader.Time();
    const absl::Time last_access = reader.Time();
    RecordPosition position;
    if (magic != kFooterMagic1) {
      position.header = reader.Number<uint64_t>();
      position.header_bytes = reader.Number<uint32_t>();
      position.first_gap = reader.Number<uint8_t>();
      position.second_gap = reader.Number<uint8_t>();
    }
    const uint32_t heap_bytes = magic == kFooterMagic ? reader.Number<uint32_t>() : 0;
    absl::StatusOr<CacheKey> key = CacheKey::Decode(reader.Text<uint16_t>());
    if (!key.ok()) return absl::DataLossError("file footer: fields out of range");
    entries.push_back({*std::move(key), number, payload_bytes, generation, model_epoch, created,
                       expires, last_access, position, heap_bytes});
  }
  if (!reader.ok() || written_for != file) {
    return absl::DataLossError(
        absl::StrCat("file footer: written for file ", written_for, ", found in file ", file));
  }
  return entries;
}

uint64_t FooterEntryBytes(const CacheKey& key) { return kFooterFixedBytes + key.encoded().size(); }

}  // namespace embcache
