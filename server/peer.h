// Who is at the other end of a unix socket, as the kernel says, and what the configuration lets it
// do. Both sockets of the daemon ask here, so that they let in the same.

#ifndef EMBCACHE_SERVER_PEER_H_
#define EMBCACHE_SERVER_PEER_H_

#include <sys/types.h>

#include <optional>
#include <vector>

#include "server/unique_fd.h"

namespace embcache {

struct PeerRules {
  // Who may connect, by user or by (any) group; both empty: whoever the file's mode lets in.
  std::vector<uid_t> allowed_uids;
  std::vector<gid_t> allowed_gids;
  // Who may administer, and always connect.
  std::vector<uid_t> admin_uids;
  std::vector<gid_t> admin_gids;
};

struct Peer {
  pid_t pid = 0;  // 0: in a PID namespace that ours does not see
  uid_t uid = 0;
  bool allowed = false;
  bool admin = false;
};

// nullopt: the kernel does not say.
std::optional<Peer> ReadPeer(int socket, const PeerRules& rules);

// The peer's process, as a descriptor that no later process can take over; empty where it cannot be
// had. The socket option (Linux 6.5) names the process that connected, from any PID namespace;
// without it there is a window in which its pid could have been reused, which right after the
// accept is as short as it gets.
UniqueFd OpenPeerPidfd(int socket, pid_t pid);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_PEER_H_
