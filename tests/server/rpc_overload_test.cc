// Clients that do not read what they are answered: they are bounded, and nobody else notices.

#include <malloc.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/rpc_fixture.h"
#include "tests/server/unread_client.h"

namespace embcache {
namespace {

constexpr size_t kValueBytes = 100'000;

class RpcOverloadTest : public RpcServerTest {
 protected:
  void StartWith(AnswerLimits answers) {
    RpcServerOptions options;
    options.answers = answers;
    Start(std::move(options));
    PutOne(kValueBytes);
  }

  // What request_ asks for.
  void PutOne(size_t bytes) {
    auto put = SendPut("a", bytes);
    copier_.Await(1);
    copier_.RunAll();
    put->done.WaitForNotification();
    ASSERT_TRUE(put->status.ok()) << put->status.error_message();
    *request_.add_items()->mutable_key() = ProtoKey("a");
    request_.set_inline_limit(bytes);
  }

  grpc::Status Get(uint64_t* bytes = nullptr) {
    grpc::ClientContext context;
    v1::GetResponse response;
    grpc::Status status = stub_->Get(&context, request_, &response);
    if (bytes != nullptr && response.results_size() == 1) {
      *bytes = response.results(0).inline_().size();
    }
    return status;
  }

  uint64_t Gets() { return cache_->GetStats(/*per_model=*/false).gets; }
  // Until the daemon has handled that many gets, ever.
  void AwaitGets(uint64_t count) {
    while (Gets() < count) std::this_thread::yield();
  }

  void AskMany(UnreadClient* client, int calls) {
    for (int i = 0; i < calls; ++i) {
      client->Call("embcache.v1.Cache/Get", request_.SerializeAsString());
    }
  }

  v1::GetRequest request_;
};

TEST_F(RpcOverloadTest, WhoDoesNotReadIsRefusedAndTheOthersAreServed) {
  StartWith({.total = uint64_t{100} << 20, .per_connection = 3 * kValueBytes});
  UnreadClient slow(socket_);
  ASSERT_TRUE(slow.connected());
  AskMany(&slow, 50);
  // Three or four of its calls are looked up; the others are refused before that.
  AwaitGets(3);
  for (uint64_t i = 0; i < 100; ++i) {
    uint64_t bytes = 0;
    const grpc::Status status = Get(&bytes);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(bytes, kValueBytes);
  }
  EXPECT_LE(Gets(), 104u);
  EXPECT_LT(server_->unread_bytes(), 5 * kValueBytes);
  EXPECT_FALSE(slow.WasCut());
}

TEST_F(RpcOverloadTest, BeyondTheTotalTheSlowestReaderIsCut) {
  StartWith({.total = 5 * kValueBytes,
             .per_connection = uint64_t{100} << 20,
             .patience = absl::Hours(1)});
  UnreadClient greedy(socket_);
  AskMany(&greedy, 100);
  while (server_->unread_bytes() < 4 * kValueBytes) std::this_thread::yield();
  EXPECT_FALSE(greedy.WasCut());  // it is in nobody's way yet
  const grpc::Status status = Get();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(greedy.WasCut());
  // Those it was still being sent follow.
  while (server_->unread_bytes() > kValueBytes * 2) std::this_thread::yield();
}

TEST_F(RpcOverloadTest, LeasesInAnswersThatAreRefusedAreTakenBack) {
  StartWith({.total = uint64_t{100} << 20, .per_connection = 2 * kValueBytes});
  const Token session = OpenSession();
  UnreadClient slow(socket_);
  for (int i = 0; i < 20; ++i) {
    slow.Call("embcache.v1.Cache/Get", request_.SerializeAsString(), TokenToHex(session));
  }
  slow.Call("embcache.v1.Cache/AdvanceEpoch", "\x0a\x01m");  // the last to be handled
  while (cache_->GetStats(/*per_model=*/true).models.size() < 2) std::this_thread::yield();
  // Those it could still read, and no more.
  EXPECT_LE(registry_->GetStats().leases, 3u);
}

TEST_F(RpcOverloadTest, AStopDoesNotWaitForAnybodyToRead) {
  StartWith({});
  UnreadClient narrow(socket_);
  UnreadClient wide(socket_, /*wide=*/true);
  AskMany(&narrow, 20);
  AskMany(&wide, 20);
  AwaitGets(40);
  const absl::Time begin = absl::Now();
  server_->Shutdown(absl::Now() + absl::Milliseconds(100));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_EQ(server_->unread_bytes(), 0u);
}

TEST_F(RpcOverloadTest, SmallAnswersThatPileUpAreCountedAndWhoDoesNotReadThemIsCut) {
  RpcServerOptions options;
  options.max_in_flight = 16;
  options.answers = {.total = uint64_t{4} << 20, .patience = absl::ZeroDuration()};
  Start(std::move(options));
  UnreadClient slow(socket_);
  // Many more than its socket takes the answers of.
  for (int i = 0; i < 20'000; ++i) slow.Call("embcache.v1.Cache/Ping", "");
  while (!slow.WasCut()) std::this_thread::yield();
  EXPECT_TRUE(Ping().ok());
  while (server_->unread_bytes() > 0) std::this_thread::yield();
}

TEST_F(RpcOverloadTest, AnAnswerThatWaitsToBeReadIsInMemoryOnce) {
  constexpr uint64_t kAnswers = 25;
  const auto heap = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  RpcServerOptions options;
  options.threads = 1;
  Start(std::move(options));
  constexpr uint64_t kBytes = 1'000'000;
  PutOne(kBytes);
  EXPECT_TRUE(Get().ok());
  UnreadClient slow(socket_);
  const uint64_t before = heap();
  AskMany(&slow, kAnswers);
  AwaitGets(kAnswers + 1);
  EXPECT_TRUE(Ping().ok());  // by the same thread, which so has done with those before
  EXPECT_GE(server_->unread_bytes(), kAnswers * kBytes);
  EXPECT_LT(heap(), before + kAnswers * kBytes * 3 / 2);
}

TEST_F(RpcOverloadTest, AHundredSlowReadersAndAsManySilentOnesHurtNobody) {
  StartWith({.total = uint64_t{4} << 20, .per_connection = uint64_t{1} << 20});
  std::vector<std::unique_ptr<UnreadClient>> others;
  for (int i = 0; i < 100; ++i) {
    others.push_back(std::make_unique<UnreadClient>(socket_));
    others.push_back(std::make_unique<UnreadClient>(socket_));
    AskMany(others.back().get(), 16);
  }
  for (int served = 0; served < 200;) {
    const grpc::Status status = Get();
    // At worst it is refused at once, while the slowest reader is being cut.
    ASSERT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << status.error_message();
    served += status.ok() ? 1 : 0;
  }
  others.clear();
  while (server_->unread_bytes() > 0) std::this_thread::yield();
  EXPECT_TRUE(Get().ok());
}

}  // namespace
}  // namespace embcache
