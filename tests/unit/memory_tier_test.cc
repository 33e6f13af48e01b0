#include "storage/memory_tier.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/heap_memory.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kPage = 4096;

MemoryTier MakeTier(uint64_t capacity, uint64_t segment, MemoryResource* memory) {
  absl::StatusOr<MemoryTier> tier = MemoryTier::Create(
      TierId::kL2, {.capacity_bytes = capacity, .segment_bytes = segment}, memory);
  EXPECT_TRUE(tier.ok()) << tier.status();
  return *std::move(tier);
}

absl::Status CreateError(uint64_t capacity, uint64_t segment, MemoryResource* memory) {
  return MemoryTier::Create(TierId::kL1, {.capacity_bytes = capacity, .segment_bytes = segment},
                            memory)
      .status();
}

TEST(MemoryTierTest, WithoutCapacityThereIsNoTier) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(0, kPage, &memory);
  EXPECT_FALSE(tier.enabled());
  EXPECT_EQ(tier.max_entry_bytes(), 0u);
  EXPECT_EQ(tier.Fragmentation(), 0);
  EXPECT_FALSE(tier.Allocate(1).has_value());
  EXPECT_EQ(memory.used_bytes(), 0u);
}

TEST(MemoryTierTest, ATierUpToTheSegmentSizeIsOneSegment) {
  HeapMemory memory;
  const MemoryTier tier = MakeTier(8 * kPage, 8 * kPage, &memory);
  ASSERT_EQ(tier.segments().size(), 1u);
  EXPECT_EQ(tier.segments()[0].memory->bytes(), 8 * kPage);
  EXPECT_EQ(tier.max_entry_bytes(), 8 * kPage);
  EXPECT_EQ(tier.id(), TierId::kL2);
}

TEST(MemoryTierTest, ALargerTierIsSeveralEqualSegments) {
  HeapMemory memory;
  const MemoryTier tier = MakeTier(9 * kPage, 8 * kPage, &memory);
  ASSERT_EQ(tier.segments().size(), 2u);
  EXPECT_EQ(tier.segments()[0].memory->bytes(), 4 * kPage);
  EXPECT_EQ(tier.segments()[1].memory->bytes(), 4 * kPage);
  EXPECT_EQ(tier.capacity_bytes(), 8 * kPage);
  EXPECT_EQ(tier.max_entry_bytes(), 4 * kPage);
}

TEST(MemoryTierTest, CapacityIsWhatWasAllocatedAndNeverMoreThanAsked) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    HeapMemory memory;
    const uint64_t capacity = kPage + random() % (64 * kPage);
    const uint64_t segment = kPage + random() % (16 * kPage);
    const MemoryTier tier = MakeTier(capacity, segment, &memory);
    EXPECT_EQ(tier.capacity_bytes(), memory.used_bytes());
    EXPECT_LE(tier.capacity_bytes(), capacity);
    EXPECT_LE(tier.max_entry_bytes(), segment);
    EXPECT_GE(tier.max_entry_bytes(), kPage);
    // At most one granule a segment, and what is no whole granule, is given away.
    EXPECT_GT(tier.capacity_bytes() + tier.segments().size() * kPage + kPage, capacity);
  }
}

TEST(MemoryTierTest, ACapacityBelowTheGranularityIsRefused) {
  HeapMemory memory;
  const absl::Status status = CreateError(4095, kPage, &memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("l1 capacity_bytes: 4095"), HasSubstr("4096")));
}

TEST(MemoryTierTest, SegmentsBelowTheGranularityAreRefused) {
  HeapMemory memory;
  const absl::Status status = CreateError(8 * kPage, 100, &memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("l1 segment_bytes: 100"), HasSubstr("4096")));
}

TEST(MemoryTierTest, AtMost4096SegmentsAreMade) {
  HeapMemory memory(/*limit_bytes=*/uint64_t{1} << 30, /*granularity=*/256);
  EXPECT_EQ(MakeTier(4096 * 256, 256, &memory).segments().size(), 4096u);
  const absl::Status status = CreateError(4097 * 256, 256, &memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("segment_bytes: 256"), HasSubstr("1048832"),
                                      HasSubstr("4097"), HasSubstr("at most 4096")));
}

TEST(MemoryTierTest, MemoryThatCannotBeHadNamesTheTierAndLeavesNothing) {
  HeapMemory memory(/*limit_bytes=*/10 * kPage);
  const absl::Status status = CreateError(16 * kPage, 4 * kPage, &memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("l1 capacity_bytes 65536"),
                                      HasSubstr("segment 3 of 4"), HasSubstr("16384")));
  EXPECT_EQ(memory.used_bytes(), 0u);
}

TEST(MemoryTierTest, ARangeIsChargedRoundedUp) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(4 * kPage, 4 * kPage, &memory);
  const std::optional<MemoryRange> range = tier.Allocate(257);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->bytes, 512u);
  EXPECT_EQ(MemoryTier::ChargedBytes(257), 512u);
  EXPECT_EQ(tier.used_bytes(), 512u);
  EXPECT_EQ(tier.free_bytes(), 4 * kPage - 512);
  tier.Free(*range);
  EXPECT_EQ(tier.used_bytes(), 0u);
}

TEST(MemoryTierTest, TheTightestHoleOfAllSegmentsIsTaken) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(8 * kPage, 4 * kPage, &memory);
  ASSERT_EQ(tier.Allocate(kPage)->segment, 0u);  // leaves 3 pages
  const std::optional<MemoryRange> whole = tier.Allocate(4 * kPage);
  ASSERT_EQ(whole->segment, 1u);
  tier.Free(*whole);
  ASSERT_EQ(tier.Allocate(3 * kPage)->segment, 0u);  // exactly
  const std::optional<MemoryRange> more = tier.Allocate(kPage);
  ASSERT_TRUE(more.has_value());
  EXPECT_EQ(more->segment, 1u);
}

TEST(MemoryTierTest, AnEntryNeverSpansSegments) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(8 * kPage, 4 * kPage, &memory);
  EXPECT_FALSE(tier.Allocate(4 * kPage + 1).has_value());
  EXPECT_TRUE(tier.Allocate(4 * kPage).has_value());
  EXPECT_TRUE(tier.Allocate(4 * kPage).has_value());
  EXPECT_FALSE(tier.Allocate(1).has_value());
  EXPECT_EQ(tier.free_bytes(), 0u);
}

TEST(MemoryTierTest, FragmentationIsOneLessTheLargestShareOfTheFreeBytes) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(4 * kPage, 4 * kPage, &memory);
  EXPECT_EQ(tier.Fragmentation(), 0);
  std::vector<MemoryRange> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(*tier.Allocate(kPage));
  EXPECT_EQ(tier.Fragmentation(), 0) << "nothing is free";
  tier.Free(pages[0]);
  EXPECT_EQ(tier.Fragmentation(), 0);
  tier.Free(pages[2]);
  EXPECT_DOUBLE_EQ(tier.Fragmentation(), 0.5);
  tier.Free(pages[1]);
  EXPECT_EQ(tier.Fragmentation(), 0);
}

TEST(MemoryTierTest, FragmentationIsMeasuredWithinSegments) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(8 * kPage, 4 * kPage, &memory);
  EXPECT_EQ(tier.Fragmentation(), 0);
  std::vector<MemoryRange> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(*tier.Allocate(kPage));
  for (const MemoryRange& page : pages) {
    if (page.offset % (2 * kPage) == 0) tier.Free(page);
  }
  EXPECT_DOUBLE_EQ(tier.Fragmentation(), 0.5);  // a page of two, in both
}

TEST(MemoryTierDeathTest, FreeingAWrongRangeAborts) {
  HeapMemory memory;
  MemoryTier tier = MakeTier(8 * kPage, 4 * kPage, &memory);
  const MemoryRange range = *tier.Allocate(kPage);
  EXPECT_DEATH(tier.Free({7, range.offset, range.bytes}), "invariant broken");
  EXPECT_DEATH(tier.Free({1, range.offset, range.bytes}), "invariant broken");
  EXPECT_DEATH(tier.Free({0, range.offset, range.bytes - 1}), "invariant broken");
  EXPECT_DEATH(tier.Free({0, range.offset + 256, range.bytes}), "invariant broken");
  EXPECT_DEATH((void)tier.Allocate(0), "invariant broken");
}

TEST(MemoryTierTest, RangesNeverOverlapAndUseNeverExceedsCapacity) {
  std::mt19937_64 random(11);
  HeapMemory memory;
  MemoryTier tier = MakeTier(48 * kPage, 16 * kPage, &memory);
  std::map<std::pair<uint32_t, uint64_t>, MemoryRange> live;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 || live.empty()) {
      const std::optional<MemoryRange> range = tier.Allocate(1 + random() % (4 * kPage));
      if (!range.has_value()) continue;
      const auto [it, inserted] = live.insert({{range->segment, range->offset}, *range});
      ASSERT_TRUE(inserted);
      ASSERT_LE(range->offset + range->bytes, tier.max_entry_bytes());
      if (const auto next = std::next(it);
          next != live.end() && next->first.first == range->segment) {
        ASSERT_LE(range->offset + range->bytes, next->second.offset);
      }
    } else {
      auto it = live.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(random() % live.size()));
      tier.Free(it->second);
      live.erase(it);
    }
    uint64_t used = 0;
    for (const auto& [place, range] : live) used += range.bytes;
    ASSERT_EQ(tier.used_bytes(), used);
    ASSERT_LE(tier.used_bytes(), tier.capacity_bytes());
  }
  for (const MemoryTier::Segment& segment : tier.segments()) segment.arena.CheckInvariants();
}

}  // namespace
}  // namespace embcache
