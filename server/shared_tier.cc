// What the cache's services see of the shared tier, and its reading. See shared_tier.h.

#include "server/shared_tier.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "spdlog/spdlog.h"
#include "storage/check.h"

namespace embcache {
namespace {

std::thread NamedThread(const std::string& name, absl::AnyInvocable<void()> run) {
  return std::thread([name, run = std::move(run)]() mutable {
    pthread_setname_np(pthread_self(), name.c_str());
    run();
  });
}

}  // namespace

SharedTier::SharedTier(const SharedTierOptions& options, TieredCache* cache, const Clock* clock)
    : options_(options),
      cache_(cache),
      clock_(clock),
      stop_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      circuit_(options.timeout) {
  EMB_CHECK(static_cast<bool>(stop_fd_));
  for (const std::string& model : options_.not_shared) {
    absl::MutexLock lock(&mu_);
    closed_.emplace(model, false);
    spdlog::warn("shared tier: model \"{}\" is not shared by this node, for it has had an epoch",
                 model);
  }
  absl::MutexLock lock(&stop_mu_);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.push_back(NamedThread(absl::StrCat("shared-", i), [this] { RunReads(); }));
  }
  threads_.push_back(NamedThread("shared-write", [this] { RunWrites(); }));
  threads_.push_back(NamedThread("shared-timer", [this] { RunTimer(); }));
}

SharedTier::~SharedTier() { Stop(); }

void SharedTier::Stop() {
  Waiters owed;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [key, flight] : flights_) CancelLocked(flight.get(), &owed);
    eventfd_write(stop_fd_.get(), 1);
    unread_due_.SignalAll();
    timer_due_.SignalAll();
    work_due_.SignalAll();
  }
  for (Callback& done : owed) done();
  absl::MutexLock lock(&stop_mu_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool SharedTier::IsClosedLocked(absl::string_view model) const {
  return all_closed_ || closed_.contains(model);
}

SharedTier::Waiters SharedTier::TakeWaitersLocked(Flight* flight) {
  waiters_ -= flight->waiters.size();
  deadlines_.erase({flight->deadline, flight});
  return std::exchange(flight->waiters, {});
}

void SharedTier::CancelLocked(Flight* flight, Waiters* owed) {
  flight->cancelled->store(true);
  for (Callback& done : TakeWaitersLocked(flight)) owed->push_back(std::move(done));
}

bool SharedTier::Ask(const CacheKey& key, Callback done) {
  absl::MutexLock lock(&mu_);
  if (stopping_ || IsClosedLocked(key.model()) || pending_.contains(key)) return false;
  const absl::Duration now = Now();
  const auto found = flights_.find(key);
  if (found != flights_.end()) {
    // One without waiters is being ended.
    Flight* const flight = found->second.get();
    if (flight->waiters.empty() || waiters_ >= kMaxWaiters) return false;
    flight->waiters.push_back(std::move(done));
    ++waiters_;
    return true;
  }
  read_wanted_ = now;
  if (flights_.size() >= kMaxFlights || waiters_ >= kMaxWaiters || !circuit_.Allow(now)) {
    ++stats_.not_asked;
    return false;
  }
  auto flight = std::make_shared<Flight>(key, now + options_.timeout);
  flight->waiters.push_back(std::move(done));
  ++waiters_;
  if (deadlines_.empty()) timer_due_.Signal();
  deadlines_.insert({flight->deadline, flight.get()});
  unread_.push_back(flight);
  unread_due_.Signal();
  flights_.emplace(key, std::move(flight));
  return true;
}

SharedTier::Waiters SharedTier::NextLate() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    if (deadlines_.empty()) {
      timer_due_.Wait(&mu_);
      continue;
    }
    const auto [deadline, flight] = *deadlines_.begin();
    const absl::Duration now = Now();
    if (deadline <= now) return TakeWaitersLocked(flight);
    timer_due_.WaitWithTimeout(&mu_, deadline - now);
  }
  return {};
}

void SharedTier::RunTimer() {
  for (Waiters late = NextLate(); !late.empty(); late = NextLate()) {
    for (Callback& done : late) done();
  }
}

// --- Reading ------------------------------------------------------------------------------------

void SharedTier::Learn(const absl::Status& status, absl::string_view model, bool counts) {
  if (absl::IsCancelled(status)) return;
  bool opened = false;
  bool closed = false;
  {
    absl::MutexLock lock(&mu_);
    switch (status.code()) {
      case absl::StatusCode::kFailedPrecondition:
        if (closed_.size() < kMaxClosedModels) closed_.emplace(model, false);
        [[fallthrough]];
      case absl::StatusCode::kOk:
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kDataLoss:
        closed = circuit_.Succeeded();
        break;
      default:
        if (counts || circuit_.open()) opened = circuit_.Failed(Now());
    }
  }
  if (opened) {
    spdlog::warn("shared tier: {} fails and is left alone for now: {}",
                 options_.store.redis.address.ToString(), std::string(status.message()));
  }
  if (closed) {
    spdlog::info("shared tier: {} answers again", options_.store.redis.address.ToString());
  }
}

std::shared_ptr<SharedTier::Flight> SharedTier::NextFlight() {
  absl::MutexLock lock(&mu_);
  while (!stopping_ && unread_.empty()) unread_due_.Wait(&mu_);
  if (stopping_) return nullptr;
  std::shared_ptr<Flight> flight = std::move(unread_.front());
  unread_.pop_front();
  return flight;
}

void SharedTier::RunReads() {
  SharedStore store(options_.store, stop_fd_.get(), clock_);
  while (const std::shared_ptr<Flight> flight = NextFlight()) {
    const auto counter = Fly(flight.get(), &store);
    Waiters owed;
    {
      absl::MutexLock lock(&mu_);
      ++(stats_.*counter);
      owed = TakeWaitersLocked(flight.get());
      flights_.erase(flight->key);
    }
    for (Callback& done : owed) done();
  }
}

uint64_t SharedTierStats::*SharedTier::Fly(Flight* flight, SharedStore* store) {
  {
    absl::MutexLock lock(&mu_);
    if (flight->cancelled->load()) return &SharedTierStats::not_kept;
    if (flight->waiters.empty()) return &SharedTierStats::late;
  }
  const absl::Duration left = flight->deadline - Now();
  if (left <= absl::ZeroDuration()) return &SharedTierStats::late;
  const absl::StatusOr<SharedStore::Found> found = store->Read(flight->key, flight->deadline);
  // Where most of the time went in this node's own queue, the server is not to blame.
  const bool fair = left >= options_.timeout / 2;
  Learn(found.status(), flight->key.model(), fair);
  switch (found.status().code()) {
    case absl::StatusCode::kOk:
      return Keep(flight, found->value);
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return &SharedTierStats::absent;
    case absl::StatusCode::kDataLoss:
      spdlog::warn("shared tier: {}: {}", flight->key.DebugString(),
                   std::string(found.status().message()));
      return &SharedTierStats::damaged;
    default:
      return fair ? &SharedTierStats::failed : &SharedTierStats::late;
  }
}

uint64_t SharedTierStats::*SharedTier::Keep(Flight* flight, const CheckedSharedValue& value) {
  const EntryInfo& info = *value.info;
  const uint64_t charge =
      info.payload_bytes() + ChargedHeapBytes(info.key, info.layout, info.metadata);
  // The cache would take a larger one for a client's, and remove what it has of the key.
  if (charge > cache_->max_entry_bytes()) return &SharedTierStats::not_kept;
  ReserveRequest request = {.key = info.key,
                            .layout = info.layout,
                            .metadata = info.metadata,
                            .encode_cost_us = info.encode_cost_us,
                            .ttl = info.expires - clock_->Now(),
                            .cancelled = flight->cancelled};
  absl::StatusOr<ReservedPlace> place;
  absl::Notification reserved;
  cache_->Reserve(std::move(request), [&](absl::StatusOr<ReservedPlace> answer) {
    place = std::move(answer);
    reserved.Notify();
  });
  reserved.WaitForNotification();
  if (!place.ok()) return &SharedTierStats::not_kept;
  absl::Status status;
  absl::Notification written;
  cache_->WriteReserved(place->id, 0, value.payload, [&](absl::Status answer) {
    status = std::move(answer);
    written.Notify();
  });
  written.WaitForNotification();
  Waiters owed;  // from here on their time cannot run out
  {
    absl::MutexLock lock(&mu_);
    owed = TakeWaitersLocked(flight);
  }
  const bool late = owed.empty() && !flight->cancelled->load();
  if (!status.ok() || owed.empty()) {
    cache_->Abort(place->id).IgnoreError();
  } else {
    status = cache_->Commit(place->id).status();  // and unpins it
  }
  for (Callback& done : owed) done();
  if (late) return &SharedTierStats::late;
  if (!status.ok() || owed.empty()) return &SharedTierStats::not_kept;
  absl::MutexLock lock(&mu_);
  stats_.read_bytes += info.payload_bytes();
  return &SharedTierStats::hits;
}

SharedTierStats SharedTier::GetStats() const {
  absl::MutexLock lock(&mu_);
  SharedTierStats stats = stats_;
  stats.closed_models = closed_.size();
  stats.left_alone = circuit_.open();
  return stats;
}

}  // namespace embcache
