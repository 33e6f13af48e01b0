// A disk that fails at every single operation in turn: RocksDbStore loses at most what it has not
// made durable, returns nothing wrong, never ends or blocks the process, and takes writes again.
//
// The sweep tries a sample of the operations; EMBCACHE_TEST_ALL=1 tries all of them, and
// EMBCACHE_TEST_SEED=n repeats a sample.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "storage/rocksdb_handle.h"
#include "tests/unit/fault_file_system.h"
#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

constexpr int kKeys = 10;

// What was promised about a key.
struct Promise {
  uint64_t put = 0;      // the last put that was accepted
  uint64_t durable = 0;  // the last one that a flush made durable
  uint64_t removed = 0;  // no generation up to this one comes back
};

// A small life of a store, in which anything may fail. Whatever is wrong goes to `faults`.
class Life {
 public:
  Life(const std::string& path, FaultFileSystem* disk) : disk_(disk), env_(MakeEnv(disk)) {
    options_.path = path;
    options_.capacity_bytes = kMinStoreBytes;
    options_.clock = &clock_;
    options_.min_free_bytes = 0;
    options_.background_thread = false;
    options_.max_files = 8;
    options_.env = env_.get();
  }

  const std::string& wrong() const { return wrong_; }

  void Run() {
    Open();
    for (int i = 0; i < 8; ++i) {
      Put(i);
      if (i % 2 == 1) Flush();
    }
    Check(/*restarted=*/false, /*nothing_evicted=*/true);
    Wait();
    Remove(3);
    SetEpoch();
    Put(8);
    store_ = nullptr;
    Open();
    Check(/*restarted=*/true, /*nothing_evicted=*/true);
    for (int i = 0; i < 14; ++i) {
      Put(i * 3 % kKeys);
      if (i % 2 == 1) Flush();
      if (i % 5 == 4) Remove(i * 7 % kKeys);
      if (i % 3 == 2) Wait();
      Check(/*restarted=*/true, /*nothing_evicted=*/false);
    }
  }

  void HealAndCheck() {
    disk_->Heal();
    if (store_ == nullptr) Open();
    if (store_ == nullptr) return Wrong("it cannot be opened after the disk has healed");
    clock_.Advance(absl::Seconds(11));
    store_->Tick();
    ExpectWritable();
    Check(/*restarted=*/true, /*nothing_evicted=*/false);
    store_ = nullptr;
    Open();
    if (store_ == nullptr) return Wrong("it cannot be opened again");
    Check(/*restarted=*/true, /*nothing_evicted=*/false);
    ExpectWritable();
    if (store_->GetStats().corruptions != 0) Wrong("something is damaged");
    ExpectTidy();
  }

 private:
  static std::unique_ptr<rocksdb::Env> MakeEnv(FaultFileSystem* disk) {
    return rocksdb::NewCompositeEnv(std::shared_ptr<rocksdb::FileSystem>(disk, [](auto*) {}));
  }
  static uint64_t SizeOf(uint64_t generation) { return 3000 + generation * 7919 % 60'000; }

  void Wrong(const std::string& what) { wrong_ += what + "\n"; }

  void Open() {
    absl::StatusOr<std::unique_ptr<RocksDbStore>> opened = RocksDbStore::Open(options_);
    if (!opened.ok()) return Wrong(absl::StrCat("open: ", opened.status().ToString()));
    store_ = *std::move(opened);
    // An epoch without records may be forgotten; one with records is seen by what it hides (Check).
  }

  void Put(int number) {
    if (store_ == nullptr) return;
    const TestRecord record = MakeRecord(TestKey(absl::StrCat(number)), SizeOf(next_), next_);
    if (PutRecord(*store_, record).ok()) promises_[number].put = next_;
    ++next_;
  }

  void Flush() {
    if (store_ == nullptr || !store_->Flush().ok()) return;
    for (auto& [number, promise] : promises_) promise.durable = promise.put;
  }

  void Remove(int number) {
    if (store_ == nullptr) return;
    const bool removed = store_->Remove(TestKey(absl::StrCat(number)), next_ - 1).ok();
    Promise& promise = promises_[number];
    promise.durable = 0;
    promise.put = 0;
    if (removed) promise.removed = next_ - 1;
    if (store_->Find(TestKey(absl::StrCat(number)))) Wrong("a removed key is found");
  }

  void SetEpoch() {
    if (store_ == nullptr) return;
    const CacheKey key = TestKey("x", "other");
    (void)PutRecord(*store_, MakeRecord(key, 5000, next_++));
    (void)store_->Flush();
    epoch_durable_ = store_->SetModelEpoch("other", 1).ok();
    if (store_->Find(key)) Wrong("a record of an old epoch is found");
  }

  void Wait() {
    clock_.Advance(absl::Seconds(3));
    if (store_ != nullptr) store_->Tick();
  }

  // `nothing_evicted`: what is durable has to be there.
  void Check(bool restarted, bool nothing_evicted) {
    if (store_ == nullptr) return;
    if (epoch_durable_ && store_->Find(TestKey("x", "other"))) Wrong("an old epoch is back");
    for (const auto& [number, promise] : promises_) {
      const CacheKey key = TestKey(absl::StrCat(number));
      const std::string name = absl::StrCat("key ", number, ": ");
      const auto place = store_->Find(key);
      if (!place) {
        if (nothing_evicted && promise.durable != 0 && promise.durable == promise.put) {
          Wrong(name + "what was durable is lost");
        }
        continue;
      }
      if (place->generation <= promise.removed) Wrong(name + "what was removed is back");
      if (place->generation < (restarted ? promise.durable : promise.put)) Wrong(name + "is old");
      std::string bytes(place->payload_bytes, '\0');
      const auto read = store_->Read(key, place->generation, bytes.data());
      // A drop that failed half-way may have taken it.
      if (!nothing_evicted && absl::IsNotFound(read.status())) continue;
      if (!read.ok()) {
        Wrong(name + read.status().ToString());
      } else if (bytes != TestBytes(SizeOf(place->generation), place->generation)) {
        Wrong(name + "wrong bytes");
      }
    }
  }

  void ExpectWritable() {
    const uint64_t generation = next_++;
    const TestRecord record = MakeRecord(TestKey("last"), SizeOf(generation), generation);
    absl::Status status = PutRecord(*store_, record);
    status.Update(store_->Flush());
    if (!status.ok()) Wrong(absl::StrCat("not writable again: ", status.ToString()));
    if (!store_->GetStats().writable) Wrong("it says that it is not writable");
    if (ReadPayload(*store_, TestKey("last")) != record.payload) Wrong("the last put is lost");
  }

  void ExpectTidy() {
    if (!fs::is_empty(options_.path + "/stage")) Wrong("stage/ is not empty");
    uint64_t tables = 0;
    for (const auto& entry : fs::directory_iterator(options_.path + "/db")) {
      if (entry.path().extension() == ".sst") ++tables;
    }
    const uint64_t files = store_->GetStats().files;
    if (tables != files) Wrong(absl::StrCat(tables, " tables on disk, ", files, " in use"));
  }

  FaultFileSystem* const disk_;
  const std::unique_ptr<rocksdb::Env> env_;
  SimulatedClock clock_;
  RocksDbStoreOptions options_;
  std::unique_ptr<RocksDbStore> store_;
  std::map<int, Promise> promises_;
  bool epoch_durable_ = false;
  uint64_t next_ = 1;
  std::string wrong_;
};

// In memory where there is such a file system: the sweep syncs a hundred thousand times.
std::string SweepDirectory() {
  std::string name = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir();
  name += "/embcache_faults_XXXXXX";
  return mkdtemp(name.data()) != nullptr ? name : "";
}

struct ChildEnd {
  int status = 0;  // as of waitpid
  std::string text;
};

// Runs a life in a process of its own, which is ended after a minute. REQUIRES: one thread.
ChildEnd RunChild(const std::optional<DiskFault>& fault) {
  const std::string path = SweepDirectory();
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    std::string text;
    {
      FaultFileSystem disk;
      if (fault) disk.Arm(*fault);
      Life life(path + "/l3", &disk);
      life.Run();
      if (!fault) text = absl::StrCat(disk.operations(), " operations\n");
      if (fault && disk.failed() == 0) text = "no operation failed\n";
      life.HealAndCheck();
      text += life.wrong();
    }
    (void)!write(ends[1], text.data(), std::min<size_t>(text.size(), 4000));
    _exit(text.empty() ? 0 : 1);
  }
  close(ends[1]);
  ChildEnd end;
  char piece[4096];
  for (ssize_t got; (got = read(ends[0], piece, sizeof(piece))) > 0;) end.text.append(piece, got);
  close(ends[0]);
  waitpid(pid, &end.status, 0);
  fs::remove_all(path);
  return end;
}

std::string Describe(const ChildEnd& end) {
  if (!WIFSIGNALED(end.status)) return end.text;
  return WTERMSIG(end.status) == SIGALRM
             ? "it hung"
             : absl::StrCat("it was ended by signal ", WTERMSIG(end.status), "\n", end.text);
}

class RocksDbStoreFaultSweep : public testing::TestWithParam<std::pair<DiskError, bool>> {};

TEST_P(RocksDbStoreFaultSweep, WhicheverWriteFailsNothingIsWrongAndItRecovers) {
  const ChildEnd whole = RunChild(std::nullopt);
  const int operations = std::atoi(whole.text.c_str());
  ASSERT_GT(operations, 100) << Describe(whole);
  ASSERT_EQ(whole.text, absl::StrCat(operations, " operations\n"));
  const char* given = std::getenv("EMBCACHE_TEST_SEED");
  const uint32_t seed = given != nullptr ? std::atoi(given) : std::random_device()() % 1'000'000;
  std::mt19937 random(seed);
  const bool all = std::getenv("EMBCACHE_TEST_ALL") != nullptr;
  const int step = all ? 1 : std::max(1, operations / 60);
  std::printf("%d operations, every %d. tried, EMBCACHE_TEST_SEED=%u\n", operations, step, seed);
  const auto [error, sticky] = GetParam();
  for (int at = static_cast<int>(random() % step); at < operations; at += step) {
    DiskFault fault;
    fault.error = error;
    fault.at = at;
    fault.sticky = sticky;
    const ChildEnd end = RunChild(fault);
    EXPECT_EQ(end.status, 0) << "operation " << at << ": " << Describe(end);
  }
}

using Sweep = std::pair<DiskError, bool>;

std::string NameOf(const testing::TestParamInfo<Sweep>& info) {
  constexpr const char* kNames[] = {"NoSpace", "Quota", "Io"};
  return absl::StrCat(kNames[static_cast<int>(info.param.first)],
                      info.param.second ? "Sticky" : "Once");
}

INSTANTIATE_TEST_SUITE_P(, RocksDbStoreFaultSweep,
                         testing::Values(Sweep(DiskError::kNoSpace, false),
                                         Sweep(DiskError::kNoSpace, true),
                                         Sweep(DiskError::kQuota, false),
                                         Sweep(DiskError::kIo, false), Sweep(DiskError::kIo, true)),
                         NameOf);

// --- Single faults
// --------------------------------------------------------------------------------

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
