// The client's side of control.sock, raw enough to break every rule of it.

#ifndef EMBCACHE_TESTS_SERVER_CONTROL_CLIENT_H_
#define EMBCACHE_TESTS_SERVER_CONTROL_CLIENT_H_

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "embcache/v1/control.pb.h"
#include "gtest/gtest.h"
#include "server/session_registry.h"
#include "server/unique_fd.h"

namespace embcache {

inline v1::ClientPacket HelloPacket(v1::Hello::Role role = v1::Hello::WRITER) {
  v1::ClientPacket packet;
  packet.mutable_hello()->set_protocol_version(1);
  packet.mutable_hello()->set_name("test");
  packet.mutable_hello()->set_role(role);
  return packet;
}

inline v1::ClientPacket GoodbyePacket() {
  v1::ClientPacket packet;
  packet.mutable_goodbye();
  return packet;
}

class ControlClient {
 public:
  explicit ControlClient(const std::string& path)
      : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0)
        << std::strerror(errno);
    const timeval patience = {20, 0};
    setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  bool SendBytes(const std::string& bytes) {
    return send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool Send(const v1::ClientPacket& packet) { return SendBytes(packet.SerializeAsString()); }

  // The next packet; nullopt when the daemon has closed the connection. Descriptors that came with
  // it go to the end of descriptors().
  std::optional<v1::ServerPacket> Receive() {
    std::vector<char> bytes(64 * 1024);
    alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))];
    iovec data = {bytes.data(), bytes.size()};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t received = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
    if (received <= 0) {
      EXPECT_TRUE(received == 0 || errno == ECONNRESET) << std::strerror(errno);
      return std::nullopt;
    }
    EXPECT_EQ(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC), 0);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::vector<int> fds(count);
      std::memcpy(fds.data(), CMSG_DATA(header), count * sizeof(int));
      for (const int fd : fds) descriptors_.emplace_back(fd);
    }
    v1::ServerPacket packet;
    EXPECT_TRUE(packet.ParseFromArray(bytes.data(), static_cast<int>(received)));
    return packet;
  }

  // Sends `hello` and gives the (only) Welcome.
  v1::Welcome SayHello(const v1::ClientPacket& hello = HelloPacket()) {
    EXPECT_TRUE(Send(hello));
    const std::optional<v1::ServerPacket> answer = Receive();
    EXPECT_TRUE(answer.has_value() && answer->has_welcome());
    return answer.has_value() ? answer->welcome() : v1::Welcome();
  }

  // Whether the daemon has closed the connection; waits for it.
  bool AwaitEnd() {
    while (Receive().has_value()) {
    }
    return true;
  }

  const std::vector<UniqueFd>& descriptors() const { return descriptors_; }

 private:
  UniqueFd socket_;
  std::vector<UniqueFd> descriptors_;
};

inline Token TokenOf(const v1::Welcome& welcome) {
  Token token = {};
  EXPECT_EQ(welcome.token().size(), token.size());
  std::memcpy(token.data(), welcome.token().data(), std::min(token.size(), welcome.token().size()));
  return token;
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_CONTROL_CLIENT_H_
