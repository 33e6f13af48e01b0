#include "storage/late_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

class LateStoreTest : public RocksDbStoreFixture {
 protected:
  LateStoreOptions Options() {
    LateStoreOptions late;
    late.open = [this]() -> absl::StatusOr<std::unique_ptr<PersistentStore>> {
      RocksDbStoreOptions options = options_;
      options.discard = true;
      return RocksDbStore::Open(options);
    };
    late.capacity_bytes = options_.capacity_bytes;
    late.background_thread = false;
    return late;
  }
};

TEST_F(LateStoreTest, UntilItIsOpenItHoldsNothingAndTakesNothingAndSaysSo) {
  WriteFile(options_.path, "a file where the directory should be");
  LateStore store(Options());
  EXPECT_TRUE(absl::IsUnavailable(store.Retry()));
  EXPECT_TRUE(absl::IsUnavailable(PutRecord(store, MakeRecord(TestKey("k"), 100, 1))));
  EXPECT_FALSE(store.Find(TestKey("k")).has_value());
  EXPECT_TRUE(store.Forget(TestKey("k"), 1));
  EXPECT_TRUE(absl::IsUnavailable(store.Remove(TestKey("k"), 1)));
  EXPECT_TRUE(absl::IsUnavailable(store.SetModelEpoch("m", 1)));
  EXPECT_TRUE(absl::IsUnavailable(store.Flush()));
  EXPECT_TRUE(absl::IsUnavailable(store.Reachable()));
  EXPECT_EQ(store.max_generation(), 0);
  const StoreStats stats = store.GetStats();
  EXPECT_FALSE(stats.writable);
  EXPECT_EQ(stats.capacity_bytes, options_.capacity_bytes);
  EXPECT_EQ(stats.io_errors, 2);  // the one that led to it, and the retry

  fs::remove(options_.path);
  ASSERT_TRUE(store.Retry().ok());
  EXPECT_TRUE(store.GetStats().writable);
  EXPECT_TRUE(store.Reachable().ok());
  const TestRecord record = MakeRecord(TestKey("k"), 100, 2);
  ASSERT_TRUE(PutRecord(store, record).ok());
  EXPECT_TRUE(store.Flush().ok());
  EXPECT_EQ(ReadPayload(store, TestKey("k")), record.payload);
}

TEST_F(LateStoreTest, ComesBackByItselfWhenTheDirectoryCanBeMade) {
  options_.path = directory_.path() + "/mount/l3";
  absl::Notification open;
  LateStoreOptions late = Options();
  late.background_thread = true;
  late.log = [&open](absl::string_view line) {
    if (line == "L3 is open now") open.Notify();
  };
  LateStore store(std::move(late));
  EXPECT_FALSE(store.GetStats().writable);
  fs::create_directory(directory_.path() + "/mount");
  ASSERT_TRUE(open.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_TRUE(PutRecord(store, MakeRecord(TestKey("k"), 100, 1)).ok());
}

TEST_F(LateStoreTest, NothingFromBeforeComesBack) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 70)).ok());
  ASSERT_TRUE(store_->SetModelEpoch("m", 5).ok());
  ASSERT_TRUE(store_->Flush().ok());
  store_ = nullptr;
  LateStore store(Options());
  ASSERT_TRUE(store.Retry().ok());
  EXPECT_FALSE(store.Find(TestKey("k")).has_value());
  EXPECT_TRUE(store.ModelEpochs().empty());
  // A cache that began without the store counts from 1.
  const TestRecord record = MakeRecord(TestKey("k", "m"), 100, 1);
  ASSERT_TRUE(PutRecord(store, record).ok());
  EXPECT_EQ(ReadPayload(store, TestKey("k", "m")), record.payload);
}

TEST_F(LateStoreTest, WhatPassesIsToldFromWhatTheOperatorMustMend) {
  options_.path = directory_.path() + "/missing/l3";
  EXPECT_TRUE(absl::IsUnavailable(RocksDbStore::Open(options_).status()));
  options_.path = directory_.path() + "/file";
  WriteFile(options_.path, "");
  EXPECT_TRUE(absl::IsUnavailable(RocksDbStore::Open(options_).status()));
  options_.path = directory_.path() + "/odd";
  fs::create_directories(options_.path + "/FORMAT");  // exists, and cannot be read
  EXPECT_TRUE(absl::IsUnavailable(RocksDbStore::Open(options_).status()));
  options_.path = directory_.path() + "/l3";
  Open();
  EXPECT_TRUE(absl::IsAlreadyExists(RocksDbStore::Open(options_).status()));
}

}  // namespace
}  // namespace embcache
