// An answer that crosses its caller's deadline: the daemon has sent it, the caller has given up.
// What it granted must come back by itself.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/unique_fd.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

using ServerFd = embcache::UniqueFd;

// Between a client and embcached.sock: hands on what the client says, and what the daemon answers
// except while it is told to hold that back.
class Proxy {
 public:
  Proxy(const std::string& listen_at, const std::string& daemon) : daemon_(daemon) {
    listener_ = ServerFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = Address(listen_at);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Proxy() {
    stop_ = true;
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }

  void HoldAnswers(bool hold) {
    hold_ = hold;
    eventfd_write(wake_.get(), 1);
  }

 private:
  struct Pair {
    ServerFd client;
    ServerFd daemon;
  };

  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }

  static bool Forward(int from, int to) {
    char buffer[65536];
    const ssize_t size = recv(from, buffer, sizeof(buffer), 0);
    return size > 0 && send(to, buffer, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
  }

  void Run() {
    std::vector<Pair> pairs;
    while (!stop_) {
      std::vector<pollfd> events = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs) {
        events.push_back({pair.client.get(), POLLIN, 0});
        // A negative number is looked over by poll.
        events.push_back({hold_ ? -1 : pair.daemon.get(), POLLIN, 0});
      }
      poll(events.data(), events.size(), -1);
      eventfd_t ignored;
      if (events[0].revents != 0) eventfd_read(wake_.get(), &ignored);
      for (size_t i = 0; i < pairs.size(); ++i) {
        bool alive = true;
        if (events[2 + 2 * i].revents != 0) {
          alive = Forward(pairs[i].client.get(), pairs[i].daemon.get());
        }
        if (alive && events[3 + 2 * i].revents != 0) {
          alive = Forward(pairs[i].daemon.get(), pairs[i].client.get());
        }
        if (!alive) {
          pairs.erase(pairs.begin() + static_cast<long>(i));
          break;  // the events no longer fit
        }
      }
      if (events[1].revents != 0) {
        Pair pair;
        pair.client = ServerFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        pair.daemon = ServerFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_un address = Address(daemon_);
        EXPECT_EQ(connect(pair.daemon.get(), reinterpret_cast<const sockaddr*>(&address),
                          sizeof(address)),
                  0);
        pairs.push_back(std::move(pair));
      }
    }
  }

  const std::string daemon_;
  ServerFd listener_;
  const ServerFd wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> hold_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class CrossingTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    directory_ = daemon_.directory() + "/proxied";
    ASSERT_TRUE(std::filesystem::create_directory(directory_));
    std::filesystem::create_symlink(daemon_.socket_dir() + "/control.sock",
                                    directory_ + "/control.sock");
    proxy_ = std::make_unique<Proxy>(directory_ + "/embcached.sock",
                                     daemon_.socket_dir() + "/embcached.sock");
    ClientOptions options;
    options.socket_dir = directory_;
    options.name = "impatient";
    options.role = Role::kWriter;
    options.rpc_timeout = absl::Milliseconds(200);
    options.fast_path = false;  // only calls can be left without an answer
    auto impatient = Client::Connect(options);
    ASSERT_TRUE(impatient.ok()) << impatient.status();
    impatient_ = *std::move(impatient);
  }
  void TearDown() override {
    impatient_.reset();
    proxy_.reset();
  }

  bool Become(const char* counter, int value) {
    return StatsBecome(*client_, [&](const json& stats) { return stats[counter] == value; });
  }

  std::string directory_;
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<Client> impatient_;
};

TEST_F(CrossingTest, AReservationNobodyHeardOfComesBack) {
  proxy_->HoldAnswers(true);
  const auto reserved = impatient_->Reserve(MakeKey(1), OneTensor());
  EXPECT_TRUE(absl::IsDeadlineExceeded(reserved.status())) << reserved.status();
  proxy_->HoldAnswers(false);
  EXPECT_TRUE(Become("reservations", 0));
  // The new session is as good as the old one.
  EXPECT_TRUE(Becomes([&] { return PutFilled(*impatient_, MakeKey(2), 2).ok(); }));
}

TEST_F(CrossingTest, ALeaseNobodyHeardOfComesBackAndThoseInUseStay) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  ASSERT_TRUE(PutFilled(*client_, MakeKey(2), 2).ok());
  {
    const Lease used = MustGet(*impatient_, MakeKey(1));
    proxy_->HoldAnswers(true);
    EXPECT_TRUE(absl::IsDeadlineExceeded(impatient_->Get(MakeKey(2)).status()));
    proxy_->HoldAnswers(false);
    EXPECT_TRUE(Become("sessions", 3));  // the new one, beside the old one and the test's own
    EXPECT_TRUE(used.valid());
    EXPECT_TRUE(AllAre(used.data(0), 1));
    EXPECT_TRUE(Become("leases", 2));
  }
  EXPECT_TRUE(Become("leases", 0));
  EXPECT_TRUE(Become("sessions", 2));
}

}  // namespace
}  // namespace embcache::client
