#include "client/cli/reuse_distances.h"

#include <list>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache::cli {
namespace {

using ::testing::HasSubstr;
using Use = ReuseDistances::Use;

// A cache that evicts the least recently used, played through.
ReuseDistances::Found Simulate(const std::vector<Use>& uses, uint64_t capacity) {
  std::list<Use> cache;  // the most recent first
  uint64_t used = 0;
  ReuseDistances::Found found;
  for (const Use& use : uses) {
    for (auto it = cache.begin(); it != cache.end(); ++it) {
      if (it->key != use.key) continue;
      ++found.hits;
      found.cost += use.cost;
      used -= it->bytes;
      cache.erase(it);
      break;
    }
    cache.push_front(use);
    used += use.bytes;
    while (used > capacity) {
      used -= cache.back().bytes;
      cache.pop_back();
    }
  }
  return found;
}

TEST(ReuseDistancesTest, FindsWhatAnLruCacheOfEveryCapacityFinds) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint64_t> bytes(30);
    for (uint64_t& size : bytes) size = 1 + random() % 50;
    std::vector<Use> uses;
    for (int i = 0; i < 300; ++i) {
      const size_t key = random() % bytes.size() * (random() % 4) / 3;  // some more often
      uses.push_back({absl::StrCat(key), bytes[key], 1.0 + key});
    }
    const ReuseDistances distances(uses);
    for (uint64_t capacity = distances.largest_bytes(); capacity <= distances.distinct_bytes() + 1;
         capacity += 7) {
      const ReuseDistances::Found want = Simulate(uses, capacity);
      const ReuseDistances::Found got = distances.FoundWith(capacity);
      ASSERT_EQ(got.hits, want.hits) << "seed " << seed << " capacity " << capacity;
      ASSERT_DOUBLE_EQ(got.cost, want.cost) << "seed " << seed << " capacity " << capacity;
    }
  }
}

TEST(ReuseDistancesTest, CountsKeysBytesAndCosts) {
  const ReuseDistances distances({{"a", 10, 2}, {"b", 20, 3}, {"a", 10, 2}});
  EXPECT_EQ(distances.uses(), 3u);
  EXPECT_EQ(distances.keys(), 2u);
  EXPECT_EQ(distances.distinct_bytes(), 30u);
  EXPECT_EQ(distances.largest_bytes(), 20u);
  EXPECT_EQ(distances.cost(), 7);
  EXPECT_EQ(distances.FoundWith(29).hits, 0u);
  EXPECT_EQ(distances.FoundWith(30).hits, 1u);
  EXPECT_EQ(distances.FoundWith(30).cost, 2);
}

TEST(ReadTraceTest, FindsTheColumnsByNameAndIgnoresOthers) {
  std::istringstream input("time_ms,cost,bytes,key\r\n0,1.5,100,a\r\n\r\n7,0,200,b\n");
  const auto uses = ReadTrace(input);
  ASSERT_TRUE(uses.ok()) << uses.status();
  ASSERT_EQ(uses->size(), 2u);
  EXPECT_EQ((*uses)[0].key, "a");
  EXPECT_EQ((*uses)[0].bytes, 100u);
  EXPECT_EQ((*uses)[0].cost, 1.5);
  EXPECT_EQ((*uses)[1].key, "b");
}

TEST(ReadTraceTest, RefusesWhatIsNoTraceAndNamesTheLine) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "line 1"},
      {"time,size\n1,2\n", "line 1"},
      {"key,bytes\n", "no uses"},
      {"key,bytes\na,1\nb\n", "line 3"},
      {"key,bytes\na,many\n", "line 2: bytes: \"many\""},
      {"key,bytes\na,-1\n", "line 2"},
      {"key,bytes,cost\na,1,nan\n", "line 2: cost"},
      {"key,bytes,cost\na,1,-2\n", "line 2: cost"},
  };
  for (const auto& [text, message] : bad) {
    std::istringstream input(text);
    const auto uses = ReadTrace(input);
    EXPECT_EQ(uses.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(uses.status().message()), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace embcache::cli
