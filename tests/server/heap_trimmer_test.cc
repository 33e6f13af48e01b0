#include "server/heap_trimmer.h"

#include <malloc.h>

#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/process_stats.h"

namespace embcache {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(TrimRuleTest, ItIsTimeWhenMoreThanTheSlackLiesUnused) {
  TrimRule rule(/*slack_bytes=*/10);
  EXPECT_FALSE(rule.ShouldTrim(10));
  EXPECT_TRUE(rule.ShouldTrim(11));
}

TEST(TrimRuleTest, WhatATrimLeavesIsNotTriedAgainAndAgain) {
  TrimRule rule(10);
  EXPECT_TRUE(rule.ShouldTrim(100));
  rule.Trimmed(90);
  EXPECT_FALSE(rule.ShouldTrim(100));
  EXPECT_TRUE(rule.ShouldTrim(101));
}

TEST(TrimRuleTest, WhatWasLeftAndWentIsMallocsAgain) {
  TrimRule rule(10);
  rule.Trimmed(90);
  EXPECT_FALSE(rule.ShouldTrim(50));
  EXPECT_TRUE(rule.ShouldTrim(61));
}

TEST(HeapTrimmerTest, GivesBackWhatMallocWouldKeep) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' own malloc";
#endif
  // As embcached has it.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const uint64_t before = PrivateResidentBytes();
  ASSERT_GT(before, 0u);
  const HeapTrimmer trimmer({.period = absl::Milliseconds(1), .slack_bytes = 16 * kMiB});
  std::vector<std::vector<char>> blocks;
  for (int i = 0; i < 300; ++i) blocks.emplace_back(kMiB, 'x');
  ASSERT_GT(PrivateResidentBytes(), before + 250 * kMiB);
  blocks.erase(blocks.begin(), blocks.end() - 1);  // the last keeps malloc from shrinking the heap
  while (PrivateResidentBytes() > before + 50 * kMiB) std::this_thread::yield();
}

}  // namespace
}  // namespace embcache
