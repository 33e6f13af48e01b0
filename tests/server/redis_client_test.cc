// RedisConnection and RedisClient against servers that answer well, badly, or not at all.

#include "server/redis_client.h"

#include <sys/eventfd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/clock.h"
#include "tests/server/fake_redis.h"

namespace embcache {
namespace {

using Answer = FakeRedis::Answer;
using Command = FakeRedis::Command;

class RedisClientTest : public testing::Test {
 protected:
  static absl::Duration In(absl::Duration time) { return SystemClock()->MonotonicNow() + time; }

  absl::StatusOr<RedisReply> Call(const std::vector<absl::string_view>& command,
                                  uint64_t max_bytes = 100,
                                  absl::Duration patience = absl::Hours(1)) {
    return client_.Call(command[1], command, max_bytes, In(patience));
  }
  void AlwaysAnswer(const Answer& answer) {
    redis_.OnCommand([answer](const Command&) { return answer; });
  }

  const UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  FakeRedis redis_;
  RedisClient client_{{.address = redis_.address()}, stop_.get()};
};

TEST_F(RedisClientTest, SlotsAreThoseOfRedisCluster) {
  EXPECT_EQ(RedisSlot("123456789"), 0x31c3u % 16384);
  EXPECT_EQ(RedisSlot("foo"), 12182u);
  EXPECT_EQ(RedisSlot("{user1000}.following"), RedisSlot("user1000"));
  EXPECT_EQ(RedisSlot("foo{{bar}}zap"), RedisSlot("{bar"));
  EXPECT_NE(RedisSlot("foo{}{bar}"), RedisSlot("bar")) << "an empty tag is none";
  EXPECT_NE(RedisSlot("foo{bar"), RedisSlot("bar")) << "nor is one without an end";
}

TEST_F(RedisClientTest, EveryKindOfReplyIsUnderstood) {
  AlwaysAnswer({"+OK\r\n"});
  auto reply = Call({"SET", "k"});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->kind, RedisReply::Kind::kStatus);
  EXPECT_EQ(reply->text, "OK");
  AlwaysAnswer({"-ERR no\r\n"});
  EXPECT_EQ(Call({"SET", "k"})->kind, RedisReply::Kind::kError);
  AlwaysAnswer({":-42\r\n"});
  EXPECT_EQ(Call({"SET", "k"})->integer, -42);
  AlwaysAnswer({"$-1\r\n"});
  EXPECT_EQ(Call({"SET", "k"})->kind, RedisReply::Kind::kNil);
  AlwaysAnswer({"$0\r\n\r\n"});
  EXPECT_EQ(Call({"SET", "k"})->size, 0u);
  AlwaysAnswer({std::string("$5\r\na\r\n\0b\r\n", 11)});
  EXPECT_EQ(Call({"SET", "k"})->view(), absl::string_view("a\r\n\0b", 5));
  EXPECT_EQ(client_.connections(), 1u);
}

TEST_F(RedisClientTest, LargeArgumentsAndRepliesPass) {
  const std::string value(5 << 20, 'v');
  ASSERT_TRUE(Call({"SET", "k", value, "PX", "1"}).ok());
  EXPECT_TRUE(redis_.data()["k"] == value);
  auto reply = Call({"GETRANGE", "k", "0", "99999999"}, value.size());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->view() == value);
}

TEST_F(RedisClientTest, RubbishIsAnErrorAndTheConnectionIsMadeAnew) {
  for (const std::string& rubbish : std::vector<std::string>{
           "*3\r\n", "hello\r\n", "\r\n", ":12x\r\n", "$abc\r\n", "$-2\r\n", "$2\r\nabcd",
           "$99999999999999999999\r\n", std::string(10'000, '+')}) {
    AlwaysAnswer({rubbish});
    EXPECT_EQ(Call({"SET", "k"}).status().code(), absl::StatusCode::kInternal) << rubbish;
  }
  // What comes after a whole reply is not taken for the next one's.
  AlwaysAnswer({"+OK\r\n+OK\r\n"});
  EXPECT_TRUE(Call({"SET", "k"}).ok());
  EXPECT_EQ(Call({"SET", "k"}).status().code(), absl::StatusCode::kInternal);
  AlwaysAnswer({"+OK\r\n"});
  EXPECT_TRUE(Call({"SET", "k"}).ok());
}

TEST_F(RedisClientTest, AReplyLargerThanAllowedIsNotWaitedFor) {
  AlwaysAnswer({"$1000000000000\r\n"});  // and nothing more
  EXPECT_EQ(Call({"GETRANGE", "k"}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RedisClientTest, ACallEndsByItsDeadlineHoweverTheServerBehaves) {
  constexpr absl::Duration kShort = absl::Milliseconds(50);
  AlwaysAnswer({.hang = true});
  EXPECT_EQ(Call({"SET", "k"}, 100, kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  AlwaysAnswer({.bytes = "$50\r\nabc", .hang = true});
  EXPECT_EQ(Call({"SET", "k"}, 100, kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  AlwaysAnswer({.bytes = "$1000000\r\n", .trickle = true});
  EXPECT_EQ(Call({"SET", "k"}, 1000000, kShort).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  // One that reads nothing: the command does not fit the socket.
  AlwaysAnswer({.bytes = "+OK\r\n", .hang = true});
  ASSERT_TRUE(Call({"SET", "k"}).ok());
  const std::string large(64 << 20, 'v');
  EXPECT_EQ(Call({"SET", "k", large}, 100, kShort).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RedisClientTest, AStopEndsEveryWait) {
  AlwaysAnswer({.hang = true});
  std::thread stopper([&] {
    redis_.AwaitCount("SET", 1);
    eventfd_write(stop_.get(), 1);
  });
  EXPECT_EQ(Call({"SET", "k"}).status().code(), absl::StatusCode::kCancelled);
  stopper.join();
}

TEST_F(RedisClientTest, AnIdleConnectionThatWasClosedIsMadeAnew) {
  AlwaysAnswer({.bytes = "+OK\r\n", .close = true});
  EXPECT_TRUE(Call({"SET", "k"}).ok());
  EXPECT_TRUE(Call({"SET", "k"}).ok());
  EXPECT_EQ(client_.connections(), 2u);
  AlwaysAnswer({.close = true});
  EXPECT_EQ(Call({"SET", "k"}).status().code(), absl::StatusCode::kUnavailable) << "but once only";
}

TEST_F(RedisClientTest, WhoIsNotThereIsUnavailable) {
  redis_.Stop();
  EXPECT_EQ(Call({"SET", "k"}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RedisClientTest, LogsInAtEveryConnectionWithThePasswordOfThatTime) {
  const std::string path = testing::TempDir() + "/password";
  std::ofstream(path) << "first\n";
  RedisClient client({.address = redis_.address(), .user = "me", .password_file = path},
                     stop_.get());
  redis_.OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] == "AUTH") return std::nullopt;
    return Answer{.bytes = "+OK\r\n", .close = true};
  });
  ASSERT_TRUE(client.Call("k", {"SET", "k"}, 0, In(absl::Hours(1))).ok());
  std::ofstream(path) << "second\n";
  ASSERT_TRUE(client.Call("k", {"SET", "k"}, 0, In(absl::Hours(1))).ok());
  EXPECT_THAT(redis_.commands(), testing::IsSupersetOf({Command{"AUTH", "me", "first"},
                                                        Command{"AUTH", "me", "second"}}));
  redis_.OnCommand([](const Command&) { return Answer{.bytes = "-WRONGPASS\r\n", .close = true}; });
  EXPECT_EQ(client.Call("k", {"SET", "k"}, 0, In(absl::Hours(1))).status().code(),
            absl::StatusCode::kUnavailable);
  std::filesystem::remove(path);
}

class RedisClusterTest : public RedisClientTest {
 protected:
  // What the first node says of the slots of the other.
  Answer SentTo(const FakeRedis& node, const std::string& how) const {
    return {absl::StrCat("-", how, " ", RedisSlot("k"), " ", node.address().ToString(), "\r\n")};
  }

  FakeRedis other_;
};

TEST_F(RedisClusterTest, AMovedSlotIsAskedForWhereItIsAndThatIsRemembered) {
  AlwaysAnswer(SentTo(other_, "MOVED"));
  ASSERT_TRUE(Call({"SET", "k", "v"}).ok());
  ASSERT_TRUE(Call({"SET", "k", "w"}).ok());
  EXPECT_EQ(other_.data()["k"], "w");
  EXPECT_EQ(redis_.Count("SET"), 1u);
}

TEST_F(RedisClusterTest, ASlotOnItsWayIsAskedForThereButNotRemembered) {
  AlwaysAnswer(SentTo(other_, "ASK"));
  ASSERT_TRUE(Call({"SET", "k", "v"}).ok());
  ASSERT_TRUE(Call({"SET", "k", "w"}).ok());
  EXPECT_EQ(redis_.Count("SET"), 2u);
  EXPECT_THAT(other_.commands(), testing::ElementsAre(Command{"ASKING"}, Command{"SET", "k", "v"},
                                                      Command{"ASKING"}, Command{"SET", "k", "w"}));
}

TEST_F(RedisClusterTest, WhatAFailedNodeHadIsAskedForAtTheGivenAddressAgain) {
  AlwaysAnswer(SentTo(other_, "MOVED"));
  ASSERT_TRUE(Call({"SET", "k", "v"}).ok());
  other_.Stop();
  redis_.OnCommand(nullptr);  // it has taken the slot over
  EXPECT_FALSE(Call({"SET", "k", "w"}).ok());
  EXPECT_TRUE(Call({"SET", "k", "w"}).ok());
  EXPECT_EQ(redis_.data()["k"], "w");
}

TEST_F(RedisClusterTest, NodesThatSendInACircleAreAnError) {
  AlwaysAnswer(SentTo(other_, "MOVED"));
  const Answer back = SentTo(redis_, "MOVED");
  other_.OnCommand([back](const Command&) { return back; });
  EXPECT_EQ(Call({"SET", "k", "v"}).status().code(), absl::StatusCode::kUnavailable);
  AlwaysAnswer({"-MOVED nowhere\r\n"});
  RedisClient client({.address = redis_.address()}, stop_.get());
  EXPECT_EQ(client.Call("k", {"SET", "k"}, 0, In(absl::Hours(1))).status().code(),
            absl::StatusCode::kInternal);
}

TEST(RedisAddressTest, IsAHostAndPortOrASocket) {
  EXPECT_EQ(ParseRedisAddress("cache.example:6379")->host, "cache.example");
  EXPECT_EQ(ParseRedisAddress("[::1]:6379")->ToString(), "[::1]:6379");
  EXPECT_EQ(ParseRedisAddress("unix:/run/redis.sock")->unix_path, "/run/redis.sock");
  EXPECT_FALSE(ParseRedisAddress("cache.example").ok());
  EXPECT_FALSE(ParseRedisAddress("unix:redis.sock").ok());
  EXPECT_FALSE(ParseRedisAddress("unix:/" + std::string(108, 'x')).ok());
}

}  // namespace
}  // namespace embcache
