#include "server/tcp_listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

constexpr int kBacklog = 1024;

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<TcpAddress> ParseTcpAddress(absl::string_view address) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", address, "\": must be host:port or [IPv6 address]:port"));
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return bad;
  absl::string_view host = address.substr(0, colon);
  const absl::string_view port = address.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return bad;
  }
  int number = -1;
  if (host.empty() || !absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) return bad;
  return TcpAddress{std::string(host), std::string(port)};
}

bool IsLoopback(absl::string_view host) {
  const std::string text(host);
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

absl::StatusOr<TcpListener> TcpListener::Bind(absl::string_view address) {
  const absl::StatusOr<TcpAddress> parts = ParseTcpAddress(address);
  if (!parts.ok()) return parts.status();
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(found, &freeaddrinfo);
  const auto failed = [&](absl::string_view what) {
    return absl::UnavailableError(absl::StrCat(what, " ", address, ": ", std::strerror(errno)));
  };
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("socket for");
  // Connections inherit the second and third. A port that another process listens on stays taken.
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0 ||
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
    return failed("setsockopt for");
  }
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0) return failed("bind");
  if (listen(fd.get(), kBacklog) != 0) return failed("listen on");
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return failed("getsockname");
  }
  return TcpListener(std::move(fd), PortOf(bound));
}

}  // namespace embcache
