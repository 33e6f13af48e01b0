// What RocksDbStore promises beyond the port: to survive restarts, crashes, damage and full disks.
// Nothing here waits for time to pass: stores have no thread of their own and a simulated clock.

#include "storage/rocksdb_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

using RocksDbStoreTest = RocksDbStoreFixture;

TEST_F(RocksDbStoreTest, RecordsSurviveAReopening) {
  Open();
  std::vector<TestRecord> records;
  for (int i = 0; i < 20; ++i) {
    records.push_back(MakeRecord(TestKey(absl::StrCat(i)), 1 + i * 77'777, 1 + i));
    ASSERT_TRUE(PutRecord(*store_, records.back()).ok());
  }
  Reopen();  // the destructor writes what is pending
  EXPECT_EQ(store_->GetStats().entries, 20);
  EXPECT_EQ(store_->max_generation(), 20);
  for (const TestRecord& record : records) {
    EXPECT_EQ(ReadPayload(*store_, record.stored.info->key), record.payload);
  }
}

TEST_F(RocksDbStoreTest, WhatALoadWillBeChargedIsKnownAfterAReopening) {
  Open();
  TestRecord record = MakeRecord(TestKey("k"), 1000, 1);
  EntryInfo info = *record.stored.info;
  info.metadata = {{"m", std::string(40'000, 'm')}};
  record.stored.info = std::make_shared<const EntryInfo>(info);
  ASSERT_TRUE(PutRecord(*store_, record).ok());
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("small"), 1000, 2)).ok());
  Reopen();
  EXPECT_EQ(store_->Find(TestKey("k"))->heap_bytes, ChargedHeapBytes(info));
  EXPECT_EQ(store_->Find(TestKey("small"))->heap_bytes, 0);
}

TEST_F(RocksDbStoreTest, OfTwoGenerationsTheHigherSurvivesAReopening) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  const TestRecord newer = MakeRecord(TestKey("k"), 2000, 2);
  ASSERT_TRUE(PutRecord(*store_, newer).ok());
  Reopen();
  EXPECT_EQ(ReadPayload(*store_, TestKey("k")), newer.payload);
  EXPECT_EQ(store_->GetStats().entries, 1);
}

TEST_F(RocksDbStoreTest, RemovalsSurviveAReopening) {
  Open();
  for (const char* name : {"removed", "replaced", "pending"}) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(name), 1000, 1)).ok());
    if (name != absl::string_view("replaced")) continue;
    ASSERT_TRUE(store_->Flush().ok());
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(name), 1000, 2)).ok());
  }
  for (const char* name : {"removed", "replaced", "pending"}) {
    ASSERT_TRUE(store_->Remove(TestKey(name), 3).ok());
  }
  Reopen();
  for (const char* name : {"removed", "replaced", "pending"}) {
    EXPECT_FALSE(store_->Find(TestKey(name)).has_value()) << name;
  }
  EXPECT_EQ(store_->max_generation(), 3);
  const TestRecord later = MakeRecord(TestKey("removed"), 500, 4);
  ASSERT_TRUE(PutRecord(*store_, later).ok());
  Reopen();
  EXPECT_EQ(ReadPayload(*store_, TestKey("removed")), later.payload);
}

TEST_F(RocksDbStoreTest, ModelEpochsSurviveAReopening) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("old", "m"), 1000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(store_->SetModelEpoch("m", 4).ok());
  TestRecord current = MakeRecord(TestKey("new", "m"), 1000, 2);
  current.stored.model_epoch = 4;
  ASSERT_TRUE(PutRecord(*store_, current).ok());
  Reopen();
  EXPECT_FALSE(store_->Find(TestKey("old", "m")).has_value());
  EXPECT_EQ(ReadPayload(*store_, TestKey("new", "m")), current.payload);
  ASSERT_EQ(store_->ModelEpochs().size(), 1);
  EXPECT_EQ(store_->ModelEpochs()[0], std::make_pair(std::string("m"), uint64_t{4}));
}

TEST_F(RocksDbStoreTest, AnEpochIsForgottenWhenNoFileHasAnythingOfItsModel) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("hidden", "m"), 1000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(store_->SetModelEpoch("m", 1).ok());
  ASSERT_TRUE(store_->SetModelEpoch("rubbish", 1).ok());
  Reopen();
  EXPECT_THAT(store_->ModelEpochs(), testing::ElementsAre(testing::Pair("m", 1)))
      << "a record that it hides is still on disk";
  // A model that was forgotten begins anew, and stays so: its epoch must not come back.
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("new", "rubbish"), 1000, 2)).ok());
  Reopen();
  EXPECT_TRUE(store_->Find(TestKey("new", "rubbish")).has_value());
  EXPECT_FALSE(store_->Find(TestKey("hidden", "m")).has_value());
  // Until the file with the hidden record has made room.
  for (uint64_t i = 3; i < 40; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 1 << 20, i)).ok());
  }
  Reopen();
  EXPECT_THAT(store_->ModelEpochs(), testing::IsEmpty());
  EXPECT_FALSE(store_->Find(TestKey("hidden", "m")).has_value());
}

TEST_F(RocksDbStoreTest, AValueLargerThanASegmentFileHasAFileOfItsOwn) {
  Open();
  const TestRecord large = MakeRecord(TestKey("large"), 5 << 20, 1);
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("small"), 100, 2)).ok());
  ASSERT_TRUE(PutRecord(*store_, large).ok());
  EXPECT_EQ(store_->GetStats().files, 2);
  EXPECT_EQ(ReadPayload(*store_, TestKey("large")), large.payload);
  Reopen();
  EXPECT_EQ(ReadPayload(*store_, TestKey("large")), large.payload);
}

TEST_F(RocksDbStoreTest, SealsWhenOldEnough) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 1)).ok());
  clock_.Advance(absl::Milliseconds(1900));
  store_->Tick();
  EXPECT_EQ(store_->GetStats().files, 0);
  clock_.Advance(absl::Milliseconds(200));
  store_->Tick();
  EXPECT_EQ(store_->GetStats().files, 1);
}

TEST_F(RocksDbStoreTest, ForgottenRecordsBecomeRemovedForGoodByTick) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  store_->Forget(TestKey("k"), 1);
  store_->Tick();
  const std::string copy = CopyDirectory();
  OpenAt(copy);
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
}

// --- Crashes ------------------------------------------------------------------------------------

using RocksDbStoreDeathTest = RocksDbStoreFixture;

TEST_F(RocksDbStoreDeathTest, WhatWasFlushedOrRemovedSurvivesKill9) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The child starts this test anew: it must use the parent's directory.
  const char* inherited = getenv("EMBCACHE_TEST_CRASH_DIRECTORY");
  const std::string path = inherited != nullptr ? inherited : directory_.path() + "/crash";
  setenv("EMBCACHE_TEST_CRASH_DIRECTORY", path.c_str(), 1);
  EXPECT_EXIT(
      {
        OpenAt(path);
        const bool done = PutRecord(*store_, MakeRecord(TestKey("kept"), 900'000, 1)).ok() &&
                          PutRecord(*store_, MakeRecord(TestKey("removed"), 1000, 2)).ok() &&
                          PutRecord(*store_, MakeRecord(TestKey("old", "m"), 1000, 3)).ok() &&
                          store_->Flush().ok() && store_->Remove(TestKey("removed"), 2).ok() &&
                          store_->SetModelEpoch("m", 1).ok() &&
                          PutRecord(*store_, MakeRecord(TestKey("pending"), 1000, 4)).ok();
        kill(getpid(), done ? SIGKILL : SIGTERM);
      },
      testing::KilledBySignal(SIGKILL), "");
  unsetenv("EMBCACHE_TEST_CRASH_DIRECTORY");
  OpenAt(path);
  EXPECT_EQ(ReadPayload(*store_, TestKey("kept")), TestBytes(900'000, 1));
  EXPECT_FALSE(store_->Find(TestKey("removed")).has_value());
  EXPECT_FALSE(store_->Find(TestKey("old", "m")).has_value());
  EXPECT_FALSE(store_->Find(TestKey("pending")).has_value());
  const TestRecord next = MakeRecord(TestKey("next"), 1000, store_->max_generation() + 1);
  ASSERT_TRUE(PutRecord(*store_, next).ok());
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_EQ(ReadPayload(*store_, TestKey("next")), next.payload);
}

TEST_F(RocksDbStoreTest, ACopyOfTheDirectoryAtAnyMomentHasNoWrongBytes) {
  Open();
  for (uint64_t i = 1; i <= 60; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i % 10)), 150'000, i)).ok());
    if (i % 12 != 0) continue;
    const std::string copy = CopyDirectory();
    RocksDbStoreOptions options = options_;
    options.path = copy;
    absl::StatusOr<std::unique_ptr<RocksDbStore>> crashed = RocksDbStore::Open(options);
    ASSERT_TRUE(crashed.ok()) << crashed.status();
    EXPECT_GE((*crashed)->GetStats().entries, 8);
    (*crashed)->List("", [&](const CacheKey& key, const StoredPlace& place) {
      EXPECT_LE(place.generation, i);
      return true;
    });
    ExpectOnlyRightBytes(**crashed, 10);
  }
}

// --- Who may open -------------------------------------------------------------------------------

TEST_F(RocksDbStoreTest, ASecondOpenerIsRefusedByNameAndTheFirstGoesOn) {
  Open();
  const TestRecord record = MakeRecord(TestKey("k"), 1000, 1);
  ASSERT_TRUE(PutRecord(*store_, record).ok());
  const auto second = RocksDbStore::Open(options_);
  ASSERT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_TRUE(absl::StrContains(second.status().message(), absl::StrCat("process ", getpid())))
      << second.status();
  ASSERT_TRUE(store_->Flush().ok());
  Reopen();
  EXPECT_EQ(ReadPayload(*store_, TestKey("k")), record.payload);
}

TEST_F(RocksDbStoreTest, AnUnknownFormatIsRefusedAndLeftAlone) {
  Open();
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 1)).ok());
  store_ = nullptr;
  for (const char* text :
       {"embcache-l3 4\n", "embcache-l3 0\n", "", "embcache-l3 3", "something else\n"}) {
    WriteFile(options_.path + "/FORMAT", text);
    const auto opened = RocksDbStore::Open(options_);
    EXPECT_TRUE(absl::IsFailedPrecondition(opened.status())) << text << opened.status();
  }
  for (int version : {1, 2, 3}) {
    WriteFile(options_.path + "/FORMAT", absl::StrCat("embcache-l3 ", version, "\n"));
    Open();
    EXPECT_EQ(ReadFile(options_.path + "/FORMAT"), "embcache-l3 3\n");
    EXPECT_TRUE(store_->Find(TestKey("k")).has_value());
    store_ = nullptr;
  }
}

TEST_F(RocksDbStoreTest, ADirectoryThatIsSomebodyElsesIsRefusedAndNothingIsWrittenThere) {
  fs::create_directories(options_.path);
  WriteFile(options_.path + "/theirs", "x");
  EXPECT_TRUE(absl::IsFailedPrecondition(RocksDbStore::Open(options_).status()));
  for (const auto& entry : fs::directory_iterator(options_.path)) {
    EXPECT_EQ(entry.path().filename(), "theirs");
  }
}

TEST_F(RocksDbStoreTest, AFormatFileThatIsWrongIsRefusedWithWhatIsWrongAndNoMore) {
  Open();
  store_ = nullptr;
  const auto refusal = [this](const std::string& text) {
    WriteFile(options_.path + "/FORMAT", text);
    return std::string(RocksDbStore::Open(options_).status().message());
  };
  EXPECT_TRUE(absl::StrContains(refusal("embcache-l3 2"), "no newline at its end"));
  EXPECT_TRUE(absl::StrContains(refusal("embcache-l3 9\n"), "\"embcache-l3 9\" is not a version"));
  EXPECT_TRUE(absl::StrContains(refusal("\x01\n"), "\"\\001\" is not a version"));
  const std::string huge = refusal(std::string(10 << 20, 'x'));
  EXPECT_TRUE(absl::StrContains(huge, "more than 64 bytes")) << huge.substr(0, 500);
  EXPECT_LT(huge.size(), 500);
}

TEST_F(RocksDbStoreTest, ADirectoryThatHoldsSomethingElseIsRefused) {
  fs::create_directories(options_.path);
  WriteFile(options_.path + "/thesis.txt", "years of work");
  const auto opened = RocksDbStore::Open(options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status())) << opened.status();
  EXPECT_TRUE(fs::exists(options_.path + "/thesis.txt"));
}

TEST_F(RocksDbStoreTest, ACapacityTooSmallIsRefusedWithTheNumbers) {
  options_.capacity_bytes = 1 << 20;
  const auto opened = RocksDbStore::Open(options_);
  ASSERT_TRUE(absl::IsInvalidArgument(opened.status()));
  EXPECT_TRUE(absl::StrContains(opened.status().message(), "1048576"));
  EXPECT_TRUE(absl::StrContains(opened.status().message(), "16777216"));
}

// --- The bound ----------------------------------------------------------------------------------

TEST_F(RocksDbStoreTest, TheDirectoryStaysWithinItsCapacityWhile20TimesThatIsWritten) {
  Open();
  uint64_t generation = 0;
  for (uint64_t written = 0; written < 20 * options_.capacity_bytes;) {
    const uint64_t bytes = 20'000 + ++generation * 7919 % 600'000;
    const CacheKey key = TestKey(absl::StrCat(generation % 97));
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(key, bytes, generation)).ok());
    written += bytes;
    if (generation % 3 == 0) ReadPayload(*store_, TestKey(absl::StrCat(generation * 5 % 97)));
    if (generation % 11 == 0) {
      ASSERT_TRUE(store_->Remove(TestKey(absl::StrCat(generation * 3 % 97)), generation).ok());
    }
    ASSERT_LE(SumOfFileSizes(options_.path), options_.capacity_bytes) << generation;
  }
  EXPECT_GT(store_->GetStats().payload_bytes, options_.capacity_bytes / 2);
  EXPECT_GT(store_->GetStats().evictions, 0);
  Reopen();
  for (uint64_t i = 0; i < 97; ++i) {
    const auto place = store_->Find(TestKey(absl::StrCat(i)));
    if (!place) continue;
    EXPECT_EQ(ReadPayload(*store_, TestKey(absl::StrCat(i))),
              TestBytes(20'000 + place->generation * 7919 % 600'000, place->generation));
  }
}

TEST_F(RocksDbStoreTest, RemovalsAloneDoNotFillTheDirectory) {
  options_.capacity_bytes = 64 << 20;
  Open();
  constexpr int kEntries = 20'000;
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 2000, 1 + i)).ok());
  }
  ASSERT_TRUE(store_->Flush().ok());
  for (int i = 0; i < kEntries; ++i) store_->Forget(TestKey(absl::StrCat(i)), kEntries);
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_LE(SumOfFileSizes(options_.path), options_.capacity_bytes);
  Reopen();
  EXPECT_EQ(store_->GetStats().entries, 0);
}

TEST_F(RocksDbStoreTest, ALowerCapacityIsKeptFromTheOpeningOn) {
  options_.capacity_bytes = 64 << 20;
  Open();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 1'000'000, 1 + i)).ok());
  }
  options_.capacity_bytes = 20 << 20;
  Reopen();
  EXPECT_LE(SumOfFileSizes(options_.path), options_.capacity_bytes);
  EXPECT_FALSE(store_->Find(TestKey("0")).has_value());
  EXPECT_EQ(ReadPayload(*store_, TestKey("59")), TestBytes(1'000'000, 60));
}

TEST_F(RocksDbStoreTest, WhatIsReadOftenOutlivesItsFile) {
  Open();
  const TestRecord loved = MakeRecord(TestKey("loved"), 20'000, 1);
  ASSERT_TRUE(PutRecord(*store_, loved).ok());
  for (int i = 2; i < 600; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 100'000, i)).ok());
    ASSERT_EQ(ReadPayload(*store_, TestKey("loved")), loved.payload) << i;
  }
  EXPECT_FALSE(store_->Find(TestKey("2")).has_value());
}

TEST_F(RocksDbStoreTest, AFileThatHoldsNothingAnyMoreGoesBeforeTheOldest) {
  Open();
  uint64_t generation = 0;
  const auto put = [&](const CacheKey& key) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(key, 1'000'000, ++generation)).ok());
    ASSERT_TRUE(store_->Flush().ok());
  };
  put(TestKey("oldest"));
  for (int i = 0; i < 8; ++i) put(TestKey(absl::StrCat("dead", i), "m"));
  for (int i = 0; i < 4; ++i) put(TestKey(absl::StrCat("live", i)));
  ASSERT_TRUE(store_->SetModelEpoch("m", 1).ok());
  for (int i = 0; i < 8; ++i) put(TestKey(absl::StrCat("new", i)));
  EXPECT_EQ(store_->GetStats().evictions, 0);
  EXPECT_EQ(store_->GetStats().entries, 13);
  Reopen();
  EXPECT_EQ(store_->GetStats().entries, 13);
  EXPECT_EQ(ReadPayload(*store_, TestKey("oldest")), TestBytes(1'000'000, 1));
}

TEST_F(RocksDbStoreTest, KeepsTheNumberOfFilesBoundedAndLosesNothingForIt) {
  options_.max_files = 10;
  Open();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 100, 1 + i)).ok());
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_LE(store_->GetStats().files, 10);
  }
  EXPECT_EQ(store_->GetStats().entries, 60);
  EXPECT_EQ(store_->GetStats().evictions, 0);
  ASSERT_TRUE(store_->Flush().ok());
  Reopen();
  EXPECT_EQ(store_->GetStats().entries, 60);
  EXPECT_EQ(ExpectOnlyRightBytes(*store_, 60), 60);
}

TEST_F(RocksDbStoreTest, WithTooManyFullFilesTheOldestGoes) {
  options_.segment_bytes = 128 << 10;
  options_.max_files = 5;
  Open();
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 120'000, 1 + i)).ok());
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_LE(store_->GetStats().files, 5);
  }
  EXPECT_FALSE(store_->Find(TestKey("0")).has_value());
  EXPECT_EQ(ExpectOnlyRightBytes(*store_, 12), 5);
}

TEST_F(RocksDbStoreTest, OpensAHundredThousandSmallEntries) {
  options_.capacity_bytes = 256 << 20;
  Open();
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), 64, 1 + i)).ok());
  }
  store_ = nullptr;
  const absl::Duration before = SystemClock()->MonotonicNow();
  Open();
  std::printf("opened 100000 entries in %.1f ms\n",
              absl::ToDoubleMilliseconds(SystemClock()->MonotonicNow() - before));
  EXPECT_EQ(store_->GetStats().entries, 100'000);
  EXPECT_EQ(ReadPayload(*store_, TestKey("77777")), TestBytes(64, 77778));
}

}  // namespace
}  // namespace embcache
