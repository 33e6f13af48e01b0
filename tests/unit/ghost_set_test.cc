#include "storage/ghost_set.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

TEST(GhostSetTest, KnowsTheLastKeysAndForgetsOlderOnes) {
  GhostSet ghosts(3);
  for (const char* key : {"a", "b", "c"}) EXPECT_FALSE(ghosts.See(key));
  EXPECT_TRUE(ghosts.See("a"));
  EXPECT_FALSE(ghosts.See("d"));
  EXPECT_FALSE(ghosts.See("a")) << "the oldest is forgotten";
  EXPECT_TRUE(ghosts.See("c"));
}

TEST(GhostSetTest, DoesNotGrowBeyondItsCapacity) {
  GhostSet ghosts(100);
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(ghosts.See(absl::StrCat("key ", i)));
  EXPECT_EQ(ghosts.size(), 100u);
}

}  // namespace
}  // namespace embcache
