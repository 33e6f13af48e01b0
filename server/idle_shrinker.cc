#include "server/idle_shrinker.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

// For what is copied and for pins, of a shrink. What is not done then is done the next time.
constexpr absl::Duration kTimeForOne = absl::Seconds(10);

class IdleL1 : public IdleTier {
 public:
  IdleL1(TieredCache* cache, Resizer* resizer, const SegmentBoard* board)
      : cache_(cache), resizer_(resizer), board_(board) {}

  bool usable() const override { return cache_->TierUsable(TierId::kL1); }
  bool held() const override { return board_->held(); }
  uint64_t uses() const override { return cache_->uses(); }
  uint64_t capacity_bytes() const override { return cache_->capacity_bytes(TierId::kL1); }
  uint64_t segment_bytes() const override { return cache_->segment_bytes(TierId::kL1); }
  Resizer::Choice chosen() const override { return resizer_->chosen(TierId::kL1); }

  void Resize(uint64_t capacity_bytes, uint64_t choice, Resizer::Callback done) override {
    Resizer::ForNow wanted;
    wanted.capacity_bytes = capacity_bytes;
    wanted.choice = choice;
    wanted.deadline = absl::Now() + kTimeForOne;
    wanted.worth_waiting = [this, uses = cache_->uses()] { return cache_->uses() == uses; };
    resizer_->ResizeForNow(TierId::kL1, std::move(wanted), std::move(done));
  }

 private:
  TieredCache* const cache_;
  Resizer* const resizer_;
  const SegmentBoard* const board_;
};

}  // namespace

std::unique_ptr<IdleTier> MakeIdleL1(TieredCache* cache, Resizer* resizer,
                                     const SegmentBoard* board) {
  return std::make_unique<IdleL1>(cache, resizer, board);
}

IdleShrinker::IdleShrinker(const Options& options, std::unique_ptr<IdleTier> tier, Clock* clock)
    : options_(options),
      tier_(std::move(tier)),
      clock_(clock),
      uses_(tier_->uses()),
      choice_(tier_->chosen().number),
      used_at_(clock->MonotonicNow()),
      shrink_at_(used_at_),
      grow_at_(used_at_) {
  const uint64_t keeps = IdleBytes();
  if (keeps < tier_->capacity_bytes()) {
    spdlog::info("l1: keeps {} bytes when nobody has used it for {}", keeps,
                 absl::FormatDuration(options_.after));
  } else {
    spdlog::warn("l1: has no more than the {} bytes that it keeps when idle; see l1-idle-capacity",
                 keeps);
  }
}

uint64_t IdleShrinker::IdleBytes() const {
  return options_.capacity_bytes > 0 ? options_.capacity_bytes : tier_->segment_bytes();
}

void IdleShrinker::Tick() {
  Step step;
  if (!Plan(&step)) return;
  tier_->Resize(step.to, step.full.number, [this, step](absl::StatusOr<Resizer::Resized> resized) {
    Ended(step, resized.status());
  });
}

bool IdleShrinker::Plan(Step* step) {
  {
    absl::MutexLock lock(&mu_);
    if (busy_) return false;  // and L1 is about to be another
  }
  if (!tier_->usable()) return false;
  const absl::Duration now = clock_->MonotonicNow();
  const uint64_t uses = tier_->uses();
  step->full = tier_->chosen();
  step->from = tier_->capacity_bytes();
  const bool held = tier_->held();
  const uint64_t idle_bytes = IdleBytes();
  const uint64_t segment_bytes = tier_->segment_bytes();
  absl::MutexLock lock(&mu_);
  const bool chosen_anew = std::exchange(choice_, step->full.number) != step->full.number;
  if (chosen_anew) shrunk_ = false;
  if (std::exchange(uses_, uses) != uses || chosen_anew) {
    used_at_ = shrink_at_ = now;
    told_shrink_ = false;
  }
  if (held) return false;
  step->shrink = now - used_at_ >= options_.after;
  if (step->shrink) {
    if (step->from <= idle_bytes || now < shrink_at_) return false;
    step->to = idle_bytes;
  } else {
    if (!shrunk_ || now < grow_at_) return false;
    step->to = std::min(step->full.capacity_bytes, step->from + segment_bytes);
  }
  busy_ = true;
  return true;
}

void IdleShrinker::Ended(const Step& step, const absl::Status& status) {
  const uint64_t bytes = tier_->capacity_bytes();
  std::string line;
  {
    absl::MutexLock lock(&mu_);
    busy_ = false;
    if (absl::IsAborted(status) || absl::IsUnavailable(status)) {
      // An operator's goes first, or it is the end.
      shrink_at_ = grow_at_ = clock_->MonotonicNow() + kFirstGrowAgain;
    } else if (step.shrink) {
      line = ShrinkEndedLocked(step, bytes, status);
    } else {
      line = GrowthEndedLocked(step, bytes, status);
    }
  }
  if (!line.empty()) spdlog::info("l1: {}", line);
}

std::string IdleShrinker::ShrinkEndedLocked(const Step& step, uint64_t bytes,
                                            const absl::Status& status) {
  const absl::Duration now = clock_->MonotonicNow();
  shrink_at_ = now + kShrinkAgain;
  grow_at_ = now;
  grow_pause_ = kFirstGrowAgain;
  shrunk_ = bytes < step.full.capacity_bytes;
  told_growth_ = false;
  if (!status.ok() && std::exchange(told_shrink_, true)) return "";
  return absl::StrCat("nobody has used the cache for ", absl::FormatDuration(options_.after),
                      ": has ", bytes, " bytes now instead of ", step.from,
                      status.ok() ? "" : "; the rest is tried again: ", status.message());
}

std::string IdleShrinker::GrowthEndedLocked(const Step& step, uint64_t bytes,
                                            const absl::Status& status) {
  if (!status.ok()) {
    grow_at_ = clock_->MonotonicNow() + grow_pause_;
    grow_pause_ = std::min(2 * grow_pause_, kLastGrowAgain);
    if (std::exchange(told_growth_, true)) return "";
    return absl::StrCat("in use again, but stays at ", bytes, " bytes instead of ",
                        step.full.capacity_bytes, " for now: ", status.message());
  }
  grow_pause_ = kFirstGrowAgain;
  // A rest that is not worth a segment is left out.
  shrunk_ = bytes < step.full.capacity_bytes && bytes > step.from;
  if (shrunk_) return "";
  told_growth_ = false;
  return absl::StrCat("in use again: grown back to ", bytes, " bytes");
}

uint64_t IdleShrinker::given_back_bytes() const {
  if (!tier_->usable()) return 0;
  {
    absl::MutexLock lock(&mu_);
    if (!shrunk_) return 0;
  }
  const uint64_t full = tier_->chosen().capacity_bytes;
  return full - std::min(full, tier_->capacity_bytes());
}

}  // namespace embcache
