// What RocksDbStore does when a certain operation on the disk fails: each case by itself, and reads
// of records at their positions. rocksdb_store_fault_sweep_test.cc lets every operation fail in
// turn.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "storage/rocksdb_handle.h"
#include "tests/unit/fault_file_system.h"
#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

class RocksDbStoreFaultTest : public RocksDbStoreFixture {
 protected:
  RocksDbStoreFaultTest()
      : env_(rocksdb::NewCompositeEnv(std::shared_ptr<rocksdb::FileSystem>(&disk_, [](auto*) {}))) {
    options_.env = env_.get();
    // A file of 100 KB counts as full: the fifth one evicts the first.
    options_.segment_bytes = 110 << 10;
    options_.max_files = 4;
  }
  ~RocksDbStoreFaultTest() override { store_ = nullptr; }

  void PutAndFlush(int number) {
    const TestRecord record = MakeRecord(TestKey(absl::StrCat(number)), 100'000, number + 1);
    ASSERT_TRUE(PutRecord(*store_, record).ok());
    const absl::Status flushed = store_->Flush();
    ASSERT_TRUE(flushed.ok()) << flushed;
  }
  // Puts a record whose file meets `fault`.
  absl::Status PutInto(DiskFault fault, int number) {
    disk_.Arm(std::move(fault));
    const TestRecord record = MakeRecord(TestKey(absl::StrCat(number)), 100'000, number + 1);
    EXPECT_TRUE(PutRecord(*store_, record).ok());
    absl::Status flushed = store_->Flush();
    EXPECT_GT(disk_.failed(), 0) << "the fault was not met";
    return flushed;
  }
  bool Has(int number) {
    return ReadPayload(*store_, TestKey(absl::StrCat(number))) == TestBytes(100'000, number + 1);
  }
  void HealAndTick() {
    disk_.Heal();
    clock_.Advance(absl::Seconds(11));
    store_->Tick();
    EXPECT_TRUE(store_->GetStats().writable);
  }

  FaultFileSystem disk_;
  const std::unique_ptr<rocksdb::Env> env_;
};

DiskFault On(DiskOp op, DiskError error, const std::string& path_part) {
  DiskFault fault;
  fault.error = error;
  fault.op = op;
  fault.path_part = path_part;
  fault.sticky = true;
  return fault;
}

TEST_F(RocksDbStoreFaultTest, AManifestThatCannotBeWrittenWhileIngestingCostsOnlyThatFile) {
  for (DiskOp op : {DiskOp::kAppend, DiskOp::kSync}) {
    for (DiskError error : {DiskError::kNoSpace, DiskError::kQuota, DiskError::kIo}) {
      options_.path =
          absl::StrCat(directory_.path(), "/", static_cast<int>(op), "-", static_cast<int>(error));
      Open();
      PutAndFlush(0);
      EXPECT_FALSE(PutInto(On(op, error, "MANIFEST"), 1).ok());
      EXPECT_FALSE(store_->GetStats().writable);
      EXPECT_TRUE(Has(0));
      EXPECT_FALSE(Has(1));
      HealAndTick();
      PutAndFlush(2);
      Reopen();
      EXPECT_TRUE(Has(0));
      EXPECT_FALSE(Has(1)) << "a put that was lost came back";
      EXPECT_TRUE(Has(2));
      EXPECT_EQ(store_->GetStats().corruptions, 0);
    }
  }
}

TEST_F(RocksDbStoreFaultTest, AFileWhoseDropDidNotReachTheManifestIsKeptOrGoneButNeverHalf) {
  for (DiskError error : {DiskError::kNoSpace, DiskError::kIo}) {
    options_.path = absl::StrCat(directory_.path(), "/", static_cast<int>(error));
    Open();
    for (int i = 0; i < 4; ++i) PutAndFlush(i);
    EXPECT_FALSE(PutInto(On(DiskOp::kAppend, error, "MANIFEST"), 4).ok());
    for (int i = 1; i < 4; ++i) EXPECT_TRUE(Has(i)) << i;
    const std::string crashed = CopyDirectory();
    HealAndTick();
    PutAndFlush(5);
    EXPECT_TRUE(Has(5));
    Reopen();
    EXPECT_TRUE(Has(5));
    EXPECT_EQ(store_->GetStats().corruptions, 0);
    // Nothing of the drop is on disk: after a crash the file is there as before.
    options_.max_files = 100;
    OpenAt(crashed);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Has(i)) << i;
    options_.max_files = 4;
  }
}

TEST_F(RocksDbStoreFaultTest, AFileIsDroppedInTheManifestBeforeItsRecordsAreForgotten) {
  Open();
  for (int i = 0; i < 5; ++i) PutAndFlush(i);
  ASSERT_FALSE(store_->Find(TestKey("0")).has_value());
  options_.max_files = 100;
  OpenAt(CopyDirectory());
  EXPECT_FALSE(store_->Find(TestKey("0")).has_value()) << "the drop was not on disk";
  for (int i = 1; i < 5; ++i) EXPECT_TRUE(Has(i)) << i;
}

TEST_F(RocksDbStoreFaultTest, AStagedFileThatCannotBeWrittenOrSyncedCostsItsRecordsOnly) {
  Open();
  PutAndFlush(0);
  int number = 1;
  for (DiskOp op : {DiskOp::kCreate, DiskOp::kAppend, DiskOp::kSync}) {
    for (DiskError error : {DiskError::kNoSpace, DiskError::kQuota, DiskError::kIo}) {
      EXPECT_FALSE(PutInto(On(op, error, "/stage/"), number).ok());
      EXPECT_FALSE(store_->GetStats().writable);
      EXPECT_FALSE(Has(number++));
      EXPECT_TRUE(fs::is_empty(options_.path + "/stage"));
      EXPECT_TRUE(Has(0));
      HealAndTick();
    }
  }
}

TEST_F(RocksDbStoreFaultTest, AFileThatCannotBeDeletedIsDeletedAtTheNextStartAtTheLatest) {
  Open();
  for (int i = 0; i < 4; ++i) PutAndFlush(i);
  disk_.Arm(On(DiskOp::kDelete, DiskError::kIo, ".sst"));
  PutAndFlush(4);
  EXPECT_GT(disk_.failed(), 0);
  disk_.Heal();
  Reopen();
  EXPECT_EQ(FilesOf(options_.path, "", ".sst").size(), store_->GetStats().files);
}

TEST_F(RocksDbStoreFaultTest, AnUnreadableRecordIsAMissAndTheOthersAreServed) {
  for (DiskError error : {DiskError::kIo, DiskError::kFlippedBit}) {
    options_.path = absl::StrCat(directory_.path(), "/", static_cast<int>(error));
    Open();
    PutAndFlush(0);
    PutAndFlush(1);
    ASSERT_TRUE(Has(0) && Has(1));
    disk_.Arm(On(DiskOp::kRead, error, ".sst"));
    EXPECT_FALSE(Has(0));
    EXPECT_GT(disk_.failed(), 0);
    disk_.Heal();
    EXPECT_FALSE(store_->Find(TestKey("0")).has_value());
    EXPECT_EQ(store_->GetStats().corruptions, 1);
    EXPECT_TRUE(Has(1));
    PutAndFlush(2);
    EXPECT_TRUE(Has(2));
  }
}

TEST_F(RocksDbStoreFaultTest, AReadThatFailsOnceIsTriedAgainByKey) {
  Open();
  PutAndFlush(0);
  for (DiskError error : {DiskError::kIo, DiskError::kFlippedBit}) {
    for (uint64_t read : {0, 1}) {  // header, payload
      DiskFault fault = On(DiskOp::kRead, error, ".sst");
      fault.sticky = false;
      fault.at = read;
      disk_.Arm(fault);
      EXPECT_TRUE(Has(0));
      EXPECT_EQ(disk_.failed(), 1);
    }
  }
  EXPECT_EQ(store_->GetStats().corruptions, 0);
}

// Records of all sizes in one file, each with the index entry that finds it.
class RocksDbHandlePositionTest : public RocksDbStoreFixture,
                                  public testing::WithParamInterface<bool> {
 protected:
  static bool direct() { return GetParam(); }

  void SetUp() override {
    fs::create_directory(options_.path);
    if (direct()) {
      const int fd =
          open((options_.path + "/x").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
      if (fd < 0) GTEST_SKIP() << "the file system knows no O_DIRECT";
      close(fd);
    }
    RocksDbSettings settings;
    settings.path = options_.path + "/db";
    settings.capacity_bytes = kMinStoreBytes;
    settings.direct_reads = direct();
    auto handle = RocksDbHandle::Open(settings, RocksDbHandle::Mode::kCreate);
    ASSERT_TRUE(handle.ok()) << handle.status();
    handle_ = *std::move(handle);
    PendingSegment segment(1);
    std::vector<uint64_t> sizes(60, 40);  // several restart points in a block
    for (uint64_t bytes :
         {uint64_t{1}, uint64_t{7000}, kChunkBytes - 1, kChunkBytes, kChunkBytes + 1,
          2 * kChunkBytes, 3 * kChunkBytes + 100, 4 * kChunkBytes + 20'000}) {
      sizes.insert(sizes.end(), {bytes, 40, 200});
    }
    for (uint64_t bytes : sizes) {
      const uint64_t number = records_.size() + 1;
      records_.push_back(MakeRecord(TestKey(absl::StrCat(number)), bytes, number));
      auto pending = std::make_shared<PendingRecord>();
      pending->record = records_.back().stored;
      pending->hash = HashPayload(records_.back().payload.data(), bytes);
      pending->header = EncodeHeader(pending->record, pending->hash);
      pending->payload = CopyOf(records_.back().payload);
      segment.Add(std::move(pending));
    }
    const std::string staged = options_.path + "/1.sst";
    const auto written = RocksDbHandle::WriteSegment(settings, staged, segment);
    ASSERT_TRUE(written.ok()) << written.status();
    ASSERT_TRUE(handle_->Ingest(staged, segment.number).ok());
    positions_ = written->positions;
  }

  absl::StatusOr<StoredRecord> Read(uint32_t number, std::string* bytes) {
    IndexEntry at;
    at.generation = records_[number].stored.generation;
    at.payload_bytes = records_[number].payload.size();
    at.file = 1;
    at.entry = number;
    at.position = positions_[number];
    bytes->assign(at.payload_bytes, '\0');
    return handle_->ReadRecord(records_[number].stored.info->key, at, bytes->data());
  }

  std::unique_ptr<RocksDbHandle> handle_;
  std::vector<TestRecord> records_;
  std::vector<RecordPosition> positions_;
};

TEST_P(RocksDbHandlePositionTest, RecordsOfAllSizesAreFoundAtTheirPositions) {
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < records_.size(); ++i) {
      std::string bytes;
      const auto read = Read(i, &bytes);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(bytes, records_[i].payload) << i;
      EXPECT_EQ(read->generation, records_[i].stored.generation);
    }
  }
  EXPECT_EQ(handle_->read_counts().by_position, 2 * records_.size());
  EXPECT_EQ(handle_->read_counts().fallbacks, 0);
  const auto footer = handle_->ReadFooter(1);
  ASSERT_TRUE(footer.ok());
  for (uint32_t i = 0; i < records_.size(); ++i) {
    EXPECT_EQ((*footer)[i].position, positions_[i]);
  }
}

TEST_P(RocksDbHandlePositionTest, WhatIsDamagedOrMissingIsFoundOutAndTheOthersAreRead) {
  const auto last = static_cast<uint32_t>(records_.size() - 3);  // of 4 MiB and more
  const auto tables = FilesOf(options_.path, "", ".sst");
  ASSERT_EQ(tables.size(), 1);
  std::string bytes;
  for (uint64_t at : {uint64_t{0}, uint64_t{200}, kChunkBytes + 500, 4 * kChunkBytes + 10'000}) {
    std::fstream file(tables[0], std::ios::in | std::ios::out | std::ios::binary);
    const auto place = static_cast<std::streamoff>(positions_[last].header + at);
    file.seekg(place);
    const int before = file.get();
    file.seekp(place);
    file.put(static_cast<char>(before ^ 1)).flush();
    EXPECT_TRUE(absl::IsDataLoss(Read(last, &bytes).status())) << at;
    file.seekp(place);
    file.put(static_cast<char>(before)).flush();
    EXPECT_TRUE(Read(last, &bytes).ok()) << at;
    EXPECT_EQ(bytes, records_[last].payload);
  }
  fs::resize_file(tables[0], positions_[last].header + 3 * kChunkBytes);
  EXPECT_TRUE(absl::IsDataLoss(Read(last, &bytes).status()));
  EXPECT_TRUE(Read(0, &bytes).ok());
}

INSTANTIATE_TEST_SUITE_P(, RocksDbHandlePositionTest, testing::Bool(),
                         [](const auto& how) { return how.param ? "Direct" : "Buffered"; });

// RocksDB ends the process on some damaged blocks unless it verifies them first.
TEST_F(RocksDbStoreFaultTest, WhicheverBitOfARecordFlipsOnTheWayTheRecordIsDamagedOrRight) {
  fs::create_directory(options_.path);
  const RocksDbSettings settings{
      .path = options_.path + "/db", .capacity_bytes = kMinStoreBytes, .env = env_.get()};
  auto handle = RocksDbHandle::Open(settings, RocksDbHandle::Mode::kCreate);
  ASSERT_TRUE(handle.ok()) << handle.status();
  PendingSegment segment(1);
  std::vector<TestRecord> records;
  for (uint64_t bytes : {100, 300, 9000, 2'500'000}) {
    records.push_back(MakeRecord(TestKey(absl::StrCat(bytes)), bytes, records.size() + 1));
    auto pending = std::make_shared<PendingRecord>();
    pending->record = records.back().stored;
    pending->hash = HashPayload(records.back().payload.data(), bytes);
    pending->header = EncodeHeader(pending->record, pending->hash);
    pending->payload = CopyOf(records.back().payload);
    segment.Add(std::move(pending));
  }
  const std::string staged = options_.path + "/1.sst";
  ASSERT_TRUE(RocksDbHandle::WriteSegment(settings, staged, segment).ok());
  ASSERT_TRUE((*handle)->Ingest(staged, segment.number).ok());
  int damaged = 0;
  int right = 0;
  std::string bytes(2'500'000, '\0');
  const auto read_with = [&](uint32_t entry, uint64_t read, uint64_t bit) {
    const TestRecord& record = records[entry];
    DiskFault fault = On(DiskOp::kRead, DiskError::kFlippedBit, ".sst");
    fault.sticky = false;
    fault.at = read;
    fault.bit = bit;
    disk_.Arm(fault);
    IndexEntry at;
    at.generation = record.stored.generation;
    at.payload_bytes = record.payload.size();
    at.file = 1;
    at.entry = entry;
    const CacheKey& key = record.stored.info->key;
    const auto got = (*handle)->ReadRecord(key, at, bytes.data());
    got.ok() ? ++right : ++damaged;
    if (!got.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(got.status())) << got.status();
      return;
    }
    EXPECT_EQ(absl::string_view(bytes).substr(0, record.payload.size()), record.payload) << bit;
    EXPECT_EQ(got->info->key, key);
  };
  for (uint64_t bit = 0; bit < 1500 * 8; ++bit) read_with(0, 0, bit);
  for (uint64_t bit = 0; bit < 12'000 * 8; bit += 7) read_with(2, bit % 2, bit);
  // The ends of large blocks: lengths, keys, restart points, trailers.
  for (uint64_t read : {0, 1, 2, 3}) {
    for (uint64_t bit = 0; bit < 60 * 8; bit += 3) read_with(3, read, bit);
    for (uint64_t back = 1; back < 40 * 8; back += 3) {
      read_with(3, read, uint64_t{8} * (kChunkBytes + 40) * 1000 - back);
    }
  }
  EXPECT_GT(damaged, 10'000);
  EXPECT_GT(right, 100);
}

TEST_F(RocksDbStoreFaultTest, ADatabaseThatCannotBeMadeIsMadeWhenTheDiskTakesWrites) {
  for (DiskOp op : {DiskOp::kCreate, DiskOp::kAppend, DiskOp::kSync, DiskOp::kRename}) {
    options_.path = absl::StrCat(directory_.path(), "/", static_cast<int>(op));
    disk_.Arm(On(op, DiskError::kNoSpace, "/db/"));
    Open();
    ASSERT_NE(store_, nullptr);
    EXPECT_FALSE(store_->GetStats().writable);
    EXPECT_TRUE(absl::IsUnavailable(PutRecord(*store_, MakeRecord(TestKey("x"), 100, 1))));
    HealAndTick();
    PutAndFlush(1);
    Reopen();
    EXPECT_TRUE(Has(1));
    EXPECT_EQ(store_->GetStats().corruptions, 0);
  }
}

}  // namespace
}  // namespace embcache
