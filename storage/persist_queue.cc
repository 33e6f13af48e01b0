#include "storage/persist_queue.h"

#include <utility>

#include "storage/cache_entry.h"
#include "storage/check.h"

namespace embcache {

bool PersistQueue::Push(PersistItem item) {
  const absl::string_view key = item.record.info->key.encoded();
  auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    if (found->second->entry != nullptr) found->second->entry->queued = false;
    Erase(found->second);
  }
  const uint64_t bytes = item.record.info->payload_bytes();
  if (items_.size() >= max_entries_ || bytes > max_bytes_ || bytes_ > max_bytes_ - bytes) {
    return false;
  }
  item.sequence = ++last_sequence_;
  item.cancelled = std::make_shared<std::atomic<bool>>(false);
  bytes_ += bytes;
  items_.push_back(std::move(item));
  const auto it = std::prev(items_.end());
  by_key_.emplace(it->record.info->key.encoded(), it);
  return true;
}

std::optional<PersistItem> PersistQueue::TakeNext() {
  EMB_CHECK(writing_cancelled_ == nullptr);
  for (auto it = items_.begin(); it != items_.end(); ++it) {
    if (it->entry != nullptr && it->entry->state != EntryState::kResident) continue;
    PersistItem item = std::move(*it);
    it->record = item.record;  // Erase needs the key
    Erase(it);
    writing_sequence_ = item.sequence;
    writing_ = item.record;
    writing_cancelled_ = item.cancelled;
    return item;
  }
  return std::nullopt;
}

void PersistQueue::Finished() {
  EMB_CHECK(writing_cancelled_ != nullptr);
  writing_cancelled_.reset();
  writing_ = {};
}

PersistItem* PersistQueue::Find(absl::string_view key, uint64_t generation) {
  auto found = by_key_.find(key);
  if (found == by_key_.end() || found->second->record.generation != generation) return nullptr;
  return &*found->second;
}

CacheEntry* PersistQueue::Cancel(absl::string_view key) {
  if (writing_cancelled_ != nullptr && writing_.info->key.encoded() == key) {
    *writing_cancelled_ = true;
  }
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  CacheEntry* entry = found->second->entry;
  if (entry != nullptr) entry->queued = false;
  Erase(found->second);
  return entry;
}

void PersistQueue::CancelModel(absl::string_view model, uint64_t epoch) {
  const auto concerns = [&](const StoredRecord& record) {
    return record.model_epoch < epoch && record.info->key.model() == model;
  };
  if (writing_cancelled_ != nullptr && concerns(writing_)) *writing_cancelled_ = true;
  for (auto it = items_.begin(); it != items_.end();) {
    if (!concerns(it->record)) {
      ++it;
      continue;
    }
    if (it->entry != nullptr) it->entry->queued = false;
    it = Erase(it);
  }
}

bool PersistQueue::IdleUpTo(uint64_t sequence) const {
  if (writing_cancelled_ != nullptr && writing_sequence_ <= sequence) return false;
  return items_.empty() || items_.front().sequence > sequence;
}

PersistQueue::Items::iterator PersistQueue::Erase(Items::iterator it) {
  by_key_.erase(it->record.info->key.encoded());
  bytes_ -= it->record.info->payload_bytes();
  return items_.erase(it);
}

}  // namespace embcache
