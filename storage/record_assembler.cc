#include "storage/record_assembler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/pending_segment.h"

namespace embcache {
namespace {

// What is copied is in the processor's cache still when it is hashed.
constexpr uint64_t kCopyBytes = uint64_t{128} << 10;

}  // namespace

std::string RecordName(const IndexEntry& at) {
  return absl::StrCat("file ", at.file, " entry ", at.entry);
}

absl::Status IsRecord(const RecordHeader& header, const CacheKey& key, const IndexEntry& at) {
  const EntryInfo& info = *header.record.info;
  if (info.key == key && header.record.generation == at.generation &&
      info.payload_bytes() == at.payload_bytes) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(RecordName(at), ": another record"));
}

uint64_t RecordAssembler::bytes() const {
  uint64_t bytes = at_.position.header_bytes + at_.payload_bytes;
  for (uint64_t at = 0; at < at_.payload_bytes; at += kChunkBytes) {
    if (at == 0) {
      bytes += at_.position.first_gap;
    } else if (at == kChunkBytes) {
      bytes += at_.position.second_gap;
    } else {
      bytes += LaterChunkGap(std::min(kChunkBytes, at_.payload_bytes - at));
    }
  }
  return bytes;
}

uint64_t RecordAssembler::GapBeforeChunk() const {
  if (done_ == 0) return at_.position.first_gap;
  if (done_ == kChunkBytes) return at_.position.second_gap;
  return LaterChunkGap(std::min(kChunkBytes, at_.payload_bytes - done_));
}

absl::Status RecordAssembler::Add(absl::string_view piece) {
  if (!header_.has_value()) {
    const size_t missing = at_.position.header_bytes - header_bytes_.size();
    const absl::string_view part = piece.substr(0, missing);
    header_bytes_.append(part.data(), part.size());
    piece.remove_prefix(part.size());
    if (header_bytes_.size() < at_.position.header_bytes) return absl::OkStatus();
    absl::StatusOr<RecordHeader> header = DecodeHeader(header_bytes_);
    if (!header.ok()) return header.status();
    if (absl::Status same = IsRecord(*header, key_, at_); !same.ok()) return same;
    header_ = *std::move(header);
    gap_left_ = GapBeforeChunk();
  }
  while (!piece.empty() && done_ < at_.payload_bytes) {
    const uint64_t gap = std::min<uint64_t>(gap_left_, piece.size());
    gap_left_ -= gap;
    piece.remove_prefix(gap);
    if (gap_left_ > 0) break;
    if (chunk_left_ == 0) chunk_left_ = std::min(kChunkBytes, at_.payload_bytes - done_);
    const uint64_t bytes = std::min<uint64_t>({chunk_left_, piece.size(), kCopyBytes});
    std::memcpy(to_ + done_, piece.data(), bytes);
    hasher_.Add(to_ + done_, bytes);
    piece.remove_prefix(bytes);
    done_ += bytes;
    chunk_left_ -= bytes;
    if (chunk_left_ == 0) gap_left_ = GapBeforeChunk();
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredRecord> RecordAssembler::Finish() {
  if (!header_.has_value() || done_ < at_.payload_bytes) {
    return absl::DataLossError(absl::StrCat(RecordName(at_), ": bytes are missing"));
  }
  if (hasher_.Finish() != header_->hash) {
    return absl::DataLossError(absl::StrCat(RecordName(at_), ": payload checksum differs"));
  }
  return std::move(header_->record);
}

}  // namespace embcache
