#include "storage/meta_log.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/byte_codec.h"
#include "storage/check.h"
#include "storage/small_files.h"

namespace embcache {
namespace {

constexpr absl::string_view kMagic = "embmeta1";
constexpr uint64_t kMinRewriteBytes = 256 * 1024;
constexpr size_t kRecordHeadBytes = 4 + 8;

std::string EncodeBody(const MetaState& state) {
  ByteWriter writer;
  writer.Number(state.max_generation);
  writer.Number(static_cast<uint32_t>(state.tombstones.size()));
  for (const MetaState::Tombstone& tombstone : state.tombstones) {
    writer.Number(tombstone.generation);
    writer.Number(tombstone.last_file);
    writer.Text<uint16_t>(tombstone.key.encoded());
  }
  writer.Number(static_cast<uint32_t>(state.epochs.size()));
  for (const auto& [model, epoch] : state.epochs) {
    writer.Number(epoch);
    writer.Text<uint16_t>(model);
  }
  return std::move(writer).Take();
}

// Adds a body to what earlier ones said. False when it is not a body.
bool DecodeBody(absl::string_view body, MetaState* state) {
  ByteReader reader(body);
  state->max_generation = std::max(state->max_generation, reader.Number<uint64_t>());
  const uint32_t tombstones = reader.Number<uint32_t>();
  for (uint32_t i = 0; i < tombstones && reader.ok(); ++i) {
    const uint64_t generation = reader.Number<uint64_t>();
    const uint64_t last_file = reader.Number<uint64_t>();
    absl::StatusOr<CacheKey> key = CacheKey::Decode(reader.Text<uint16_t>());
    if (!key.ok()) return false;
    state->tombstones.push_back({*std::move(key), generation, last_file});
  }
  const uint32_t epochs = reader.Number<uint32_t>();
  for (uint32_t i = 0; i < epochs && reader.ok(); ++i) {
    const uint64_t epoch = reader.Number<uint64_t>();
    state->epochs.emplace_back(std::string(reader.Text<uint16_t>()), epoch);
  }
  return reader.ok() && reader.rest().empty();
}

// The place of a record is part of its checksums: one that strayed does not pass.
uint64_t HeadHash(uint32_t length, uint64_t sequence) {
  ByteWriter writer;
  writer.Number(length);
  writer.Number(sequence);
  return XXH3_64bits(writer.bytes().data(), writer.bytes().size());
}

uint64_t BodyHash(absl::string_view body, uint64_t sequence) {
  return XXH3_64bits_withSeed(body.data(), body.size(), sequence);
}

std::string EncodeRecord(const MetaState& state, uint64_t sequence) {
  const std::string body = EncodeBody(state);
  ByteWriter head;
  head.Number(static_cast<uint32_t>(body.size()));
  head.Number(HeadHash(static_cast<uint32_t>(body.size()), sequence));
  ByteWriter tail;
  tail.Number(BodyHash(body, sequence));
  return absl::StrCat(head.bytes(), body, tail.bytes());
}

enum class RecordEnd { kWhole, kTorn, kDamaged };

RecordEnd ReadRecord(ByteReader& reader, uint64_t sequence, MetaState* state) {
  if (reader.rest().size() < kRecordHeadBytes) return RecordEnd::kTorn;
  const uint32_t length = reader.Number<uint32_t>();
  if (reader.Number<uint64_t>() != HeadHash(length, sequence)) return RecordEnd::kDamaged;
  if (reader.rest().size() < uint64_t{length} + 8) return RecordEnd::kTorn;
  const absl::string_view body = reader.Take(length);
  if (reader.Number<uint64_t>() != BodyHash(body, sequence)) return RecordEnd::kDamaged;
  return DecodeBody(body, state) ? RecordEnd::kWhole : RecordEnd::kDamaged;
}

}  // namespace

MetaLog::~MetaLog() { Close(); }

void MetaLog::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<MetaState> MetaLog::Load() {
  Close();
  if (access(path_.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(path_, ": not there"));
  }
  absl::StatusOr<std::string> text = ReadWholeFile(path_);
  // An input/output error is damage too; what is wrong with this process is not.
  if (text.status().code() == absl::StatusCode::kUnknown) {
    return absl::DataLossError(text.status().message());
  }
  if (!text.ok()) return text.status();
  ByteReader reader(*text);
  if (reader.Take(kMagic.size()) != kMagic) {
    return absl::DataLossError(absl::StrCat(path_, ": does not begin as it should"));
  }
  MetaState state;
  sequence_ = 0;
  RecordEnd end = RecordEnd::kWhole;
  while (end == RecordEnd::kWhole && !reader.rest().empty()) {
    end = ReadRecord(reader, sequence_++, &state);
  }
  if (end == RecordEnd::kDamaged) {
    return absl::DataLossError(absl::StrCat(path_, ": record ", sequence_ - 1, " is damaged"));
  }
  bytes_ = text->size();
  rewrite_at_ = std::max(kMinRewriteBytes, bytes_);
  // Nothing may be appended to a torn record.
  if (end == RecordEnd::kWhole) fd_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  return state;
}

absl::Status MetaLog::Append(const MetaState& change) {
  EMB_CHECK(fd_ >= 0);
  const std::string record = EncodeRecord(change, sequence_);
  absl::Status status = WriteAll(fd_, record, path_);
  if (status.ok() && fdatasync(fd_) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("fdatasync ", path_));
  }
  if (!status.ok()) {
    // How much of it is on the disk is not known: a new file it will be.
    Close();
    return status;
  }
  ++sequence_;
  bytes_ += record.size();
  return absl::OkStatus();
}

absl::Status MetaLog::Rewrite(const MetaState& whole) {
  const std::string draft = absl::StrCat(path_, ".new");
  const std::string text = absl::StrCat(kMagic, EncodeRecord(whole, 0));
  absl::StatusOr<int> fd = ReplaceFile(path_, draft, text);
  Close();
  if (!fd.ok()) return fd.status();
  fd_ = *fd;
  bytes_ = text.size();
  sequence_ = 1;
  rewrite_at_ = std::max(kMinRewriteBytes, 2 * bytes_);
  return absl::OkStatus();
}

}  // namespace embcache
