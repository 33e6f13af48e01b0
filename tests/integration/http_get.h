// A plain HTTP/1.1 client for tests, over a unix socket or 127.0.0.1.

#ifndef EMBCACHE_TESTS_INTEGRATION_HTTP_GET_H_
#define EMBCACHE_TESTS_INTEGRATION_HTTP_GET_H_

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace embcache::testing_support {

struct HttpAnswer {
  int status = 0;  // 0: none came
  std::string head;
  std::string body;
};

// A connected socket, or -1.
inline int ConnectUnix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

inline int ConnectTcp(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

inline bool SendAll(int fd, const std::string& text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// What comes until the other side closes, or nothing does for 10 s.
inline std::string ReadAll(int fd) {
  std::string text;
  char chunk[65536];
  pollfd event = {fd, POLLIN, 0};
  while (poll(&event, 1, 10'000) == 1) {
    const ssize_t size = read(fd, chunk, sizeof(chunk));
    if (size <= 0) break;
    text.append(chunk, static_cast<size_t>(size));
  }
  return text;
}

// Whether the other side has closed, and all it sent has been read.
inline bool IsClosed(int fd) {
  char next = 0;
  return recv(fd, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Sends `method` `path` on `fd`, which is closed.
inline HttpAnswer Request(int fd, const std::string& path, const std::string& method = "GET",
                          const std::string& host = "localhost") {
  HttpAnswer answer;
  if (fd < 0) return answer;
  SendAll(fd, absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", host,
                           "\r\nConnection: close\r\n\r\n"));
  const std::string text = ReadAll(fd);
  close(fd);
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.rfind("HTTP/1.1 ", 0) != 0) return answer;
  answer.status = std::atoi(text.c_str() + 9);
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  return answer;
}

inline HttpAnswer GetUnix(const std::string& socket, const std::string& path) {
  return Request(ConnectUnix(socket), path);
}

}  // namespace embcache::testing_support

#endif  // EMBCACHE_TESTS_INTEGRATION_HTTP_GET_H_
