#include "storage/rocksdb_handle.h"

#include <pthread.h>
#include <rocksdb/convenience.h>
#include <rocksdb/sst_file_writer.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/rocksdb_options.h"

namespace embcache {
namespace {

using rocksdb::Slice;

constexpr size_t kKeyBytes = 16;

void AppendBigEndian(uint64_t value, int bytes, std::string* to) {
  for (int i = bytes - 1; i >= 0; --i) to->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t ReadBigEndian(const char* from, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<unsigned char>(from[i]);
  return value;
}

std::string PayloadKey(uint64_t file, uint32_t entry, uint32_t chunk) {
  std::string key;
  AppendBigEndian(file, 8, &key);
  AppendBigEndian(entry, 4, &key);
  AppendBigEndian(chunk, 4, &key);
  return key;
}

constexpr uint32_t kFooterEntry = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kFooterCopies[] = {0xfffffffe, 0xffffffff};

absl::string_view AsView(const Slice& slice) { return {slice.data(), slice.size()}; }

rocksdb::ReadOptions StoreReadOptions() {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  // Also of records, which have checksums of their own: this RocksDB asserts, and so ends the
  // process, on some blocks whose damage it has not found before.
  options.verify_checksums = true;
  return options;
}

// Whatever is wrong with a file, its records are lost; what is wrong with this process is not.
absl::Status ReadFailure(const rocksdb::Status& status, absl::string_view doing) {
  const std::string text = status.ToString();
  if (absl::StrContains(text, "Too many open files") || status.IsMemoryLimit() ||
      status.IsTimedOut() || status.IsAborted() || status.IsShutdownInProgress()) {
    return absl::UnavailableError(absl::StrCat(doing, ": ", text));
  }
  return absl::DataLossError(absl::StrCat(doing, ": ", text));
}

std::string RecordName(const IndexEntry& at) {
  return absl::StrCat("file ", at.file, " entry ", at.entry);
}

std::vector<FooterEntry> FooterOf(const PendingSegment& segment) {
  std::vector<FooterEntry> entries;
  for (uint32_t i = 0; i < segment.records.size(); ++i) {
    if (segment.records[i] == nullptr) continue;
    const PendingRecord& pending = *segment.records[i];
    const EntryInfo& info = *pending.record.info;
    entries.push_back({info.key, i, info.payload_bytes(), pending.record.generation,
                       pending.record.model_epoch, info.created, info.expires,
                       pending.last_access});
  }
  return entries;
}

rocksdb::Status WriteRecord(rocksdb::SstFileWriter& writer, uint64_t file, uint32_t entry,
                            const PendingRecord& pending) {
  rocksdb::Status status = writer.Put(PayloadKey(file, entry, 0), pending.header);
  uint32_t chunk = 1;
  for (uint64_t at = 0; status.ok() && at < pending.payload_bytes(); at += kChunkBytes) {
    const uint64_t bytes = std::min(kChunkBytes, pending.payload_bytes() - at);
    status = writer.Put(PayloadKey(file, entry, chunk++), Slice(pending.payload.get() + at, bytes));
  }
  return status;
}

// Reads one record's parts in their order, from part `first` (0 is the header) on. One pass over
// neighbours: header and first chunk are often one block.
class RecordCursor {
 public:
  RecordCursor(rocksdb::DB* db, const IndexEntry& at, uint64_t first)
      : at_(at), end_(PayloadKey(at.file, at.entry + 1, 0)), bound_(end_) {
    rocksdb::ReadOptions options = StoreReadOptions();
    options.iterate_upper_bound = &bound_;
    cursor_.reset(db->NewIterator(options));
    cursor_->Seek(PayloadKey(at.file, at.entry, static_cast<uint32_t>(first)));
  }

  absl::StatusOr<RecordHeader> ReadHeader(const CacheKey& key) {
    if (absl::Status there = At(0); !there.ok()) return there;
    absl::StatusOr<RecordHeader> header = DecodeHeader(AsView(cursor_->value()));
    if (!header.ok()) return header.status();
    const EntryInfo& info = *header->record.info;
    if (!(info.key == key) || header->record.generation != at_.generation ||
        info.payload_bytes() != at_.payload_bytes) {
      return absl::DataLossError(absl::StrCat(RecordName(at_), ": another record"));
    }
    if (at_.payload_bytes > 0) cursor_->Next();
    return header;
  }

  // Chunks [begin, end), counted from 0, to their places in the payload that begins at `to`.
  absl::Status ReadChunks(uint64_t begin, uint64_t end, char* to, PayloadHasher* hasher) {
    for (uint64_t chunk = begin; chunk < end; ++chunk) {
      if (absl::Status there = At(static_cast<uint32_t>(1 + chunk)); !there.ok()) return there;
      const uint64_t done = chunk * kChunkBytes;
      const Slice value = cursor_->value();
      if (value.size() != std::min(kChunkBytes, at_.payload_bytes - done)) {
        return absl::DataLossError(absl::StrCat(RecordName(at_), ": a chunk has another size"));
      }
      std::memcpy(to + done, value.data(), value.size());
      // Of what was copied, while it is in the processor's cache.
      if (hasher != nullptr) hasher->Add(to + done, value.size());
      if (chunk + 1 < end) cursor_->Next();
    }
    return absl::OkStatus();
  }

 private:
  absl::Status At(uint32_t part) const {
    if (!cursor_->status().ok()) return ReadFailure(cursor_->status(), RecordName(at_));
    if (cursor_->Valid() && cursor_->key() == PayloadKey(at_.file, at_.entry, part)) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(RecordName(at_), ": part ", part, " is missing"));
  }

  const IndexEntry at_;
  const std::string end_;
  const Slice bound_;
  std::unique_ptr<rocksdb::Iterator> cursor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RocksDbHandle>> RocksDbHandle::Open(const RocksDbSettings& settings,
                                                                   Mode mode) {
  rocksdb::Options options = StoreRocksDbOptions(settings);
  options.create_if_missing = mode == Mode::kCreate;
  options.error_if_exists = mode == Mode::kCreate;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = mode == Mode::kReadOnly
                                     ? rocksdb::DB::OpenForReadOnly(options, settings.path, &db)
                                     : rocksdb::DB::Open(options, settings.path, &db);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("open ", settings.path));
  return std::unique_ptr<RocksDbHandle>(new RocksDbHandle(db, settings.direct_reads));
}

absl::StatusOr<std::vector<RocksDbHandle::LiveFile>> RocksDbHandle::LiveFiles() const {
  std::vector<rocksdb::LiveFileMetaData> files;
  db_->GetLiveFilesMetaData(&files);
  std::vector<LiveFile> live;
  for (const rocksdb::LiveFileMetaData& file : files) {
    const std::string name = absl::StrCat(file.db_path, file.name);
    struct stat info;
    const bool intact =
        stat(name.c_str(), &info) == 0 && static_cast<uint64_t>(info.st_size) == file.size;
    if (file.smallestkey.size() != kKeyBytes || file.largestkey.size() != kKeyBytes ||
        file.smallestkey.compare(0, 8, file.largestkey, 0, 8) != 0 || file.level == 0) {
      return absl::DataLossError(absl::StrCat(name, ": not a segment file"));
    }
    live.push_back({ReadBigEndian(file.smallestkey.data(), 8), file.size, intact});
  }
  std::sort(live.begin(), live.end(),
            [](const LiveFile& a, const LiveFile& b) { return a.number < b.number; });
  return live;
}

absl::StatusOr<std::vector<FooterEntry>> RocksDbHandle::ReadFooter(uint64_t file) const {
  absl::Status failure;
  for (uint32_t copy : kFooterCopies) {
    rocksdb::PinnableSlice value;
    const std::string key = PayloadKey(file, kFooterEntry, copy);
    const rocksdb::Status status =
        db_->Get(StoreReadOptions(), db_->DefaultColumnFamily(), key, &value);
    if (!status.ok()) {
      failure = ReadFailure(status, absl::StrCat("footer of file ", file));
      continue;
    }
    absl::StatusOr<std::vector<FooterEntry>> entries = DecodeFooter(file, AsView(value));
    if (entries.ok()) return entries;
    failure = entries.status();
  }
  return failure;
}

absl::StatusOr<StoredRecord> RocksDbHandle::ReadRecord(const CacheKey& key, const IndexEntry& at,
                                                       char* to) const {
  const uint64_t chunks = (at.payload_bytes + kChunkBytes - 1) / kChunkBytes;
  // Around the page cache nobody reads ahead: two halves at a time keep the disk busy. For a few
  // chunks a thread costs more than it brings.
  constexpr uint64_t kChunksForTwo = 8;
  const uint64_t here = direct_reads_ && chunks >= kChunksForTwo ? (chunks + 1) / 2 : chunks;
  absl::Status other_half;
  std::thread helper;
  if (here < chunks) {
    helper = std::thread([&] {
      pthread_setname_np(pthread_self(), "l3-read");
      RecordCursor cursor(db_.get(), at, 1 + here);
      other_half = cursor.ReadChunks(here, chunks, to, nullptr);
    });
  }
  RecordCursor cursor(db_.get(), at, 0);
  PayloadHasher hasher;
  absl::StatusOr<RecordHeader> header = cursor.ReadHeader(key);
  absl::Status status = header.status();
  if (status.ok()) status = cursor.ReadChunks(0, here, to, &hasher);
  if (helper.joinable()) {
    helper.join();
    status.Update(other_half);
    const uint64_t done = here * kChunkBytes;
    if (status.ok()) hasher.Add(to + done, at.payload_bytes - done);
  }
  if (!status.ok()) return status;
  if (hasher.Finish() != header->hash) {
    return absl::DataLossError(absl::StrCat(RecordName(at), ": payload checksum differs"));
  }
  return std::move(header->record);
}

absl::StatusOr<uint64_t> RocksDbHandle::WriteSegment(const RocksDbSettings& settings,
                                                     const std::string& path,
                                                     const PendingSegment& segment) {
  const rocksdb::Options options = StoreRocksDbOptions(settings);
  rocksdb::EnvOptions env_options(options);
  env_options.use_mmap_writes = false;
  rocksdb::SstFileWriter writer(env_options, options, nullptr, /*invalidate_page_cache=*/false);
  rocksdb::Status status = writer.Open(path);
  for (uint32_t i = 0; status.ok() && i < segment.records.size(); ++i) {
    if (segment.records[i] == nullptr) continue;
    status = WriteRecord(writer, segment.number, i, *segment.records[i]);
  }
  if (status.ok()) {
    const std::string footer = EncodeFooter(segment.number, FooterOf(segment));
    for (uint32_t copy : kFooterCopies) {
      if (status.ok()) status = writer.Put(PayloadKey(segment.number, kFooterEntry, copy), footer);
    }
  }
  rocksdb::ExternalSstFileInfo info;
  if (status.ok()) status = writer.Finish(&info);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("write ", path));
  return info.file_size;
}

absl::Status RocksDbHandle::Ingest(const std::string& path) {
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.failed_move_fall_back_to_copy = false;
  options.snapshot_consistency = false;
  options.allow_blocking_flush = false;
  options.write_global_seqno = false;
  // Only files of the bottom level can be dropped as a whole.
  options.fail_if_not_bottommost_level = true;
  return FromRocksDb(db_->IngestExternalFile({path}, options), absl::StrCat("ingest ", path));
}

absl::Status RocksDbHandle::Drop(uint64_t file) {
  const std::string first = PayloadKey(file, 0, 0);
  const std::string last = PayloadKey(file, kFooterEntry, kFooterCopies[1]);
  const Slice begin(first);
  const Slice end(last);
  const rocksdb::RangePtr range(&begin, &end);
  return FromRocksDb(rocksdb::DeleteFilesInRanges(db_.get(), db_->DefaultColumnFamily(), &range, 1),
                     absl::StrCat("drop file ", file));
}

}  // namespace embcache
