// Damaged files: RocksDbStore returns the right bytes or none, and never ends the process.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

class RocksDbStoreDamageTest : public RocksDbStoreFixture {
 protected:
  // Keys "0" to "9" in one file, "10" to "19" in a second.
  void WriteTwoFiles() {
    options_.segment_bytes = 2 << 20;
    Open();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 60'000, 1 + i)).ok());
      if (i % 10 == 9) {
        ASSERT_TRUE(store_->Flush().ok());
      }
    }
    ASSERT_EQ(store_->GetStats().files, 2);
    store_ = nullptr;
    tables_ = FilesOf(options_.path, "0", ".sst");
    ASSERT_GE(tables_.size(), 2);
    std::erase_if(tables_, [](const std::string& name) { return fs::file_size(name) < 500'000; });
    ASSERT_EQ(tables_.size(), 2);
  }

  std::vector<std::string> tables_;  // in the order of writing
};

TEST_F(RocksDbStoreDamageTest, AFlippedBitAnywhereInAFileCostsAtMostThatFile) {
  WriteTwoFiles();
  const std::string whole = ReadFile(tables_[0]);
  std::vector<size_t> places;
  for (size_t at = 0; at + 24'000 < whole.size(); at += 24'000) places.push_back(at);
  for (size_t back = 1; back < 20'000; back = back * 5 / 4 + 3) {
    places.push_back(whole.size() - back);
  }
  int untouched = 0;
  for (size_t at : places) {
    const std::string copy = CopyDirectory();
    std::string damaged = whole;
    damaged[at] ^= 0x10;
    WriteFile(copy + "/db/" + fs::path(tables_[0]).filename().string(), damaged);
    OpenAt(copy);
    ASSERT_NE(store_, nullptr) << at;
    const int right = ExpectOnlyRightBytes(*store_, 20);
    EXPECT_GE(right, 10) << "at byte " << at << ": the other file lost records too";
    if (at + 24'000 < 600'000) {
      EXPECT_GE(right, 18) << "at byte " << at << ": more than the records there were lost";
    }
    if (right == 20) ++untouched;
    store_->Tick();
    ExpectOnlyRightBytes(*store_, 20);
    store_ = nullptr;
    fs::remove_all(copy);
  }
  EXPECT_LT(untouched, static_cast<int>(places.size()) / 2);
}

TEST_F(RocksDbStoreDamageTest, ADamagedRecordIsCountedGoneAndStaysGone) {
  WriteTwoFiles();
  std::string table = ReadFile(tables_[0]);
  table[100'000] ^= 1;  // in the second record
  WriteFile(tables_[0], table);
  Open();
  EXPECT_EQ(ExpectOnlyRightBytes(*store_, 20), 19);
  EXPECT_EQ(store_->GetStats().corruptions, 1);
  EXPECT_EQ(store_->GetStats().entries, 19);
  Reopen();
  EXPECT_EQ(store_->GetStats().entries, 19);
}

TEST_F(RocksDbStoreDamageTest, AFileWithManyDamagedRecordsIsDropped) {
  WriteTwoFiles();
  std::string table = ReadFile(tables_[0]);
  for (int i = 0; i < 5; ++i) table[30'000 + i * 60'000] ^= 1;
  WriteFile(tables_[0], table);
  Open();
  EXPECT_EQ(ExpectOnlyRightBytes(*store_, 20), 15);
  store_->Tick();
  EXPECT_EQ(store_->GetStats().files, 1);
  EXPECT_EQ(store_->GetStats().entries, 10);
  EXPECT_FALSE(fs::exists(tables_[0]));
}

TEST_F(RocksDbStoreDamageTest, ATruncatedFileCostsItsOwnRecords) {
  WriteTwoFiles();
  fs::resize_file(tables_[0], 300'000);
  Open();
  EXPECT_EQ(ExpectOnlyRightBytes(*store_, 20), 10);
  EXPECT_EQ(store_->GetStats().entries, 10);
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("0"), 1000, 30)).ok());
  Reopen();
  EXPECT_EQ(store_->GetStats().entries, 11);
}

TEST_F(RocksDbStoreDamageTest, ADeletedFileCostsItsOwnRecords) {
  WriteTwoFiles();
  fs::remove(tables_[1]);
  Open();
  EXPECT_EQ(ExpectOnlyRightBytes(*store_, 20), 10);
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("10"), 1000, 30)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  Reopen();
  EXPECT_EQ(store_->GetStats().entries, 11);
}

TEST_F(RocksDbStoreDamageTest, LosingTheNewerFileDoesNotBringBackWhatItReplaced) {
  options_.segment_bytes = 2 << 20;
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 600'000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 700'000, 2)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  store_ = nullptr;
  for (const std::string& table : FilesOf(options_.path, "0", ".sst")) {
    if (fs::file_size(table) > 700'000) fs::remove(table);
  }
  Open();
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
}

TEST_F(RocksDbStoreDamageTest, ADatabaseThatCannotBeOpenedIsKeptAsideAndTheStoreStartsEmpty) {
  WriteTwoFiles();
  struct Damage {
    const char* prefix;
    bool remove;
  };
  for (const Damage& damage : {Damage{"CURRENT", false}, Damage{"MANIFEST", false},
                               Damage{"CURRENT", true}, Damage{"MANIFEST", true}}) {
    const std::string copy = CopyDirectory();
    for (const std::string& name : FilesOf(copy, damage.prefix, "")) {
      if (damage.remove) {
        fs::remove(name);
      } else {
        WriteFile(name, "garbage, garbage and more garbage\n");
      }
    }
    OpenAt(copy);
    ASSERT_NE(store_, nullptr) << damage.prefix;
    EXPECT_EQ(store_->GetStats().entries, 0);
    EXPECT_EQ(store_->GetStats().corruptions, 1);
    EXPECT_TRUE(fs::exists(copy + "/db.corrupt"));
    const TestRecord record = MakeRecord(TestKey("k"), 1000, 1);
    ASSERT_TRUE(PutRecord(*store_, record).ok());
    OpenAt(copy);
    EXPECT_EQ(ReadPayload(*store_, TestKey("k")), record.payload);
  }
}

TEST_F(RocksDbStoreDamageTest, ADamagedLogOfRemovalsNeverBringsARemovedRecordBack) {
  WriteTwoFiles();
  Open();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store_->Remove(TestKey(absl::StrCat(i)), 100).ok());
  }
  const std::string log = ReadFile(options_.path + "/meta.log");
  ASSERT_GT(log.size(), 1000);
  const auto expect_gone = [&](const std::string& damaged, size_t at) {
    const std::string copy = CopyDirectory();
    WriteFile(copy + "/meta.log", damaged);
    RocksDbStoreOptions options = options_;
    options.path = copy;
    const auto opened = RocksDbStore::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->GetStats().entries, 0) << "flip at " << at;
    fs::remove_all(copy);
  };
  for (size_t at : {size_t{2}, size_t{9}, log.size() / 2, log.size() - 70, log.size() - 2}) {
    std::string damaged = log;
    damaged[at] ^= 0x40;
    expect_gone(damaged, at);
  }
  expect_gone("", 0);
}

TEST_F(RocksDbStoreDamageTest, WithoutItsLogOfRemovalsTheDatabaseIsNotTrusted) {
  WriteTwoFiles();
  fs::remove(options_.path + "/meta.log");
  Open();
  EXPECT_EQ(store_->GetStats().entries, 0);
  EXPECT_TRUE(fs::exists(options_.path + "/db.corrupt"));
}

TEST_F(RocksDbStoreDamageTest, ATornRemovalAtTheEndOfTheLogLosesThatOneOnly) {
  WriteTwoFiles();
  Open();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(store_->Remove(TestKey(absl::StrCat(i)), 100).ok());
  }
  const std::string log = ReadFile(options_.path + "/meta.log");
  for (size_t cut : {1, 8, 20, 60}) {
    const std::string copy = CopyDirectory();
    WriteFile(copy + "/meta.log", log.substr(0, log.size() - cut));
    RocksDbStoreOptions options = options_;
    options.path = copy;
    for (int round = 0; round < 2; ++round) {
      const auto opened = RocksDbStore::Open(options);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_EQ((*opened)->GetStats().entries, 18 - round) << cut;
      ASSERT_TRUE((*opened)->Remove(TestKey("9"), 100).ok());
    }
  }
}

TEST_F(RocksDbStoreDamageTest, TheCopyKeptAsideMakesWayForNewRecords) {
  WriteTwoFiles();
  WriteFile(options_.path + "/db/CURRENT", "garbage");
  Open();
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 500'000, 1 + i)).ok());
    ASSERT_LE(SumOfFileSizes(options_.path), options_.capacity_bytes);
  }
  EXPECT_FALSE(fs::exists(options_.path + "/db.corrupt"));
}

TEST_F(RocksDbStoreDamageTest, LeftoversOfTheStageAreRemoved) {
  Open();
  store_ = nullptr;
  WriteFile(options_.path + "/stage/7.sst", "half a file");
  Open();
  EXPECT_TRUE(fs::is_empty(options_.path + "/stage"));
}

}  // namespace
}  // namespace embcache
