#include "storage/model_table.h"

#include <algorithm>
#include <numeric>

#include "storage/check.h"

namespace embcache {
namespace {

// Places that are freed at a time when one is needed, so that not each new name costs a look at
// all.
constexpr size_t kFreedAtATime = 64;

std::vector<uint32_t> AllIds() {
  std::vector<uint32_t> ids(ModelTable::kMaxModels);
  std::iota(ids.rbegin(), ids.rend(), 0);
  return ids;
}

}  // namespace

ModelTable::ModelTable(bool keeps_epochs)
    : keeps_epochs_(keeps_epochs), free_ids_(AllIds()), other_(Get(kOther)) {
  ++other_->uses;
}

CacheModel* ModelTable::Find(absl::string_view name) const {
  const auto it = models_.find(name);
  return it == models_.end() ? nullptr : it->second.get();
}

CacheModel* ModelTable::Get(absl::string_view name) {
  if (CacheModel* known = Find(name)) return known;
  if (free_places() == 0 && !none_unused_) {
    FreePlaces(kFreedAtATime);
    none_unused_ = free_places() == 0;
  }
  if (free_places() == 0) return nullptr;
  auto model = std::make_unique<CacheModel>();
  model->stats.model = std::string(name);
  model->stats.model_epoch = floor_;
  model->fast_id = free_ids_.back();
  free_ids_.pop_back();
  MarkUsed(model.get());
  if (const auto epoch = epochs_.find(name); epoch != epochs_.end()) {
    model->stats.model_epoch = epoch->second;
    epochs_.erase(epoch);
    ++placed_epochs_;
  }
  return models_.emplace(std::string(name), std::move(model)).first->second.get();
}

uint64_t ModelTable::EpochOf(absl::string_view name) const {
  if (const CacheModel* model = Find(name)) return model->stats.model_epoch;
  const auto it = epochs_.find(name);
  return it == epochs_.end() ? floor_ : it->second;
}

std::optional<uint64_t> ModelTable::AdvanceEpoch(absl::string_view name) {
  CacheModel* const model = Find(name);
  if (!keeps_epochs_) return model != nullptr ? ++model->stats.model_epoch : ++floor_;
  if (EpochOf(name) == 0) {
    if (placed_epochs_ + epochs_.size() >= kMaxEpochs) return std::nullopt;
    if (model != nullptr) ++placed_epochs_;
  }
  return model != nullptr ? ++model->stats.model_epoch : ++epochs_[std::string(name)];
}

template <typename Wanted>
std::vector<CacheModel*> ModelTable::Oldest(size_t limit, Wanted wanted) const {
  std::vector<CacheModel*> found;
  for (const auto& [name, model] : models_) {
    if (wanted(*model)) found.push_back(model.get());
  }
  limit = std::min(limit, found.size());
  const auto end = found.begin() + static_cast<ptrdiff_t>(limit);
  std::partial_sort(found.begin(), end, found.end(),
                    [](const auto* a, const auto* b) { return a->last_use < b->last_use; });
  found.resize(limit);
  return found;
}

void ModelTable::FreePlaces(size_t free) {
  if (free_places() >= free) return;
  const auto unused = [](const CacheModel& model) { return model.uses == 0; };
  for (CacheModel* model : Oldest(free - free_places(), unused)) {
    EMB_CHECK(model->stats.entries == 0);
    ModelStats& sum = other_->stats;
    sum.gets += model->stats.gets;
    sum.hits += model->stats.hits;
    sum.misses += model->stats.misses;
    sum.saves += model->stats.saves;
    sum.saved_us += model->stats.saved_us;
    const uint64_t epoch = model->stats.model_epoch;
    if (!keeps_epochs_) {
      floor_ = std::max(floor_, epoch);
    } else if (epoch > 0) {
      epochs_[model->stats.model] = epoch;
      --placed_epochs_;
    }
    free_ids_.push_back(model->fast_id);
    models_.erase(models_.find(model->stats.model));
  }
}

std::vector<std::string> ModelTable::Tick(absl::Duration now, absl::Duration rest) {
  now_ = now;
  none_unused_ = false;
  FreePlaces(kSpare);
  std::vector<std::string> names;
  if (free_places() >= kSpare) return names;
  const auto rested = [&](const CacheModel& model) {
    return &model != other_ && now - model.last_use >= rest;
  };
  for (const CacheModel* model : Oldest(kSpare - free_places(), rested)) {
    names.push_back(model->stats.model);
  }
  return names;
}

}  // namespace embcache
