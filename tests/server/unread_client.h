// A client that asks and never reads what it is answered: HTTP/2 by hand on a unix socket, since a
// gRPC client reads by itself.

#ifndef EMBCACHE_TESTS_SERVER_UNREAD_CLIENT_H_
#define EMBCACHE_TESTS_SERVER_UNREAD_CLIENT_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "server/unique_fd.h"

namespace embcache {

class UnreadClient {
 public:
  // With `wide` windows the daemon may send as much as the socket takes; otherwise 64 KiB.
  explicit UnreadClient(const std::string& path, bool wide = false)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    std::string hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const std::string window("\x00\x04\x7f\xff\xff\xff", 6);  // SETTINGS_INITIAL_WINDOW_SIZE
    AddFrame(kSettings, 0, 0, wide ? window : "", &hello);
    if (wide) AddFrame(kWindowUpdate, 0, 0, std::string("\x7f\x00\x00\x00", 4), &hello);
    Send(hello);
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  // Starts a call of `method` ("embcache.v1.Cache/Get") with the bytes of its request.
  void Call(absl::string_view method, const std::string& request, absl::string_view token = "") {
    std::string headers;
    AddHeader(":method", "POST", &headers);
    AddHeader(":scheme", "http", &headers);
    AddHeader(":path", std::string("/").append(method.data(), method.size()), &headers);
    AddHeader(":authority", "localhost", &headers);
    AddHeader("te", "trailers", &headers);
    AddHeader("content-type", "application/grpc", &headers);
    if (!token.empty()) {
      AddHeader("embcache-session", std::string(token.data(), token.size()), &headers);
    }
    std::string frames;
    AddFrame(kHeaders, kEndHeaders, next_stream_, headers, &frames);
    const std::string body = std::string(1, '\0') + BigEndian(request.size(), 4) + request;
    AddFrame(kData, kEndStream, next_stream_, body, &frames);
    next_stream_ += 2;
    Send(frames);
  }

  // Whether the daemon has ended the connection. Reads and sends nothing.
  bool WasCut() const {
    pollfd event = {fd_.get(), 0, 0};
    return poll(&event, 1, 0) > 0 && (event.revents & POLLHUP) != 0;
  }

 private:
  enum Type : char { kData = 0, kHeaders = 1, kSettings = 4, kWindowUpdate = 8 };
  static constexpr char kEndStream = 0x1;
  static constexpr char kEndHeaders = 0x4;

  static std::string BigEndian(uint64_t number, int bytes) {
    std::string text;
    for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(number >> (8 * i)));
    return text;
  }
  static void AddFrame(Type type, char flags, uint32_t stream, const std::string& payload,
                       std::string* to) {
    *to += BigEndian(payload.size(), 3) + std::string{type, flags} + BigEndian(stream, 4) + payload;
  }
  // A literal that is not added to the table; names and values below 127 bytes.
  static void AddHeader(const std::string& name, const std::string& value, std::string* to) {
    *to += std::string(1, '\0') + static_cast<char>(name.size()) + name +
           static_cast<char>(value.size()) + value;
  }
  void Send(const std::string& bytes) const {
    if (send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;  // it was cut
  }

  const UniqueFd fd_;
  bool connected_ = false;
  uint32_t next_stream_ = 1;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_UNREAD_CLIENT_H_
