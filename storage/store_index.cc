#include "storage/store_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace embcache {
namespace {

// The first bytes of the encoded keys of one model (cache_key.h): they lie next to each other.
std::string ModelPrefix(absl::string_view model) {
  std::string prefix(1, static_cast<char>(model.size()));
  prefix.append(model.data(), model.size());
  return prefix;
}

// The order of encoded keys, found without looking at most of the keys: models rank by their
// prefixes, and of what follows the first bytes nearly always tell.
std::vector<uint32_t> SortedOrder(const std::vector<std::pair<CacheKey, IndexEntry>>& records) {
  absl::btree_map<std::string, uint32_t> ranks;
  for (const auto& [key, entry] : records) ranks.try_emplace(ModelPrefix(key.model()), 0);
  uint32_t next_rank = 0;
  for (auto& [prefix, rank] : ranks) rank = next_rank++;
  struct Item {
    uint64_t begin;  // of what follows the model, as a big-endian number
    uint32_t rank;
    uint32_t number;
  };
  std::vector<Item> items;
  items.reserve(records.size());
  for (uint32_t i = 0; i < records.size(); ++i) {
    const CacheKey& key = records[i].first;
    const absl::string_view rest = key.encoded().substr(1 + key.model().size());
    uint64_t begin = 0;
    for (size_t at = 0; at < sizeof(begin); ++at) {
      begin = begin << 8 | (at < rest.size() ? static_cast<unsigned char>(rest[at]) : 0);
    }
    items.push_back({begin, ranks.find(ModelPrefix(key.model()))->second, i});
  }
  std::sort(items.begin(), items.end(), [&records](const Item& a, const Item& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.begin != b.begin) return a.begin < b.begin;
    const int order = records[a.number].first.encoded().compare(records[b.number].first.encoded());
    return order != 0 ? order < 0 : a.number < b.number;
  });
  std::vector<uint32_t> order;
  order.reserve(items.size());
  for (const Item& item : items) order.push_back(item.number);
  return order;
}

}  // namespace

void StoreIndex::LoadMeta(const MetaState& meta) {
  for (const MetaState::Tombstone& from : meta.tombstones) {
    Tombstone& tombstone = tombstones_[from.key];
    tombstone.generation = std::max(tombstone.generation, from.generation);
    tombstone.last_file = std::max(tombstone.last_file, from.last_file);
    SetState(from.key, tombstone, TombstoneState::kWritten);
    tombstones_by_last_file_[tombstone.last_file].push_back(from.key);
    max_generation_ = std::max(max_generation_, from.generation);
  }
  for (const auto& [model, epoch] : meta.epochs) {
    Epoch& current = epochs_[model];
    current.epoch = std::max(current.epoch, epoch);
  }
  max_generation_ = std::max(max_generation_, meta.max_generation);
}

void StoreIndex::LoadRecords(std::vector<std::pair<CacheKey, IndexEntry>> records) {
  auto hint = records_.end();
  for (uint32_t number : SortedOrder(records)) {
    auto& [key, entry] = records[number];
    hint = LoadRecord(hint, std::move(key), entry);
  }
}

StoreIndex::Records::iterator StoreIndex::LoadRecord(Records::iterator hint, CacheKey key,
                                                     const IndexEntry& entry) {
  max_generation_ = std::max(max_generation_, entry.generation);
  // An epoch whose own write failed may still have records: it has to hold for older ones again.
  if (entry.model_epoch > 0) RaiseEpoch(key.model(), entry.model_epoch);
  const auto epoch = epochs_.find(key.model());
  const bool hidden = epoch != epochs_.end() && entry.model_epoch < epoch->second.epoch;
  if (epoch != epochs_.end()) epoch->second.has_records = true;
  auto tombstone = tombstones_.find(key);
  if (tombstone != tombstones_.end() && entry.generation <= tombstone->second.generation) {
    return hint;
  }
  if (hidden) return hint;
  const size_t before = records_.size();
  auto at = records_.try_emplace(hint, std::move(key), entry);
  if (records_.size() > before) {
    payload_bytes_ += entry.payload_bytes;
    ++entries_in_[entry.file];
    return std::next(at);
  }
  const uint64_t loser = std::min(at->second.generation, entry.generation);
  if (at->second.generation != entry.generation) MakeDirty(at->first, loser);
  if (entry.generation >= at->second.generation) SetEntry(at->second, entry);
  return std::next(at);
}

void StoreIndex::ClearFiles() {
  lost_overflowed_ = lost_overflowed_ || !records_.empty();
  lost_.clear();
  records_.clear();
  entries_in_.clear();
  payload_bytes_ = 0;
  for (const auto& [key, tombstone] : tombstones_) {
    refused_up_to_ = std::max(refused_up_to_, tombstone.generation);
  }
  tombstones_.clear();
  tombstones_by_last_file_.clear();
  volatile_order_.clear();
  dirty_tombstones_ = 0;
  dirty_keys_.clear();
  for (auto& [model, epoch] : epochs_) epoch.has_records = false;
}

absl::Status StoreIndex::Put(const CacheKey& key, const IndexEntry& entry,
                             std::optional<IndexEntry>* replaced) {
  max_generation_ = std::max(max_generation_, entry.generation);
  auto tombstone = tombstones_.find(key);
  if (entry.generation <= refused_up_to_ ||
      (tombstone != tombstones_.end() && entry.generation <= tombstone->second.generation)) {
    return absl::CancelledError(
        absl::StrCat("the key was removed up to a generation above ", entry.generation));
  }
  if (Hidden(key, entry.model_epoch)) {
    return absl::CancelledError(
        absl::StrCat("model epoch ", entry.model_epoch, " is not the current one any more"));
  }
  auto at = records_.find(key);
  if (at == records_.end()) {
    records_.emplace(key, entry);
    payload_bytes_ += entry.payload_bytes;
    ++entries_in_[entry.file];
    return absl::OkStatus();
  }
  if (at->second.generation >= entry.generation) {
    return absl::CancelledError(absl::StrCat("generation ", at->second.generation,
                                             " is there already, not older than ",
                                             entry.generation));
  }
  *replaced = at->second;
  if (at->second.file != open_file_) MakeDirty(key, at->second.generation);
  SetEntry(at->second, entry);
  return absl::OkStatus();
}

void StoreIndex::Move(const CacheKey& key, uint64_t file, uint32_t entry) {
  auto at = records_.find(key);
  EMB_CHECK(at != records_.end());
  CountOut(at->second.file);
  ++entries_in_[file];
  at->second.file = file;
  at->second.entry = entry;
  at->second.touched = false;
  at->second.position = {};
}

void StoreIndex::SetPosition(const CacheKey& key, uint64_t file, uint32_t entry,
                             const RecordPosition& position) {
  auto at = records_.find(key);
  if (at == records_.end() || at->second.file != file || at->second.entry != entry) return;
  at->second.position = position;
}

const IndexEntry* StoreIndex::Find(const CacheKey& key) const {
  auto at = records_.find(key);
  if (at == records_.end() || Hidden(key, at->second.model_epoch)) return nullptr;
  return &at->second;
}

void StoreIndex::Touch(const CacheKey& key, uint64_t generation) {
  auto at = records_.find(key);
  if (at != records_.end() && at->second.generation == generation) at->second.touched = true;
}

std::optional<IndexEntry> StoreIndex::Forget(const CacheKey& key, uint64_t generation) {
  max_generation_ = std::max(max_generation_, generation);
  std::optional<IndexEntry> removed;
  auto at = records_.find(key);
  if (at != records_.end() && at->second.generation <= generation) {
    removed = at->second;
    Erase(at);
  }
  if (removed && removed->file != open_file_) {
    MakeDirty(key, generation);
  } else {
    RememberRemoval(key, generation);
  }
  return removed;
}

bool StoreIndex::IsDirty(const CacheKey& key) const {
  auto at = tombstones_.find(key);
  return at != tombstones_.end() && at->second.state == TombstoneState::kDirty;
}

void StoreIndex::ForgetUncertain(const CacheKey& key, uint64_t generation) {
  auto at = records_.find(key);
  if (at != records_.end() && at->second.generation <= generation) Lose(at);
  MakeDirty(key, generation);
}

bool StoreIndex::ErasePlace(const CacheKey& key, uint64_t file, uint32_t entry) {
  auto at = records_.find(key);
  if (at == records_.end() || at->second.file != file || at->second.entry != entry) return false;
  Lose(at);
  return true;
}

bool StoreIndex::EraseFile(uint64_t file, size_t limit, std::optional<CacheKey>* after,
                           uint64_t* erased) {
  auto at = after->has_value() ? records_.upper_bound(**after) : records_.begin();
  std::vector<CacheKey> victims;
  for (size_t seen = 0; at != records_.end() && seen < limit; ++at, ++seen) {
    if (at->second.file == file) victims.push_back(at->first);
    *after = at->first;
  }
  const bool more = at != records_.end();
  for (const CacheKey& key : victims) Lose(records_.find(key));
  *erased += victims.size();
  return more;
}

void StoreIndex::RaiseEpoch(absl::string_view model, uint64_t epoch) {
  Epoch& current = epochs_[model];
  if (epoch <= current.epoch) return;
  current.epoch = epoch;
  if (!current.dirty) ++dirty_epochs_;
  current.dirty = true;
}

bool StoreIndex::IsEpochDirty(absl::string_view model) const {
  auto at = epochs_.find(model);
  return at != epochs_.end() && at->second.dirty;
}

std::vector<IndexEntry> StoreIndex::EraseHidden(absl::string_view model, size_t limit) {
  const std::string prefix = ModelPrefix(model);
  std::vector<IndexEntry> erased;
  std::vector<CacheKey> keys;
  for (auto at = records_.lower_bound(absl::string_view(prefix));
       at != records_.end() && at->first.model() == model && keys.size() < limit; ++at) {
    if (Hidden(at->first, at->second.model_epoch)) keys.push_back(at->first);
  }
  for (const CacheKey& key : keys) {
    auto at = records_.find(key);
    erased.push_back(at->second);
    Erase(at);
  }
  return erased;
}

std::vector<std::pair<std::string, uint64_t>> StoreIndex::ModelEpochs() const {
  std::vector<std::pair<std::string, uint64_t>> epochs;
  for (const auto& [model, epoch] : epochs_) {
    if (epoch.epoch > 0) epochs.emplace_back(model, epoch.epoch);
  }
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

std::vector<std::string> StoreIndex::UnneededEpochs() const {
  std::vector<std::string> models;
  for (const auto& [model, epoch] : epochs_) {
    if (!epoch.has_records && !epoch.dirty) models.push_back(model);
  }
  return models;
}

MetaState StoreIndex::CollectDirty() const {
  MetaState dirty;
  dirty.max_generation = max_generation_;
  for (const CacheKey& key : dirty_keys_) {
    auto at = tombstones_.find(key);
    if (at == tombstones_.end() || at->second.state != TombstoneState::kDirty) continue;
    dirty.tombstones.push_back({key, at->second.generation, at->second.last_file});
  }
  for (const auto& [model, epoch] : epochs_) {
    if (epoch.dirty) dirty.epochs.emplace_back(model, epoch.epoch);
  }
  return dirty;
}

MetaState StoreIndex::CollectAll() const {
  MetaState all;
  all.max_generation = max_generation_;
  for (const auto& [key, tombstone] : tombstones_) {
    if (tombstone.state == TombstoneState::kVolatile) continue;
    all.tombstones.push_back({key, tombstone.generation, tombstone.last_file});
  }
  for (const auto& [model, epoch] : epochs_) all.epochs.emplace_back(model, epoch.epoch);
  return all;
}

void StoreIndex::MarkWritten(const MetaState& written) {
  for (const MetaState::Tombstone& done : written.tombstones) {
    auto at = tombstones_.find(done.key);
    if (at == tombstones_.end()) continue;
    // One that rose meanwhile has to be written again.
    if (at->second.generation == done.generation && at->second.last_file == done.last_file) {
      SetState(done.key, at->second, TombstoneState::kWritten);
    }
  }
  dirty_keys_.erase(std::remove_if(dirty_keys_.begin(), dirty_keys_.end(),
                                   [this](const CacheKey& key) { return !IsDirty(key); }),
                    dirty_keys_.end());
  for (const auto& [model, epoch] : written.epochs) {
    Epoch& current = epochs_[model];
    if (!current.dirty || current.epoch != epoch) continue;
    current.dirty = false;
    --dirty_epochs_;
  }
}

void StoreIndex::PruneTombstones(uint64_t oldest_file) {
  while (!tombstones_by_last_file_.empty() &&
         tombstones_by_last_file_.begin()->first < oldest_file) {
    const uint64_t last_file = tombstones_by_last_file_.begin()->first;
    for (const CacheKey& key : tombstones_by_last_file_.begin()->second) {
      auto at = tombstones_.find(key);
      // It may have risen, and then stands in a later bucket too.
      if (at == tombstones_.end() || at->second.last_file != last_file) continue;
      refused_up_to_ = std::max(refused_up_to_, at->second.generation);
      SetState(key, at->second, TombstoneState::kWritten);
      tombstones_.erase(at);
    }
    tombstones_by_last_file_.erase(tombstones_by_last_file_.begin());
  }
}

void StoreIndex::List(absl::string_view after,
                      absl::FunctionRef<bool(const CacheKey&, const IndexEntry&)> visit) const {
  for (auto at = records_.upper_bound(after); at != records_.end(); ++at) {
    if (Hidden(at->first, at->second.model_epoch)) continue;
    if (!visit(at->first, at->second)) return;
  }
}

bool StoreIndex::Hidden(const CacheKey& key, uint64_t model_epoch) const {
  auto at = epochs_.find(key.model());
  return at != epochs_.end() && model_epoch < at->second.epoch;
}

void StoreIndex::SetEntry(IndexEntry& at, const IndexEntry& entry) {
  payload_bytes_ += entry.payload_bytes - at.payload_bytes;
  CountOut(at.file);
  ++entries_in_[entry.file];
  at = entry;
}

void StoreIndex::CountOut(uint64_t file) {
  auto at = entries_in_.find(file);
  EMB_CHECK(at != entries_in_.end());
  if (--at->second == 0) entries_in_.erase(at);
}

void StoreIndex::Erase(Records::iterator at) {
  payload_bytes_ -= at->second.payload_bytes;
  CountOut(at->second.file);
  records_.erase(at);
}

void StoreIndex::Lose(Records::iterator at) {
  if (!Hidden(at->first, at->second.model_epoch)) {
    if (lost_.size() < kMaxLost) {
      lost_.push_back(at->first);
    } else {
      lost_overflowed_ = true;
    }
  }
  Erase(at);
}

std::vector<CacheKey> StoreIndex::TakeLost(bool* overflowed) {
  *overflowed = std::exchange(lost_overflowed_, false);
  return std::exchange(lost_, {});
}

void StoreIndex::RememberRemoval(const CacheKey& key, uint64_t generation) {
  auto [at, inserted] = tombstones_.try_emplace(key);
  // Of a written one the disk may keep the lower generation: nothing above it is there.
  at->second.generation = std::max(at->second.generation, generation);
  if (!inserted) return;
  volatile_order_.push_back(key);
  if (volatile_order_.size() <= kVolatileTombstones) return;
  auto oldest = tombstones_.find(volatile_order_.front());
  volatile_order_.pop_front();
  if (oldest == tombstones_.end() || oldest->second.state != TombstoneState::kVolatile) return;
  refused_up_to_ = std::max(refused_up_to_, oldest->second.generation);
  tombstones_.erase(oldest);
}

void StoreIndex::MakeDirty(const CacheKey& key, uint64_t generation) {
  Tombstone& tombstone = tombstones_[key];
  tombstone.generation = std::max(tombstone.generation, generation);
  SetState(key, tombstone, TombstoneState::kDirty);
  if (tombstone.last_file == open_file_) return;
  tombstone.last_file = open_file_;
  tombstones_by_last_file_[open_file_].push_back(key);
}

void StoreIndex::SetState(const CacheKey& key, Tombstone& tombstone, TombstoneState state) {
  if (tombstone.state == state) return;
  if (tombstone.state == TombstoneState::kDirty) --dirty_tombstones_;
  if (state == TombstoneState::kDirty) {
    ++dirty_tombstones_;
    dirty_keys_.push_back(key);
  }
  tombstone.state = state;
}

}  // namespace embcache
