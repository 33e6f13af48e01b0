// FastReader: a client of the fast path in the cache's own process, through the same shared memory
// as in life.

#ifndef EMBCACHE_TESTS_UNIT_FAST_READER_H_
#define EMBCACHE_TESTS_UNIT_FAST_READER_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "client/fast/embcache_fast.h"
#include "gtest/gtest.h"
#include "storage/tiered_cache.h"
#include "tests/unit/cache_fixture.h"

namespace embcache {

// One client: its table, and its view of the index.
class FastReader {
 public:
  explicit FastReader(TieredCache* cache, uint64_t max_pinned_bytes = 0)
      : cache_(cache), table_(*cache->OpenFastTable(max_pinned_bytes)) {
    const auto index = cache->FastIndexMemory();
    fast_ =
        embcache_fast_open(index->read_only_fd(), index->bytes(), table_->memory().writable_fd(),
                           table_->memory().bytes(), max_pinned_bytes);
    EXPECT_NE(fast_, nullptr);
  }
  ~FastReader() {
    embcache_fast_close(fast_);
    cache_->CloseFastTable(*table_);
  }

  std::optional<embcache_fast_hit> Get(const CacheKey& key) {
    const absl::string_view encoded = key.encoded();
    uint64_t hash[2];
    embcache_fast_hash(encoded.data(), encoded.size(), hash);
    embcache_fast_hit hit;
    if (!embcache_fast_get(fast_, encoded.data(), encoded.size(), hash, 1, &hit)) {
      return std::nullopt;
    }
    return hit;
  }
  std::optional<embcache_fast_hit> Get(absl::string_view name) { return Get(TestKey(name)); }
  bool Hits(absl::string_view name) {
    const auto hit = Get(name);
    if (hit.has_value()) Release(*hit);
    return hit.has_value();
  }
  void Release(const embcache_fast_hit& hit) { embcache_fast_release(fast_, hit.pin); }
  bool FollowIndex() {
    const auto index = cache_->FastIndexMemory();
    return embcache_fast_replace_index(fast_, index->read_only_fd(), index->bytes()) == 1;
  }
  // The pin table as a broken client may write it.
  embcache_fast_table* table() {
    return reinterpret_cast<embcache_fast_table*>(table_->memory().host_data());
  }

 private:
  TieredCache* const cache_;
  const std::shared_ptr<const FastTable> table_;
  embcache_fast* fast_ = nullptr;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_FAST_READER_H_
