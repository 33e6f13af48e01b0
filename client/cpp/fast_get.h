// Hits without a call, for Client::Get: libembcache_fast on the session's shared index. Internal to
// the client. Thread-safe.

#ifndef EMBCACHE_CLIENT_CPP_FAST_GET_H_
#define EMBCACHE_CLIENT_CPP_FAST_GET_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/held.h"
#include "client/cpp/session.h"

namespace embcache::client::internal {

// nullopt: the daemon has to be asked. Counts a hit, and nothing otherwise: an entry that does not
// meet `expect` is left for the daemon to find, count and remove.
std::optional<Lease> FastGet(const std::shared_ptr<Session>& session, const Key& key,
                             const std::vector<Expectation>& expect);

// Turns a pin of the shared index into a lease that the daemon knows, which can be shared.
// FAILED_PRECONDITION: the entry was deleted or replaced meanwhile; the lease stays as it was.
absl::Status MakeKnown(HeldLease* held);

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_FAST_GET_H_
