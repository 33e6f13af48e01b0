#include "storage/event_log.h"

#include <algorithm>
#include <utility>

namespace embcache {

CacheEvent& EventLog::Append(CacheEvent::Kind kind, absl::string_view key, absl::Time time) {
  const size_t at = static_cast<size_t>((next_ - base_) % capacity_);
  if (at == slots_.size()) slots_.emplace_back();
  CacheEvent& event = slots_[at];
  std::string reused = std::move(event.key);
  reused.assign(key.data(), key.size());
  event = CacheEvent{.kind = kind, .sequence = next_++, .time = time, .key = std::move(reused)};
  return event;
}

void EventLog::Forget() {
  slots_.clear();
  base_ = ++next_;
}

uint64_t EventLog::Read(uint64_t after, size_t limit, std::vector<CacheEvent>* events) const {
  const uint64_t wanted = after + 1;
  const uint64_t from = std::max(wanted, first());
  for (uint64_t number = from; number < next_ && limit > 0; ++number, --limit) {
    events->push_back(slots_[static_cast<size_t>((number - base_) % capacity_)]);
  }
  return from - wanted;
}

}  // namespace embcache
