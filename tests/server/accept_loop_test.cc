#include "server/accept_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "server/unix_listener.h"

namespace embcache {
namespace {

class AcceptLoopTest : public testing::Test {
 protected:
  AcceptLoopTest() {
    char directory[] = "/tmp/embacceptXXXXXX";
    EXPECT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    path_ = directory_ + "/s";
    auto listener = UnixListener::Bind(path_, SOCK_STREAM, {});
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_.emplace(*std::move(listener));
    options_.thread_name = "accept-test";
    options_.first_wait = absl::Milliseconds(1);
    options_.longest_wait = absl::Milliseconds(2);
    options_.accept = [this](int listener) { return Accept(listener); };
  }
  ~AcceptLoopTest() override {
    loop_.reset();
    listener_.reset();
    rmdir(directory_.c_str());
  }

  void Start() {
    auto loop = AcceptLoop::Start(std::move(options_), listener_->fd(), [this](UniqueFd fd) {
      absl::MutexLock lock(&mu_);
      accepted_.push_back(std::move(fd));
    });
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, path_.size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0)
        << std::strerror(errno);
    return fd;
  }

  void AwaitAccepted(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return accepted_.size() >= count;
    };
    mu_.Await(absl::Condition(&reached));
  }

  // Fails with the next of `errors_`, once each, then works.
  int Accept(int listener) {
    {
      absl::MutexLock lock(&mu_);
      if (!errors_.empty()) {
        errno = errors_.front();
        errors_.pop_front();
        return -1;
      }
    }
    return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  }

  std::string directory_;
  std::string path_;
  std::optional<UnixListener> listener_;
  AcceptLoopOptions options_;
  absl::Mutex mu_;
  std::deque<int> errors_ ABSL_GUARDED_BY(mu_);
  std::vector<UniqueFd> accepted_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<AcceptLoop> loop_;
};

TEST_F(AcceptLoopTest, EveryConnectionIsHandedOver) {
  Start();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(Connect());
  AwaitAccepted(200);
}

TEST_F(AcceptLoopTest, WhateverAcceptFailsWithTheConnectionIsAcceptedLater) {
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENOBUFS, ECONNABORTED, EPROTO, EINTR, EPERM,
                          ENETDOWN, EOPNOTSUPP, EIO}) {
    absl::MutexLock lock(&mu_);
    errors_.push_back(error);
    errors_.push_back(error);
  }
  Start();
  const UniqueFd first = Connect();
  AwaitAccepted(1);
  const UniqueFd second = Connect();
  AwaitAccepted(2);
}

TEST_F(AcceptLoopTest, EndsAtOnceAlsoWhileItWaits) {
  options_.first_wait = options_.longest_wait = absl::Hours(1);
  absl::Mutex failed_mu;
  bool failed = false;
  options_.accept = [&](int) {
    absl::MutexLock lock(&failed_mu);
    failed = true;
    errno = EMFILE;
    return -1;
  };
  Start();
  const UniqueFd client = Connect();
  {
    absl::MutexLock lock(&failed_mu);
    failed_mu.Await(absl::Condition(&failed));
  }
  loop_.reset();
}

TEST_F(AcceptLoopTest, WhoWaitsTooLongIsTurnedAway) {
  options_.patience = absl::ZeroDuration();
  options_.accept = [](int) {
    errno = EMFILE;
    return -1;
  };
  Start();
  const UniqueFd client = Connect();
  char byte;
  EXPECT_EQ(recv(client.get(), &byte, 1, 0), 0);
}

// With the process' descriptors really used up, and then free again.
TEST_F(AcceptLoopTest, SurvivesALackOfDescriptors) {
  options_.accept = nullptr;
  Start();
  UniqueFd first = Connect();
  AwaitAccepted(1);
  UniqueFd second(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::vector<UniqueFd> hoard;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = {256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  while (true) {
    UniqueFd taken(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!taken) break;
    hoard.push_back(std::move(taken));
  }
  ASSERT_EQ(errno, EMFILE);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, path_.size());
  ASSERT_EQ(connect(second.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  // Nothing is there to read, and the loop cannot take it: this only lets it try a few times.
  pollfd waiting = {second.get(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 20), 0);
  hoard.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  AwaitAccepted(2);
}

}  // namespace
}  // namespace embcache
