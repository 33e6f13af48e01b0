// arena: how much of the memory is in use when an allocation first finds no room.

#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "storage/segment_arena.h"
#include "tests/bench/bench.h"

namespace embcache::bench {
namespace {

struct Block {
  uint64_t offset;
  uint64_t bytes;
};

}  // namespace

absl::Status Arena(Report* report) {
  std::mt19937_64 random(20240607);
  std::uniform_int_distribution<uint64_t> entry_bytes(300'000, 60'000'000);
  SegmentArena arena(uint64_t{4} << 30);
  std::vector<Block> blocks;
  double sum = 0;
  int moments = 0;
  // The first half only brings the arena into the state that lasts.
  constexpr int kEntries = 200'000;
  for (int i = 0; i < kEntries; ++i) {
    const uint64_t bytes = entry_bytes(random);
    std::optional<uint64_t> offset = arena.Allocate(bytes);
    if (!offset.has_value() && i >= kEntries / 2) {
      sum += 1 - static_cast<double>(arena.free_bytes()) / static_cast<double>(arena.capacity());
      ++moments;
    }
    while (!offset.has_value()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      arena.Free(blocks.back().offset, blocks.back().bytes);
      blocks.pop_back();
      offset = arena.Allocate(bytes);
    }
    blocks.push_back({*offset, bytes});
  }
  report->Add({"arena", sum / moments, "share in use", std::nullopt, std::nullopt, AtLeast(0.90),
               "entries of 0.3 to 60 MB in 4 GiB; random ones leave until the next fits; mean over "
               "the allocations that found no room at first"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
