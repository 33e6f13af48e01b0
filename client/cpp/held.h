// What a Lease and a Reservation hold. Internal to the client.

#ifndef EMBCACHE_CLIENT_CPP_HELD_H_
#define EMBCACHE_CLIENT_CPP_HELD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "client/cpp/session.h"
#include "embcache/v1/embcache.pb.h"

namespace embcache::client::internal {

// An entry's place in this process.
struct Held {
  std::shared_ptr<Session> session;  // counted as a hold of it
  uint64_t id = 0;                   // of the lease or reservation; 0: it is over
  Key key;
  std::vector<TensorSpec> tensors;
  Metadata metadata;
  uint64_t encode_cost_us = 0;
  uint64_t bytes = 0;
  Resolved place;
  absl::Time expires = absl::InfiniteFuture();
};

struct HeldLease : Held {
  std::optional<uint32_t> fast_pin;  // got without a call; `id` may be 0 then
  Tier source = Tier::kUnknown;
  uint64_t generation = 0;
};

struct HeldReservation : Held {};

// Every tensor must lie inside its entry: offsets come from outside this process.
absl::Status CheckBounds(const Held& held);

// Makes a lease of a HIT. `asked` is when the call was sent, from which the daemon's limit on a
// lease's life is counted. UNAVAILABLE when the session was lost meanwhile.
absl::StatusOr<Lease> MakeLease(const std::shared_ptr<Session>& session, Key key,
                                const embcache::v1::GetResult& hit, absl::Time asked);

absl::StatusOr<Reservation> MakeReservation(const std::shared_ptr<Session>& session,
                                            const embcache::v1::PutItem& item,
                                            const embcache::v1::ReserveResult& result,
                                            absl::Time asked);

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_HELD_H_
