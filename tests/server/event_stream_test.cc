// EventStream over a cache whose copies, disk and time move when told: what a watcher is told, and
// that whoever applies it knows what is there.

#include "server/event_stream.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/memory_store.h"
#include "tests/unit/cache_fixture.h"

namespace embcache {
namespace {

constexpr Token kEpoch = {7, 7, 7};

// A watcher as the documentation describes it.
class Replica {
 public:
  struct Row {
    v1::Tier tier;
    uint64_t generation;
    bool operator==(const Row&) const = default;
  };

  Replica(TieredCache* cache, const Clock* clock, const v1::WatchRequest& request = {})
      : stream_(cache, clock, kEpoch, request) {}

  // One message; false: there was none.
  bool Step() {
    v1::WatchResponse response;
    if (!stream_.Next(&response)) return false;
    for (const v1::Event& event : response.events()) Apply(event);
    return true;
  }
  void CatchUp() {
    while (Step()) {
    }
  }

  const std::map<std::string, Row>& rows() const { return rows_; }
  const std::vector<v1::Event>& told() const { return told_; }

 private:
  static std::string Name(const v1::Key& key) {
    return absl::StrCat(key.model(), "/", key.content_hash());
  }

  void Apply(const v1::Event& event) {
    told_.push_back(event);
    switch (event.event_case()) {
      case v1::Event::kStored:
        rows_[Name(event.stored().key())] = {event.stored().tier(), event.stored().generation()};
        break;
      case v1::Event::kRemoved:
        rows_.erase(Name(event.removed().key()));
        break;
      case v1::Event::kMoved: {
        const auto row = rows_.find(Name(event.moved().key()));
        if (row != rows_.end()) row->second = {event.moved().to(), event.moved().generation()};
        break;
      }
      case v1::Event::kEpochAdvanced:
        std::erase_if(rows_, [&](const auto& row) {
          return row.first.starts_with(event.epoch_advanced().model() + "/");
        });
        break;
      case v1::Event::kSnapshot:
        if (!event.snapshot().end()) rows_.clear();
        break;
      default:
        break;
    }
  }

  EventStream stream_;
  std::map<std::string, Row> rows_;
  std::vector<v1::Event> told_;
};

class EventStreamTest : public CacheFixture {
 protected:
  std::map<std::string, Replica::Row> Listed() {
    std::map<std::string, Replica::Row> rows;
    std::string after;
    do {
      const ListPage page = cache_->List({.model = {}, .content_hash_prefix = {}, .after = after});
      for (const ListedEntry& entry : page.entries) {
        rows[absl::StrCat(entry.key.model(), "/", entry.key.content_hash())] = {
            static_cast<v1::Tier>(static_cast<int>(entry.tier) + 1), entry.generation};
      }
      after = page.next;
    } while (!after.empty());
    return rows;
  }

  Replica Watch(const v1::WatchRequest& request = {}) {
    return Replica(cache_.get(), &clock_, request);
  }
};

TEST_F(EventStreamTest, ASnapshotTellsWhatIsThereAndTheTiers) {
  StartCache(4, 2);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());
  Replica replica = Watch();
  replica.CatchUp();
  EXPECT_EQ(replica.rows(), Listed());
  EXPECT_EQ(replica.rows().size(), 2u);
  const v1::EventSnapshot& begin = replica.told().front().snapshot();
  EXPECT_FALSE(begin.end());
  EXPECT_EQ(begin.epoch(), std::string(kEpoch.begin(), kEpoch.end()));
  ASSERT_EQ(begin.tiers_size(), 2);
  EXPECT_EQ(begin.tiers(0).capacity_bytes(), 4 * kUnit);
  EXPECT_EQ(begin.tiers(0).entries(), 2u);
  EXPECT_TRUE(replica.told().back().snapshot().end());
}

TEST_F(EventStreamTest, StoredMovedAndRemovedAreToldWithTheirReasons) {
  StartCache(1, 1);
  v1::WatchRequest request;
  request.set_no_snapshot(true);
  Replica replica = Watch(request);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());  // moves a to L2
  Settle();
  ASSERT_TRUE(Delete(TestKey("b")).ok());
  ASSERT_TRUE(Get("a").hit());  // moves a to L1
  replica.CatchUp();
  std::vector<v1::Event::EventCase> kinds;
  uint64_t last = 0;
  for (const v1::Event& event : replica.told()) {
    kinds.push_back(event.event_case());
    EXPECT_EQ(event.sequence(), ++last);
  }
  EXPECT_EQ(kinds, (std::vector{v1::Event::kStored, v1::Event::kMoved, v1::Event::kStored,
                                v1::Event::kRemoved, v1::Event::kMoved}));
  EXPECT_EQ(replica.told()[1].moved().to(), v1::L2);
  EXPECT_EQ(replica.told()[3].removed().reason(), v1::Event::DELETED);
  EXPECT_EQ(replica.told()[4].moved().to(), v1::L1);
}

TEST_F(EventStreamTest, AnEntryThatLeavesMemoryIsToldToBeOnDiskOrGone) {
  MemoryStore store(64 * kUnit);
  StartCache(1, 0, &store);
  ASSERT_TRUE(Put("saved", 1).ok());
  Settle();
  Replica replica = Watch();
  replica.CatchUp();
  ASSERT_TRUE(Put("next", 1).ok());
  Settle();
  replica.CatchUp();
  EXPECT_EQ(replica.rows(), Listed());
  EXPECT_EQ(replica.rows().at("model/saved...").tier, v1::L3);
  ASSERT_TRUE(Get("saved").hit());
  Settle();
  replica.CatchUp();
  EXPECT_EQ(replica.rows(), Listed());
  EXPECT_EQ(replica.rows().at("model/saved...").tier, v1::L1);
  EXPECT_EQ(replica.rows().at("model/next....").tier, v1::L3);
}

TEST_F(EventStreamTest, WhatTheStoreDropsForRoomIsTold) {
  MemoryStore store(2 * kUnit);
  StartCache(1, 0, &store);
  Replica replica = Watch();
  replica.CatchUp();
  for (const char* name : {"a", "b", "c", "d"}) {
    ASSERT_TRUE(Put(name, 1).ok());
    Settle();
  }
  replica.CatchUp();
  EXPECT_EQ(replica.rows(), Listed());
  EXPECT_EQ(replica.rows().size(), 2u) << "the newest is in memory and one of two on disk";
  EXPECT_TRUE(std::any_of(replica.told().begin(), replica.told().end(), [](const auto& event) {
    return event.removed().reason() == v1::Event::CAPACITY;
  }));
}

TEST_F(EventStreamTest, ADamagedRecordIsToldAsSuch) {
  MemoryStore store(64 * kUnit);
  StartCache(1, 0, &store);
  ASSERT_TRUE(Put("a", 1).ok());
  Settle();
  ASSERT_TRUE(Put("b", 1).ok());
  Settle();
  Replica replica = Watch();
  replica.CatchUp();
  store.Corrupt(TestKey("a"));
  EXPECT_FALSE(Get("a").hit());
  replica.CatchUp();
  EXPECT_EQ(replica.told().back().removed().reason(), v1::Event::REMOVED_DAMAGED);
  EXPECT_EQ(replica.rows(), Listed());
}

TEST_F(EventStreamTest, AnAdvancedEpochIsOneEvent) {
  StartCache(8, 0);
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, 1).ok());
  Replica replica = Watch();
  replica.CatchUp();
  const size_t before = replica.told().size();
  ASSERT_TRUE(AdvanceEpoch("model").ok());
  for (int i = 0; i < 3; ++i) cache_->Tick();
  replica.CatchUp();
  ASSERT_EQ(replica.told().size(), before + 1);
  EXPECT_EQ(replica.told().back().epoch_advanced().model_epoch(), 1u);
  EXPECT_TRUE(replica.rows().empty());
}

TEST_F(EventStreamTest, AnExpiredEntryIsToldWithTheTick) {
  StartCache(8, 0);
  ASSERT_TRUE(PutAndPin(TestKey("a"), kUnit, 'x', absl::Seconds(1)).ok());
  Replica replica = Watch();
  replica.CatchUp();
  clock_.Advance(absl::Seconds(2));
  cache_->Tick();
  replica.CatchUp();
  EXPECT_EQ(replica.told().back().removed().reason(), v1::Event::EXPIRED);
}

TEST_F(EventStreamTest, AModelsWatcherHearsOfNoOther) {
  StartCache(8, 0);
  v1::WatchRequest request;
  request.set_model("mine");
  ASSERT_TRUE(PutAndPin(TestKey("old", "other"), kUnit, 'x').ok());
  Replica replica = Watch(request);
  replica.CatchUp();
  ASSERT_TRUE(PutAndPin(TestKey("a", "other"), kUnit, 'x').ok());
  ASSERT_TRUE(PutAndPin(TestKey("a", "mine"), kUnit, 'x').ok());
  ASSERT_TRUE(AdvanceEpoch("other").ok());
  replica.CatchUp();
  EXPECT_EQ(replica.rows().size(), 1u);
  EXPECT_EQ(replica.told().back().stored().key().model(), "mine");
}

TEST_F(EventStreamTest, AWatcherGoesOnWhereItStopped) {
  StartCache(8, 0);
  ASSERT_TRUE(Put("a", 1).ok());
  ASSERT_TRUE(Put("b", 1).ok());
  v1::WatchRequest request;
  request.set_after_sequence(1);
  request.set_epoch(std::string(kEpoch.begin(), kEpoch.end()));
  Replica same = Watch(request);
  same.CatchUp();
  ASSERT_EQ(same.told().size(), 1u);
  EXPECT_EQ(same.told()[0].sequence(), 2u);
  request.set_epoch(std::string(16, 'x'));
  Replica another_run = Watch(request);
  another_run.CatchUp();
  EXPECT_TRUE(another_run.told()[0].has_snapshot());
}

TEST_F(EventStreamTest, AWatcherThatIsTooSlowIsToldOfTheGapAndGetsANewSnapshot) {
  StartCache(4, 0);
  Replica replica = Watch();
  replica.CatchUp();
  for (size_t i = 0; i <= TieredCacheOptions::kRememberedEvents; ++i) {
    ASSERT_TRUE(PutAndPin(TestKey(absl::StrCat(i % 8)), kUnit, 'x').ok());
  }
  const size_t before = replica.told().size();
  replica.CatchUp();
  EXPECT_GT(replica.told()[before].gap().lost(), 0u);
  EXPECT_TRUE(replica.told()[before + 1].has_snapshot());
  EXPECT_EQ(replica.rows(), Listed());
}

// Watchers that read whenever the seed says so, of a cache that does everything it can do.
TEST_F(EventStreamTest, WhoeverAppliesAllThatIsToldKnowsWhatIsThere) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t n) { return random() % n; };
    MemoryStore store((2 + pick(20)) * kUnit);
    TieredCacheOptions options;
    options.l3_write = pick(2) == 0 ? L3WriteMode::kThrough : L3WriteMode::kEvict;
    StartCache(1 + pick(4), pick(4), pick(4) == 0 ? nullptr : &store, options);
    std::vector<std::unique_ptr<Replica>> replicas;
    std::vector<ReadHandle> pins;
    for (int step = 0; step < 400; ++step) {
      const CacheKey key = TestKey(std::string(1, static_cast<char>('a' + pick(8))),
                                   pick(3) == 0 ? "other" : "model");
      switch (pick(12)) {
        case 0:
        case 1:
        case 2: {
          auto pinned = PutAndPin(key, (1 + pick(2)) * kUnit, 'x',
                                  pick(5) == 0 ? absl::Seconds(5) : absl::InfiniteDuration());
          if (pinned.ok() && pick(4) == 0) pins.push_back(*std::move(pinned));
          break;
        }
        case 3:
        case 4:
          StartGet(key);
          break;
        case 5:
          cache_->Delete(key, [](absl::StatusOr<bool>) {});
          break;
        case 6:
          if (pick(8) == 0) cache_->AdvanceEpoch(key.model(), [](absl::StatusOr<uint64_t>) {});
          break;
        case 7:
          if (pick(10) == 0) store.Corrupt(key);
          if (pick(10) == 0) store.FailNextReads(1, absl::UnavailableError("disk"));
          break;
        case 8:
          clock_.Advance(absl::Seconds(1));
          cache_->Tick();
          break;
        case 9:
          if (!pins.empty()) pins.erase(pins.begin());
          break;
        case 10:
          if (replicas.size() < 4) {
            replicas.push_back(std::make_unique<Replica>(cache_.get(), &clock_));
          }
          break;
        case 11:
          for (const auto& replica : replicas) {
            if (pick(2) == 0) replica->Step();
          }
          break;
      }
      if (copier_.pending() + executor_.pending() > 0 && pick(2) == 0) Step();
    }
    pins.clear();
    Settle();
    cache_->Tick();
    Settle();
    for (const auto& replica : replicas) {
      replica->CatchUp();
      ASSERT_EQ(replica->rows(), Listed());
    }
    cache_->CheckInvariants();
    cache_.reset();
  }
  StartCache(1, 0);
}

}  // namespace
}  // namespace embcache
