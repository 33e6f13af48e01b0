// What the shared tier does in Redis for the puts, removals and epochs of this node: one thread, in
// the order in which they came. See shared_tier.h.

#include <algorithm>

#include "absl/synchronization/notification.h"
#include "server/shared_tier.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

// Nobody waits for a write, and large values take their time.
constexpr int kWritePatience = 10;  // times the time-out
// After one that failed. As long as one lasts, others are served.
constexpr absl::Duration kRemoveAgain = absl::Seconds(5);
constexpr absl::Duration kMarkRetry = absl::Seconds(1);
// A Redis may be started anew, or emptied, at any time.
constexpr absl::Duration kMarkAgain = absl::Seconds(10);
// So long after a read that a Redis which fails is tried by a write, not by the next read.
constexpr absl::Duration kReadsFirst = absl::Seconds(1);
constexpr absl::Duration kRefusalsTold = absl::Minutes(1);

// Of the job that is none beside a mark.
CacheKey NoKey() { return *CacheKey::Create("none", std::string(32, '\0'), ""); }

}  // namespace

void SharedTier::Stored(const EntryInfo& info, uint64_t generation) {
  const uint64_t bytes = SharedValueBytes(info);
  Waiters owed;
  {
    absl::MutexLock lock(&mu_);
    const auto flight = flights_.find(info.key);
    if (flight != flights_.end()) CancelLocked(flight->second.get(), &owed);
    if (stopping_ || IsClosedLocked(info.key.model())) {
    } else if (bytes > options_.store.max_value_bytes ||
               stats_.queued_writes >= options_.queue_entries ||
               stats_.queued_bytes + bytes > options_.queue_bytes) {
      ++stats_.dropped_writes;
      QueueRemovalLocked(info.key);
    } else {
      Pending& pending = pending_[info.key];
      ++pending.jobs;
      pending.removal_last = false;
      jobs_.push_back({.key = info.key, .generation = generation, .bytes = bytes});
      ++stats_.queued_writes;
      stats_.queued_bytes += bytes;
      work_due_.Signal();
    }
  }
  for (Callback& done : owed) done();
}

void SharedTier::Removing(const CacheKey& key) {
  Waiters owed;
  {
    absl::MutexLock lock(&mu_);
    const auto flight = flights_.find(key);
    if (flight != flights_.end()) CancelLocked(flight->second.get(), &owed);
    if (!stopping_ && !IsClosedLocked(key.model())) QueueRemovalLocked(key);
  }
  for (Callback& done : owed) done();
}

void SharedTier::QueueRemovalLocked(const CacheKey& key) {
  const auto found = pending_.find(key);
  if (found != pending_.end() && found->second.removal_last) return;
  if (stats_.queued_removals >= kMaxRemovals) {
    ++stats_.lost_removals;
    return;
  }
  jobs_.push_back({.key = key});
  Pending& pending = pending_[key];
  ++pending.jobs;
  pending.removal_last = true;
  ++stats_.queued_removals;
  work_due_.Signal();
}

void SharedTier::ForgetJobLocked(const CacheKey& key) {
  const auto found = pending_.find(key);
  if (--found->second.jobs == 0) pending_.erase(found);
}

void SharedTier::CloseModel(absl::string_view model) {
  Waiters owed;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [key, flight] : flights_) {
      if (key.model() == model) CancelLocked(flight.get(), &owed);
    }
    const auto found = closed_.find(model);
    const bool known = found != closed_.end();
    if (all_closed_ || (known && found->second)) {
    } else if ((!known && closed_.size() >= kMaxClosedModels) ||
               to_close_.size() >= kMaxClosedModels) {
      all_closed_ = true;  // no model is shared rather than one too many
      spdlog::error("shared tier: off: {} models were closed", closed_.size());
    } else {
      closed_[model] = true;
      to_close_.emplace_back(model);
      work_due_.Signal();
    }
  }
  for (Callback& done : owed) done();
}

std::optional<size_t> SharedTier::MarkLocked(absl::Duration now, absl::Duration* next) const {
  if (to_close_.empty()) return std::nullopt;
  if (marked_ < to_close_.size()) {
    if (now >= mark_at_) return marked_;
    *next = std::min(*next, mark_at_);
  }
  if (marked_ == 0) return std::nullopt;
  if (now >= mark_again_at_) return marked_again_ < marked_ ? marked_again_ : 0;
  *next = std::min(*next, mark_again_at_);
  return std::nullopt;
}

// What may be done now; nothing: `next` is when there may be something.
std::optional<SharedTier::Work> SharedTier::PickLocked(absl::Duration now, absl::Duration* next) {
  while (!failed_.empty()) {
    Pending& pending = pending_[failed_.front().key];
    if (!pending.settled && pending.jobs == 1) break;
    pending.settled = false;  // another has seen to it, or will
    --stats_.queued_removals;
    ForgetJobLocked(failed_.front().key);
    failed_.pop_front();
  }
  const bool again = !failed_.empty() && now >= again_at_;
  if (!failed_.empty() && !again) *next = std::min(*next, again_at_);
  const bool any_job = again || !jobs_.empty();
  const std::optional<size_t> mark = MarkLocked(now, next);
  if (!mark.has_value() && !any_job) return std::nullopt;
  if (circuit_.open() && now < read_wanted_ + kReadsFirst) {
    *next = read_wanted_ + kReadsFirst;
    return std::nullopt;
  }
  if (!circuit_.Allow(now)) {
    *next = circuit_.retry_at();
    return std::nullopt;
  }
  const bool take_mark = mark.has_value() && (mark_next_ || !any_job);
  mark_next_ = !take_mark;
  if (take_mark) return Work{mark, Job{.key = NoKey()}};
  std::deque<Job>& from = again ? failed_ : jobs_;
  Work work{std::nullopt, std::move(from.front())};
  from.pop_front();
  Pending& pending = pending_[work.job.key];
  if (pending.jobs == 1) pending.removal_last = false;
  return work;
}

std::optional<SharedTier::Work> SharedTier::NextWork() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    const absl::Duration now = Now();
    absl::Duration next = absl::InfiniteDuration();
    if (std::optional<Work> work = PickLocked(now, &next)) return work;
    work_due_.WaitWithTimeout(&mu_, next - now);
  }
  return std::nullopt;
}

void SharedTier::RunWrites() {
  SharedStore store(options_.store, stop_fd_.get(), clock_);
  while (const std::optional<Work> work = NextWork()) {
    const absl::Duration deadline = Now() + kWritePatience * options_.timeout;
    if (work->mark.has_value()) {
      std::string model;
      {
        absl::MutexLock lock(&mu_);
        model = to_close_[*work->mark];
      }
      const absl::Status marked = store.Close(model, deadline);
      if (!absl::IsAborted(marked)) Learn(marked, "", /*counts=*/false);
      Marked(*work->mark, marked);
    } else if (work->job.generation == 0) {
      const absl::Status removed = store.Remove(work->job.key, deadline);
      // A key may fail alone, and for ever: in a Cluster others are on other servers.
      if (!absl::IsAborted(removed)) Learn(removed, work->job.key.model(), !work->job.again);
      JobDone(work->job, removed);
    } else {
      JobDone(work->job, WriteEntry(work->job, &store));
    }
  }
}

absl::Status SharedTier::WriteEntry(const Job& job, SharedStore* store) {
  {
    absl::MutexLock lock(&mu_);
    if (IsClosedLocked(job.key.model())) return absl::NotFoundError("closed meanwhile");
  }
  ReadHandle handle = cache_->PinInPlace(job.key);
  if (!handle || handle.generation() != job.generation) {
    return absl::NotFoundError("gone meanwhile");
  }
  const std::shared_ptr<const EntryInfo> info = handle.info();
  SharedValue value = MakeSharedValue(*info);
  absl::Status read;
  absl::Notification done;
  cache_->ReadPinned(handle, value.payload(), [&](absl::Status status) {
    read = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  handle.Reset();
  if (!read.ok()) return absl::NotFoundError(read.message());
  SealSharedValue(*info, &value);
  absl::Status written = store->Write(*info, value, Now() + kWritePatience * options_.timeout);
  if (!absl::IsNotFound(written) && !absl::IsAborted(written)) {
    Learn(written, job.key.model(), /*counts=*/true);
  }
  return written;
}

void SharedTier::Marked(size_t index, const absl::Status& status) {
  std::string told;
  {
    absl::MutexLock lock(&mu_);
    const absl::Duration now = Now();
    if (index < marked_) {
      marked_again_ = index + 1;  // one that failed has its turn in the next round again
      if (!status.ok()) mark_again_at_ = now + kMarkRetry;
      if (marked_again_ >= marked_) mark_again_at_ = now + kMarkAgain;
    } else if (status.ok()) {
      told = to_close_[index];
      if (marked_ == 0) mark_again_at_ = now + kMarkAgain;
      if (marked_again_ == marked_) ++marked_again_;
      ++marked_;
    } else {
      mark_at_ = now + kMarkRetry;
      std::swap(to_close_[index], to_close_.back());  // let others try
    }
  }
  if (told.empty()) return;
  spdlog::info("shared tier: model \"{}\" is closed for all nodes of the namespace", told);
}

void SharedTier::JobDone(const Job& job, const absl::Status& status) {
  bool tell = false;
  {
    absl::MutexLock lock(&mu_);
    if (absl::IsAborted(status) && Now() - refusal_told_ > kRefusalsTold) {
      refusal_told_ = Now();
      tell = true;
    }
    if (job.generation != 0) {
      WriteDoneLocked(job, status);
    } else {
      RemovalDoneLocked(job, status);
    }
  }
  if (tell) spdlog::warn("shared tier: refused: {}", std::string(status.message()));
}

void SharedTier::WriteDoneLocked(const Job& job, const absl::Status& status) {
  --stats_.queued_writes;
  stats_.queued_bytes -= job.bytes;
  if (status.ok()) {
    ++stats_.writes;
    stats_.written_bytes += job.bytes;
  } else if (absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) {
    ++stats_.dropped_writes;
  } else {
    ++stats_.write_failures;
  }
  Pending& pending = pending_[job.key];
  pending.settled = status.ok();
  // What it was to replace must not be read again. Another job of the key sees to that, too.
  if (!status.ok() && pending.jobs == 1 && !IsClosedLocked(job.key.model())) {
    QueueRemovalLocked(job.key);
  }
  ForgetJobLocked(job.key);
}

void SharedTier::RemovalDoneLocked(const Job& job, const absl::Status& status) {
  Pending& pending = pending_[job.key];
  pending.settled = status.ok();
  if (!status.ok() && !absl::IsAborted(status)) again_at_ = Now() + kRemoveAgain;
  if (status.ok() || absl::IsAborted(status)) {
    ++(status.ok() ? stats_.removals : stats_.lost_removals);
  } else if (pending.jobs == 1) {
    pending.removal_last = true;
    failed_.push_back({.key = job.key, .again = true});
    return;  // it still waits
  }
  --stats_.queued_removals;
  ForgetJobLocked(job.key);
}

}  // namespace embcache
