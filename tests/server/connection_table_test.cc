#include "server/connection_table.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/unique_fd.h"

namespace embcache {
namespace {

std::pair<UniqueFd, UniqueFd> MakePair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Peer PeerOf(uid_t uid, bool admin = false) {
  return {.pid = 1, .uid = uid, .allowed = true, .admin = admin};
}

std::string NameOf(const UniqueFd& socket) { return absl::StrCat("fd:", socket.get()); }

TEST(ConnectionTableTest, FindsWhoseAConnectionIs) {
  ConnectionTable table({});
  const auto [ours, theirs] = MakePair();
  ASSERT_TRUE(table.Add(ours.get(), PeerOf(7, /*admin=*/true)).ok());
  EXPECT_EQ(table.Find(NameOf(ours))->uid, 7u);
  EXPECT_TRUE(table.Find(NameOf(ours))->admin);
  for (const char* other :
       {"", "fd:", "fd:99999", "unix:", "ipv4:127.0.0.1:80", "fd:-1", "fd:1x"}) {
    EXPECT_FALSE(table.Find(other).has_value()) << other;
  }
}

TEST(ConnectionTableTest, WhoIsNotAllowedIsRefused) {
  ConnectionTable table({});
  const auto [ours, theirs] = MakePair();
  EXPECT_EQ(table.Add(ours.get(), {.uid = 7}).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(table.Count(), 0u);
}

TEST(ConnectionTableTest, BoundsConnectionsInTotalAndOfOneUser) {
  ConnectionTable table({.total = 3, .per_uid = 2});
  std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
  const auto add = [&](uid_t uid) {
    pairs.push_back(MakePair());
    return table.Add(pairs.back().first.get(), PeerOf(uid)).code();
  };
  EXPECT_EQ(add(1), absl::StatusCode::kOk);
  EXPECT_EQ(add(1), absl::StatusCode::kOk);
  EXPECT_EQ(add(1), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(add(2), absl::StatusCode::kOk);
  EXPECT_EQ(add(3), absl::StatusCode::kResourceExhausted);
}

TEST(ConnectionTableTest, WhatWasClosedMakesRoom) {
  ConnectionTable table({.total = 2, .per_uid = 1});
  auto [first, other_end] = MakePair();
  ASSERT_TRUE(table.Add(first.get(), PeerOf(1)).ok());
  first.Reset();
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));  // takes the number over
  const auto [second, second_end] = MakePair();
  EXPECT_TRUE(table.Add(second.get(), PeerOf(1)).ok());
  EXPECT_EQ(table.Count(), 1u);
}

TEST(ConnectionTableTest, ANumberUsedAgainIsTheNewConnection) {
  ConnectionTable table({.total = 8, .per_uid = 1});
  auto [first, first_end] = MakePair();
  const int number = first.get();
  ASSERT_TRUE(table.Add(number, PeerOf(1, /*admin=*/true)).ok());
  first.Reset();
  const auto [second, second_end] = MakePair();
  ASSERT_EQ(second.get(), number);
  ASSERT_TRUE(table.Add(number, PeerOf(2)).ok());
  EXPECT_EQ(table.Find(NameOf(second))->uid, 2u);
  EXPECT_FALSE(table.Find(NameOf(second))->admin);
  // The first one's user has room again.
  const auto [third, third_end] = MakePair();
  EXPECT_TRUE(table.Add(third.get(), PeerOf(1)).ok());
}

TEST(ConnectionTableTest, CuttingEndsThatConnectionAndNoOther) {
  ConnectionTable table({});
  auto [cut, cut_end] = MakePair();
  const auto [kept, kept_end] = MakePair();
  ASSERT_TRUE(table.Add(cut.get(), PeerOf(1)).ok());
  ASSERT_TRUE(table.Add(kept.get(), PeerOf(1)).ok());
  table.Cut(NameOf(cut));
  char byte;
  EXPECT_EQ(recv(cut_end.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(recv(kept_end.get(), &byte, 1, MSG_DONTWAIT), -1);
  // A stranger that has got the number since is left alone.
  const std::string name = NameOf(cut);
  cut.Reset();
  const auto [stranger, stranger_end] = MakePair();
  ASSERT_EQ(NameOf(stranger), name);
  table.Cut(name);
  table.CutAll();
  EXPECT_EQ(recv(stranger_end.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(recv(kept_end.get(), &byte, 1, MSG_DONTWAIT), 0);
}

}  // namespace
}  // namespace embcache
