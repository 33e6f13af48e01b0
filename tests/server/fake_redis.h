// FakeRedis: a server of the Redis protocol inside a test, as good or as bad as the test likes.
//
// By itself it keeps strings, as far as the shared tier uses them. OnCommand puts another behaviour
// before that: raw bytes as the answer, no answer, or the end of the connection.

#ifndef EMBCACHE_TESTS_SERVER_FAKE_REDIS_H_
#define EMBCACHE_TESTS_SERVER_FAKE_REDIS_H_

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/redis_connection.h"
#include "server/tcp_listener.h"
#include "server/unique_fd.h"

namespace embcache {

class FakeRedis {
 public:
  using Command = std::vector<std::string>;
  struct Answer {
    std::string bytes;     // sent as they are
    bool hang = false;     // and then the connection is not looked at any more
    bool close = false;    // and then it is closed
    bool trickle = false;  // one byte every few milliseconds, without an end
  };
  // nullopt: what a good server answers.
  using Behaviour = std::function<std::optional<Answer>(const Command&)>;

  // On a free port of this machine.
  FakeRedis() : stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto listener = TcpListener::Bind("127.0.0.1:0");
    if (!listener.ok()) std::abort();
    address_ = {"", "127.0.0.1", absl::StrCat(listener->port())};
    tcp_ = std::make_unique<TcpListener>(*std::move(listener));
    acceptor_ = std::thread([this] { Accept(tcp_->fd()); });
  }
  // On a unix socket, which may be there from another.
  explicit FakeRedis(const std::string& path) : stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    unlink(path.c_str());
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    path.copy(at.sun_path, sizeof(at.sun_path) - 1);
    unix_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(unix_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 ||
        listen(unix_.get(), 64) != 0) {
      std::abort();
    }
    address_.unix_path = path;
    acceptor_ = std::thread([this] { Accept(unix_.get()); });
  }
  ~FakeRedis() { Stop(); }

  // As when its process ends; the data stay.
  void Stop() {
    eventfd_write(stop_.get(), 1);
    if (acceptor_.joinable()) acceptor_.join();
    for (std::thread& connection : connections_) connection.join();
    connections_.clear();
    tcp_.reset();
    unix_.Reset();
  }

  const RedisAddress& address() const { return address_; }

  void OnCommand(Behaviour behaviour) {
    absl::MutexLock lock(&mu_);
    behaviour_ = std::move(behaviour);
  }
  void Set(const std::string& key, const std::string& value) {
    absl::MutexLock lock(&mu_);
    data_[key] = value;
  }
  void Clear() {
    absl::MutexLock lock(&mu_);
    data_.clear();
  }
  std::map<std::string, std::string> data() const {
    absl::MutexLock lock(&mu_);
    return data_;
  }
  std::vector<Command> commands() const {
    absl::MutexLock lock(&mu_);
    return commands_;
  }
  size_t Count(const std::string& name) const {
    absl::MutexLock lock(&mu_);
    return static_cast<size_t>(
        std::count_if(commands_.begin(), commands_.end(),
                      [&](const Command& command) { return command[0] == name; }));
  }
  // Waits until so many commands of that name have come.
  void AwaitCount(const std::string& name, size_t count) const {
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return static_cast<size_t>(std::count_if(commands_.begin(), commands_.end(),
                                               [&](const Command& c) { return c[0] == name; })) >=
             count;
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&came));
  }

 private:
  // False when the test stops this.
  bool WaitFor(int fd) const {
    pollfd fds[2] = {{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (poll(fds, 2, -1) < 0) {
    }
    return fds[1].revents == 0;
  }

  void Accept(int listener) {
    while (WaitFor(listener)) {
      UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      connections_.emplace_back([this, fd = std::move(fd)] { Serve(fd.get()); });
    }
  }

  void Serve(int fd) {
    std::string unread;
    while (true) {
      const std::optional<Command> command = ReadCommand(fd, &unread);
      if (!command.has_value()) return;
      const Answer answer = Execute(*command);
      for (size_t sent = 0; sent < answer.bytes.size();) {
        const ssize_t n =
            send(fd, answer.bytes.data() + sent, answer.bytes.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += static_cast<size_t>(n);
      }
      pollfd stop = {stop_.get(), POLLIN, 0};
      while (answer.trickle && poll(&stop, 1, 5) == 0) {
        if (send(fd, "x", 1, MSG_NOSIGNAL) <= 0) return;
      }
      if (answer.hang) poll(&stop, 1, -1);
      if (answer.hang || answer.close || answer.trickle) return;
    }
  }

  bool Receive(int fd, std::string* unread) const {
    char chunk[65536];
    if (!WaitFor(fd)) return false;
    const ssize_t got = recv(fd, chunk, sizeof(chunk), 0);
    if (got <= 0) return false;
    unread->append(chunk, static_cast<size_t>(got));
    return true;
  }

  std::optional<size_t> ReadNumber(int fd, std::string* unread) const {
    size_t end = 0;
    while ((end = unread->find("\r\n")) == std::string::npos) {
      if (!Receive(fd, unread)) return std::nullopt;
    }
    const size_t number = std::strtoul(unread->c_str() + 1, nullptr, 10);
    unread->erase(0, end + 2);
    return number;
  }

  std::optional<Command> ReadCommand(int fd, std::string* unread) const {
    const std::optional<size_t> words = ReadNumber(fd, unread);
    Command command;
    for (size_t i = 0; words.has_value() && i < *words; ++i) {
      const std::optional<size_t> size = ReadNumber(fd, unread);
      if (!size.has_value()) return std::nullopt;
      while (unread->size() < *size + 2) {
        if (!Receive(fd, unread)) return std::nullopt;
      }
      command.push_back(unread->substr(0, *size));
      unread->erase(0, *size + 2);
    }
    if (command.empty()) return std::nullopt;
    return command;
  }

  Answer Execute(const Command& command) {
    Behaviour behaviour;
    {
      absl::MutexLock lock(&mu_);
      commands_.push_back(command);
      behaviour = behaviour_;
    }
    if (behaviour) {
      if (std::optional<Answer> answer = behaviour(command)) return *std::move(answer);
    }
    absl::MutexLock lock(&mu_);
    if (command[0] == "AUTH" || command[0] == "ASKING") return {"+OK\r\n"};
    const std::string& key = command.at(1);
    if (command[0] == "SET") {
      data_[key] = command.at(2);
      return {"+OK\r\n"};
    }
    if (command[0] == "EXISTS") return {absl::StrCat(":", data_.count(key), "\r\n")};
    if (command[0] == "UNLINK") return {absl::StrCat(":", data_.erase(key), "\r\n")};
    if (command[0] == "GETRANGE") {
      const std::string value =
          data_.count(key) == 0 ? "" : data_[key].substr(0, std::stoull(command.at(3)) + 1);
      return {absl::StrCat("$", value.size(), "\r\n", value, "\r\n")};
    }
    return {"-ERR unknown command\r\n"};
  }

  const UniqueFd stop_;
  RedisAddress address_;
  std::unique_ptr<TcpListener> tcp_;
  UniqueFd unix_;
  std::thread acceptor_;
  std::vector<std::thread> connections_;  // of the acceptor, until that has ended
  mutable absl::Mutex mu_;
  Behaviour behaviour_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> data_ ABSL_GUARDED_BY(mu_);
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_FAKE_REDIS_H_
