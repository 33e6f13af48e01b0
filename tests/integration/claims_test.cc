// Claims among real processes, and events told to real callers.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/session.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/integration/child_process.h"
#include "tests/integration/client_fixture.h"

namespace embcache::client {
namespace {

namespace v1 = embcache::v1;
using testing_support::Hear;
using testing_support::Say;

// Another process; tests/python starts it, too. Told the socket directory and a key's hash, in hex.
// It says "encodes" when it has to, and then waits for a line; at last "has" and the value's first
// byte.
TEST(OtherProcess, DISABLED_GetsOrEncodes) {
  ClientOptions options;
  options.socket_dir = Hear();
  options.role = Role::kWriter;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const Key key = {"m", absl::HexStringToBytes(Hear()), ""};
  const auto lease = (*client)->GetOrEncode(key, [](Claim& claim) -> absl::StatusOr<Reservation> {
    auto place = claim.Reserve(OneTensor(4));
    if (!place.ok()) return place;
    Say("encodes");
    Hear();
    const std::vector<uint8_t> bytes = Filled(5, 4);
    const absl::Status written = place->Write(0, Bytes(bytes));
    if (!written.ok()) return written;
    return place;
  });
  ASSERT_TRUE(lease.ok()) << lease.status();
  Say(absl::StrCat("has ", lease->data(0)[0]));
}

class ClaimsTest : public ClientTest {
 protected:
  explicit ClaimsTest(std::vector<std::string> flags = {}) : ClientTest(std::move(flags)) {}

  static absl::StatusOr<Reservation> Write(Claim& claim, uint8_t value) {
    auto place = claim.Reserve(OneTensor());
    if (!place.ok()) return place.status();
    const absl::Status written = place->Write(0, Bytes(Filled(value)));
    if (!written.ok()) return written;
    return place;
  }

  bool WaitersAre(uint64_t waiters) {
    return StatsBecome(*client_, [waiters](const json& stats) {
      return stats["claim_waits"].get<uint64_t>() >= waiters;
    });
  }
};

TEST_F(ClaimsTest, ClientsOfOneKeyEncodeItOnce) {
  constexpr int kCallers = 8;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kCallers; ++i) clients.push_back(MustConnect());
  std::atomic<int> encodes = 0;
  absl::Notification all_wait;
  std::vector<std::thread> threads;
  for (auto& client : clients) {
    threads.emplace_back([&] {
      const auto lease =
          client->GetOrEncode(MakeKey(1), [&](Claim& claim) -> absl::StatusOr<Reservation> {
            ++encodes;
            all_wait.WaitForNotification();
            return Write(claim, 7);
          });
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_TRUE(AllAre(lease->data(0), 7));
    });
  }
  EXPECT_TRUE(WaitersAre(kCallers - 1));
  all_wait.Notify();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(encodes, 1);
}

TEST_F(ClaimsTest, ThreadsOfOneClientEncodeOnceToo) {
  std::atomic<int> encodes = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      const auto lease =
          client_->GetOrEncode(MakeKey(1), [&](Claim& claim) -> absl::StatusOr<Reservation> {
            ++encodes;
            return Write(claim, 7);
          });
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_TRUE(AllAre(lease->data(0), 7));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(encodes, 1);
}

TEST_F(ClaimsTest, AnEncodeThatFailsHandsTheClaimOn) {
  auto claimed = client_->GetOrClaim(MakeKey(1));
  ASSERT_TRUE(claimed.ok() && claimed->claim.has_value());
  auto other = MustConnect();
  std::thread heir([&] {
    const auto lease = other->GetOrEncode(MakeKey(1), [](Claim& claim) { return Write(claim, 3); });
    ASSERT_TRUE(lease.ok()) << lease.status();
  });
  EXPECT_TRUE(WaitersAre(1));
  claimed->claim.reset();
  heir.join();
  EXPECT_TRUE(AllAre(MustGet(*client_, MakeKey(1)).data(0), 3));
}

TEST_F(ClaimsTest, AReaderWaitsForWhatOthersEncode) {
  auto reader = MustConnect(Role::kReader);
  std::thread waits([&] {
    auto found = reader->GetOrClaim(MakeKey(1), {.wait = absl::Seconds(30), .may_claim = false});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(found->lease.has_value());
  });
  EXPECT_TRUE(WaitersAre(1));
  EXPECT_TRUE(PutFilled(*client_, MakeKey(1), 5).ok());
  waits.join();
  EXPECT_EQ(reader->GetOrClaim(MakeKey(2)).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ClaimsTest, WhoWaitsTooLongIsToldSo) {
  auto claimed = client_->GetOrClaim(MakeKey(1));
  ASSERT_TRUE(claimed.ok() && claimed->claim.has_value());
  auto other = MustConnect();
  const auto late = other->GetOrClaim(MakeKey(1), {.wait = absl::Milliseconds(20)});
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->reason, MissReason::kClaimedElsewhere);
  EXPECT_FALSE(late->claim.has_value() || late->lease.has_value());
}

TEST_F(ClaimsTest, WhatIsAnnouncedIsToldBeforeTheBytesAreThere) {
  auto claimed = client_->GetOrClaim(MakeKey(1));
  ASSERT_TRUE(claimed.ok() && claimed->claim.has_value());
  auto place = claimed->claim->Reserve(OneTensor(), {.metadata = {{"grid", "1,2,3"}}});
  ASSERT_TRUE(place.ok()) << place.status();
  auto other = MustConnect();
  const auto pending = other->GetOrClaim(MakeKey(1), {.may_claim = false, .accept_pending = true});
  ASSERT_TRUE(pending.ok() && pending->pending.has_value()) << pending.status();
  EXPECT_EQ(pending->pending->metadata.at("grid"), "1,2,3");
  EXPECT_EQ(pending->pending->tensors[0].name, "main");
  ASSERT_TRUE(place->Commit().ok());
}

TEST_F(ClaimsTest, AKilledClaimerWakesTheNext) {
  // The claimer is a process of its own: embcachectl has no claims, so a fork that connects anew.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto client = daemon_.Connect(Role::kWriter, "claimer");
    auto claimed = client.ok() ? (*client)->GetOrClaim(MakeKey(1)) : client.status();
    const bool held = claimed.ok() && claimed->claim.has_value();
    if (write(ready[1], held ? "y" : "n", 1) == 1) pause();
    _exit(0);
  }
  close(ready[1]);  // so that the read ends if the child does
  char held = 0;
  ASSERT_EQ(read(ready[0], &held, 1), 1);
  ASSERT_EQ(held, 'y');
  std::thread heir([&] {
    auto found = client_->GetOrClaim(MakeKey(1), {.wait = absl::Seconds(30)});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(found->claim.has_value());
  });
  auto other = MustConnect();
  EXPECT_TRUE(StatsBecome(*other, [](const json& stats) { return stats["claim_waits"] == 1; }));
  const absl::Time killed = absl::Now();
  kill(child, SIGKILL);
  heir.join();
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10)) << "not by the claim's time to live";
  waitpid(child, nullptr, 0);
  close(ready[0]);
}

TEST_F(ClaimsTest, FiveHundredCallersWaitForOneKeyAndOthersAreServedMeanwhile) {
  constexpr int kWaiters = 500;
  auto claimed = client_->GetOrClaim(MakeKey(1));
  ASSERT_TRUE(claimed.ok() && claimed->claim.has_value());
  auto session = daemon_.Connect(Role::kWriter, "many");
  ASSERT_TRUE(session.ok());
  // Their own connections: one bears 128 calls at a time.
  std::vector<std::unique_ptr<v1::Cache::Stub>> stubs;
  for (int i = 0; i < 5; ++i) {
    stubs.push_back(v1::Cache::NewStub(internal::OpenChannel(daemon_.socket_dir())));
  }
  struct Call {
    grpc::ClientContext context;
    v1::GetResponse response;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GetResponse>> reader;
    grpc::Status status;
  };
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<Call>> calls;
  v1::GetRequest request;
  v1::Key* key = request.add_items()->mutable_key();
  key->set_model(MakeKey(1).model);
  key->set_content_hash(MakeKey(1).content_hash);
  key->set_variant(MakeKey(1).variant);
  request.set_on_miss(v1::ON_MISS_WAIT);
  request.set_wait_ms(60'000);
  for (int i = 0; i < kWaiters; ++i) {
    auto call = std::make_unique<Call>();
    call->reader = stubs[i % stubs.size()]->AsyncGet(&call->context, request, &queue);
    call->reader->Finish(&call->response, &call->status, call.get());
    calls.push_back(std::move(call));
  }
  EXPECT_TRUE(WaitersAre(kWaiters));
  EXPECT_TRUE(client_->Ping().ok());
  auto encoded = Write(*claimed->claim, 9);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  ASSERT_TRUE(encoded->Commit().ok());
  for (int i = 0; i < kWaiters; ++i) {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    const auto* call = static_cast<Call*>(tag);
    ASSERT_TRUE(call->status.ok()) << call->status.error_message();
    EXPECT_EQ(call->response.results(0).verdict(), v1::GetResult::HIT);
  }
  queue.Shutdown();
  EXPECT_TRUE(StatsBecome(*client_, [](const json& stats) {
    return stats["gets"].get<uint64_t>() ==
           stats["hits"].get<uint64_t>() + stats["misses"].get<uint64_t>();
  }));
}

TEST_F(ClaimsTest, AStoppingDaemonLetsNobodyWait) {
  auto claimed = client_->GetOrClaim(MakeKey(1));
  ASSERT_TRUE(claimed.ok() && claimed->claim.has_value());
  auto other = MustConnect();
  std::thread waits([&] {
    const auto found = other->GetOrClaim(MakeKey(1), {.wait = absl::Seconds(60)});
    EXPECT_TRUE(absl::IsUnavailable(found.status())) << found.status();
  });
  EXPECT_TRUE(WaitersAre(1));
  daemon_.Signal(SIGTERM);
  waits.join();
  EXPECT_EQ(daemon_.Wait(), 0);
}

class FewClaimsTest : public ClaimsTest {
 protected:
  FewClaimsTest() : ClaimsTest({"--max-claims-per-session=2"}) {}
};

TEST_F(FewClaimsTest, ASessionMayHoldSoManyClaimsAndOthersClaimOn) {
  auto first = client_->GetOrClaim(MakeKey(1)), second = client_->GetOrClaim(MakeKey(2));
  ASSERT_TRUE(first.ok() && first->claim && second.ok() && second->claim);
  EXPECT_TRUE(absl::IsResourceExhausted(client_->GetOrClaim(MakeKey(3)).status()));
  auto other = MustConnect();
  {
    const auto others = other->GetOrClaim(MakeKey(3));
    EXPECT_TRUE(others.ok() && others->claim.has_value()) << others.status();
  }
  first->claim.reset();
  const auto third = client_->GetOrClaim(MakeKey(4));
  EXPECT_TRUE(third.ok() && third->claim.has_value()) << third.status();
}

class ShortClaimsTest : public ClaimsTest {
 protected:
  ShortClaimsTest() : ClaimsTest({"--claim-ttl=100ms"}) {}
};

TEST_F(ShortClaimsTest, AClaimerThatTakesTooLongLosesItsClaimAndMayStillStore) {
  auto claimed = client_->GetOrClaim(MakeKey(1));
  ASSERT_TRUE(claimed.ok() && claimed->claim.has_value());
  auto other = MustConnect();
  auto heir = other->GetOrClaim(MakeKey(1), {.wait = absl::Seconds(30)});
  ASSERT_TRUE(heir.ok()) << heir.status();
  EXPECT_TRUE(heir->claim.has_value());
  auto late = Write(*claimed->claim, 4);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(late->Commit().ok());
  EXPECT_TRUE(AllAre(MustGet(*other, MakeKey(1)).data(0), 4));
}

// --- Events --------------------------------------------------------------------------------------

class WatchTest : public ClientTest {
 protected:
  explicit WatchTest(std::vector<std::string> flags = {}) : ClientTest(std::move(flags)) {}

  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<v1::Cache::Stub> stub;
    std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader;
    v1::WatchResponse response;
    int next = 0;

    // The next event; not set when the stream has ended.
    v1::Event Next() {
      while (next == response.events_size()) {
        next = 0;
        if (!reader->Read(&response)) return {};
      }
      return response.events(next++);
    }
  };

  std::unique_ptr<Watch> Start(const v1::WatchRequest& request = {}) {
    auto watch = std::make_unique<Watch>();
    watch->stub = v1::Cache::NewStub(internal::OpenChannel(daemon_.socket_dir()));
    watch->reader = watch->stub->Watch(&watch->context, request);
    return watch;
  }
};

TEST_F(WatchTest, AWatcherHearsWhatIsThereAndWhatHappens) {
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  const auto watch = Start();
  EXPECT_FALSE(watch->Next().snapshot().end());
  EXPECT_EQ(watch->Next().stored().key().content_hash(), MakeKey(1).content_hash);
  EXPECT_TRUE(watch->Next().snapshot().end());
  ASSERT_TRUE(PutFilled(*client_, MakeKey(2), 1).ok());
  const v1::Event stored = watch->Next();
  EXPECT_EQ(stored.stored().key().content_hash(), MakeKey(2).content_hash);
  ASSERT_TRUE(client_->Delete(MakeKey(2)).ok());
  const v1::Event removed = watch->Next();
  EXPECT_EQ(removed.removed().reason(), v1::Event::DELETED);
  EXPECT_EQ(removed.sequence(), stored.sequence() + 1);
  watch->context.TryCancel();
}

TEST_F(WatchTest, AWatcherThatHangsUpMakesRoomForAnother) {
  for (int i = 0; i < 100; ++i) {  // more than there may be at a time
    const auto watch = Start();
    ASSERT_TRUE(watch->Next().has_snapshot()) << i;
    watch->context.TryCancel();
    while (watch->Next().event_case() != v1::Event::EVENT_NOT_SET) {
    }
  }
}

TEST_F(WatchTest, ADrainingDaemonGoesOnTellingAndAStoppingOneEndsTheStream) {
  const auto watch = Start();
  EXPECT_TRUE(watch->Next().has_snapshot());
  EXPECT_TRUE(watch->Next().has_snapshot());
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 1).ok());
  {
    const Lease held = MustGet(*client_, MakeKey(1));  // keeps the drain from ending
    daemon_.Signal(SIGTERM);
    EXPECT_TRUE(Becomes([&] { return client_->draining(); }));
    EXPECT_TRUE(watch->Next().has_stored());
    ASSERT_TRUE(client_->Delete(MakeKey(1)).ok());
    EXPECT_TRUE(watch->Next().has_removed());
  }
  EXPECT_EQ(watch->Next().event_case(), v1::Event::EVENT_NOT_SET);
  EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(daemon_.Wait(), 0);
}

TEST_F(WatchTest, AWatcherThatDoesNotReadHoldsNobodyUp) {
  const auto stuck = Start();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(PutFilled(*client_, MakeKey(i % 50), 1).ok());
  }
  const auto other = Start();
  EXPECT_TRUE(other->Next().has_snapshot());
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0);
  stuck->context.TryCancel();
  other->context.TryCancel();
}

class FewWatchersTest : public WatchTest {
 protected:
  FewWatchersTest() : WatchTest({"--max-watchers=1"}) {}
};

TEST_F(FewWatchersTest, OneTooManyIsRefused) {
  const auto first = Start();
  EXPECT_TRUE(first->Next().has_snapshot());
  const auto second = Start();
  EXPECT_EQ(second->Next().event_case(), v1::Event::EVENT_NOT_SET);
  EXPECT_EQ(second->reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  first->context.TryCancel();
}

}  // namespace
}  // namespace embcache::client
