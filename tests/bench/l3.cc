// l3-*: the SSD tier against plain files that hold the same values. The store runs in this process,
// in a directory under $TMPDIR or /tmp, which says on which disk.

#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/rocksdb_store.h"
#include "tests/bench/bench.h"

namespace embcache::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRounds = 5;
constexpr size_t kDirectAlignment = 4096;

class BenchDirectory {
 public:
  BenchDirectory() {
    const char* parent = std::getenv("TMPDIR");
    path_ = absl::StrCat(parent != nullptr ? parent : "/tmp", "/embcache_l3_XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~BenchDirectory() { fs::remove_all(path_); }
  BenchDirectory(const BenchDirectory&) = delete;
  BenchDirectory& operator=(const BenchDirectory&) = delete;

  const std::string& path() const { return path_; }

  // Takes everything in it out of the page cache.
  void Cool() const {
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (!entry.is_regular_file()) continue;
      const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      fdatasync(fd);
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }

 private:
  std::string path_;
};

absl::StatusOr<std::unique_ptr<RocksDbStore>> OpenStore(const std::string& path, uint64_t capacity,
                                                        bool direct = false) {
  RocksDbStoreOptions options;
  options.path = path;
  options.capacity_bytes = capacity;
  options.segment_bytes = std::min<uint64_t>(capacity / 8, 64 * kMiB);
  options.direct_reads = direct;
  return RocksDbStore::Open(options);
}

CacheKey StoreKey(uint64_t number) {
  const client::Key key = MakeKey(number);
  return *CacheKey::Create(key.model, key.content_hash, "");
}

StoredRecord MakeStored(uint64_t number, uint64_t bytes, uint64_t generation) {
  TensorSpec tensor{"main", DType::kU8, {static_cast<int64_t>(bytes)}};
  EntryInfo info{StoreKey(number),
                 *LayOutTensors({tensor}),
                 {},
                 100'000,
                 absl::FromUnixSeconds(1'700'000'000)};
  return {std::make_shared<const EntryInfo>(std::move(info)), generation, 0};
}

std::unique_ptr<char[]> MakeValue(uint64_t bytes, uint64_t seed) {
  std::unique_ptr<char[]> value(new char[bytes]);
  std::mt19937_64 random(seed);
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(value.get() + at, &word, sizeof(word));
  }
  return value;
}

std::unique_ptr<char[]> Copy(const char* from, uint64_t bytes) {
  std::unique_ptr<char[]> copy(new char[bytes]);
  std::memcpy(copy.get(), from, bytes);
  return copy;
}

absl::Status Put(RocksDbStore& store, uint64_t number, std::unique_ptr<char[]> value,
                 uint64_t bytes, uint64_t generation) {
  static const std::atomic<bool> never{false};
  return store.Put(MakeStored(number, bytes, generation), std::move(value), never);
}

struct AlignedBuffer {
  explicit AlignedBuffer(uint64_t bytes)
      : data(static_cast<char*>(std::aligned_alloc(kDirectAlignment, bytes))) {
    std::memset(data, 1, bytes);
  }
  ~AlignedBuffer() { std::free(data); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  char* const data;
};

absl::Status WriteWhole(int fd, const char* from, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t written = write(fd, from, bytes);
    if (written <= 0) return absl::ErrnoToStatus(errno, "write");
    from += written;
    bytes -= static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

// --- Writing
// --------------------------------------------------------------------------------------

constexpr uint64_t kWriteBytes = 2 * kMiB;
constexpr int kWriteValues = 256;

using Values = std::vector<std::unique_ptr<char[]>>;

Values CopyAll(const Values& values) {
  Values copies;
  for (const auto& value : values) copies.push_back(Copy(value.get(), kWriteBytes));
  return copies;
}

double MegabytesPerSecond(double bytes, double micros) { return bytes / micros; }

absl::StatusOr<double> WriteToStore(const Values& values) {
  const BenchDirectory directory;
  auto store = OpenStore(directory.path() + "/l3", 1024 * kMiB);
  if (!store.ok()) return store.status();
  Values copies = CopyAll(values);
  const double begin = NowMicros();
  for (int i = 0; i < kWriteValues; ++i) {
    absl::Status put = Put(**store, i, std::move(copies[i]), kWriteBytes, i + 1);
    if (!put.ok()) return put;
  }
  absl::Status flushed = (*store)->Flush();
  const double took = NowMicros() - begin;
  if (!flushed.ok()) return flushed;
  return MegabytesPerSecond(double{kWriteBytes} * kWriteValues, took);
}

absl::StatusOr<double> WriteToFiles(const Values& values) {
  const BenchDirectory directory;
  const Values copies = CopyAll(values);
  const double begin = NowMicros();
  int fd = -1;
  absl::Status status;
  for (int i = 0; i < kWriteValues && status.ok(); ++i) {
    if (i * kWriteBytes % (64 * kMiB) == 0) {
      fd = open(absl::StrCat(directory.path(), "/", i).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC,
                0600);
    }
    status = WriteWhole(fd, copies[i].get(), kWriteBytes);
    if ((i + 1) * kWriteBytes % (64 * kMiB) == 0) {
      if (fdatasync(fd) != 0) status = absl::ErrnoToStatus(errno, "fdatasync");
      close(fd);
    }
  }
  const double took = NowMicros() - begin;
  if (!status.ok()) return status;
  return MegabytesPerSecond(double{kWriteBytes} * kWriteValues, took);
}

// --- Reading
// --------------------------------------------------------------------------------------

enum class ReadKind { kWarm, kCold, kDirect };

// Values of one size, in a store and in files of their own.
class ReadStock {
 public:
  ReadStock(uint64_t bytes, ReadKind kind)
      : bytes_(bytes), kind_(kind), count_(256 * kMiB / bytes), buffer_(bytes) {}

  absl::Status Make() {
    auto store = OpenStore(directory_.path() + "/l3", 1024 * kMiB, kind_ == ReadKind::kDirect);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    for (uint64_t i = 0; i < count_; ++i) {
      std::unique_ptr<char[]> value = MakeValue(bytes_, i);
      const int fd = open(File(i).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      absl::Status status = WriteWhole(fd, value.get(), bytes_);
      fdatasync(fd);
      close(fd);
      if (status.ok()) status = Put(*store_, i, std::move(value), bytes_, i + 1);
      if (!status.ok()) return status;
    }
    return store_->Flush();
  }

  absl::StatusOr<double> FromStore() {
    if (kind_ != ReadKind::kWarm) directory_.Cool();
    const double begin = NowMicros();
    for (uint64_t i = 0; i < count_; ++i) {
      const absl::StatusOr<StoredRecord> read = store_->Read(StoreKey(i), i + 1, buffer_.data);
      if (!read.ok()) return read.status();
    }
    return MegabytesPerSecond(static_cast<double>(bytes_ * count_), NowMicros() - begin);
  }

  absl::StatusOr<double> FromFiles() {
    if (kind_ != ReadKind::kWarm) directory_.Cool();
    const double begin = NowMicros();
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count_; ++i) {
      const int direct = kind_ == ReadKind::kDirect ? O_DIRECT : 0;
      const int fd = open(File(i).c_str(), O_RDONLY | O_CLOEXEC | direct);
      const ssize_t got = pread(fd, buffer_.data, bytes_, 0);
      close(fd);
      if (got != static_cast<ssize_t>(bytes_)) return absl::ErrnoToStatus(errno, "pread");
      if (kind_ != ReadKind::kDirect) sum += XXH3_64bits(buffer_.data, bytes_);
    }
    KeepWrites(&sum);
    return MegabytesPerSecond(static_cast<double>(bytes_ * count_), NowMicros() - begin);
  }

 private:
  std::string File(uint64_t number) const { return absl::StrCat(directory_.path(), "/", number); }

  const BenchDirectory directory_;
  const uint64_t bytes_;
  const ReadKind kind_;
  const uint64_t count_;
  AlignedBuffer buffer_;
  std::unique_ptr<RocksDbStore> store_;
};

absl::Status ReadBench(Report* report, const std::string& name, uint64_t bytes, ReadKind kind,
                       double target, const std::string& note) {
  ReadStock stock(bytes, kind);
  absl::Status made = stock.Make();
  if (!made.ok()) return made;
  const auto compared = Interleave(
      kRounds, [&] { return stock.FromStore(); }, [&] { return stock.FromFiles(); });
  if (!compared.ok()) return compared.status();
  report->Add(
      {name, compared->value, "MB/s", compared->baseline, compared->ratio, AtLeast(target), note});
  return absl::OkStatus();
}

// --- Wear
// -----------------------------------------------------------------------------------------

// Bytes written per byte put while the capacity is put ten times. With `reread`, a third of the
// puts is followed by a read of one of the last values, which makes it worth writing again.
absl::StatusOr<double> Amplification(bool reread) {
  constexpr uint64_t kCapacity = 256 * kMiB;
  const BenchDirectory directory;
  auto store = OpenStore(directory.path() + "/l3", kCapacity);
  if (!store.ok()) return store.status();
  std::mt19937_64 random(5);
  uint64_t put_bytes = 0;
  std::vector<char> buffer(8 * kMiB);
  for (uint64_t number = 1; put_bytes < 10 * kCapacity; ++number) {
    const uint64_t bytes = (300'000 + random() % 7'700'000) & ~7ull;
    absl::Status put = Put(**store, number, MakeValue(bytes, number), bytes, number);
    if (!put.ok()) return put;
    put_bytes += bytes;
    if (!reread || number % 3 != 0) continue;
    const uint64_t old = number - random() % std::min<uint64_t>(number, 60);
    const auto place = (*store)->Find(StoreKey(old));
    if (place) (void)(*store)->Read(StoreKey(old), old, buffer.data());
  }
  absl::Status flushed = (*store)->Flush();
  if (!flushed.ok()) return flushed;
  return static_cast<double>((*store)->GetStats().bytes_written) / static_cast<double>(put_bytes);
}

}  // namespace

absl::Status L3Write(Report* report) {
  Values values;
  for (int i = 0; i < kWriteValues; ++i) values.push_back(MakeValue(kWriteBytes, i));
  const auto compared = Interleave(
      kRounds, [&] { return WriteToStore(values); }, [&] { return WriteToFiles(values); });
  if (!compared.ok()) return compared.status();
  report->Add({"l3-write", compared->value, "MB/s", compared->baseline, compared->ratio,
               AtLeast(0.8),
               "512 MiB of 2 MiB values, flushed, against files of 64 MiB with "
               "fdatasync"});
  return absl::OkStatus();
}

absl::Status L3ReadWarm2Mb(Report* report) {
  return ReadBench(report, "l3-read-warm-2mb", 2 * kMiB, ReadKind::kWarm, 0.6,
                   "from the page cache, checked, against open, pread, XXH3");
}
absl::Status L3ReadWarm16Mb(Report* report) {
  return ReadBench(report, "l3-read-warm-16mb", 16 * kMiB, ReadKind::kWarm, 0.6,
                   "from the page cache, checked, against open, pread, XXH3");
}
absl::Status L3ReadCold(Report* report) {
  absl::Status status = ReadBench(report, "l3-read-cold-2mb", 2 * kMiB, ReadKind::kCold, 0.7,
                                  "nothing in the page cache, against open, pread, XXH3");
  if (!status.ok()) return status;
  return ReadBench(report, "l3-read-cold-16mb", 16 * kMiB, ReadKind::kCold, 0.7,
                   "nothing in the page cache, against open, pread, XXH3");
}
absl::Status L3ReadDirect(Report* report) {
  absl::Status status =
      ReadBench(report, "l3-read-direct-2mb", 2 * kMiB, ReadKind::kDirect, 0.9,
                "with --l3-read=direct, checked, against open, pread with O_DIRECT, no checksum");
  if (!status.ok()) return status;
  return ReadBench(
      report, "l3-read-direct-16mb", 16 * kMiB, ReadKind::kDirect, 0.9,
      "with --l3-read=direct, checked, against open, pread with O_DIRECT, no checksum");
}

absl::Status L3Open(Report* report) {
  constexpr uint64_t kEntries = 1'000'000;
  constexpr uint64_t kBytes = 64;
  const BenchDirectory directory;
  const std::string path = directory.path() + "/l3";
  auto store = OpenStore(path, 4096 * kMiB);
  if (!store.ok()) return store.status();
  for (uint64_t i = 0; i < kEntries; ++i) {
    absl::Status put = Put(**store, i, MakeValue(kBytes, i), kBytes, i + 1);
    if (!put.ok()) return put;
  }
  absl::Status flushed = (*store)->Flush();
  if (!flushed.ok()) return flushed;
  std::vector<double> seconds, heap;
  for (int round = 0; round < kRounds; ++round) {
    store->reset();
    malloc_trim(0);
    directory.Cool();
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    const double begin = NowMicros();
    store = OpenStore(path, 4096 * kMiB);
    seconds.push_back((NowMicros() - begin) / 1e6);
    if (!store.ok()) return store.status();
    if ((*store)->GetStats().entries != kEntries) return absl::InternalError("entries are lost");
    const size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    heap.push_back(static_cast<double>(after - before) / kEntries);
  }
  report->Add({"l3-open", Median(seconds), "s", std::nullopt, std::nullopt, AtMost(1.5),
               "1,000,000 entries of 64 bytes, nothing in the page cache"});
  report->Add({"l3-index-heap", Median(heap), "bytes", std::nullopt, std::nullopt, AtMost(300),
               "heap of the opened store per entry, with keys of 32 bytes and 22 of model name"});
  return absl::OkStatus();
}

absl::Status L3WriteAmplification(Report* report) {
  for (bool reread : {false, true}) {
    const absl::StatusOr<double> amplification = Amplification(reread);
    if (!amplification.ok()) return amplification.status();
    report->Add({reread ? "l3-write-amplification-reread" : "l3-write-amplification",
                 *amplification, "ratio", std::nullopt, std::nullopt, AtMost(reread ? 1.4 : 1.05),
                 "bytes written per byte put, of 0.3 to 8 MB, ten times the capacity"});
  }
  return absl::OkStatus();
}

}  // namespace embcache::bench
