// The conformance suite of PersistentStore: what every implementation promises, run over each by
// INSTANTIATE_TEST_SUITE_P with a way to make one of at least 32 MiB.

#ifndef EMBCACHE_TESTS_UNIT_PERSISTENT_STORE_CONFORMANCE_H_
#define EMBCACHE_TESTS_UNIT_PERSISTENT_STORE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/persistent_store.h"
#include "tests/unit/store_test_util.h"

namespace embcache {

struct StoreMaker {
  std::string name;
  // A fresh, empty store in `directory` (which some do not need).
  std::function<std::unique_ptr<PersistentStore>(const std::string& directory)> make;
};

inline void PrintTo(const StoreMaker& maker, std::ostream* out) { *out << maker.name; }

inline constexpr uint64_t kConformanceStoreBytes = uint64_t{32} << 20;

class PersistentStoreTest : public testing::TestWithParam<StoreMaker> {
 protected:
  PersistentStoreTest() : store_(GetParam().make(directory_.path())) {}

  TestDirectory directory_;
  std::unique_ptr<PersistentStore> store_;
};

TEST_P(PersistentStoreTest, ReturnsTheBytesThatWerePut) {
  const TestRecord record = MakeRecord(TestKey("k"), 3'000'000, 1);
  ASSERT_TRUE(PutRecord(*store_, record).ok());
  const auto place = store_->Find(TestKey("k"));
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->generation, 1);
  EXPECT_EQ(place->payload_bytes, 3'000'000);
  EXPECT_EQ(ReadPayload(*store_, TestKey("k")), record.payload);
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_EQ(ReadPayload(*store_, TestKey("k")), record.payload);
}

TEST_P(PersistentStoreTest, ReturnsTheWholeEntryInfo) {
  TestRecord record = MakeRecord(TestKey("k"), 1000, 7);
  EntryInfo info = *record.stored.info;
  TensorSpec main{"embeds", DType::kBF16, {5, 100}};
  TensorSpec absent{"deepstack", DType::kInvalid, {}, true};
  TensorSpec last{"", DType::kF4, {3, 2}};
  info.layout = *LayOutTensors({main, absent, last});
  info.metadata = {{"grid_thw", std::string("\0\1\2", 3)}, {"empty", ""}};
  info.encode_cost_us = 123456;
  info.created = absl::FromUnixNanos(1'700'000'000'123'456'789);
  info.expires = info.created + absl::Seconds(90);
  record.stored.info = std::make_shared<const EntryInfo>(info);
  record.stored.model_epoch = 3;
  record.payload = TestBytes(info.payload_bytes(), 1);
  ASSERT_TRUE(PutRecord(*store_, record).ok());
  ASSERT_TRUE(store_->Flush().ok());
  std::string bytes(info.payload_bytes(), '\0');
  const absl::StatusOr<StoredRecord> read = store_->Read(TestKey("k"), 7, bytes.data());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(bytes, record.payload);
  EXPECT_EQ(read->generation, 7);
  EXPECT_EQ(read->model_epoch, 3);
  EXPECT_EQ(read->info->key, info.key);
  EXPECT_EQ(read->info->layout.tensors, info.layout.tensors);
  EXPECT_EQ(read->info->metadata, info.metadata);
  EXPECT_EQ(read->info->encode_cost_us, info.encode_cost_us);
  EXPECT_EQ(read->info->created, info.created);
  EXPECT_EQ(read->info->expires, info.expires);
}

TEST_P(PersistentStoreTest, TellsWhatALoadOfARecordWillBeCharged) {
  TestRecord record = MakeRecord(TestKey("k"), 1000, 7);
  EntryInfo info = *record.stored.info;
  info.metadata = {{"m", std::string(40'000, 'm')}};
  record.stored.info = std::make_shared<const EntryInfo>(info);
  ASSERT_TRUE(PutRecord(*store_, record).ok());
  for (int round = 0; round < 2; ++round) {
    const std::optional<StoredPlace> place = store_->Find(TestKey("k"));
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->payload_bytes, 1000);
    EXPECT_GT(place->heap_bytes, 39'000);
    EXPECT_EQ(place->heap_bytes, ChargedHeapBytes(info));
    ASSERT_TRUE(store_->Flush().ok());
  }
}

TEST_P(PersistentStoreTest, KeepsThatAnEntryNeverExpires) {
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 100, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  char bytes[100];
  const absl::StatusOr<StoredRecord> read = store_->Read(TestKey("k"), 1, bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->info->expires, absl::InfiniteFuture());
}

TEST_P(PersistentStoreTest, DoesNotFindWhatWasNeverPut) {
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
  char byte;
  EXPECT_TRUE(absl::IsNotFound(store_->Read(TestKey("k"), 1, &byte).status()));
  EXPECT_TRUE(store_->Remove(TestKey("k"), 5).ok());
  EXPECT_TRUE(store_->Flush().ok());
}

TEST_P(PersistentStoreTest, AHigherGenerationReplaces) {
  for (bool flush : {false, true}) {
    const CacheKey key = TestKey(flush ? "flushed" : "pending");
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(key, 1000, 1)).ok());
    if (flush) {
      ASSERT_TRUE(store_->Flush().ok());
    }
    const TestRecord newer = MakeRecord(key, 2000, 2);
    ASSERT_TRUE(PutRecord(*store_, newer).ok());
    EXPECT_EQ(store_->Find(key)->generation, 2);
    EXPECT_EQ(ReadPayload(*store_, key), newer.payload);
    char bytes[1000];
    EXPECT_TRUE(absl::IsNotFound(store_->Read(key, 1, bytes).status()));
    ASSERT_TRUE(store_->Flush().ok());
    EXPECT_EQ(ReadPayload(*store_, key), newer.payload);
  }
  EXPECT_EQ(store_->GetStats().entries, 2);
  EXPECT_EQ(store_->GetStats().payload_bytes, 4000);
}

TEST_P(PersistentStoreTest, ALowerGenerationDoesNotReplace) {
  const TestRecord newer = MakeRecord(TestKey("k"), 2000, 2);
  ASSERT_TRUE(PutRecord(*store_, newer).ok());
  EXPECT_TRUE(absl::IsCancelled(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 1))));
  EXPECT_EQ(ReadPayload(*store_, TestKey("k")), newer.payload);
}

TEST_P(PersistentStoreTest, ACancelledPutIsNeverFound) {
  const std::atomic<bool> cancelled{true};
  const TestRecord record = MakeRecord(TestKey("k"), 1000, 1);
  EXPECT_TRUE(absl::IsCancelled(store_->Put(record.stored, CopyOf(record.payload), cancelled)));
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
}

TEST_P(PersistentStoreTest, ForgetCoversGenerationsUpToTheOneNamed) {
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 5)).ok());
  store_->Forget(TestKey("k"), 4);
  EXPECT_TRUE(store_->Find(TestKey("k")).has_value());
  store_->Forget(TestKey("k"), 5);
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
  EXPECT_EQ(store_->GetStats().entries, 0);
  EXPECT_EQ(store_->GetStats().payload_bytes, 0);
}

TEST_P(PersistentStoreTest, ALateWriteDoesNotBringBackWhatWasRemoved) {
  store_->Forget(TestKey("a"), 5);
  ASSERT_TRUE(store_->Remove(TestKey("b"), 5).ok());
  for (const char* name : {"a", "b"}) {
    EXPECT_TRUE(absl::IsCancelled(PutRecord(*store_, MakeRecord(TestKey(name), 1000, 5))));
    EXPECT_FALSE(store_->Find(TestKey(name)).has_value());
    const TestRecord newer = MakeRecord(TestKey(name), 1000, 6);
    ASSERT_TRUE(PutRecord(*store_, newer).ok());
    EXPECT_EQ(ReadPayload(*store_, TestKey(name)), newer.payload);
  }
}

TEST_P(PersistentStoreTest, RemoveTakesAwayWhatIsOnDisk) {
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k"), 1000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(store_->Remove(TestKey("k"), 1).ok());
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
  const TestRecord newer = MakeRecord(TestKey("k"), 1000, 2);
  ASSERT_TRUE(PutRecord(*store_, newer).ok());
  ASSERT_TRUE(store_->Flush().ok());
  EXPECT_EQ(ReadPayload(*store_, TestKey("k")), newer.payload);
}

TEST_P(PersistentStoreTest, AnEpochHidesOlderRecordsOfItsModelOnly) {
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("flushed", "m"), 1000, 1)).ok());
  ASSERT_TRUE(store_->Flush().ok());
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("pending", "m"), 1000, 2)).ok());
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("k", "other"), 1000, 3)).ok());
  ASSERT_TRUE(store_->SetModelEpoch("m", 1).ok());
  EXPECT_FALSE(store_->Find(TestKey("flushed", "m")).has_value());
  EXPECT_FALSE(store_->Find(TestKey("pending", "m")).has_value());
  EXPECT_TRUE(store_->Find(TestKey("k", "other")).has_value());
  EXPECT_EQ(store_->GetStats().entries, 1);
  EXPECT_TRUE(absl::IsCancelled(PutRecord(*store_, MakeRecord(TestKey("late", "m"), 1000, 4))));
  TestRecord current = MakeRecord(TestKey("flushed", "m"), 1000, 5);
  current.stored.model_epoch = 1;
  ASSERT_TRUE(PutRecord(*store_, current).ok());
  EXPECT_EQ(ReadPayload(*store_, TestKey("flushed", "m")), current.payload);
  EXPECT_THAT(store_->ModelEpochs(), testing::ElementsAre(testing::Pair("m", 1)));
}

TEST_P(PersistentStoreTest, AnEpochNeverFalls) {
  ASSERT_TRUE(store_->SetModelEpoch("m", 5).ok());
  ASSERT_TRUE(store_->SetModelEpoch("m", 3).ok());
  EXPECT_THAT(store_->ModelEpochs(), testing::ElementsAre(testing::Pair("m", 5)));
}

TEST_P(PersistentStoreTest, ListsInOrderOfEncodedKeysByPages) {
  std::vector<std::string> expected;
  for (int i = 0; i < 25; ++i) {
    const CacheKey key = TestKey(absl::StrCat(i * 7 % 25), i % 3 == 0 ? "longer-model" : "m");
    expected.emplace_back(key.encoded());
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(key, 100 + i, 1 + i)).ok());
    if (i == 12) {
      ASSERT_TRUE(store_->Flush().ok());
    }
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> seen;
  std::string after;
  for (bool more = true; more;) {
    int page = 0;
    more = false;
    store_->List(after, [&](const CacheKey& key, const StoredPlace& place) {
      EXPECT_GE(place.payload_bytes, 100);
      if (page == 4) {
        more = true;
        return false;
      }
      ++page;
      seen.emplace_back(key.encoded());
      return true;
    });
    if (!seen.empty()) after = seen.back();
  }
  EXPECT_EQ(seen, expected);
}

TEST_P(PersistentStoreTest, KnowsTheHighestGenerationEverUsed) {
  EXPECT_EQ(store_->max_generation(), 0);
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("a"), 100, 9)).ok());
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("b"), 100, 4)).ok());
  EXPECT_EQ(store_->max_generation(), 9);
  ASSERT_TRUE(store_->Remove(TestKey("a"), 12).ok());
  EXPECT_EQ(store_->max_generation(), 12);
}

TEST_P(PersistentStoreTest, EvictsTheOldestToStayWithinItsCapacity) {
  constexpr uint64_t kBytes = 500'000;
  constexpr int kPuts = 4 * kConformanceStoreBytes / kBytes;
  for (int i = 0; i < kPuts; ++i) {
    ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey(absl::StrCat(i)), kBytes, 1 + i)).ok());
    ASSERT_LE(store_->GetStats().disk_bytes, kConformanceStoreBytes);
  }
  EXPECT_FALSE(store_->Find(TestKey("0")).has_value());
  EXPECT_GT(store_->GetStats().evictions, kPuts / 2);
  EXPECT_GT(store_->GetStats().payload_bytes, kConformanceStoreBytes / 2);
  const TestRecord last = MakeRecord(TestKey(absl::StrCat(kPuts - 1)), kBytes, kPuts);
  EXPECT_EQ(ReadPayload(*store_, last.stored.info->key), last.payload);
}

TEST_P(PersistentStoreTest, RefusesWhatCanNeverFit) {
  ASSERT_TRUE(PutRecord(*store_, MakeRecord(TestKey("small"), 1000, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      PutRecord(*store_, MakeRecord(TestKey("k"), kConformanceStoreBytes + 1, 2))));
  EXPECT_FALSE(store_->Find(TestKey("k")).has_value());
  EXPECT_TRUE(store_->Find(TestKey("small")).has_value());
}

// Readers, writers and removers at once: whatever is read is what was put under that generation.
TEST_P(PersistentStoreTest, NeverReturnsOtherBytesUnderConcurrentUse) {
  constexpr int kKeys = 20;
  std::atomic<uint64_t> generation{0};
  std::atomic<uint64_t> hits{0};
  std::atomic<int> writing{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 600; ++i) {
        const uint64_t own = ++generation;
        const CacheKey key = TestKey(absl::StrCat((i * 7 + t) % kKeys));
        (void)PutRecord(*store_, MakeRecord(key, 20'000 + own % 7 * 10'000, own));
        if (i % 50 == 0) {
          EXPECT_TRUE(store_->Remove(key, own).ok());
        }
        if (i % 64 == 0) {
          EXPECT_TRUE(store_->Flush().ok());
        }
      }
      --writing;
    });
    threads.emplace_back([&] {
      std::string bytes(100'000, '\0');
      for (int i = 0; i < 2000 || writing > 0; ++i) {
        const CacheKey key = TestKey(absl::StrCat(i % kKeys));
        const auto place = store_->Find(key);
        if (!place) continue;
        ASSERT_LE(place->payload_bytes, bytes.size());
        const auto read = store_->Read(key, place->generation, bytes.data());
        if (!read.ok()) {
          EXPECT_TRUE(absl::IsNotFound(read.status())) << read.status();
          continue;
        }
        EXPECT_EQ(bytes.substr(0, place->payload_bytes),
                  TestBytes(place->payload_bytes, place->generation));
        ++hits;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 0);
  EXPECT_EQ(store_->GetStats().corruptions, 0);
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_PERSISTENT_STORE_CONFORMANCE_H_
