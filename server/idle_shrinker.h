// IdleShrinker: gives L1's memory back while nobody uses the cache, and takes it again when
// somebody does.
//
//   FULL --nobody for `after`--> shrinking --> SHRUNK --a put or a get--> growing --> FULL
//
// Both are resizes like an operator's (resizer.h), and nobody waits for them. A shrink that pins
// keep from its end is tried again after a while, and so is a growth for which there is no memory,
// as long as the cache is used. While a client has not given up what went, both wait: that and a
// new L1 together could be more than L1 may have. Growing goes by single segments, so that a part
// can be had. An operator's resize says anew what FULL is, and counts as a use.
//
// Thread-safe.

#ifndef EMBCACHE_SERVER_IDLE_SHRINKER_H_
#define EMBCACHE_SERVER_IDLE_SHRINKER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/resizer.h"
#include "server/segment_board.h"
#include "storage/clock.h"
#include "storage/tiered_cache.h"

namespace embcache {

// What the shrinker needs to know of L1, and to do with it. Thread-safe.
class IdleTier {
 public:
  virtual ~IdleTier() = default;

  // False: its memory is lost, and must not be touched.
  virtual bool usable() const = 0;
  // Whether a client may still have memory that went.
  virtual bool held() const = 0;
  virtual uint64_t uses() const = 0;  // see TieredCache
  virtual uint64_t capacity_bytes() const = 0;
  virtual uint64_t segment_bytes() const = 0;
  virtual Resizer::Choice chosen() const = 0;
  // Returns at once. As Resizer::ResizeForNow, with a short time for pins, cut shorter by a use.
  virtual void Resize(uint64_t capacity_bytes, uint64_t choice, Resizer::Callback done) = 0;
};

// L1 of `cache`. All outlive it.
std::unique_ptr<IdleTier> MakeIdleL1(TieredCache* cache, Resizer* resizer,
                                     const SegmentBoard* board);

class IdleShrinker {
 public:
  static constexpr absl::Duration kShrinkAgain = absl::Minutes(1);
  // Doubled each time.
  static constexpr absl::Duration kFirstGrowAgain = absl::Seconds(1);
  static constexpr absl::Duration kLastGrowAgain = absl::Minutes(1);

  struct Options {
    absl::Duration after;
    uint64_t capacity_bytes = 0;  // what L1 keeps; 0 = one segment
  };

  // `clock` outlives it. No resize of `tier` may be under way when it is destroyed.
  IdleShrinker(const Options& options, std::unique_ptr<IdleTier> tier, Clock* clock);

  // Looks whether it is time for something, and begins it. Call it every 100 ms or so, from one
  // thread.
  void Tick();

  // What L1 will take again: the difference to its full capacity. 0 when it is full.
  uint64_t given_back_bytes() const;

 private:
  struct Step {
    bool shrink = false;
    uint64_t from = 0;
    uint64_t to = 0;
    Resizer::Choice full;
  };

  uint64_t IdleBytes() const;
  // What is to be done now; false: nothing.
  bool Plan(Step* step) ABSL_LOCKS_EXCLUDED(mu_);
  void Ended(const Step& step, const absl::Status& status);
  // With what is to be said about it.
  std::string ShrinkEndedLocked(const Step& step, uint64_t bytes, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string GrowthEndedLocked(const Step& step, uint64_t bytes, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::unique_ptr<IdleTier> tier_;
  Clock* const clock_;

  mutable absl::Mutex mu_;
  uint64_t uses_ ABSL_GUARDED_BY(mu_);
  uint64_t choice_ ABSL_GUARDED_BY(mu_);           // the number
  absl::Duration used_at_ ABSL_GUARDED_BY(mu_);    // monotonic, as the next two
  absl::Duration shrink_at_ ABSL_GUARDED_BY(mu_);  // not before
  absl::Duration grow_at_ ABSL_GUARDED_BY(mu_);
  absl::Duration grow_pause_ ABSL_GUARDED_BY(mu_) = kFirstGrowAgain;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;    // a resize of ours is under way
  bool shrunk_ ABSL_GUARDED_BY(mu_) = false;  // by us, and not grown to the full capacity since
  // It has been said that it does not succeed: of a shrink since the last use, of a growth at all.
  bool told_shrink_ ABSL_GUARDED_BY(mu_) = false;
  bool told_growth_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_IDLE_SHRINKER_H_
