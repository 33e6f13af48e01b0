#include "server/event_stream.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/proto_convert.h"
#include "storage/check.h"

namespace embcache {
namespace {

constexpr size_t kEventsPerMessage = 256;
// Of a snapshot: as many as one page of keys looks at under the cache's lock.
constexpr size_t kRowsPerMessage = 256;

v1::Event::RemoveReason ReasonToProto(RemoveReason reason) {
  switch (reason) {
    case RemoveReason::kReplaced:
      return v1::Event::REPLACED;
    case RemoveReason::kDeleted:
      return v1::Event::DELETED;
    case RemoveReason::kCapacity:
      return v1::Event::CAPACITY;
    case RemoveReason::kExpired:
      return v1::Event::EXPIRED;
    case RemoveReason::kEpoch:
      return v1::Event::EPOCH;
    case RemoveReason::kMismatch:
      return v1::Event::REMOVED_MISMATCH;
    case RemoveReason::kLost:
      return v1::Event::REMOVED_LOST;
    case RemoveReason::kDamaged:
      return v1::Event::REMOVED_DAMAGED;
  }
  return v1::Event::REMOVE_REASON_UNSPECIFIED;
}

}  // namespace

EventStream::EventStream(TieredCache* cache, const Clock* clock, const Token& epoch,
                         const v1::WatchRequest& request)
    : cache_(cache),
      clock_(clock),
      epoch_(epoch),
      model_(request.model()),
      snapshots_(!request.no_snapshot()) {
  const bool same_run = request.epoch().size() == epoch.size() &&
                        std::equal(epoch.begin(), epoch.end(), request.epoch().begin(),
                                   [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); });
  const uint64_t after = request.after_sequence();
  const bool known = same_run && after > 0 && cache->RemembersEventsAfter(after);
  // Without snapshots, what is forgotten is told as a gap.
  if (known || (same_run && after > 0 && !snapshots_ && after <= cache->last_event())) {
    position_ = after;
    state_ = State::kEvents;
  } else if (!snapshots_) {
    position_ = cache->last_event();
    state_ = State::kEvents;
  }
}

bool EventStream::Next(v1::WatchResponse* response) {
  response->Clear();
  while (response->events().empty()) {
    switch (state_) {
      case State::kBegin:
        Begin(response);
        break;
      case State::kPages:
        // What follows the snapshot must not be forgotten before the snapshot has been told.
        if (cache_->last_event() - position_ > TieredCacheOptions::kRememberedEvents / 2) {
          TellEvents(response);
        } else {
          TellPage(response);
        }
        break;
      case State::kEvents:
        if (!TellEvents(response)) return false;
        break;
    }
  }
  return true;
}

// --- Snapshots ----------------------------------------------------------------------------------

v1::Event* EventStream::AddSnapshotEvent(v1::WatchResponse* response) const {
  v1::Event* event = response->add_events();
  event->set_sequence(position_);
  event->set_unix_ms(absl::ToUnixMillis(clock_->Now()));
  return event;
}

void EventStream::FillSnapshot(bool end, v1::EventSnapshot* snapshot) const {
  snapshot->set_end(end);
  snapshot->set_epoch(epoch_.data(), epoch_.size());
  const CacheStats stats = cache_->GetStats(/*per_model=*/false);
  const auto add = [&](TierId tier, uint64_t capacity, uint64_t used, uint64_t entries) {
    v1::TierOccupancy* added = snapshot->add_tiers();
    added->set_tier(TierToProto(tier));
    added->set_capacity_bytes(capacity);
    added->set_used_bytes(used);
    added->set_entries(entries);
  };
  for (const TierId id : {TierId::kL1, TierId::kL2}) {
    const TierStats& tier = stats.memory[static_cast<size_t>(id)];
    if (tier.capacity_bytes > 0) add(id, tier.capacity_bytes, tier.used_bytes, tier.entries);
  }
  if (stats.has_l3) {
    add(TierId::kL3, stats.store.capacity_bytes, stats.store.disk_bytes, stats.store.entries);
  }
}

void EventStream::Begin(v1::WatchResponse* response) {
  position_ = cache_->last_event();
  page_after_.clear();
  state_ = State::kPages;
  FillSnapshot(/*end=*/false, AddSnapshotEvent(response)->mutable_snapshot());
}

void EventStream::TellPage(v1::WatchResponse* response) {
  ListPage page = cache_->List(
      {.model = model_, .content_hash_prefix = {}, .after = page_after_, .limit = kRowsPerMessage});
  for (const ListedEntry& row : page.entries) {
    v1::EventStored* stored = AddSnapshotEvent(response)->mutable_stored();
    KeyToProto(row.key, stored->mutable_key());
    stored->set_tier(TierToProto(row.tier));
    stored->set_bytes(row.payload_bytes);
    stored->set_generation(row.generation);
    stored->set_encode_cost_us(row.encode_cost_us);
  }
  page_after_ = std::move(page.next);
  if (!page_after_.empty()) return;
  FillSnapshot(/*end=*/true, AddSnapshotEvent(response)->mutable_snapshot());
  state_ = State::kEvents;
}

// --- Events -------------------------------------------------------------------------------------

bool EventStream::TellEvents(v1::WatchResponse* response) {
  const TieredCache::EventPage page = cache_->Events(position_, kEventsPerMessage);
  if (page.lost > 0) {
    position_ += page.lost;
    v1::Event* event = AddSnapshotEvent(response);
    event->mutable_gap()->set_lost(page.lost);
    if (snapshots_) state_ = State::kBegin;
    return true;
  }
  for (const CacheEvent& event : page.events) {
    TellEvent(event, response);
    position_ = event.sequence;
  }
  return !page.events.empty();
}

void EventStream::TellEvent(const CacheEvent& event, v1::WatchResponse* response) const {
  if (event.kind == CacheEvent::Kind::kEpoch) {
    if (!model_.empty() && event.key != model_) return;
    v1::Event* told = response->add_events();
    told->set_sequence(event.sequence);
    told->set_unix_ms(absl::ToUnixMillis(event.time));
    told->mutable_epoch_advanced()->set_model(event.key);
    told->mutable_epoch_advanced()->set_model_epoch(event.generation);
    return;
  }
  const absl::StatusOr<CacheKey> key = CacheKey::Decode(event.key);
  EMB_CHECK(key.ok());
  if (!model_.empty() && key->model() != model_) return;
  v1::Event* told = response->add_events();
  told->set_sequence(event.sequence);
  told->set_unix_ms(absl::ToUnixMillis(event.time));
  switch (event.kind) {
    case CacheEvent::Kind::kStored: {
      v1::EventStored* stored = told->mutable_stored();
      KeyToProto(*key, stored->mutable_key());
      stored->set_tier(TierToProto(event.tier));
      stored->set_bytes(event.bytes);
      stored->set_generation(event.generation);
      stored->set_encode_cost_us(event.encode_cost_us);
      return;
    }
    case CacheEvent::Kind::kRemoved: {
      v1::EventRemoved* removed = told->mutable_removed();
      KeyToProto(*key, removed->mutable_key());
      removed->set_generation(event.generation);
      removed->set_reason(ReasonToProto(event.reason));
      return;
    }
    case CacheEvent::Kind::kMoved: {
      v1::EventMoved* moved = told->mutable_moved();
      KeyToProto(*key, moved->mutable_key());
      moved->set_from(TierToProto(event.from));
      moved->set_to(TierToProto(event.tier));
      moved->set_generation(event.generation);
      return;
    }
    case CacheEvent::Kind::kEpoch:
      return;
  }
}

// --- The hub ------------------------------------------------------------------------------------

EventHub::EventHub(TieredCache* cache, size_t max_watchers)
    : cache_(cache), max_watchers_(max_watchers) {
  cache_->OnEvent(std::make_shared<absl::AnyInvocable<void()>>([signal = signal_] {
    absl::MutexLock lock(&signal->mu);
    signal->happened = true;
  }));
  thread_ = std::thread([this] { Run(); });
}

EventHub::~EventHub() {
  cache_->OnEvent(nullptr);
  {
    absl::MutexLock lock(&signal_->mu);
    signal_->stop = true;
  }
  thread_.join();
}

absl::Status EventHub::Add(std::weak_ptr<Watcher> watcher) {
  absl::MutexLock lock(&mu_);
  if (ended_) return absl::UnavailableError("the daemon is stopping");
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                 [](const auto& one) { return one.expired(); }),
                  watchers_.end());
  if (watchers_.size() >= max_watchers_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("watchers: ", watchers_.size(), " of ", max_watchers_));
  }
  watchers_.push_back(std::move(watcher));
  return absl::OkStatus();
}

std::vector<std::shared_ptr<Watcher>> EventHub::Living() {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Watcher>> living;
  for (const std::weak_ptr<Watcher>& watcher : watchers_) {
    if (std::shared_ptr<Watcher> one = watcher.lock()) living.push_back(std::move(one));
  }
  return living;
}

void EventHub::EndAll() {
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }
  for (const auto& watcher : Living()) watcher->End();
}

void EventHub::Run() {
  pthread_setname_np(pthread_self(), "events");
  Signal& signal = *signal_;
  while (true) {
    {
      absl::MutexLock lock(&signal.mu);
      const auto due = [&signal]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(signal.mu) {
        return signal.happened || signal.stop;
      };
      signal.mu.Await(absl::Condition(&due));
      if (signal.stop) return;
      signal.happened = false;
    }
    for (const auto& watcher : Living()) watcher->Wake();
  }
}

}  // namespace embcache
