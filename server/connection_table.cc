#include "server/connection_table.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/unique_fd.h"

namespace embcache {
namespace {

// Sockets have inodes of their own: the number tells one connection from a later one that has been
// given the same descriptor. 0: `descriptor` is no open socket.
ino_t SocketInode(int descriptor) {
  struct stat found;
  return fstat(descriptor, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

// -1: not the name of a connection that was handed over as a descriptor.
int DescriptorOf(absl::string_view grpc_peer) {
  int descriptor = -1;
  if (!absl::ConsumePrefix(&grpc_peer, "fd:")) return -1;
  return absl::SimpleAtoi(grpc_peer, &descriptor) ? descriptor : -1;
}

}  // namespace

absl::Status ConnectionTable::Add(int socket, const Peer& peer) {
  if (!peer.allowed) {
    return absl::PermissionDeniedError(absl::StrCat("uid ", peer.uid, " is not on the allow-list"));
  }
  const ino_t inode = SocketInode(socket);
  if (inode == 0) return absl::ErrnoToStatus(errno, "connection: no socket");
  absl::MutexLock lock(&mu_);
  ForgetLocked(socket);
  absl::Status room = CheckRoomLocked(peer.uid);
  if (!room.ok()) {
    SweepLocked();
    room = CheckRoomLocked(peer.uid);
  }
  if (!room.ok()) return room;
  connections_[socket] = {inode, peer};
  ++of_uid_[peer.uid];
  return absl::OkStatus();
}

std::optional<Peer> ConnectionTable::Find(absl::string_view grpc_peer) const {
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(DescriptorOf(grpc_peer));
  if (it == connections_.end()) return std::nullopt;
  return it->second.peer;
}

void ConnectionTable::Cut(absl::string_view grpc_peer) const {
  const int socket = DescriptorOf(grpc_peer);
  ino_t inode = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto it = connections_.find(socket);
    if (it == connections_.end()) return;
    inode = it->second.inode;
  }
  CutSocket(socket, inode);
}

void ConnectionTable::CutAll() const {
  std::vector<std::pair<int, ino_t>> all;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [socket, connection] : connections_)
      all.emplace_back(socket, connection.inode);
  }
  for (const auto& [socket, inode] : all) CutSocket(socket, inode);
}

size_t ConnectionTable::Count() {
  absl::MutexLock lock(&mu_);
  SweepLocked();
  return connections_.size();
}

// Through a descriptor of our own: the number may come to mean something else at any moment.
void ConnectionTable::CutSocket(int socket, ino_t inode) {
  const UniqueFd own(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (own && SocketInode(own.get()) == inode) shutdown(own.get(), SHUT_RDWR);
}

void ConnectionTable::SweepLocked() {
  std::vector<int> ended;
  for (const auto& [socket, connection] : connections_) {
    if (SocketInode(socket) != connection.inode) ended.push_back(socket);
  }
  for (const int socket : ended) ForgetLocked(socket);
}

void ConnectionTable::ForgetLocked(int socket) {
  const auto it = connections_.find(socket);
  if (it == connections_.end()) return;
  const auto uid = of_uid_.find(it->second.peer.uid);
  if (--uid->second == 0) of_uid_.erase(uid);
  connections_.erase(it);
}

absl::Status ConnectionTable::CheckRoomLocked(uid_t uid) const {
  if (connections_.size() >= limits_.total) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", connections_.size(), " connections, as many as may be"));
  }
  const auto of_uid = of_uid_.find(uid);
  if (of_uid != of_uid_.end() && of_uid->second >= limits_.per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("uid ", uid, " has ", of_uid->second,
                                                     " connections, as many as one may have"));
  }
  return absl::OkStatus();
}

}  // namespace embcache
