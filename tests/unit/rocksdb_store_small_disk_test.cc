// Disks that hold less than RocksDbStore's capacity: what they hold is the capacity then. What
// somebody else takes of them is not answered by giving up everything.

#include <gtest/gtest.h>
#include <rocksdb/env.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/crash/own_file_system.h"
#include "tests/unit/fault_file_system.h"
#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kValueBytes = 1'000'000;

class RocksDbStoreSmallDiskTest : public RocksDbStoreFixture {
 protected:
  RocksDbStoreSmallDiskTest() : disk_(directory_.path() + "/disk") {
    // Files of a MiB, and a reserve of 4 MiB.
    options_.capacity_bytes = 64 * kMiB;
    options_.min_free_bytes = RocksDbStoreOptions().min_free_bytes;
    options_.log = [this](absl::string_view text) { absl::StrAppend(&log_, text, "\n"); };
  }
  ~RocksDbStoreSmallDiskTest() override { store_ = nullptr; }

  void OpenOnDiskOf(uint64_t bytes) {
    const absl::Status mounted = disk_.Mount(bytes);
    ASSERT_TRUE(mounted.ok()) << mounted << ": this test needs a file system of its own";
    options_.path = disk_.path() + "/l3";
    Open();
  }
  // Values have numbers from 0 on.
  absl::Status Put(absl::string_view model = "model") {
    const CacheKey key = TestKey(absl::StrCat(next_), model);
    absl::Status status = PutRecord(*store_, MakeRecord(key, kValueBytes, 1 + next_++));
    if (status.ok()) status = store_->Flush();
    return status;
  }
  void ExpectPuts(int count) {
    for (int i = 0; i < count; ++i) {
      const absl::Status put = Put();
      ASSERT_TRUE(put.ok()) << put;
      ASSERT_TRUE(Has(next_ - 1));
    }
  }
  // Costs the other records nothing.
  void ExpectRefusedAlone(const TestRecord& record) {
    EXPECT_TRUE(absl::IsResourceExhausted(PutRecord(*store_, record)));
    EXPECT_TRUE(store_->GetStats().writable);
    EXPECT_EQ(store_->GetStats().io_errors, 0);
    EXPECT_TRUE(Has(0));
  }
  bool Has(uint64_t number) {
    return ReadPayload(*store_, TestKey(absl::StrCat(number))) ==
           TestBytes(kValueBytes, 1 + number);
  }

  testing_support::OwnFileSystem disk_;
  std::string log_;
  uint64_t next_ = 0;
};

TEST_F(RocksDbStoreSmallDiskTest, WhatTheDiskHoldsIsTheCapacity) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(24 * kMiB));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(60));
  const StoreStats stats = store_->GetStats();
  EXPECT_TRUE(stats.writable);
  EXPECT_EQ(stats.io_errors, 0);
  EXPECT_LE(stats.capacity_bytes, 24 * kMiB);
  EXPECT_GT(stats.payload_bytes, 16 * kMiB);
  EXPECT_FALSE(Has(0));
  EXPECT_NE(log_.find("cannot grow to its capacity"), std::string::npos) << log_;
  Reopen();
  EXPECT_TRUE(Has(59));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(30));
}

TEST_F(RocksDbStoreSmallDiskTest, WhatHoldsNothingAnyMoreMakesRoomOnAFullDisk) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(24 * kMiB));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(1));
  for (int i = 0; i < 17; ++i) ASSERT_TRUE(Put("old").ok());
  ASSERT_TRUE(store_->SetModelEpoch("old", 1).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(16));
  EXPECT_TRUE(Has(0));
  EXPECT_EQ(store_->GetStats().evictions, 0);
}

TEST_F(RocksDbStoreSmallDiskTest, AValueThatTheDiskNeverHoldsDoesNotStopTheOthers) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(24 * kMiB));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(10));
  const TestRecord large = MakeRecord(TestKey("large"), 30 * kMiB, 1000);
  ExpectRefusedAlone(large);
}

TEST_F(RocksDbStoreSmallDiskTest, AValueThatIsLargerThanWhatIsLeftOfTheDiskDoesNotStopTheOthers) {
  options_.capacity_bytes = 4096 * kMiB;  // files are large then, but not on this disk
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(64 * kMiB));
  WriteFile(disk_.path() + "/other", std::string(40 * kMiB, 'o'));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(10));
  const TestRecord large = MakeRecord(TestKey("large"), 30 * kMiB, 1000);
  ExpectRefusedAlone(large);
  std::filesystem::remove(disk_.path() + "/other");
  EXPECT_TRUE(PutRecord(*store_, large).ok());
}

TEST_F(RocksDbStoreSmallDiskTest, EverySizeOfDiskFromFourMebibytesOnIsWrittenForGood) {
  options_.capacity_bytes = 4096 * kMiB;
  for (uint64_t mib = 4; mib <= 20; mib += 2) {
    SCOPED_TRACE(absl::StrCat(mib, " MiB"));
    testing_support::OwnFileSystem disk(absl::StrCat(directory_.path(), "/disk", mib));
    ASSERT_TRUE(disk.Mount(mib * kMiB).ok());
    options_.path = disk.path() + "/l3";
    ASSERT_NO_FATAL_FAILURE(Open());
    ASSERT_NO_FATAL_FAILURE(ExpectPuts(60));
    EXPECT_EQ(store_->GetStats().io_errors, 0);
    EXPECT_GT(store_->GetStats().payload_bytes, (mib - 3) * kMiB);
    Reopen();
    EXPECT_TRUE(Has(next_ - 1));
    ASSERT_NO_FATAL_FAILURE(ExpectPuts(10));
    store_ = nullptr;
  }
}

TEST_F(RocksDbStoreSmallDiskTest, WithTooLittleForAnyFileItSaysHowMuchIsMissingAndComesBackWithIt) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(24 * kMiB));
  WriteFile(disk_.path() + "/other", std::string(23 * kMiB + kMiB / 4, 'o'));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Put().ok());
    clock_.Advance(absl::Seconds(5));
    store_->Tick();
  }
  EXPECT_FALSE(store_->GetStats().writable);
  EXPECT_LT(store_->GetStats().capacity_bytes, kMiB);
  EXPECT_NE(log_.find("more to be written for sure"), std::string::npos) << log_;
  std::filesystem::remove(disk_.path() + "/other");
  clock_.Advance(absl::Seconds(5));
  store_->Tick();
  EXPECT_TRUE(store_->GetStats().writable);
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(30));
}

TEST_F(RocksDbStoreSmallDiskTest, MoreSpaceIsUsedWhenThereIsSome) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(48 * kMiB));
  WriteFile(disk_.path() + "/other", std::string(24 * kMiB, 'o'));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(30));
  std::filesystem::remove(disk_.path() + "/other");
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(30));
  EXPECT_GT(store_->GetStats().payload_bytes, 36 * kMiB);
  EXPECT_GT(store_->GetStats().capacity_bytes, 40 * kMiB);
}

TEST_F(RocksDbStoreSmallDiskTest, SomebodyWhoTakesAllThatBecomesFreeDoesNotEmptyIt) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(56 * kMiB));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(40));
  for (int i = 0; i < 30; ++i) {
    disk_.Fill();
    std::filesystem::resize_file(disk_.path() + "/ballast",
                                 std::filesystem::file_size(disk_.path() + "/ballast") - 200'000);
    (void)Put();
    clock_.Advance(absl::Seconds(5));
    store_->Tick();
  }
  EXPECT_FALSE(store_->GetStats().writable);
  // One file and the reserve, once for what was written and once for the fall of the bound.
  EXPECT_GT(store_->GetStats().payload_bytes, 25 * kMiB);
  disk_.Empty();
  clock_.Advance(absl::Seconds(10));
  store_->Tick();
  EXPECT_TRUE(store_->GetStats().writable);
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(10));
  EXPECT_EQ(store_->GetStats().corruptions, 0);
}

TEST_F(RocksDbStoreSmallDiskTest, ADiskThatIsFilledToTheLastByteCostsNothingThatIsStored) {
  ASSERT_NO_FATAL_FAILURE(OpenOnDiskOf(56 * kMiB));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(40));
  disk_.Fill();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(Put().ok());
    clock_.Advance(absl::Seconds(5));
    store_->Tick();
  }
  EXPECT_FALSE(store_->GetStats().writable);
  disk_.Empty();
  clock_.Advance(absl::Seconds(5));
  store_->Tick();
  EXPECT_TRUE(store_->GetStats().writable);
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(Has(i)) << i;
}

// A quota: the file system says that it has room.
class RocksDbStoreQuotaTest : public RocksDbStoreSmallDiskTest {
 protected:
  RocksDbStoreQuotaTest()
      : env_(rocksdb::NewCompositeEnv(
            std::shared_ptr<rocksdb::FileSystem>(&faults_, [](auto*) {}))) {
    options_.env = env_.get();
  }
  ~RocksDbStoreQuotaTest() override { store_ = nullptr; }

  FaultFileSystem faults_;
  const std::unique_ptr<rocksdb::Env> env_;
};

TEST_F(RocksDbStoreQuotaTest, WhereItRefusesIsTheCapacityForAWhile) {
  Open();
  faults_.SetQuota(options_.path, 24 * kMiB);
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(60));
  StoreStats stats = store_->GetStats();
  EXPECT_TRUE(stats.writable);
  EXPECT_EQ(stats.io_errors, 1) << "it was tried in vain again and again";
  EXPECT_LE(stats.capacity_bytes, 24 * kMiB);
  EXPECT_GT(stats.payload_bytes, 12 * kMiB);
  faults_.SetQuota("", 0);
  clock_.Advance(absl::Minutes(1));
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(60));
  EXPECT_EQ(store_->GetStats().capacity_bytes, options_.capacity_bytes);
  EXPECT_GT(store_->GetStats().payload_bytes, 48 * kMiB);
}

TEST_F(RocksDbStoreQuotaTest, ASmallQuotaIsWrittenForGood) {
  options_.capacity_bytes = 4096 * kMiB;
  for (uint64_t mib = 4; mib <= 20; mib += 4) {
    SCOPED_TRACE(absl::StrCat(mib, " MiB"));
    options_.path = absl::StrCat(directory_.path(), "/l3-", mib);
    ASSERT_NO_FATAL_FAILURE(Open());
    faults_.SetQuota(options_.path, mib * kMiB);
    ASSERT_NO_FATAL_FAILURE(ExpectPuts(60));
    EXPECT_EQ(store_->GetStats().io_errors, 1) << "it was tried in vain again and again";
    store_ = nullptr;
    faults_.SetQuota("", 0);
  }
}

TEST_F(RocksDbStoreQuotaTest, ADiskThatRefusesWhateverIsDroppedDoesNotEmptyIt) {
  Open();
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(40));
  DiskFault fault;
  fault.op = DiskOp::kAppend;
  fault.path_part = "/stage/";
  fault.sticky = true;
  faults_.Arm(fault);
  for (int i = 0; i < 60; ++i) {
    EXPECT_FALSE(Put().ok());
    clock_.Advance(absl::Minutes(1));
    store_->Tick();
  }
  EXPECT_GT(store_->GetStats().payload_bytes, 30 * kMiB);
  faults_.Heal();
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(10));
}

TEST_F(RocksDbStoreQuotaTest, SomebodyWhoUsesUpTheQuotaDoesNotEmptyIt) {
  Open();
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(40));
  for (int i = 0; i < 30; ++i) {
    faults_.SetQuota(options_.path, SumOfFileSizes(options_.path) + 200'000);
    (void)Put();
    clock_.Advance(absl::Seconds(5));
    store_->Tick();
  }
  EXPECT_GT(store_->GetStats().payload_bytes, 25 * kMiB);
  faults_.SetQuota("", 0);
  clock_.Advance(absl::Minutes(1));
  store_->Tick();
  EXPECT_TRUE(store_->GetStats().writable);
  ASSERT_NO_FATAL_FAILURE(ExpectPuts(10));
}

}  // namespace
}  // namespace embcache
