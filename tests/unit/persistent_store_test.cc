#include "storage/memory_store.h"
#include "storage/rocksdb_store.h"
#include "tests/unit/persistent_store_conformance.h"

namespace embcache {
namespace {

std::unique_ptr<PersistentStore> MakeMemoryStore(const std::string&) {
  return std::make_unique<MemoryStore>(kConformanceStoreBytes);
}

std::unique_ptr<PersistentStore> MakeRocksDbStore(const std::string& directory) {
  RocksDbStoreOptions options;
  options.path = directory;
  options.capacity_bytes = kConformanceStoreBytes;
  options.min_free_bytes = 0;
  absl::StatusOr<std::unique_ptr<RocksDbStore>> store = RocksDbStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

INSTANTIATE_TEST_SUITE_P(All, PersistentStoreTest,
                         testing::Values(StoreMaker{"Memory", MakeMemoryStore},
                                         StoreMaker{"RocksDb", MakeRocksDbStore}),
                         [](const testing::TestParamInfo<StoreMaker>& info) {
                           return info.param.name;
                         });

TEST(MemoryStoreTest, FailsThePutsAndReadsItIsToldTo) {
  MemoryStore store(1 << 20);
  store.FailNextPuts(1, absl::UnavailableError("no"));
  EXPECT_TRUE(absl::IsUnavailable(PutRecord(store, MakeRecord(TestKey("k"), 100, 1))));
  const TestRecord record = MakeRecord(TestKey("k"), 100, 2);
  EXPECT_TRUE(PutRecord(store, record).ok());
  store.FailNextReads(1, absl::InternalError("no"));
  char bytes[100];
  EXPECT_TRUE(absl::IsInternal(store.Read(TestKey("k"), 2, bytes).status()));
  EXPECT_EQ(ReadPayload(store, TestKey("k")), record.payload);
}

TEST(MemoryStoreTest, ACorruptedRecordIsReportedOnceAndGone) {
  MemoryStore store(1 << 20);
  ASSERT_TRUE(PutRecord(store, MakeRecord(TestKey("k"), 100, 1)).ok());
  store.Corrupt(TestKey("k"));
  char bytes[100];
  EXPECT_TRUE(absl::IsDataLoss(store.Read(TestKey("k"), 1, bytes).status()));
  EXPECT_FALSE(store.Find(TestKey("k")).has_value());
  EXPECT_EQ(store.GetStats().corruptions, 1);
}

TEST(MemoryStoreTest, RefusesWritesButKeepsReadingWhileNotWritable) {
  MemoryStore store(1 << 20);
  const TestRecord record = MakeRecord(TestKey("k"), 100, 1);
  ASSERT_TRUE(PutRecord(store, record).ok());
  store.SetWritable(false);
  EXPECT_TRUE(absl::IsUnavailable(PutRecord(store, MakeRecord(TestKey("other"), 100, 2))));
  EXPECT_TRUE(absl::IsUnavailable(store.Flush()));
  EXPECT_FALSE(store.GetStats().writable);
  EXPECT_EQ(ReadPayload(store, TestKey("k")), record.payload);
  EXPECT_TRUE(absl::IsUnavailable(store.Remove(TestKey("k"), 1)));
  EXPECT_FALSE(store.Find(TestKey("k")).has_value());
}

}  // namespace
}  // namespace embcache
