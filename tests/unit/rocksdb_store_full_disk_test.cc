// Full and refusing disks: RocksDbStore goes on being read, takes writes again by itself, and never
// ends the process.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

// No file of this process can grow beyond `bytes`, which is how a full disk looks to a writer.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(uint64_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ScopedFileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

class RocksDbStoreFullDiskTest : public RocksDbStoreFixture {
 protected:
  void OpenWithOneRecord() {
    Open();
    ASSERT_TRUE(PutRecord(*store_, kept_).ok());
    ASSERT_TRUE(store_->Flush().ok());
  }
  void ExpectRecovers() {
    clock_.Advance(absl::Seconds(11));
    const TestRecord after = MakeRecord(TestKey("after"), 200'000, 50);
    absl::Status put = PutRecord(*store_, after);
    ASSERT_TRUE(put.ok()) << put;
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_TRUE(store_->GetStats().writable);
    Reopen();
    EXPECT_EQ(ReadPayload(*store_, TestKey("after")), after.payload);
    EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), kept_.payload);
  }

  const TestRecord kept_ = MakeRecord(TestKey("kept"), 100'000, 1);
};

TEST_F(RocksDbStoreFullDiskTest, AFileThatCannotBeStagedCostsItsRecordsAndWritingResumes) {
  OpenWithOneRecord();
  {
    ScopedFileLimit limit(64 * 1024);
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("lost"), 200'000, 2)).ok());
    EXPECT_FALSE(store_->Flush().ok());
    EXPECT_FALSE(store_->GetStats().writable);
    EXPECT_FALSE(store_->Find(TestKey("lost")).has_value());
    EXPECT_TRUE(absl::IsUnavailable(PutRecord(*store_, MakeRecord(TestKey("x"), 100, 3))));
    EXPECT_TRUE(absl::IsUnavailable(store_->Flush()));
    EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), kept_.payload);
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(absl::IsUnavailable(PutRecord(*store_, MakeRecord(TestKey("x"), 100, 4))));
    EXPECT_TRUE(fs::is_empty(options_.path + "/stage"));
  }
  ExpectRecovers();
}

TEST_F(RocksDbStoreFullDiskTest, BacksOffFromOneSecondToFive) {
  OpenWithOneRecord();
  ScopedFileLimit limit(64 * 1024);
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("lost"), 200'000, 2)).ok());
  EXPECT_FALSE(store_->Flush().ok());
  uint64_t errors = store_->GetStats().io_errors;
  for (int seconds : {1, 2, 4, 5, 5}) {
    clock_.Advance(absl::Seconds(seconds) - absl::Milliseconds(1));
    store_->Tick();
    EXPECT_EQ(store_->GetStats().io_errors, errors) << seconds;
    clock_.Advance(absl::Milliseconds(1));
    store_->Tick();
    EXPECT_EQ(store_->GetStats().io_errors, ++errors) << seconds;
  }
}

TEST_F(RocksDbStoreFullDiskTest, TickAloneFindsOutThatTheDiskTakesWritesAgain) {
  OpenWithOneRecord();
  {
    ScopedFileLimit limit(64 * 1024);
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("lost"), 200'000, 2)).ok());
    clock_.Advance(absl::Seconds(3));
    store_->Tick();
    EXPECT_FALSE(store_->GetStats().writable);
  }
  clock_.Advance(absl::Seconds(1));
  store_->Tick();
  EXPECT_TRUE(store_->GetStats().writable);
}

TEST_F(RocksDbStoreFullDiskTest, ARemovalThatCannotBeWrittenHoldsAndIsWrittenLater) {
  OpenWithOneRecord();
  const TestRecord doomed = MakeRecord(TestKey("doomed"), 1000, 2);
  ASSERT_TRUE(PutRecord(*store_, doomed).ok());
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("old", "other"), 1000, 3)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  {
    ScopedFileLimit limit(1);
    EXPECT_FALSE(store_->Remove(TestKey("doomed"), 2).ok());
    EXPECT_FALSE(store_->Find(TestKey("doomed")).has_value());
    EXPECT_FALSE(store_->GetStats().writable);
    EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), kept_.payload);
    EXPECT_FALSE(store_->SetModelEpoch("other", 3).ok());
    // The database cannot be opened for writing: it goes on being read.
    clock_.Advance(absl::Seconds(1));
    EXPECT_FALSE(store_->Remove(TestKey("doomed"), 2).ok());
    EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), kept_.payload);
  }
  clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(store_->Remove(TestKey("doomed"), 2).ok());
  const std::string copy = CopyDirectory();
  ExpectRecovers();
  EXPECT_FALSE(store_->Find(TestKey("doomed")).has_value());
  OpenAt(copy);
  EXPECT_FALSE(store_->Find(TestKey("doomed")).has_value());
  EXPECT_FALSE(store_->Find(TestKey("old", "other")).has_value());
  EXPECT_EQ(store_->ModelEpochs().size(), 1);
}

TEST_F(RocksDbStoreFullDiskTest, AFailedIngestCostsItsRecordsForGoodAndTheDatabaseIsOpenedAnew) {
  OpenWithOneRecord();
  // RocksDB links the file to the next free number; here all of them are taken.
  std::vector<std::string> obstacles;
  for (int number = 1; number < 100; ++number) {
    const std::string name =
        absl::StrCat(options_.path, "/db/0000", number < 10 ? "0" : "", number, ".sst");
    if (fs::exists(name)) continue;
    WriteFile(name, "in the way");
    obstacles.push_back(name);
  }
  const TestRecord lost = MakeRecord(TestKey("lost"), 1000, 2);
  ASSERT_TRUE(PutRecord(*store_, lost).ok());
  EXPECT_FALSE(store_->Flush().ok());
  EXPECT_FALSE(store_->Find(TestKey("lost")).has_value());
  EXPECT_FALSE(store_->GetStats().writable);
  EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), kept_.payload);
  for (const std::string& name : obstacles) fs::remove(name);
  ExpectRecovers();
  EXPECT_FALSE(store_->Find(TestKey("lost")).has_value());
}

TEST_F(RocksDbStoreFullDiskTest, WithTooLittleFreeSpaceItOpensForReading) {
  OpenWithOneRecord();
  store_ = nullptr;
  options_.min_free_bytes = uint64_t{1} << 60;
  Open();
  EXPECT_FALSE(store_->GetStats().writable);
  EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), kept_.payload);
  EXPECT_EQ(store_->max_generation(), 1);
  EXPECT_TRUE(absl::IsUnavailable(PutRecord(*store_, MakeRecord(TestKey("x"), 100, 3))));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(store_->Remove(TestKey("kept"), 1).ok());
  EXPECT_FALSE(store_->Find(TestKey("kept")).has_value());
}

TEST_F(RocksDbStoreFullDiskTest, AnEmptyDirectoryOnAFullDiskIsNoReasonNotToStart) {
  options_.min_free_bytes = uint64_t{1} << 60;
  Open();
  EXPECT_FALSE(store_->GetStats().writable);
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
  EXPECT_TRUE(absl::IsUnavailable(PutRecord(*store_, MakeRecord(TestKey("x"), 100, 3))));
}

// Every growing limit fails the disk at another point of seal, ingest, drop or meta write.
TEST_F(RocksDbStoreFullDiskTest, WhereverTheDiskFailsNothingWrongIsReturnedAndItRecovers) {
  Open();
  uint64_t generation = 0;
  for (uint64_t limit = 1; limit < 400'000; limit = limit * 2 + 100) {
    {
      ScopedFileLimit full(limit);
      for (int i = 0; i < 12; ++i) {
        const CacheKey key = TestKey(absl::StrCat(++generation % 30));
        (void)PutRecord(*store_, MakeRecord(key, 150'000, generation));
        if (i % 4 == 0) (void)store_->Remove(TestKey(absl::StrCat(generation % 7)), generation);
        clock_.Advance(absl::Seconds(3));
        store_->Tick();
        ExpectOnlyRightBytes(*store_, 30);
      }
    }
    clock_.Advance(absl::Minutes(1));
    for (int i = 0; i < 30; ++i) {
      const CacheKey key = TestKey(absl::StrCat(++generation % 30));
      absl::Status put = PutRecord(*store_, MakeRecord(key, 150'000, generation));
      ASSERT_TRUE(put.ok()) << put << " after limit " << limit;
    }
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_EQ(ExpectOnlyRightBytes(*store_, 30), 30);
  }
  EXPECT_EQ(store_->GetStats().corruptions, 0);
}

}  // namespace
}  // namespace embcache
