// SharedStore: the entries of many nodes in one Redis, as one thread of one node sees them.
//
//   embcache:1:NAMESPACE:e:KEY          the value of an entry (shared_value.h), KEY as encoded
//   embcache:1:NAMESPACE:closed:MODEL   there: MODEL is not shared under this namespace any more
//
// Everything that is read is checked; nothing that Redis says or leaves undone is believed without.
// A value is read before the marker, and written before it is looked at: so whatever was read while
// the model was not closed was written before, too.
//
// Blocks until the deadline at most (see RedisConnection). Not thread-safe.

#ifndef EMBCACHE_SERVER_SHARED_STORE_H_
#define EMBCACHE_SERVER_SHARED_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/redis_client.h"
#include "server/shared_value.h"
#include "storage/clock.h"

namespace embcache {

struct SharedStoreOptions {
  RedisClientOptions redis;
  std::string name_space;
  absl::Duration ttl = absl::Hours(24);
  uint64_t max_value_bytes = uint64_t{64} << 20;
};

// OK, or what is wrong with `name`.
absl::Status CheckSharedNamespace(absl::string_view name);

class SharedStore {
 public:
  SharedStore(const SharedStoreOptions& options, int stop_fd, const Clock* clock)
      : options_(options), clock_(clock), client_(options.redis, stop_fd) {}

  struct Found {
    std::unique_ptr<char[]> bytes;  // holds value.payload
    CheckedSharedValue value;
  };
  // NOT_FOUND: no such value, it has expired, or it is larger than we take. DATA_LOSS: it is
  // damaged; it has been removed there, as far as possible. FAILED_PRECONDITION: the model is
  // closed. ABORTED: Redis refused, the connection is good. Others: Redis failed.
  absl::StatusOr<Found> Read(const CacheKey& key, absl::Duration deadline);

  // REQUIRES: the value is sealed. Errors as above.
  absl::Status Write(const EntryInfo& info, const SharedValue& value, absl::Duration deadline);

  absl::Status Remove(const CacheKey& key, absl::Duration deadline);

  // From when it returns OK no node reads or writes entries of `model` under this namespace.
  absl::Status Close(absl::string_view model, absl::Duration deadline);

 private:
  std::string NameOf(const CacheKey& key) const;
  absl::StatusOr<bool> IsClosed(absl::string_view model, absl::Duration deadline);

  const SharedStoreOptions options_;
  const Clock* const clock_;
  RedisClient client_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SHARED_STORE_H_
