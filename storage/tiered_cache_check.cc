// CheckStore: reading all of L3. See tiered_cache.h.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/tiered_cache.h"

namespace embcache {
namespace {

// Keys listed at a time: the store's lock is held for them.
constexpr size_t kKeysAtOnce = 256;

}  // namespace

void TieredCache::CheckStore(CheckCallback done) {
  AfterUnlock after;
  auto answer = std::make_shared<CheckCallback>(std::move(done));
  {
    absl::MutexLock lock(&mu_);
    absl::Status refused;
    if (deps_.store == nullptr) {
      refused = absl::FailedPreconditionError("there is no L3 to check");
    } else if (checking_) {
      refused = absl::FailedPreconditionError("L3 is being checked already");
    }
    if (!refused.ok()) {
      after.Add([answer, refused] { (*answer)(refused); });
    } else {
      checking_ = true;
      const auto end = [this, answer](absl::StatusOr<StoreCheck> checked) {
        {
          absl::MutexLock relock(&mu_);
          checking_ = false;
        }
        (*answer)(std::move(checked));
      };
      RunOnDiskLocked([this, end] { end(RunCheck()); },
                      [end] { end(absl::UnavailableError("too much disk work is queued")); },
                      after);
    }
  }
  after.Run();
}

absl::StatusOr<TieredCache::StoreCheck> TieredCache::RunCheck() {
  if (absl::Status reachable = deps_.store->Reachable(); !reachable.ok()) return reachable;
  StoreCheck check;
  std::string after;
  std::vector<std::pair<CacheKey, StoredPlace>> places;
  std::vector<char> buffer;
  do {
    places.clear();
    deps_.store->List(after, [&](const CacheKey& key, const StoredPlace& place) {
      places.emplace_back(key, place);
      return places.size() < kKeysAtOnce;
    });
    for (const auto& [key, place] : places) {
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return absl::UnavailableError("the cache is stopping");
      }
      if (buffer.size() < place.payload_bytes) buffer.resize(place.payload_bytes);
      const absl::Status read = deps_.store->Check(key, place.generation, buffer.data()).status();
      if (read.ok()) {
        ++check.records;
        check.bytes += place.payload_bytes;
      } else if (absl::IsDataLoss(read)) {
        ++check.damaged;
        absl::MutexLock lock(&mu_);
        damaged_.insert(key);
      } else if (!absl::IsNotFound(read)) {  // not there: evicted or removed meanwhile
        ++check.failed;
      }
    }
    if (!places.empty()) after = std::string(places.back().first.encoded());
  } while (!places.empty());
  TellLost();
  return check;
}

}  // namespace embcache
