#include "server/peer.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; Debian 12's headers do not have it
#endif

namespace embcache {
namespace {

std::vector<gid_t> PeerGroups(int socket) {
  std::vector<gid_t> groups(32);
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int result = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
    groups.resize(size / sizeof(gid_t));
    if (result == 0) return groups;
    if (errno != ERANGE) break;
  }
  return {};
}

template <class Id>
bool Contains(const std::vector<Id>& list, Id id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace

std::optional<Peer> ReadPeer(int socket, const PeerRules& rules) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  std::vector<gid_t> groups = {credentials.gid};
  if (!rules.allowed_gids.empty() || !rules.admin_gids.empty()) {
    for (const gid_t group : PeerGroups(socket)) groups.push_back(group);
  }
  const auto listed = [&](const std::vector<uid_t>& uids, const std::vector<gid_t>& gids) {
    return Contains(uids, credentials.uid) ||
           std::any_of(groups.begin(), groups.end(),
                       [&gids](gid_t group) { return Contains(gids, group); });
  };
  Peer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.admin = listed(rules.admin_uids, rules.admin_gids);
  peer.allowed = peer.admin || (rules.allowed_uids.empty() && rules.allowed_gids.empty()) ||
                 listed(rules.allowed_uids, rules.allowed_gids);
  return peer;
}

UniqueFd OpenPeerPidfd(int socket, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) return UniqueFd(pidfd);
  if (pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace embcache
