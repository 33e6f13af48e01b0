// The lock that makes sure that one daemon at a time serves a socket directory. gRPC would let a
// second one take over a socket path silently, so nothing may be bound without it.

#ifndef EMBCACHE_SERVER_DIRECTORY_LOCK_H_
#define EMBCACHE_SERVER_DIRECTORY_LOCK_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/unique_fd.h"

namespace embcache {

// Makes `path` with `mode`, whatever the umask, and its parents, where missing. A directory that is
// there stays as it is.
absl::Status MakeDirectory(const std::string& path, mode_t mode);

// Locks `directory`/embcached.lock and writes our pid into it; the lock ends when the descriptor is
// closed or the process dies. ALREADY_EXISTS names the process that holds it. The file stays
// behind: to unlink it would let two processes lock two files of one name.
absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_DIRECTORY_LOCK_H_
