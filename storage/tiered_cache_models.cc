// The models that the cache knows, and their epochs. See tiered_cache.h and model_table.h.
//
// Advancing an epoch hides all that a model has at once; its entries are swept out in the ticks
// that follow, as are those of models that have to give their places up.

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/tiered_cache.h"

namespace embcache {
namespace {

// Lookups of what is not there do not fill more of the table of models.
constexpr size_t kMaxModelsByLookup = ModelTable::kMaxModels / 2;

constexpr int kSweepEntriesPerTick = 4096;

// What sorts before the encoded keys of `model`, and behind those of the models before it.
std::string BeforeFirstKey(absl::string_view model) {
  return absl::StrCat(std::string(1, static_cast<char>(model.size())), model);
}

// Of an epoch that is in force.
absl::Status NotRecorded(absl::string_view model, uint64_t epoch, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(
      "model \"", model, "\": nothing put before is returned any more (epoch ", epoch,
      " is in force), but L3 has not recorded that: ", why,
      "; what it holds of the model may come back after a restart, so repeat the call when L3 is "
      "writable"));
}

}  // namespace

CacheModel* TieredCache::LookupModelLocked(const CacheKey& key) {
  if (models_.models().size() < kMaxModelsByLookup) return models_.Get(key.model());
  CacheModel* const known = models_.Find(key.model());
  return known != nullptr ? known : models_.other();
}

void TieredCache::AdvanceEpoch(absl::string_view model,
                               absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done) {
  AfterUnlock after;
  {
    absl::MutexLock lock(&mu_);
    const std::optional<uint64_t> advanced = models_.AdvanceEpoch(model);
    if (!advanced.has_value()) {
      after.Add([done = std::move(done)]() mutable {
        done(absl::ResourceExhaustedError(
            absl::StrCat("model: ", ModelTable::kMaxEpochs,
                         " others have an epoch, and that is the limit; a "
                         "restart forgets those that nothing on the SSD needs")));
      });
    } else {
      const uint64_t epoch = *advanced;
      const CacheModel* placed = models_.Find(model);
      if (fast_ != nullptr && placed != nullptr) fast_->SetModelEpoch(placed->fast_id, epoch);
      queue_.CancelModel(model, epoch);
      TellLocked(CacheEvent::Kind::kEpoch, model, after).generation = epoch;
      sweeps_.emplace_back(std::string(model), std::string());
      if (deps_.store == nullptr) {
        after.Add([epoch, done = std::move(done)]() mutable { done(epoch); });
      } else {
        auto answer = std::make_shared<decltype(done)>(std::move(done));
        RunOnDiskLocked(
            [this, name = std::string(model), epoch, answer] {
              absl::Status saved = deps_.store->SetModelEpoch(name, epoch);
              saved.ok() ? (*answer)(epoch) : (*answer)(NotRecorded(name, epoch, saved.message()));
            },
            [name = std::string(model), epoch, answer] {
              (*answer)(NotRecorded(name, epoch, "too much disk work is queued"));
            },
            after);
      }
    }
  }
  after.Run();
}

std::vector<std::string> TieredCache::Models() const {
  absl::MutexLock lock(&mu_);
  std::set<std::string> names;
  for (const auto& [name, model] : models_.models()) names.insert(name);
  names.erase(std::string(ModelTable::kOther));
  if (deps_.store == nullptr) return {names.begin(), names.end()};
  // From the first key of one model to that of the next.
  std::string after;
  std::optional<std::string> found;
  do {
    found.reset();
    deps_.store->List(after, [&](const CacheKey& key, const StoredPlace&) {
      found = std::string(key.model());
      return false;
    });
    if (!found.has_value()) break;
    after = std::string(1, static_cast<char>(found->size())) + *found + std::string(1, '\xff');
    names.insert(*std::move(found));
  } while (true);
  return {names.begin(), names.end()};
}

absl::Status TieredCache::L3Reachable() const {
  return deps_.store == nullptr ? absl::OkStatus() : deps_.store->Reachable();
}

void TieredCache::SweepModelLocked(AfterUnlock& after) {
  const auto [model, after_key] = sweeps_.front();
  std::string from = after_key;
  if (from.empty()) from = BeforeFirstKey(model);
  for (int visited = 0; visited < kSweepEntriesPerTick; ++visited) {
    // Looked up anew each time: the room that one entry leaves may make others move or go.
    auto it = ordered_.upper_bound(absl::string_view(from));
    if (it == ordered_.end() || (*it)->info->key.model() != model) {
      sweeps_.pop_front();
      return;
    }
    CacheEntry* entry = *it;
    from = std::string(entry->info->key.encoded());
    if (entry->model_epoch != entry->model->stats.model_epoch) {
      DoomLocked(entry, RemoveReason::kEpoch, after);
    }
  }
  sweeps_.front().second = std::move(from);
}

void TieredCache::TickModelsLocked(AfterUnlock& after) {
  int visited = 0;
  for (const std::string& model : models_.Tick(deps_.clock->MonotonicNow(), kModelRest)) {
    std::string from = BeforeFirstKey(model);
    // Looked up anew each time, as in SweepModelLocked.
    for (auto it = ordered_.upper_bound(absl::string_view(from));
         it != ordered_.end() && (*it)->info->key.model() == model;
         it = ordered_.upper_bound(absl::string_view(from))) {
      if (++visited > kSweepEntriesPerTick) return;
      CacheEntry* entry = *it;
      from = std::string(entry->info->key.encoded());
      if (IsEvictableLocked(*entry)) LeaveMemoryLocked(entry, after);
    }
  }
}

}  // namespace embcache
