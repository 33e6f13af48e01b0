// Values that are fetched from elsewhere: they yield to whatever happens here meanwhile.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

class FetchedValueTest : public CacheFixture {
 protected:
  void SetUp() override { StartCache(8, 0); }

  ReservationId ReserveFetched() {
    std::optional<absl::StatusOr<ReservedPlace>> place;
    cache_->Reserve({.key = TestKey("a"),
                     .layout = TestLayout(kUnit),
                     .ttl = absl::Hours(1),
                     .cancelled = cancelled_},
                    [&](absl::StatusOr<ReservedPlace> answer) { place = std::move(answer); });
    EXPECT_TRUE(place.has_value() && place->ok());
    return (*place)->id;
  }

  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
};

TEST_F(FetchedValueTest, IsCommittedWhereThereIsNone) {
  EXPECT_TRUE(cache_->Commit(ReserveFetched()).ok());
  EXPECT_TRUE(Get("a").hit());
}

TEST_F(FetchedValueTest, IsNotCommittedOnceCancelled) {
  const ReservationId id = ReserveFetched();
  cancelled_->store(true);
  EXPECT_EQ(cache_->Commit(id).status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(Get("a").hit());
  EXPECT_EQ(cache_->GetStats(false).reservations, 0u);
}

TEST_F(FetchedValueTest, DoesNotReplaceAValue) {
  const ReservationId id = ReserveFetched();
  ASSERT_TRUE(Put("a", 1, 'p').ok());
  EXPECT_EQ(cache_->Commit(id).status().code(), absl::StatusCode::kAborted);
  const LookupResult found = Get("a");
  ASSERT_TRUE(found.hit());
  EXPECT_EQ(*DataAt(found.handle.location()), 'p');
  EXPECT_EQ(cache_->GetStats(false).reservations, 0u);
}

TEST_F(FetchedValueTest, TakesThePlaceOfOneThatHasExpired) {
  ASSERT_TRUE(PutAndPin(TestKey("a"), kUnit, 'p', absl::Seconds(1)).ok());
  const ReservationId id = ReserveFetched();
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(cache_->Commit(id).ok());
  EXPECT_TRUE(Get("a").hit());
}

}  // namespace
}  // namespace embcache
