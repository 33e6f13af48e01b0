#include "storage/rocksdb_handle.h"

#include <pthread.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_writer.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/record_assembler.h"
#include "storage/rocksdb_options.h"

namespace embcache {
namespace {

using rocksdb::Slice;

constexpr size_t kKeyBytes = 16;
constexpr uint64_t kPauseBytes = uint64_t{256} << 10;
constexpr uint64_t kReadPieceBytes = uint64_t{256} << 10;
constexpr size_t kMaxIdleReaders = 4;

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

std::vector<FooterEntry> FooterOf(const PendingSegment& segment,
                                  const std::vector<RecordPosition>& positions) {
  std::vector<FooterEntry> entries;
  for (uint32_t i = 0; i < segment.records.size(); ++i) {
    if (segment.records[i] == nullptr) continue;
    const PendingRecord& pending = *segment.records[i];
    const EntryInfo& info = *pending.record.info;
    entries.push_back({info.key, i, info.payload_bytes(), pending.record.generation,
                       pending.record.model_epoch, info.created, info.expires, pending.last_access,
                       positions[i], pending.heap_bytes()});
  }
  return entries;
}

// Writes pairs and follows where their values go.
class PairWriter {
 public:
  PairWriter(rocksdb::SstFileWriter* writer, const std::function<void()>& pause)
      : writer_(*writer), pause_(pause) {}

  rocksdb::Status Put(const std::string& key, const Slice& value, uint64_t* offset) {
    if (pause_ && value.size() >= kPauseBytes) pause_();
    const rocksdb::Status status = writer_.Put(key, value);
    if (status.ok()) *offset = layout_.Add(key, value.size(), writer_.FileSize());
    return status;
  }

 private:
  rocksdb::SstFileWriter& writer_;
  const std::function<void()>& pause_;
  SegmentLayout layout_;
};

rocksdb::Status WriteRecord(PairWriter& writer, uint64_t file, uint32_t entry,
                            const PendingRecord& pending, RecordPosition* position) {
  uint64_t offset = 0;
  rocksdb::Status status = writer.Put(PayloadKey(file, entry, 0), pending.header, &offset);
  RecordPosition found{.header = offset,
                       .header_bytes = static_cast<uint32_t>(pending.header.size())};
  bool regular = true;
  uint64_t end = offset + pending.header.size();
  uint32_t chunk = 1;
  for (uint64_t at = 0; status.ok() && at < pending.payload_bytes(); at += kChunkBytes, ++chunk) {
    const uint64_t bytes = std::min(kChunkBytes, pending.payload_bytes() - at);
    status = writer.Put(PayloadKey(file, entry, chunk), Slice(pending.payload.get() + at, bytes),
                        &offset);
    const uint64_t gap = offset - end;
    if (chunk == 1) {
      found.first_gap = static_cast<uint8_t>(gap);
      regular = gap == found.first_gap;
    } else if (chunk == 2) {
      found.second_gap = static_cast<uint8_t>(gap);
      regular = regular && gap == found.second_gap;
    } else {
      regular = regular && gap == LaterChunkGap(bytes);
    }
    end = offset + bytes;
  }
  if (regular) *position = found;
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
    if (absl::Status same = IsRecord(*header, key, at_); !same.ok()) return same;
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

// Learns under which name RocksDB has taken a file in: nothing else says it.
class RocksDbHandle::IngestListener : public rocksdb::EventListener {
 public:
  void OnExternalFileIngested(rocksdb::DB*,
                              const rocksdb::ExternalFileIngestionInfo& info) override {
    absl::MutexLock lock(&mu_);
    path_ = info.internal_file_path;
  }
  std::string TakePath() {
    absl::MutexLock lock(&mu_);
    return std::exchange(path_, std::string());
  }

 private:
  absl::Mutex mu_;
  std::string path_ ABSL_GUARDED_BY(mu_);
};

RocksDbHandle::RocksDbHandle(const RocksDbSettings& settings, rocksdb::DB* db,
                             std::shared_ptr<IngestListener> ingested)
    : ingested_(std::move(ingested)),
      env_(settings.env != nullptr ? settings.env : rocksdb::Env::Default()),
      direct_reads_(settings.direct_reads),
      db_(db) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db_->GetLiveFilesMetaData(&files);
  absl::MutexLock lock(&mu_);
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.smallestkey.size() != kKeyBytes) continue;
    paths_[ReadBigEndian(file.smallestkey.data(), 8)] = absl::StrCat(file.db_path, file.name);
  }
}

absl::StatusOr<std::unique_ptr<RocksDbHandle>> RocksDbHandle::Open(const RocksDbSettings& settings,
                                                                   Mode mode) {
  rocksdb::Options options = StoreRocksDbOptions(settings);
  options.create_if_missing = mode == Mode::kCreate;
  options.error_if_exists = mode == Mode::kCreate;
  auto ingested = std::make_shared<IngestListener>();
  options.listeners.push_back(ingested);
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = mode == Mode::kReadOnly
                                     ? rocksdb::DB::OpenForReadOnly(options, settings.path, &db)
                                     : rocksdb::DB::Open(options, settings.path, &db);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("open ", settings.path));
  return std::unique_ptr<RocksDbHandle>(new RocksDbHandle(settings, db, std::move(ingested)));
}

absl::StatusOr<std::vector<LiveFile>> RocksDbHandle::LiveFiles() const {
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

std::string RocksDbHandle::PathOf(uint64_t file) const {
  absl::MutexLock lock(&mu_);
  auto found = paths_.find(file);
  return found == paths_.end() ? std::string() : found->second;
}

absl::StatusOr<StoredRecord> RocksDbHandle::ReadRecord(const CacheKey& key, const IndexEntry& at,
                                                       char* to) const {
  if (at.position.known()) {
    absl::StatusOr<StoredRecord> record =
        direct_reads_ ? ReadAroundPageCache(key, at, to) : ReadAtPosition(key, at, to);
    by_position_.fetch_add(1, std::memory_order_relaxed);
    if (record.ok()) return record;
    fallbacks_.fetch_add(1, std::memory_order_relaxed);
  }
  return ReadRecordByKey(key, at, to);
}

absl::StatusOr<StoredRecord> RocksDbHandle::ReadAtPosition(const CacheKey& key,
                                                           const IndexEntry& at, char* to) const {
  const std::string path = PathOf(at.file);
  if (path.empty()) return absl::NotFoundError(RecordName(at));
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  const rocksdb::IOStatus opened = env_->GetFileSystem()->NewRandomAccessFile(
      path, rocksdb::FileOptions(), &file, /*dbg=*/nullptr);
  if (!opened.ok()) return ReadFailure(opened, RecordName(at));
  const auto read = [&](uint64_t offset, uint64_t bytes, char* target) {
    Slice got;
    const rocksdb::IOStatus status =
        file->Read(offset, bytes, rocksdb::IOOptions(), &got, target, /*dbg=*/nullptr);
    if (!status.ok()) return ReadFailure(status, RecordName(at));
    if (got.size() != bytes) return absl::DataLossError("the file ends too early");
    if (got.data() != target) std::memcpy(target, got.data(), bytes);
    return absl::OkStatus();
  };
  // From a cold disk all of it is on its way while the first piece is hashed.
  if (at.payload_bytes > kReadPieceBytes) {
    (void)file->Prefetch(at.position.header, at.position.header_bytes + at.payload_bytes,
                         rocksdb::IOOptions(), /*dbg=*/nullptr);
  }
  std::string bytes(at.position.header_bytes, '\0');
  absl::Status status = read(at.position.header, bytes.size(), bytes.data());
  if (!status.ok()) return status;
  absl::StatusOr<RecordHeader> header = DecodeHeader(bytes);
  if (!header.ok()) return header.status();
  if (absl::Status same = IsRecord(*header, key, at); !same.ok()) return same;
  uint64_t offset = at.position.header + bytes.size();
  PayloadHasher hasher;
  for (uint64_t done = 0; done < at.payload_bytes; done += kChunkBytes) {
    const uint64_t chunk = std::min(kChunkBytes, at.payload_bytes - done);
    if (done == 0) {
      offset += at.position.first_gap;
    } else {
      offset += done == kChunkBytes ? at.position.second_gap : LaterChunkGap(chunk);
    }
    // In pieces that are still in the processor's cache when they are hashed.
    for (uint64_t piece = 0; piece < chunk; piece += kReadPieceBytes) {
      const uint64_t length = std::min(kReadPieceBytes, chunk - piece);
      status = read(offset + piece, length, to + done + piece);
      if (!status.ok()) return status;
      hasher.Add(to + done + piece, length);
    }
    offset += chunk;
  }
  if (hasher.Finish() != header->hash) {
    return absl::DataLossError(absl::StrCat(RecordName(at), ": payload checksum differs"));
  }
  return std::move(header->record);
}

absl::StatusOr<StoredRecord> RocksDbHandle::ReadAroundPageCache(const CacheKey& key,
                                                                const IndexEntry& at,
                                                                char* to) const {
  const std::string path = PathOf(at.file);
  if (path.empty()) return absl::NotFoundError(RecordName(at));
  std::unique_ptr<DirectReader> reader;
  {
    absl::MutexLock lock(&mu_);
    if (!idle_readers_.empty()) {
      reader = std::move(idle_readers_.back());
      idle_readers_.pop_back();
    }
  }
  if (reader == nullptr) {
    absl::StatusOr<std::unique_ptr<DirectReader>> created = DirectReader::Create();
    if (!created.ok()) return created.status();
    reader = *std::move(created);
  }
  RecordAssembler record(key, at, to);
  const absl::Status read =
      reader->Read(path, at.position.header, record.bytes(),
                   [&record](absl::string_view piece) { return record.Add(piece); });
  {
    absl::MutexLock lock(&mu_);
    if (idle_readers_.size() < kMaxIdleReaders) idle_readers_.push_back(std::move(reader));
  }
  if (!read.ok()) return read;
  return record.Finish();
}

absl::StatusOr<StoredRecord> RocksDbHandle::ReadRecordByKey(const CacheKey& key,
                                                            const IndexEntry& at, char* to) const {
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

absl::StatusOr<WrittenSegment> RocksDbHandle::WriteSegment(const RocksDbSettings& settings,
                                                           const std::string& path,
                                                           const PendingSegment& segment) {
  const rocksdb::Options options = StoreRocksDbOptions(settings);
  rocksdb::EnvOptions env_options(options);
  env_options.use_mmap_writes = false;
  rocksdb::SstFileWriter writer(env_options, options, nullptr, /*invalidate_page_cache=*/false);
  rocksdb::Status status = writer.Open(path);
  PairWriter pairs(&writer, settings.pause);
  WrittenSegment written;
  written.positions.resize(segment.records.size());
  for (uint32_t i = 0; status.ok() && i < segment.records.size(); ++i) {
    if (segment.records[i] == nullptr) continue;
    status = WriteRecord(pairs, segment.number, i, *segment.records[i], &written.positions[i]);
  }
  if (status.ok()) {
    const std::string footer = EncodeFooter(segment.number, FooterOf(segment, written.positions));
    for (uint32_t copy : kFooterCopies) {
      if (status.ok()) status = writer.Put(PayloadKey(segment.number, kFooterEntry, copy), footer);
    }
  }
  rocksdb::ExternalSstFileInfo info;
  if (status.ok()) status = writer.Finish(&info);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("write ", path));
  written.bytes = info.file_size;
  return written;
}

absl::Status RocksDbHandle::Ingest(const std::string& path, uint64_t file) {
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.failed_move_fall_back_to_copy = false;
  options.snapshot_consistency = false;
  options.allow_blocking_flush = false;
  options.write_global_seqno = false;
  // Only files of the bottom level can be dropped as a whole.
  options.fail_if_not_bottommost_level = true;
  const rocksdb::Status status = db_->IngestExternalFile({path}, options);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("ingest ", path));
  absl::MutexLock lock(&mu_);
  paths_[file] = ingested_->TakePath();
  return absl::OkStatus();
}

absl::Status RocksDbHandle::Drop(uint64_t file) {
  const std::string first = PayloadKey(file, 0, 0);
  const std::string last = PayloadKey(file, kFooterEntry, kFooterCopies[1]);
  const Slice begin(first);
  const Slice end(last);
  const rocksdb::RangePtr range(&begin, &end);
  {
    absl::MutexLock lock(&mu_);
    paths_.erase(file);
  }
  return FromRocksDb(rocksdb::DeleteFilesInRanges(db_.get(), db_->DefaultColumnFamily(), &range, 1),
                     absl::StrCat("drop file ", file));
}

}  // namespace embcache
