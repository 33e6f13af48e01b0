// A randomised test of TieredCache against a naive model.
//
// One thread drives the cache; copies and disk work run only when the seed picks them, in any
// order, and fail when it says so. The model knows, for every key, which values a lookup may give:
// the value last committed, or nothing. After every step the cache checks its own invariants
// (design I2, I3, I5) and the test checks the bytes under every pin it holds (I1) and of every
// answer (I4).
//
//   EMBCACHE_SEED=n        replays one seed (printed when something fails)
//   EMBCACHE_STEPS=n       steps in all, over all seeds (default 1000000)

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "storage/executor.h"
#include "storage/memory_store.h"
#include "storage/tiered_cache.h"
#include "tests/unit/heap_memory.h"
#include "tests/unit/manual_copy_engine.h"

namespace embcache {
namespace {

constexpr int kStepsPerSeed = 500;
constexpr int kKeys = 6;
constexpr int kModels = 2;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void AddTo(CacheStats& sum, const CacheStats& stats) {
  sum.hits += stats.hits;
  sum.misses += stats.misses;
  sum.saves += stats.saves;
  sum.replaced += stats.replaced;
  sum.promotions += stats.promotions;
  sum.demotions += stats.demotions;
  sum.rejected_puts += stats.rejected_puts;
  sum.l3.loads += stats.l3.loads;
  sum.l3.load_failures += stats.l3.load_failures;
  sum.l3.writes += stats.l3.writes;
  sum.l3.write_failures += stats.l3.write_failures;
  sum.l3.dropped_writes += stats.l3.dropped_writes;
}

// A value is its number, repeated.
using Value = uint64_t;

class ModelRun {
 public:
  explicit ModelRun(uint64_t seed) : random_(seed), store_(StoreBytes()) {
    options_.l1.capacity_bytes = 4096 * Pick(1, 6);
    options_.l2.capacity_bytes = 4096 * Pick(0, 8);
    options_.l1.segment_bytes = options_.l2.segment_bytes = 4096 * Pick(1, 8);
    if (Pick(0, 3) == 0) options_.l1.max_entries = Pick(1, 5);
    options_.l3_write = Pick(0, 1) ? L3WriteMode::kThrough : L3WriteMode::kEvict;
    options_.l3_queue_entries = Pick(1, 6);
    options_.l3_queue_bytes = 4096 * Pick(1, 8);
    use_store_ = Pick(0, 3) != 0;
    faults_ = Pick(0, 2) == 0;
    for (uint64_t& weight : weights_) weight = Pick(0, 9);
    Start();
  }

  void Steps(int steps) {
    for (int i = 0; i < steps; ++i) {
      Step();
      cache_->CheckInvariants();
      for (const Pin& pin : pins_) CheckBytes(pin.handle, pin.value);
      if (::testing::Test::HasFatalFailure()) return;
    }
    Quiesce();
    cache_.reset();
  }

  // What happened, for seeing that the test tests.
  const CacheStats& totals() const { return totals_; }
  uint64_t relocations() const { return relocations_; }
  uint64_t segments_gone() const { return segments_gone_; }

 private:
  struct Pin {
    ReadHandle handle;
    Value value;
  };
  struct OpenReservation {
    CacheKey key;
    Value value;
    uint64_t model_epoch;
  };
  struct PendingGet {
    CacheKey key;
    std::set<Value> allowed;  // what was current at some time since the call
    bool answered = false;
    std::optional<absl::StatusOr<LookupResult>> answer;
  };

  uint64_t Pick(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random_);
  }
  uint64_t StoreBytes() { return 4096 * Pick(4, 40); }

  CacheKey RandomKey() {
    return *CacheKey::Create(Pick(0, kModels - 1) ? "m1" : "m0",
                             "hash-" + std::string(8, static_cast<char>('a' + Pick(0, kKeys - 1))),
                             "");
  }

  uint64_t& EpochOf(const CacheKey& key) { return epochs_[std::string(key.model())]; }

  void Start() {
    auto cache = TieredCache::Create(options_, {.clock = &clock_,
                                                .executor = &executor_,
                                                .copier = &copier_,
                                                .l1_memory = &memory_,
                                                .l2_memory = &memory_,
                                                .store = use_store_ ? &store_ : nullptr});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  void Step() {
    const uint64_t total = [&] {
      uint64_t sum = 0;
      for (uint64_t weight : weights_) sum += weight + 1;
      return sum;
    }();
    uint64_t at = Pick(0, total - 1);
    size_t op = 0;
    while (at >= weights_[op] + 1) at -= weights_[op++] + 1;
    switch (op) {
      case 0:
        return Get();
      case 1:
        return Get();
      case 2:
        return ReserveOne();
      case 3:
        return CommitOne();
      case 4:
        return RunSomething();
      case 5:
        return RunSomething();
      case 6:
        return ReleaseOne();
      case 7:
        return Remove();
      case 8:
        return Odd();
      case 9:
        return Resize();
    }
  }

  // --- operations ---

  void Get() {
    auto get = std::make_shared<PendingGet>(PendingGet{.key = RandomKey()});
    get->allowed = allowed_[get->key];
    pending_.push_back(get);
    const bool pop = Pick(0, 19) == 0;
    const auto answer = [get](absl::StatusOr<LookupResult> result) {
      EXPECT_FALSE(get->answered) << "answered twice";
      get->answered = true;
      get->answer.emplace(std::move(result));
    };
    if (pop) {
      pops_.insert(get.get());
      cache_->Pop(
          get->key,
          [answer](LookupResult result) {
            const bool hit = result.hit();
            answer(std::move(result));
            return hit;
          },
          [get, answer](const absl::Status& status) {
            if (!get->answered) answer(status);
          });
    } else {
      cache_->Lookup(get->key, {}, answer);
    }
    Harvest();
  }

  // Looks at the lookups that have been answered.
  void Harvest() {
    for (auto it = pending_.begin(); it != pending_.end();) {
      PendingGet& get = **it;
      if (!get.answered) {
        ++it;
        continue;
      }
      if (get.answer->ok() && (*get.answer)->hit()) {
        ReadHandle handle = std::move((*get.answer)->handle);
        const Value value = FirstWord(handle);
        ASSERT_TRUE(get.allowed.count(value))
            << "a lookup of " << get.key.DebugString() << " gave value " << value;
        CheckBytes(handle, value);
        // Popped: gone for every later lookup, unless a newer value came.
        if (pops_.count(&get)) allowed_[get.key].erase(value);
        if (pins_.size() < 6 && Pick(0, 1)) pins_.push_back({std::move(handle), value});
      }
      pops_.erase(&get);
      it = pending_.erase(it);
    }
  }

  void ReserveOne() {
    if (reservations_.size() >= 4) return;
    const CacheKey key = RandomKey();
    const uint64_t words = Pick(0, 9) == 0 ? Pick(1, 2000) : Pick(1, 300);
    const Value value = ++last_value_;
    cache_->Reserve(
        {.key = key,
         .layout = *LayOutTensors(
             {{.name = "t", .dtype = DType::kU64, .shape = {static_cast<int64_t>(words)}}})},
        [this, key, value, words](absl::StatusOr<ReservedPlace> place) {
          if (!place.ok()) {
            EXPECT_EQ(place.status().code(), absl::StatusCode::kResourceExhausted);
            return;
          }
          uint64_t* to = reinterpret_cast<uint64_t*>(DataAt(place->location));
          for (uint64_t i = 0; i < words; ++i) to[i] = value;
          reservations_.emplace(place->id, OpenReservation{key, value, EpochOf(key)});
        });
    Harvest();
  }

  void CommitOne() {
    if (reservations_.empty()) return;
    auto it = std::next(reservations_.begin(),
                        static_cast<std::ptrdiff_t>(Pick(0, reservations_.size() - 1)));
    const auto [id, reservation] = *it;
    reservations_.erase(it);
    if (Pick(0, 5) == 0) {
      EXPECT_TRUE(cache_->Abort(id).ok());
      return;
    }
    absl::StatusOr<ReadHandle> handle = cache_->Commit(id);
    if (reservation.model_epoch != EpochOf(reservation.key)) {
      EXPECT_EQ(handle.status().code(), absl::StatusCode::kFailedPrecondition);
      return;
    }
    ASSERT_TRUE(handle.ok()) << handle.status();
    allowed_[reservation.key] = {reservation.value};
    for (auto& get : pending_) {
      if (get->key == reservation.key) get->allowed.insert(reservation.value);
    }
    if (Pick(0, 3) == 0) pins_.push_back({*std::move(handle), reservation.value});
    Harvest();
  }

  void RunSomething() {
    const size_t copies = copier_.pending();
    const size_t tasks = executor_.pending();
    if (copies + tasks == 0) return;
    const size_t pick = Pick(0, copies + tasks - 1);
    if (pick >= copies) {
      if (faults_ && Pick(0, 9) == 0) store_.FailNextReads(1, absl::UnknownError("injected"));
      if (faults_ && Pick(0, 9) == 0) store_.FailNextPuts(1, absl::UnavailableError("injected"));
      executor_.RunOne(pick - copies);
    } else if (faults_ && Pick(0, 9) == 0) {
      copier_.FailOne(pick, absl::InternalError("injected"));
    } else {
      copier_.RunOne(pick);
    }
    Harvest();
  }

  void ReleaseOne() {
    if (pins_.empty()) return;
    pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(Pick(0, pins_.size() - 1)));
    Harvest();
  }

  void Remove() {
    if (Pick(0, 3) != 0) {
      const CacheKey key = RandomKey();
      allowed_[key].clear();
      cache_->Delete(key, [](absl::StatusOr<bool> existed) { EXPECT_TRUE(existed.ok()); });
    } else if (Pick(0, 2) == 0) {
      const std::string model = Pick(0, 1) ? "m1" : "m0";
      ++epochs_[model];
      for (auto& [key, values] : allowed_) {
        if (key.model() == model) values.clear();
      }
      cache_->AdvanceEpoch(model, [](absl::StatusOr<uint64_t> epoch) { EXPECT_TRUE(epoch.ok()); });
    }
    Harvest();
  }

  void Odd() {
    switch (Pick(0, 5)) {
      case 0:
        clock_.Advance(absl::Milliseconds(100));
        return cache_->Tick();
      case 1:
        cache_->Contains(RandomKey());
        return;
      case 2: {
        const CacheKey key = RandomKey();
        ReadHandle handle = cache_->PinInPlace(key);
        if (!handle) return;
        const Value value = FirstWord(handle);
        ASSERT_TRUE(allowed_[key].count(value));
        pins_.push_back({std::move(handle), value});
        return;
      }
      case 3:
        for (const ListedEntry& row : cache_->List({.limit = 5}).entries) {
          EXPECT_FALSE(allowed_[row.key].empty()) << row.key.DebugString() << " is listed";
        }
        return;
      case 4:
        if (use_store_) cache_->Flush([](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
        return;
      case 5:
        if (Pick(0, 9) == 0) Restart();
        return;
    }
  }

  // One step of a resize, as the server's Resizer makes them: one tier at a time.
  void Resize() {
    if (coming_.has_value()) {
      cache_->OpenSegments(*std::exchange(coming_, std::nullopt));
    } else if (shrinking_.has_value()) {
      if (Pick(0, 5) != 0 && !cache_->AwaitShrunk(*shrinking_, absl::InfinitePast())) return;
      EndShrink();
    } else if (const TierId tier = Pick(0, 1) ? TierId::kL1 : TierId::kL2; Pick(0, 1)) {
      shrinking_ = tier;
      cache_->StartShrink(tier, 4096 * Pick(0, 6));
    } else {
      coming_ = tier;
      EXPECT_TRUE(cache_->AddSegments(tier, 4096 * Pick(0, 8)).ok());
    }
    Harvest();
  }

  void EndShrink() {
    const TieredCache::Shrunk shrunk = cache_->EndShrink(*shrinking_);
    shrinking_.reset();
    segments_gone_ += shrunk.gone.size();
  }

  void Restart() {
    Quiesce();
    cache_.reset();
    if (!use_store_) allowed_.clear();
    Start();
  }

  void Quiesce() {
    if (shrinking_.has_value()) EndShrink();
    coming_.reset();
    pins_.clear();
    for (const auto& [id, reservation] : reservations_) EXPECT_TRUE(cache_->Abort(id).ok());
    reservations_.clear();
    while (copier_.pending() + executor_.pending() > 0) {
      copier_.RunAll();
      executor_.RunAll();
      for (const auto& [id, reservation] : reservations_) EXPECT_TRUE(cache_->Abort(id).ok());
      reservations_.clear();
    }
    Harvest();
    pins_.clear();
    cache_->CheckInvariants();
    EXPECT_TRUE(pending_.empty()) << "lookups that nothing will answer";
    const CacheStats stats = cache_->GetStats(false);
    for (const TierStats& tier : stats.memory) EXPECT_EQ(tier.pinned_bytes, 0u);
    EXPECT_EQ(stats.reservations + stats.doomed_entries, 0u);
    AddTo(totals_, stats);
    relocations_ += cache_->work().relocation.duration.Take().count;
  }

  // --- bytes ---

  char* DataAt(const Location& location) {
    for (const TieredCache::SegmentInfo& segment : cache_->Segments()) {
      if (segment.id == location.segment) return segment.memory->host_data() + location.offset;
    }
    ADD_FAILURE() << "segment " << location.segment << " is gone";
    std::abort();
  }
  Value FirstWord(const ReadHandle& handle) {
    return *reinterpret_cast<uint64_t*>(DataAt(handle.location()));
  }
  void CheckBytes(const ReadHandle& handle, Value value) {
    const uint64_t* at = reinterpret_cast<uint64_t*>(DataAt(handle.location()));
    for (uint64_t i = 0; i < handle.location().bytes / 8; ++i) {
      ASSERT_EQ(at[i], value) << "torn or changed at word " << i;
    }
  }

  std::mt19937_64 random_;
  SimulatedClock clock_;
  ManualExecutor executor_;
  ManualCopyEngine copier_;
  HeapMemory memory_;
  MemoryStore store_;
  TieredCacheOptions options_;
  bool use_store_ = false;
  bool faults_ = false;
  std::array<uint64_t, 10> weights_;
  std::unique_ptr<TieredCache> cache_;

  Value last_value_ = 0;
  std::map<CacheKey, std::set<Value>> allowed_;  // what a lookup begun now may give
  std::map<std::string, uint64_t, std::less<>> epochs_;
  std::map<ReservationId, OpenReservation> reservations_;
  std::vector<Pin> pins_;
  std::vector<std::shared_ptr<PendingGet>> pending_;
  std::set<PendingGet*> pops_;
  CacheStats totals_;
  std::optional<TierId> shrinking_;
  std::optional<TierId> coming_;  // with segments that are not used yet
  uint64_t relocations_ = 0;
  uint64_t segments_gone_ = 0;
};

TEST(TieredCacheModelTest, EveryAnswerIsTheValueLastCommittedOrAMiss) {
  const uint64_t only = FromEnvironment("EMBCACHE_SEED", 0);
  const uint64_t steps = FromEnvironment("EMBCACHE_STEPS", 1'000'000);
  CacheStats sum;
  uint64_t relocations = 0;
  uint64_t segments_gone = 0;
  for (uint64_t seed = only == 0 ? 1 : only; seed <= (only == 0 ? steps / kStepsPerSeed : only);
       ++seed) {
    SCOPED_TRACE("EMBCACHE_SEED=" + std::to_string(seed));
    ModelRun run(seed);
    run.Steps(kStepsPerSeed);
    if (HasFailure()) return;
    AddTo(sum, run.totals());
    relocations += run.relocations();
    segments_gone += run.segments_gone();
  }
  if (only != 0) return;
  // Everything the model allows for has to happen often, or the test proves nothing.
  for (const auto& [name, count] : {std::pair{"hits", sum.hits},
                                    {"misses", sum.misses},
                                    {"saves", sum.saves},
                                    {"replaced", sum.replaced},
                                    {"promotions", sum.promotions},
                                    {"demotions", sum.demotions},
                                    {"rejected puts", sum.rejected_puts},
                                    {"l3 loads", sum.l3.loads},
                                    {"l3 load failures", sum.l3.load_failures},
                                    {"l3 writes", sum.l3.writes},
                                    {"l3 write failures", sum.l3.write_failures},
                                    {"l3 dropped writes", sum.l3.dropped_writes},
                                    {"relocations", relocations},
                                    {"segments gone", segments_gone}}) {
    std::cout << name << " " << count << "\n";
    EXPECT_GT(count, steps / 10'000) << name;
  }
}

}  // namespace
}  // namespace embcache
