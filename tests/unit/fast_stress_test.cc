#include "tests/unit/fast_stress.h"

namespace embcache {
namespace {

TEST(FastStressTest, NoByteIsReadUnderAPinThatMayNotBe) {
  FastStress stress;
  stress.Run(5'000'000, absl::Seconds(20));
  EXPECT_EQ(stress.violations(), 0u) << "of " << stress.hits() << " hits";
  EXPECT_GT(stress.hits(), 1000u);
  EXPECT_GT(stress.waited(), 0u) << "the readers never held what the writer took away";
}

}  // namespace
}  // namespace embcache
