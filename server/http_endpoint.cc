#include "server/http_endpoint.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/tcp_listener.h"
#include "server/unique_fd.h"

namespace embcache {
namespace {

// Of one connection: request head and buffers. An answer's body is not counted.
constexpr size_t kConnectionBytes = 16 << 10;

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
  MicroHttpEndpoint(const HttpOptions& options, HttpHandler handler)
      : address_(options.address),
        peers_(options.peers),
        idle_seconds_(static_cast<unsigned>(absl::ToInt64Seconds(options.idle_timeout))),
        handler_(std::move(handler)) {}

  absl::Status Open(const HttpOptions& options) {
    UniqueFd listening;
    if (address_.kind == HttpAddress::Kind::kUnix) {
      absl::StatusOr<UnixListener> bound =
          UnixListener::Bind(address_.path, SOCK_STREAM, options.access);
      if (!bound.ok()) return bound.status();
      unix_.emplace(*std::move(bound));
      listening = UniqueFd(fcntl(unix_->fd(), F_DUPFD_CLOEXEC, 0));
    } else {
      absl::StatusOr<TcpListener> bound = TcpListener::Bind(address_.ToString());
      if (!bound.ok()) return bound.status();
      address_.port = bound->port();
      listening = UniqueFd(fcntl(bound->fd(), F_DUPFD_CLOEXEC, 0));
    }
    const auto timeout = static_cast<unsigned>(absl::ToInt64Seconds(options.first_timeout));
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
    const auto* const endpoint = static_cast<MicroHttpEndpoint*>(self);
    if (*seen == nullptr) {
      // First with the head alone; an answer now would close the connection.
      *seen = self;
      MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, endpoint->idle_seconds_);
      return MHD_YES;
    }
    return Queue(connection, endpoint->Answer(connection, path, method));
  }

  HttpResponse Answer(MHD_Connection* connection, absl::string_view path,
                      absl::string_view method) const {
    if (method != "GET" && method != "HEAD") {
      return {.status = 405, .body = "only GET and HEAD\n", .headers = {{"Allow", "GET, HEAD"}}};
    }
    if (address_.kind == HttpAddress::Kind::kUnix && !IsAllowed(connection)) {
      return {.status = 403, .body = "--allow-uid and --allow-gid do not name you\n"};
    }
    const char* const host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    if (address_.loopback() && !IsOwnName(host == nullptr ? "" : host)) {
      return {.status = 403, .body = "this endpoint answers to localhost and its address only\n"};
    }
    return handler_(path);
  }

  bool IsAllowed(MHD_Connection* connection) const {
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return false;
    const std::optional<Peer> peer = ReadPeer(info->connect_fd, peers_);
    return peer.has_value() && peer->allowed;
  }

  // A page in somebody's browser could otherwise have its own name resolve to 127.0.0.1 and read.
  bool IsOwnName(absl::string_view host) const {
    const size_t colon = host.rfind(':');
    if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) {
      host = host.substr(0, colon);
    }
    absl::ConsumePrefix(&host, "[");
    absl::ConsumeSuffix(&host, "]");
    return host.empty() || IsLoopback(host);
  }

  HttpAddress address_;
  const PeerRules peers_;
  const unsigned idle_seconds_;
  const HttpHandler handler_;
  std::optional<UnixListener> unix_;
  std::unique_ptr<MHD_Daemon, DaemonDeleter> daemon_;
};

}  // namespace

bool HttpAddress::loopback() const { return kind == Kind::kTcp && IsLoopback(host); }

std::string HttpAddress::ToString() const {
  switch (kind) {
    case Kind::kOff:
      return "off";
    case Kind::kUnix:
      return absl::StrCat("unix:", path);
    case Kind::kTcp:
      break;
  }
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
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
  absl::StatusOr<TcpAddress> tcp = ParseTcpAddress(text);
  if (!tcp.ok()) return absl::InvalidArgumentError("must be off, unix, unix:/path or host:port");
  address.kind = HttpAddress::Kind::kTcp;
  address.host = std::move(tcp->host);
  address.port = std::atoi(tcp->port.c_str());
  return address;
}

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const HttpOptions& options,
                                                                  HttpHandler handler) {
  auto endpoint = std::make_unique<MicroHttpEndpoint>(options, std::move(handler));
  if (absl::Status opened = endpoint->Open(options); !opened.ok()) return opened;
  return endpoint;
}

}  // namespace embcache
