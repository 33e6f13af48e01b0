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
constexpr absl::Duration kCloseRetry = absl::Seconds(5);
constexpr absl::Duration kRefusalsTold = absl::Minutes(1);

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
    bool& by_us = closed_[model];
    if (!by_us && to_close_.size() >= kMaxClosedModels) {
      all_closed_ = true;  // no model is shared rather than one too many
      spdlog::error("shared tier: off: {} models were closed", to_close_.size());
    } else if (!by_us) {
      by_us = true;
      to_close_.emplace_back(model);
      work_due_.Signal();
    }
  }
  for (Callback& done : owed) done();
}

std::optional<SharedTier::Work> SharedTier::NextWork() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    const absl::Duration now = Now();
    const bool any_to_close = next_to_close_ < to_close_.size();
    const bool close = any_to_close && now >= close_at_;
    if (!close && jobs_.empty()) {
      work_due_.WaitWithTimeout(&mu_, any_to_close ? close_at_ - now : absl::InfiniteDuration());
    } else if (!circuit_.Allow(now)) {
      work_due_.WaitWithTimeout(&mu_, circuit_.retry_at() - now);
    } else if (close) {
      return Work{to_close_[next_to_close_], std::nullopt};
    } else {
      Pending& pending = pending_[jobs_.front().key];
      if (pending.jobs == 1) pending.removal_last = false;
      return Work{"", jobs_.front()};
    }
  }
  return std::nullopt;
}

void SharedTier::RunWrites() {
  SharedStore store(options_.store, stop_fd_.get(), clock_);
  uint64_t connections = 0;
  while (const std::optional<Work> work = NextWork()) {
    const absl::Duration deadline = Now() + kWritePatience * options_.timeout;
    if (!work->job.has_value()) {
      Closed(store.Close(work->model, deadline));
    } else if (work->job->generation == 0) {
      const absl::Status removed = store.Remove(work->job->key, deadline);
      if (!absl::IsAborted(removed)) Learn(removed, work->job->key.model());
      JobDone(removed);
    } else {
      JobDone(WriteEntry(*work->job, &store));
    }
    if (connections == store.connections()) continue;
    // Redis may have been started anew and have forgotten what was closed.
    connections = store.connections();
    absl::MutexLock lock(&mu_);
    next_to_close_ = 0;
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
    Learn(written, job.key.model());
  }
  return written;
}

void SharedTier::Closed(const absl::Status& status) {
  if (!absl::IsAborted(status)) Learn(status, "");
  absl::MutexLock lock(&mu_);
  if (status.ok()) {
    spdlog::info("shared tier: model \"{}\" is closed for all nodes of the namespace",
                 to_close_[next_to_close_]);
    ++next_to_close_;
  } else {
    close_at_ = Now() + (absl::IsAborted(status) ? kCloseRetry : absl::ZeroDuration());
  }
}

void SharedTier::JobDone(const absl::Status& status) {
  bool tell = false;
  {
    absl::MutexLock lock(&mu_);
    const Job job = jobs_.front();
    if (absl::IsAborted(status) && Now() - refusal_told_ > kRefusalsTold) {
      refusal_told_ = Now();
      tell = true;
    }
    if (job.generation != 0) {
      jobs_.pop_front();
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
      // What it was to replace must not be read again. A later job of the key sees to that, too.
      if (!status.ok() && pending_[job.key].jobs == 1 && !IsClosedLocked(job.key.model())) {
        QueueRemovalLocked(job.key);
      }
      ForgetJobLocked(job.key);
    } else if (status.ok() || absl::IsAborted(status)) {
      jobs_.pop_front();
      ++(status.ok() ? stats_.removals : stats_.lost_removals);
      --stats_.queued_removals;
      ForgetJobLocked(job.key);
    }  // else it stays, for when Redis is there again
  }
  if (tell) spdlog::warn("shared tier: refused: {}", std::string(status.message()));
}

}  // namespace embcache
