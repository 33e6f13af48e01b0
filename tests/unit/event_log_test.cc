#include "storage/event_log.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

constexpr absl::Time kTime = absl::UnixEpoch();

std::vector<uint64_t> Numbers(const std::vector<CacheEvent>& events) {
  std::vector<uint64_t> numbers;
  for (const CacheEvent& event : events) numbers.push_back(event.sequence);
  return numbers;
}

TEST(EventLogTest, AFreshLogHasNothing) {
  EventLog log(4);
  std::vector<CacheEvent> events;
  EXPECT_EQ(log.Read(0, 10, &events), 0u);
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(log.last(), 0u);
  EXPECT_EQ(log.first(), 1u);
}

TEST(EventLogTest, NumbersRiseByOneAndReadersGoOnWhereTheyWere) {
  EventLog log(8);
  for (int i = 0; i < 5; ++i) {
    log.Append(CacheEvent::Kind::kStored, absl::StrCat("k", i), kTime).bytes = i;
  }
  std::vector<CacheEvent> events;
  EXPECT_EQ(log.Read(0, 3, &events), 0u);
  EXPECT_EQ(Numbers(events), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(log.Read(3, 10, &events), 0u);
  EXPECT_EQ(Numbers(events), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(events[4].key, "k4");
  EXPECT_EQ(events[4].bytes, 4u);
}

TEST(EventLogTest, ASlowReaderIsToldHowMuchItMissed) {
  EventLog log(4);
  for (int i = 0; i < 10; ++i) log.Append(CacheEvent::Kind::kRemoved, "key", kTime);
  EXPECT_EQ(log.first(), 7u);
  std::vector<CacheEvent> events;
  EXPECT_EQ(log.Read(2, 10, &events), 4u);
  EXPECT_EQ(Numbers(events), (std::vector<uint64_t>{7, 8, 9, 10}));
  events.clear();
  EXPECT_EQ(log.Read(6, 10, &events), 0u);
  EXPECT_EQ(events.size(), 4u);
}

TEST(EventLogTest, AfterAForgetEveryReaderHasMissedSomething) {
  EventLog log(4);
  for (int i = 0; i < 6; ++i) log.Append(CacheEvent::Kind::kRemoved, "key", kTime);
  log.Forget();
  std::vector<CacheEvent> events;
  EXPECT_EQ(log.Read(6, 10, &events), 1u);
  for (int i = 0; i < 5; ++i) log.Append(CacheEvent::Kind::kRemoved, "key", kTime);
  EXPECT_EQ(log.Read(log.last() - 3, 10, &events), 0u);
  EXPECT_EQ(events.size(), 3u);
  EXPECT_EQ(events.back().sequence, log.last());
}

TEST(EventLogTest, ASlotThatIsUsedAgainKeepsNothingOfItsFormerEvent) {
  EventLog log(1);
  CacheEvent& stored =
      log.Append(CacheEvent::Kind::kStored, "a long key that allocates .....", kTime);
  stored.bytes = 7;
  stored.generation = 8;
  stored.encode_cost_us = 9;
  const CacheEvent& removed = log.Append(CacheEvent::Kind::kRemoved, "b", kTime);
  EXPECT_EQ(removed.key, "b");
  EXPECT_EQ(removed.sequence, 2u);
  EXPECT_EQ(removed.bytes + removed.generation + removed.encode_cost_us, 0u);
}

}  // namespace
}  // namespace embcache
