// ModelTable: the models that the cache knows, and every model's epoch.
//
// There is room for as many models as the shared index has words for their epochs. A model is *in
// use* while the cache has anything of it: an entry, a reservation, a write on its way to L3. One
// that is not gives its place up when another needs it. Its counters are then added to those of
// kOther, and its epoch is kept here without a place, because L3 may still have records of earlier
// ones; where there is no L3 it is enough that epochs never fall.
//
// Internal to TieredCache and guarded by its lock, as is every ModelUse.

#ifndef EMBCACHE_STORAGE_MODEL_TABLE_H_
#define EMBCACHE_STORAGE_MODEL_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/cache_stats.h"
#include "storage/fast_layout.h"

namespace embcache {

// One model's namespace.
struct CacheModel {
  ModelStats stats;         // stats.model_epoch is the epoch in force
  uint32_t fast_id = 0;     // its place among the shared index's model epochs
  uint64_t uses = 0;        // by ModelUse
  absl::Duration last_use;  // by a put or a hit, as of the last Tick before it
};

// Keeps a model in its place.
class ModelUse {
 public:
  ModelUse() = default;
  explicit ModelUse(CacheModel* model) : model_(model) { ++model_->uses; }
  ModelUse(ModelUse&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
  ModelUse& operator=(ModelUse&& other) noexcept {
    std::swap(model_, other.model_);
    return *this;
  }
  ~ModelUse() {
    if (model_ != nullptr) --model_->uses;
  }

  CacheModel* get() const { return model_; }
  CacheModel* operator->() const { return model_; }

 private:
  CacheModel* model_ = nullptr;
};

class ModelTable {
 public:
  static constexpr size_t kMaxModels = EMBCACHE_FAST_MODELS;
  // Places that Tick sees to it are free.
  static constexpr size_t kSpare = 64;
  // Models that may have an epoch above 0, with a place or without.
  static constexpr size_t kMaxEpochs = 65536;
  // Counts what belongs to no model of its own. Always has a place.
  static constexpr absl::string_view kOther = "(other)";
  using Models = absl::btree_map<std::string, std::unique_ptr<CacheModel>>;

  // `keeps_epochs`: there is an L3.
  explicit ModelTable(bool keeps_epochs);

  ModelTable(const ModelTable&) = delete;
  ModelTable& operator=(const ModelTable&) = delete;

  CacheModel* other() const { return other_; }
  CacheModel* Find(absl::string_view name) const;
  // The same, and gives it a place if it has none; nullptr when all places are in use.
  CacheModel* Get(absl::string_view name);
  const Models& models() const { return models_; }

  // An epoch of an earlier run.
  void LoadEpoch(const std::string& name, uint64_t epoch) { epochs_[name] = epoch; }
  // Of a model with or without a place. What L3 has of another epoch is not there.
  uint64_t EpochOf(absl::string_view name) const;
  // The new one; nullopt: too many models have one. Makes no place.
  std::optional<uint64_t> AdvanceEpoch(absl::string_view name);

  // --- Time ---
  void MarkUsed(CacheModel* model) const { model->last_use = now_; }
  // Frees places of models that are not in use until kSpare are free. Answers with the models to be
  // got out of use, so that as many will be next time: of those that nobody used for `rest`, the
  // ones used least recently.
  std::vector<std::string> Tick(absl::Duration now, absl::Duration rest);

 private:
  size_t free_places() const { return kMaxModels - models_.size(); }
  // The models for which `wanted` is true, the least recently used first, at most `limit`.
  template <typename Wanted>
  std::vector<CacheModel*> Oldest(size_t limit, Wanted wanted) const;
  // Of models that are not in use, until `free` places are free or there are no more.
  void FreePlaces(size_t free);

  const bool keeps_epochs_;
  Models models_;
  std::vector<uint32_t> free_ids_;
  absl::btree_map<std::string, uint64_t> epochs_;  // above 0, of models without a place
  size_t placed_epochs_ = 0;                       // above 0, of models with one
  uint64_t floor_ = 0;        // without L3: the epoch of those that get a place
  bool none_unused_ = false;  // as of the last look, since the last Tick
  absl::Duration now_;
  CacheModel* const other_;  // made by Get: last
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_MODEL_TABLE_H_
