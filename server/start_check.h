// What of a configuration depends on this machine and can be found out without changing anything.
// The start asks it first; --check-config asks nothing else of the machine.

#ifndef EMBCACHE_SERVER_START_CHECK_H_
#define EMBCACHE_SERVER_START_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config.h"
#include "server/unix_listener.h"

namespace embcache {

// INVALID_ARGUMENT: --socket-owner or --socket-group names nobody.
absl::StatusOr<SocketAccess> MakeSocketAccess(const Config& config);

// What would keep the daemon from starting here, one fault each.
std::vector<std::string> StartFaults(const Config& config);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_START_CHECK_H_
