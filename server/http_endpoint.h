// HttpEndpoint: answers GET and HEAD for operators: metrics, probes, the status page. It knows
// connections; what the pages say is its handler's business.
//
// One thread of libmicrohttpd's serves all connections without blocking on any, runs the handler
// and shares nothing with the threads that serve the cache. Connections are bounded in number, in
// memory and in idle time, so whoever connects can hold up at most this endpoint.

#ifndef EMBCACHE_SERVER_HTTP_ENDPOINT_H_
#define EMBCACHE_SERVER_HTTP_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/peer.h"
#include "server/unix_listener.h"

namespace embcache {

struct HttpAddress {
  enum class Kind { kOff, kUnix, kTcp };
  Kind kind = Kind::kOff;
  std::string path;  // of the unix socket
  std::string host;  // a name, or an IPv4 or IPv6 address
  int port = 0;

  bool loopback() const;
  std::string ToString() const;
};

// "off", "unix" (http.sock in `socket_dir`), "unix:/path", "127.0.0.1:9464", "[::1]:9464" or
// "localhost:9464". Port 0 lets the kernel choose.
absl::StatusOr<HttpAddress> ParseHttpAddress(absl::string_view text, absl::string_view socket_dir);

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// `path` is without the query. Called by the endpoint's thread, one at a time; must not block.
using HttpHandler = std::function<HttpResponse(absl::string_view path)>;

struct HttpOptions {
  HttpAddress address;  // not kOff
  SocketAccess access;  // of the unix socket
  PeerRules peers;      // who may ask there
  int max_connections = 64;
  // Whole seconds: until a connection that has asked for nothing yet, and one that has, is closed
  // for its silence. Short, so that those who only connect do not keep probes waiting.
  absl::Duration first_timeout = absl::Seconds(2);
  absl::Duration idle_timeout = absl::Seconds(10);
};

class HttpEndpoint {
 public:
  // UNAVAILABLE: cannot bind. FAILED_PRECONDITION: the path is something other than a socket.
  // REQUIRES: for a unix socket as UnixListener::Bind.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const HttpOptions& options,
                                                             HttpHandler handler);
  virtual ~HttpEndpoint() = default;  // closes all connections

  // The one bound, with the port that the kernel chose.
  virtual const HttpAddress& address() const = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_HTTP_ENDPOINT_H_
