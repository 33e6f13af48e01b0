#include "storage/segment_arena.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <list>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace embcache {
namespace {

constexpr uint64_t kUnit = SegmentArena::kAlignment;

TEST(SegmentArenaTest, OffsetsAreAlignedAndSizesRoundedUp) {
  SegmentArena arena(16 * kUnit);
  EXPECT_EQ(arena.Allocate(1), 0u);
  EXPECT_EQ(arena.Allocate(kUnit + 1), kUnit);
  EXPECT_EQ(arena.Allocate(kUnit), 3 * kUnit);
  EXPECT_EQ(arena.free_bytes(), 12 * kUnit);
  arena.CheckInvariants();
}

TEST(SegmentArenaTest, CapacityIsRoundedDown) {
  SegmentArena arena(3 * kUnit + 255);
  EXPECT_EQ(arena.capacity(), 3 * kUnit);
  EXPECT_TRUE(arena.Allocate(3 * kUnit).has_value());
  EXPECT_EQ(arena.largest_free(), 0u);
  EXPECT_FALSE(arena.Allocate(1).has_value());
}

TEST(SegmentArenaTest, AnArenaWithoutRoomRefusesEverything) {
  SegmentArena arena(kUnit - 1);
  EXPECT_EQ(arena.capacity(), 0u);
  EXPECT_FALSE(arena.Allocate(1).has_value());
  EXPECT_EQ(arena.largest_free(), 0u);
  arena.CheckInvariants();
}

TEST(SegmentArenaTest, SizesThatWouldWrapAroundAreRefused) {
  SegmentArena arena(4 * kUnit);
  EXPECT_FALSE(arena.Allocate(std::numeric_limits<uint64_t>::max()).has_value());
  EXPECT_FALSE(arena.TightestFit(std::numeric_limits<uint64_t>::max()).has_value());
  EXPECT_FALSE(arena.Allocate(4 * kUnit + 1).has_value());
  EXPECT_TRUE(arena.Allocate(4 * kUnit).has_value());
}

TEST(SegmentArenaTest, TakesTheSmallestRangeThatFits) {
  SegmentArena arena(20 * kUnit);
  // Holes of 5, 2 and 3 units, and 7 at the end.
  ASSERT_EQ(arena.Allocate(5 * kUnit), 0u);
  ASSERT_EQ(arena.Allocate(kUnit), 5 * kUnit);
  ASSERT_EQ(arena.Allocate(2 * kUnit), 6 * kUnit);
  ASSERT_EQ(arena.Allocate(kUnit), 8 * kUnit);
  ASSERT_EQ(arena.Allocate(3 * kUnit), 9 * kUnit);
  ASSERT_EQ(arena.Allocate(kUnit), 12 * kUnit);
  arena.Free(0, 5 * kUnit);
  arena.Free(6 * kUnit, 2 * kUnit);
  arena.Free(9 * kUnit, 3 * kUnit);
  EXPECT_EQ(arena.free_ranges(), 4u);
  EXPECT_EQ(arena.TightestFit(3 * kUnit), 3 * kUnit);
  EXPECT_EQ(arena.Allocate(3 * kUnit), 9 * kUnit);
  EXPECT_EQ(arena.Allocate(2 * kUnit), 6 * kUnit);
  EXPECT_EQ(arena.Allocate(3 * kUnit), 0u);
  arena.CheckInvariants();
}

TEST(SegmentArenaTest, AmongEqualsTheLowestOffsetIsTaken) {
  SegmentArena arena(5 * kUnit);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(arena.Allocate(kUnit), i * kUnit);
  arena.Free(3 * kUnit, kUnit);
  arena.Free(1 * kUnit, kUnit);
  EXPECT_EQ(arena.Allocate(kUnit), 1 * kUnit);
}

TEST(SegmentArenaTest, AFreedRangeMeltsIntoBothNeighbours) {
  SegmentArena arena(4 * kUnit);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(arena.Allocate(kUnit), i * kUnit);
  arena.Free(0, kUnit);
  arena.Free(2 * kUnit, kUnit);
  EXPECT_EQ(arena.free_ranges(), 2u);
  arena.Free(kUnit, kUnit);
  EXPECT_EQ(arena.free_ranges(), 1u);
  EXPECT_EQ(arena.largest_free(), 3 * kUnit);
  arena.Free(3 * kUnit, kUnit);
  EXPECT_EQ(arena.largest_free(), 4 * kUnit);
  arena.CheckInvariants();
}

class SegmentArenaDeathTest : public testing::Test {
 protected:
  SegmentArenaDeathTest() {
    arena_.Allocate(2 * kUnit);
    arena_.Allocate(2 * kUnit);
  }
  SegmentArena arena_{8 * kUnit};
};

TEST_F(SegmentArenaDeathTest, FreeingTwiceAborts) {
  arena_.Free(0, 2 * kUnit);
  EXPECT_DEATH(arena_.Free(0, 2 * kUnit), "invariant broken");
}

TEST_F(SegmentArenaDeathTest, FreeingAMergedRangeTwiceAborts) {
  arena_.Free(0, 2 * kUnit);
  arena_.Free(2 * kUnit, 2 * kUnit);  // no range starts here any more
  EXPECT_DEATH(arena_.Free(2 * kUnit, 2 * kUnit), "invariant broken");
}

TEST_F(SegmentArenaDeathTest, FreeingWithAWrongSizeAborts) {
  EXPECT_DEATH(arena_.Free(0, kUnit), "invariant broken");
  EXPECT_DEATH(arena_.Free(0, 4 * kUnit), "invariant broken");
  EXPECT_DEATH(arena_.Free(0, 0), "invariant broken");
  EXPECT_DEATH(arena_.Free(0, std::numeric_limits<uint64_t>::max()), "invariant broken");
}

TEST_F(SegmentArenaDeathTest, FreeingWhatWasNeverAllocatedAborts) {
  EXPECT_DEATH(arena_.Free(kUnit, kUnit), "invariant broken");
  EXPECT_DEATH(arena_.Free(4 * kUnit, 4 * kUnit), "invariant broken");
  EXPECT_DEATH(arena_.Free(64 * kUnit, kUnit), "invariant broken");
}

TEST_F(SegmentArenaDeathTest, AllocatingNothingAborts) {
  EXPECT_DEATH(arena_.Allocate(0), "invariant broken");
}

// The same promises, kept by looking at everything each time.
class NaiveArena {
 public:
  explicit NaiveArena(uint64_t capacity) : ranges_{{0, capacity, true}} {}

  std::optional<uint64_t> Allocate(uint64_t bytes) {
    auto best = ranges_.end();
    for (auto it = ranges_.begin(); it != ranges_.end(); ++it) {
      if (!it->free || it->bytes < bytes) continue;
      if (best == ranges_.end() || it->bytes < best->bytes) best = it;
    }
    if (best == ranges_.end()) return std::nullopt;
    if (best->bytes > bytes) {
      ranges_.insert(std::next(best), {best->offset + bytes, best->bytes - bytes, true});
    }
    best->bytes = bytes;
    best->free = false;
    return best->offset;
  }

  void Free(uint64_t offset) {
    for (Range& range : ranges_) {
      if (range.offset == offset) range.free = true;
    }
    for (auto it = ranges_.begin(); std::next(it) != ranges_.end();) {
      const auto next = std::next(it);
      if (!it->free || !next->free) {
        ++it;
        continue;
      }
      it->bytes += next->bytes;
      ranges_.erase(next);
    }
  }

  uint64_t free_bytes() const {
    uint64_t sum = 0;
    for (const Range& range : ranges_) sum += range.free ? range.bytes : 0;
    return sum;
  }
  uint64_t largest_free() const {
    uint64_t largest = 0;
    for (const Range& range : ranges_) largest = std::max(largest, range.free ? range.bytes : 0);
    return largest;
  }
  size_t free_ranges() const {
    return static_cast<size_t>(
        std::count_if(ranges_.begin(), ranges_.end(), [](const Range& r) { return r.free; }));
  }

 private:
  struct Range {
    uint64_t offset;
    uint64_t bytes;
    bool free;
  };
  std::list<Range> ranges_;
};

struct Block {
  uint64_t offset;
  uint64_t bytes;
};

TEST(SegmentArenaPropertyTest, AgreesWithTheNaiveModelOverRandomOperations) {
  const char* given = std::getenv("EMBCACHE_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20240607;
  SCOPED_TRACE(testing::Message() << "EMBCACHE_SEED=" << seed);
  std::printf("EMBCACHE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kCapacity = 600 * kUnit;
  SegmentArena arena(kCapacity);
  NaiveArena model(kCapacity);
  std::vector<Block> blocks;
  for (int i = 0; i < 100'000; ++i) {
    // Waves: mostly allocating, then mostly freeing, so that full and empty are both reached.
    const bool allocate = random() % 100 < (i / 2000 % 2 == 0 ? 70u : 30u);
    if (allocate || blocks.empty()) {
      const uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 60 * kUnit : 6 * kUnit);
      const std::optional<uint64_t> offset = arena.Allocate(bytes);
      ASSERT_EQ(offset, model.Allocate(SegmentArena::RoundUp(bytes))) << "operation " << i;
      if (offset.has_value()) blocks.push_back({*offset, bytes});
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      arena.Free(blocks.back().offset, blocks.back().bytes);
      model.Free(blocks.back().offset);
      blocks.pop_back();
    }
    ASSERT_EQ(arena.free_bytes(), model.free_bytes()) << "operation " << i;
    ASSERT_EQ(arena.largest_free(), model.largest_free()) << "operation " << i;
    ASSERT_EQ(arena.free_ranges(), model.free_ranges()) << "operation " << i;
    if (i % 16 == 0) arena.CheckInvariants();
  }
  for (const Block& block : blocks) arena.Free(block.offset, block.bytes);
  EXPECT_EQ(arena.largest_free(), kCapacity);
  arena.CheckInvariants();
}

enum class Victims { kRandom, kOldest, kLeastRecentlyUsed };

// The mean of used bytes / capacity over the moments at which an allocation finds no room, with
// entries of 0.3 to 60 MB, evenly spread, in 4 GiB. Victims leave one by one until there is room.
double MeanUseWhenFull(Victims victims, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<uint64_t> entry_bytes(300'000, 60'000'000);
  SegmentArena arena(uint64_t{4} << 30);
  std::vector<Block> blocks;  // the oldest first
  double sum = 0;
  int moments = 0;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t bytes = entry_bytes(random);
    std::optional<uint64_t> offset = arena.Allocate(bytes);
    if (!offset.has_value() && i >= 50'000) {  // long past the first filling
      sum += 1 - static_cast<double>(arena.free_bytes()) / static_cast<double>(arena.capacity());
      ++moments;
    }
    while (!offset.has_value()) {
      const size_t at = victims == Victims::kRandom ? random() % blocks.size() : 0;
      arena.Free(blocks[at].offset, blocks[at].bytes);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
      offset = arena.Allocate(bytes);
    }
    blocks.push_back({*offset, bytes});
    for (int hit = 0; victims == Victims::kLeastRecentlyUsed && hit < 2; ++hit) {
      // Two gets a put; the younger an entry, the likelier it is got.
      const double u = std::uniform_real_distribution<double>(0, 1)(random);
      const size_t age = static_cast<size_t>(u * u * static_cast<double>(blocks.size()));
      const auto it = blocks.end() - 1 - static_cast<std::ptrdiff_t>(age);
      std::rotate(it, it + 1, blocks.end());
    }
  }
  return sum / moments;
}

double MeanOverSeeds(Victims victims, const char* name) {
  double sum = 0;
  double lowest = 1;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const double use = MeanUseWhenFull(victims, seed);
    sum += use;
    lowest = std::min(lowest, use);
  }
  std::printf("%s victims: mean use when full %.4f, lowest of 3 seeds %.4f\n", name, sum / 3,
              lowest);
  return sum / 3;
}

// Measured 0.906, 0.953 and 0.907, seeds within 0.001 of each other. The oldest-first figure starts
// at 0.98 and needs some 50,000 entries to settle, hence the long run-in.
TEST(SegmentArenaChurnTest, RandomVictimsLeaveNineTenthsInUse) {
  EXPECT_GE(MeanOverSeeds(Victims::kRandom, "random"), 0.90);
}

TEST(SegmentArenaChurnTest, OldestVictimsLeaveNineTenthsInUse) {
  EXPECT_GE(MeanOverSeeds(Victims::kOldest, "oldest"), 0.945);
}

TEST(SegmentArenaChurnTest, LeastRecentlyUsedVictimsLeaveNineTenthsInUse) {
  EXPECT_GE(MeanOverSeeds(Victims::kLeastRecentlyUsed, "least recently used"), 0.90);
}

}  // namespace
}  // namespace embcache
