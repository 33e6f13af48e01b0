#include "server/redis_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/tcp_listener.h"
#include "storage/clock.h"

namespace embcache {
namespace {

// Of a status, an error or a length; Redis' own stay far below.
constexpr size_t kMaxLineBytes = 4096;
constexpr size_t kReceiveBytes = 16 * 1024;
// Larger arguments are sent from where they are.
constexpr size_t kCopiedBytes = 4096;

absl::Status NotResp(absl::string_view what) {
  return absl::InternalError(absl::StrCat("redis: not a reply that is known here: ", what));
}

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

absl::StatusOr<AddressList> Resolve(const RedisAddress& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("redis: ", address.ToString(), ": ", gai_strerror(error)));
  }
  return AddressList(list);
}

// nullopt-like -1: errno says why not. A connection may still be on its way.
UniqueFd StartConnect(int family, const sockaddr* to, socklen_t size, bool* connected) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  if (family != AF_UNIX) {
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  *connected = connect(fd.get(), to, size) == 0;
  if (!*connected && errno != EINPROGRESS) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

}  // namespace

std::string RedisAddress::ToString() const {
  if (!unix_path.empty()) return absl::StrCat("unix:", unix_path);
  const bool v6 = absl::StrContains(host, ':');
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

absl::StatusOr<RedisAddress> ParseRedisAddress(absl::string_view text) {
  RedisAddress address;
  if (absl::StartsWith(text, "unix:")) {
    address.unix_path = std::string(text.substr(5));
    if (!absl::StartsWith(address.unix_path, "/") ||
        address.unix_path.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\": must be unix: and an absolute path of at most ",
                       sizeof(sockaddr_un::sun_path) - 1, " bytes"));
    }
    return address;
  }
  absl::StatusOr<TcpAddress> tcp = ParseTcpAddress(text);
  if (!tcp.ok()) return tcp.status();
  address.host = std::move(tcp->host);
  address.port = std::move(tcp->port);
  return address;
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Connect(
    const RedisAddress& address, int stop_fd, absl::Duration deadline) {
  const auto attempt = [&](int family, const sockaddr* to,
                           socklen_t size) -> absl::StatusOr<std::unique_ptr<RedisConnection>> {
    bool connected = false;
    UniqueFd fd = StartConnect(family, to, size, &connected);
    if (!fd) return absl::UnavailableError(std::strerror(errno));
    std::unique_ptr<RedisConnection> connection(new RedisConnection(std::move(fd), stop_fd));
    if (connected) return connection;
    if (absl::Status ready = connection->Wait(POLLOUT, deadline); !ready.ok()) return ready;
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(connection->fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
    return connection;
  };
  absl::StatusOr<std::unique_ptr<RedisConnection>> connection =
      absl::UnavailableError("no address");
  if (!address.unix_path.empty()) {
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address.unix_path.data(), address.unix_path.size());
    connection = attempt(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  } else {
    const absl::StatusOr<AddressList> list = Resolve(address);
    if (!list.ok()) return list.status();
    for (const addrinfo* at = list->get(); at != nullptr && !connection.ok(); at = at->ai_next) {
      connection = attempt(at->ai_family, at->ai_addr, at->ai_addrlen);
    }
  }
  if (connection.ok()) return connection;
  return absl::Status(
      connection.status().code(),
      absl::StrCat("redis: connect ", address.ToString(), ": ", connection.status().message()));
}

absl::Status RedisConnection::Wait(int events, absl::Duration deadline) const {
  while (true) {
    const absl::Duration left = deadline - SystemClock()->MonotonicNow();
    if (left <= absl::ZeroDuration())
      return absl::DeadlineExceededError("redis: no answer in time");
    pollfd fds[2] = {{fd_.get(), static_cast<short>(events), 0}, {stop_fd_, POLLIN, 0}};
    const int64_t ms = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
    if (poll(fds, 2, static_cast<int>(ms)) <= 0) continue;
    if (fds[1].revents != 0) return absl::CancelledError("redis: the daemon stops");
    if (fds[0].revents != 0) return absl::OkStatus();
  }
}

absl::Status RedisConnection::Send(absl::string_view bytes, absl::Duration deadline) const {
  while (!bytes.empty()) {
    if (absl::Status ready = Wait(POLLOUT, deadline); !ready.ok()) return ready;
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("redis: send: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RedisConnection::Receive(char* to, uint64_t size,
                                                  absl::Duration deadline) const {
  while (true) {
    if (absl::Status ready = Wait(POLLIN, deadline); !ready.ok()) return ready;
    const ssize_t got = recv(fd_.get(), to, size, 0);
    if (got > 0) return static_cast<uint64_t>(got);
    if (got == 0) return absl::UnavailableError("redis: connection closed");
    if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("redis: receive: ", std::strerror(errno)));
    }
  }
}

absl::StatusOr<std::string> RedisConnection::ReadLine(absl::Duration deadline) {
  size_t looked_at = 0;
  while (true) {
    const size_t end = received_.find("\r\n", looked_at);
    if (end != std::string::npos && end <= kMaxLineBytes) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 2);
      return line;
    }
    if (received_.size() > kMaxLineBytes) return NotResp("a line without an end");
    looked_at = received_.empty() ? 0 : received_.size() - 1;
    char chunk[kReceiveBytes];
    const absl::StatusOr<uint64_t> got = Receive(chunk, sizeof(chunk), deadline);
    if (!got.ok()) return got.status();
    received_.append(chunk, *got);
  }
}

absl::Status RedisConnection::ReadBytes(char* to, uint64_t size, absl::Duration deadline) {
  const uint64_t here = std::min<uint64_t>(size, received_.size());
  std::memcpy(to, received_.data(), here);
  received_.erase(0, here);
  for (uint64_t at = here; at < size;) {
    const absl::StatusOr<uint64_t> got = Receive(to + at, size - at, deadline);
    if (!got.ok()) return got.status();
    at += *got;
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisReply> RedisConnection::Call(absl::Span<const absl::string_view> command,
                                                 uint64_t max_bytes, absl::Duration deadline) {
  if (!received_.empty()) return NotResp("more than was asked for");
  std::string unsent = absl::StrCat("*", command.size(), "\r\n");
  for (const absl::string_view argument : command) {
    absl::StrAppend(&unsent, "$", argument.size(), "\r\n");
    if (argument.size() > kCopiedBytes) {
      absl::Status sent = Send(unsent, deadline);
      if (sent.ok()) sent = Send(argument, deadline);
      if (!sent.ok()) return sent;
      unsent = "\r\n";
    } else {
      absl::StrAppend(&unsent, argument, "\r\n");
    }
  }
  if (absl::Status sent = Send(unsent, deadline); !sent.ok()) return sent;

  absl::StatusOr<std::string> line = ReadLine(deadline);
  if (!line.ok()) return line.status();
  if (line->empty()) return NotResp("an empty line");
  RedisReply reply;
  const absl::string_view rest = absl::string_view(*line).substr(1);
  switch ((*line)[0]) {
    case '+':
    case '-':
      reply.kind = (*line)[0] == '+' ? RedisReply::Kind::kStatus : RedisReply::Kind::kError;
      reply.text = std::string(rest);
      return reply;
    case ':':
      reply.kind = RedisReply::Kind::kInteger;
      if (!absl::SimpleAtoi(rest, &reply.integer)) return NotResp("a number that is none");
      return reply;
    case '$':
      break;
    default:
      return NotResp("its first byte");
  }
  if (rest == "-1") return reply;
  if (!absl::SimpleAtoi(rest, &reply.size)) return NotResp("a length that is none");
  if (reply.size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("redis: a reply of ", reply.size, " bytes; at most ", max_bytes, " wanted"));
  }
  reply.kind = RedisReply::Kind::kBytes;
  reply.bytes = std::make_unique_for_overwrite<char[]>(reply.size);
  char end[2];
  absl::Status read = ReadBytes(reply.bytes.get(), reply.size, deadline);
  if (read.ok()) read = ReadBytes(end, sizeof(end), deadline);
  if (!read.ok()) return read;
  if (end[0] != '\r' || end[1] != '\n') return NotResp("bytes without an end");
  return reply;
}

}  // namespace embcache
