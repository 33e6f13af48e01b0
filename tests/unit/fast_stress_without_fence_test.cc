// A control: without the fence, the stress must find a violation.
#define EMBCACHE_FAST_WITHOUT_FENCE
#include "tests/unit/fast_stress.h"

namespace embcache {
namespace {

TEST(FastStressTest, AMissingFenceIsFoundOut) {
  FastStress stress;
  stress.Run(UINT64_MAX, absl::Seconds(120));
  EXPECT_GT(stress.violations(), 0u) << "in " << stress.hits() << " hits";
}

}  // namespace
}  // namespace embcache
