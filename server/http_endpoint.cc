#include "server/http_endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/unique_fd.h"
#include "server/unix_listener.h"

namespace embcache {
namespace {

constexpr int kBacklog = 64;
// Of one connection: request head and buffers. An answer's body is not counted.
constexpr size_t kConnectionBytes = 16 << 10;

bool IsIpv6(absl::string_view host) { return absl::StrContains(host, ':'); }

absl::StatusOr<UniqueFd> ListenTcp(HttpAddress* address) {
  const auto failed = [&](absl::string_view what) {
    return absl::UnavailableError(
        absl::StrCat("cannot ", what, " ", address->ToString(), ": ", std::strerror(errno)));
  };
  sockaddr_storage storage = {};
  socklen_t size = 0;
  if (IsIpv6(address->host)) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address->port);
    inet_pton(AF_INET6, address->host.c_str(), &v6->sin6_addr);
    size = sizeof(*v6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address->port);
    inet_pton(AF_INET, address->host.c_str(), &v4->sin_addr);
    size = sizeof(*v4);
  }
  UniqueFd fd(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("open a socket for");
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  auto* const generic = reinterpret_cast<sockaddr*>(&storage);
  if (bind(fd.get(), generic, size) != 0) return failed("bind");
  if (listen(fd.get(), kBacklog) != 0) return failed("listen on");
  if (getsockname(fd.get(), generic, &size) != 0) return failed("ask for");
  address->port =
      ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
  return fd;
}

struct ResponseDeleter {
  void operator()(MHD_Response* response) const { MHD_destroy_response(response); }
};
struct DaemonDeleter {
  void operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }
};

MHD_Result Queue(MHD_Connection* connection, const HttpResponse& answer) {
  const std::unique_ptr<MHD_Response, ResponseDeleter> response(MHD_create_response_from_buffer(
      answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY));
  if (response == nullptr) return MHD_NO;
  const auto add = [&](const char* name, const std::string& value) {
    MHD_add_response_header(response.get(), name, value.c_str());
  };
  add("Content-Type", answer.content_type);
  add("Cache-Control", "no-store");
  add("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : answer.headers) add(name.c_str(), value);
  return MHD_queue_response(connection, static_cast<unsigned>(answer.status), response.get());
}

class MicroHttpEndpoint : public HttpEndpoint {
 public:
  MicroHttpEndpoint(HttpAddress address, HttpHandler handler)
      : address_(std::move(address)), handler_(std::move(handler)) {}

  absl::Status Open(const HttpOptions& options) {
    UniqueFd listening;
    if (address_.kind == HttpAddress::Kind::kUnix) {
      absl::StatusOr<UnixListener> bound =
          UnixListener::Bind(address_.path, options.mode, SOCK_STREAM);
      if (!bound.ok()) return bound.status();
      unix_.emplace(*std::move(bound));
      listening = UniqueFd(fcntl(unix_->fd(), F_DUPFD_CLOEXEC, 0));
    } else {
      absl::StatusOr<UniqueFd> bound = ListenTcp(&address_);
      if (!bound.ok()) return bound.status();
      listening = *std::move(bound);
    }
    const auto timeout = static_cast<unsigned>(absl::ToInt64Seconds(options.idle_timeout));
    // From here on the descriptor is libmicrohttpd's, which closes it when it stops.
    daemon_.reset(MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, &MicroHttpEndpoint::Handle, this,
        MHD_OPTION_LISTEN_SOCKET, listening.Release(), MHD_OPTION_CONNECTION_LIMIT,
        static_cast<unsigned>(options.max_connections), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        kConnectionBytes, MHD_OPTION_CONNECTION_TIMEOUT, timeout, MHD_OPTION_END));
    if (daemon_ == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("cannot serve HTTP on ", address_.ToString(), ": ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }

  const HttpAddress& address() const override { return address_; }

 private:
  static MHD_Result Handle(void* self, MHD_Connection* connection, const char* path,
                           const char* method, const char* /*version*/, const char* /*body*/,
                           size_t* body_bytes, void** seen) {
    *body_bytes = 0;  // a request's body is read and forgotten
    if (*seen == nullptr) {
      // First with the head alone; an answer now would close the connection.
      *seen = self;
      return MHD_YES;
    }
    const auto* const endpoint = static_cast<MicroHttpEndpoint*>(self);
    return Queue(connection, endpoint->Answer(connection, path, method));
  }

  HttpResponse Answer(MHD_Connection* connection, absl::string_view path,
                      absl::string_view method) const {
    if (method != "GET" && method != "HEAD") {
      return {.status = 405, .body = "only GET and HEAD\n", .headers = {{"Allow", "GET, HEAD"}}};
    }
    const char* const host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    if (address_.loopback() && !IsOwnName(host == nullptr ? "" : host)) {
      return {.status = 403, .body = "this endpoint answers to localhost and its address only\n"};
    }
    return handler_(path);
  }

  // A page in somebody's browser could otherwise have its own name resolve to 127.0.0.1 and read.
  bool IsOwnName(absl::string_view host) const {
    const size_t colon = host.rfind(':');
    if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) {
      host = host.substr(0, colon);
    }
    absl::ConsumePrefix(&host, "[");
    absl::ConsumeSuffix(&host, "]");
    return host.empty() || host == "localhost" || host == address_.host;
  }

  HttpAddress address_;
  const HttpHandler handler_;
  std::optional<UnixListener> unix_;
  std::unique_ptr<MHD_Daemon, DaemonDeleter> daemon_;
};

}  // namespace

bool HttpAddress::loopback() const {
  return kind == Kind::kTcp && (absl::StartsWith(host, "127.") || host == "::1");
}

std::string HttpAddress::ToString() const {
  switch (kind) {
    case Kind::kOff:
      return "off";
    case Kind::kUnix:
      return absl::StrCat("unix:", path);
    case Kind::kTcp:
      break;
  }
  return IsIpv6(host) ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HttpAddress> ParseHttpAddress(absl::string_view text, absl::string_view socket_dir) {
  HttpAddress address;
  if (text == "off") return address;
  address.kind = HttpAddress::Kind::kUnix;
  if (text == "unix") {
    address.path = absl::StrCat(socket_dir, "/http.sock");
    return address;
  }
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (!absl::StartsWith(rest, "/")) return absl::InvalidArgumentError("must be an absolute path");
    if (absl::Status fits = CheckSocketPath(rest); !fits.ok()) return fits;
    address.path = std::string(rest);
    return address;
  }
  address.kind = HttpAddress::Kind::kTcp;
  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError("must be off, unix, unix:/path or host:port");
  }
  absl::string_view host = rest.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";
  const bool brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(port);
  in6_addr parsed;
  if (inet_pton(brackets ? AF_INET6 : AF_INET, address.host.c_str(), &parsed) != 1) {
    return absl::InvalidArgumentError("the host must be an IP address (IPv6 in []) or localhost");
  }
  return address;
}

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const HttpOptions& options,
                                                                  HttpHandler handler) {
  auto endpoint = std::make_unique<MicroHttpEndpoint>(options.address, std::move(handler));
  if (absl::Status opened = endpoint->Open(options); !opened.ok()) return opened;
  return endpoint;
}

}  // namespace embcache
