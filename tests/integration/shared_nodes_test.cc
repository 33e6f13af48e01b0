// Daemons that share entries through a real Redis: alone, with a password, and as a Cluster.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/redis_process.h"

namespace embcache::client {
namespace {

using testing_support::RedisProcess;

// One daemon that is joined to `redis`, and a client of it. Gets are not cut short: what they wait
// for is not how fast this machine is.
class Node {
 public:
  explicit Node(const std::string& redis, const std::string& name_space = "ns",
                std::vector<std::string> flags = {})
      : daemon_([&] {
          flags.insert(flags.begin(), {absl::StrCat("--shared-tier=", redis), "--shared-timeout=1m",
                                       absl::StrCat("--shared-namespace=", name_space)});
          return std::move(flags);
        }()) {
    const absl::Status started = daemon_.Start();
    EXPECT_TRUE(started.ok()) << started;
    auto client = daemon_.Connect();
    EXPECT_TRUE(client.ok()) << client.status();
    if (client.ok()) client_ = *std::move(client);
  }
  Client& client() { return *client_; }
  DaemonProcess& daemon() { return daemon_; }

  bool Has(int key, uint8_t value) {
    auto lease = client_->Get(MakeKey(key));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() && lease->has_value() && AllAre((**lease).data(0), value);
  }
  bool Put(int key, uint8_t value) { return PutFilled(*client_, MakeKey(key), value).ok(); }

 private:
  DaemonProcess daemon_;
  std::unique_ptr<Client> client_;
};

class SharedNodesTest : public testing::Test {
 protected:
  SharedNodesTest() { EXPECT_TRUE(redis_.Start()); }
  ~SharedNodesTest() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = "/tmp/shared.XXXXXX";
  RedisProcess redis_{mkdtemp(directory_.data())};
};

TEST_F(SharedNodesTest, APutOnOneIsAHitOnAnotherAndNotUnderAnotherNamespace) {
  Node a(redis_.address()), b(redis_.address()), stranger(redis_.address(), "other");
  ASSERT_TRUE(a.Put(1, 7));
  redis_.AwaitAnswer("DBSIZE", "1");
  EXPECT_TRUE(b.Has(1, 7));
  EXPECT_FALSE(stranger.Has(1, 7));
  EXPECT_FALSE(b.Has(2, 7));
  const std::string ttl =
      redis_.Ask("--raw EVAL \"return redis.call('pttl', redis.call('keys', '*')[1])\" 0");
  EXPECT_GT(std::atoll(ttl.c_str()), 0) << ttl;
}

TEST_F(SharedNodesTest, ADeleteOnOneRemovesItThere) {
  Node a(redis_.address()), b(redis_.address());
  ASSERT_TRUE(a.Put(1, 7));
  redis_.AwaitAnswer("DBSIZE", "1");
  ASSERT_TRUE(a.client().Delete(MakeKey(1)).ok());
  redis_.AwaitAnswer("DBSIZE", "0");
  EXPECT_FALSE(b.Has(1, 7));
}

TEST_F(SharedNodesTest, AfterAnEpochOnOneNobodyReadsOrWritesTheModel) {
  Node a(redis_.address()), b(redis_.address());
  ASSERT_TRUE(a.Put(1, 7));
  redis_.AwaitAnswer("DBSIZE", "1");
  ASSERT_TRUE(a.client().AdvanceEpoch("model").ok());
  redis_.AwaitAnswer("EXISTS embcache:1:ns:closed:model", "1");
  EXPECT_FALSE(b.Has(1, 7));
  ASSERT_TRUE(a.Put(2, 8));
  ASSERT_TRUE(b.Put(2, 8));
  const Key other = {"another", std::string(32, 'x'), ""};
  ASSERT_TRUE(PutFilled(b.client(), other, 9).ok());
  redis_.AwaitAnswer("DBSIZE", "3");  // the first put, the marker and this
}

TEST_F(SharedNodesTest, AServerThatDiesCostsMissesAndIsFoundAgain) {
  Node a(redis_.address(), "ns", {"--shared-timeout=1s"}), b(redis_.address());
  ASSERT_TRUE(b.Put(1, 7));
  redis_.AwaitAnswer("DBSIZE", "1");
  redis_.Kill();
  for (int key = 10; key < 20; ++key) EXPECT_FALSE(a.Has(key, 7));
  ASSERT_TRUE(a.Put(10, 5));
  EXPECT_TRUE(a.Has(10, 5));
  ASSERT_TRUE(redis_.Start());
  ASSERT_TRUE(b.Put(20, 3));
  while (!a.Has(20, 3)) std::this_thread::yield();
}

TEST_F(SharedNodesTest, AStopDoesNotWaitForAServerThatHangs) {
  Node a(redis_.address(), "ns", {"--shared-timeout=1m"});
  redis_.Signal(SIGSTOP);
  ASSERT_TRUE(a.Put(1, 7));
  a.daemon().Signal(SIGTERM);
  EXPECT_EQ(a.daemon().Wait(), 0);
}

TEST_F(SharedNodesTest, AUserWithTheRightsThatTheDocumentationNamesIsEnough) {
  redis_.Ask("ACL SETUSER node on '>secret' '~embcache:1:*' +getrange +set +exists +unlink");
  redis_.Ask("CONFIG SET requirepass other");
  const std::string file = directory_ + "/password";
  std::ofstream(file) << "secret\n";
  const std::vector<std::string> flags = {"--shared-user=node", "--shared-password-file=" + file};
  Node a(redis_.address(), "ns", flags), b(redis_.address(), "ns", flags);
  ASSERT_TRUE(a.Put(1, 7));
  redis_.AwaitAnswer("--no-auth-warning -a other DBSIZE", "1");
  EXPECT_TRUE(b.Has(1, 7));
  ASSERT_TRUE(a.client().Delete(MakeKey(1)).ok());
  redis_.AwaitAnswer("--no-auth-warning -a other DBSIZE", "0");
  ASSERT_TRUE(a.client().AdvanceEpoch("model").ok());
  redis_.AwaitAnswer("--no-auth-warning -a other DBSIZE", "1");
}

// A Cluster of two, half of the slots each.
class SharedClusterTest : public testing::Test {
 protected:
  SharedClusterTest() {
    first_ = StartNode();
    second_ = StartNode();
    first_->Ask("CLUSTER ADDSLOTSRANGE 0 8191");
    second_->Ask("CLUSTER ADDSLOTSRANGE 8192 16383");
    first_->Ask(absl::StrCat("CLUSTER MEET 127.0.0.1 ", port_, " ", port_ + 1));
    for (const RedisProcess* node : {first_.get(), second_.get()}) {
      while (node->Ask("CLUSTER INFO").find("cluster_state:ok") == std::string::npos ||
             node->Ask("CLUSTER INFO").find("cluster_slots_ok:16384") == std::string::npos) {
        std::this_thread::yield();
      }
    }
  }
  ~SharedClusterTest() override { std::filesystem::remove_all(directory_); }

  // On ports that are free at this moment, and others if they are not any more.
  std::unique_ptr<RedisProcess> StartNode() {
    while (true) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in at = {};
      at.sin_family = AF_INET;
      at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof(at);
      bind(fd, reinterpret_cast<sockaddr*>(&at), size);
      getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
      close(fd);
      port_ = ntohs(at.sin_port);
      const std::string directory = absl::StrCat(directory_, "/", port_);
      std::filesystem::create_directory(directory);
      auto node = std::make_unique<RedisProcess>(
          directory, port_,
          std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-port",
                                   absl::StrCat(port_ + 1)});
      if (node->Start()) return node;
    }
  }

  std::string directory_ = "/tmp/shared.XXXXXX";
  const char* const made_ = mkdtemp(directory_.data());
  int port_ = 0;  // of the node started last
  std::unique_ptr<RedisProcess> first_, second_;
};

TEST_F(SharedClusterTest, EntriesAreSpreadAndFoundThroughWhicheverNodeIsGiven) {
  Node a(first_->address()), b(second_->address());
  constexpr int kKeys = 20;
  for (int key = 0; key < kKeys; ++key) ASSERT_TRUE(a.Put(key, static_cast<uint8_t>(key + 1)));
  const auto size = [](const RedisProcess& node) { return std::atoi(node.Ask("DBSIZE").c_str()); };
  while (size(*first_) + size(*second_) < kKeys) std::this_thread::yield();
  EXPECT_GT(size(*first_), 0);
  EXPECT_GT(size(*second_), 0);
  for (int key = 0; key < kKeys; ++key) {
    EXPECT_TRUE(b.Has(key, static_cast<uint8_t>(key + 1))) << key;
  }
  ASSERT_TRUE(b.client().AdvanceEpoch("model").ok());
  while (size(*first_) + size(*second_) < kKeys + 1) std::this_thread::yield();
  Node c(first_->address());
  EXPECT_FALSE(c.Has(1, 2));
}

}  // namespace
}  // namespace embcache::client
