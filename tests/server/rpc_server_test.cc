// The transport over a real service: real sockets, real clients, and copies that end when the test
// says so.

#include "server/rpc_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/server/rpc_fixture.h"
#include "tests/server/service_calls.h"

namespace embcache {
namespace {

using testing::HasSubstr;

TEST_F(RpcServerTest, AnswersOverTheUnixSocket) {
  Start();
  grpc::ClientContext context;
  v1::GetRequest request;
  *request.add_items()->mutable_key() = ProtoKey("a");
  v1::GetResponse response;
  const grpc::Status status = stub_->Get(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.results(0).verdict(), v1::GetResult::MISS);
  EXPECT_EQ(response.results(0).reason(), v1::GetResult::ABSENT);
}

TEST_F(RpcServerTest, PollersAnswerAQuestionUnlessOneOfThemHangs) {
  absl::Notification hanging, go_on;
  admin_ = std::make_unique<AdminService>(
      AdminServiceDeps{.cache = cache_.get(), .registry = registry_.get(), .drain = [&] {
                         hanging.Notify();
                         go_on.WaitForNotification();
                       }});
  Start({.threads = 2});
  absl::Notification answered;
  server_->AskPollers([&] { answered.Notify(); });
  answered.WaitForNotification();

  std::thread drain([&] {
    grpc::ClientContext context;
    v1::DrainResponse response;
    EXPECT_TRUE(v1::Admin::NewStub(channel_)->Drain(&context, {}, &response).ok());
  });
  hanging.WaitForNotification();
  absl::Notification answered_late;
  server_->AskPollers([&] { answered_late.Notify(); });
  EXPECT_FALSE(answered_late.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  go_on.Notify();
  answered_late.WaitForNotification();
  drain.join();
}

TEST_F(RpcServerTest, BothServicesShareTheSocket) {
  Start();
  grpc::ClientContext context;
  v1::SessionsResponse response;
  EXPECT_TRUE(v1::Admin::NewStub(channel_)->Sessions(&context, {}, &response).ok());
}

TEST_F(RpcServerTest, AnswersOverTcpToo) {
  RpcServerOptions options;
  options.tcp_address = "127.0.0.1:0";
  Start(std::move(options));
  ASSERT_NE(server_->tcp_port(), 0);
  EXPECT_TRUE(Ping().ok());
}

TEST_F(RpcServerTest, ATcpPortInUseIsRefused) {
  RpcServerOptions options;
  options.tcp_address = "127.0.0.1:0";
  Start(std::move(options));
  RpcServerOptions second;
  second.tcp_address = absl::StrCat("127.0.0.1:", server_->tcp_port());
  EXPECT_EQ(RpcServer::Start(std::move(second), service_.get(), admin_.get()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(RpcServerTest, ErrorsKeepTheirCodeAndMessage) {
  Start();
  grpc::ClientContext context;
  v1::GetRequest request;
  request.set_inline_limit(uint64_t{1} << 40);
  v1::GetResponse response;
  const grpc::Status status = stub_->Get(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("inline_limit: 1099511627776"));
}

TEST_F(RpcServerTest, TheSessionTokenIsReadFromTheMetadata) {
  Start();
  EXPECT_TRUE(Ping(TokenToHex(OpenSession())).ok());
  EXPECT_EQ(Ping(std::string(32, 'a')).error_code(), grpc::StatusCode::NOT_FOUND);
  for (const std::string& malformed :
       {std::string("zz"), std::string(31, 'a'), std::string(33, 'a'), std::string(32, 'g')}) {
    EXPECT_EQ(Ping(malformed).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << malformed;
  }
}

TEST_F(RpcServerTest, TheSocketHasTheModeAskedForWhateverTheUmask) {
  const mode_t before = umask(0);
  RpcServerOptions options;
  options.access.mode = 0600;
  Start(std::move(options));
  umask(before);
  struct stat found;
  ASSERT_EQ(stat(socket_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(RpcServerTest, AStaleSocketIsReplacedAndAnythingElseLeftAlone) {
  Start();
  // As after kill -9: a socket that nobody serves.
  ASSERT_EQ(rename(socket_.c_str(), (socket_ + "2").c_str()), 0);
  server_.reset();
  ASSERT_EQ(rename((socket_ + "2").c_str(), socket_.c_str()), 0);
  Start();
  EXPECT_TRUE(Ping().ok());
  server_.reset();

  const int file = open(socket_.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  close(file);
  RpcServerOptions options;
  options.unix_socket = socket_;
  EXPECT_EQ(RpcServer::Start(std::move(options), service_.get(), admin_.get()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(access(socket_.c_str(), F_OK), 0);
}

TEST_F(RpcServerTest, TwoHundredConcurrentCallsAreAllAnswered) {
  Start();
  constexpr int kCalls = 200;
  std::vector<PendingCall<v1::GetResponse>> calls(kCalls);
  absl::BlockingCounter answered(kCalls);
  v1::GetRequest request;
  *request.add_items()->mutable_key() = ProtoKey("a");
  for (auto& call : calls) {
    stub_->async()->Get(&call.context, &request, &call.response, [&](grpc::Status status) {
      call.status = std::move(status);
      answered.DecrementCount();
    });
  }
  answered.Wait();
  for (const auto& call : calls) {
    EXPECT_TRUE(call.status.ok()) << call.status.error_message();
    EXPECT_EQ(call.response.results_size(), 1);
  }
}

TEST_F(RpcServerTest, CallsBeyondTheBoundAreRefusedAtOnceAndTheOthersGoOn) {
  RpcServerOptions options;
  options.max_in_flight = 3;
  Start(std::move(options));
  auto a = SendPut("a");
  auto b = SendPut("b");
  auto c = SendPut("c");
  copier_.Await(3);
  const grpc::Status refused = Ping();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("handles 3"));
  copier_.RunAll();
  for (auto* call : {a.get(), b.get(), c.get()}) {
    call->done.WaitForNotification();
    EXPECT_TRUE(call->status.ok());
    EXPECT_EQ(call->response.results(0).status().code(), 0);
  }
  EXPECT_TRUE(Ping().ok());
}

TEST_F(RpcServerTest, RequestsOverTheSizeLimitAreRefused) {
  RpcServerOptions options;
  options.max_message_bytes = 10'000;
  Start(std::move(options));
  grpc::ClientContext context;
  v1::PutRequest request;
  *request.add_items() = ProtoItem("a", 20'000);
  v1::PutResponse response;
  const grpc::Status status = stub_->Put(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcServerTest, ShutdownLetsCallsInFlightFinish) {
  Start();
  auto put = SendPut("a");
  copier_.Await(1);
  std::thread stopping([this] { server_->Shutdown(absl::InfiniteFuture()); });
  copier_.RunAll();
  put->done.WaitForNotification();
  EXPECT_TRUE(put->status.ok()) << put->status.error_message();
  stopping.join();
  EXPECT_FALSE(Ping().ok());
}

TEST_F(RpcServerTest, ShutdownPastItsDeadlineCancelsClientsButWaitsForHandlers) {
  Start();
  auto put = SendPut("a");
  copier_.Await(1);
  absl::Notification stopped;
  std::thread stopping([&] {
    server_->Shutdown(absl::Now());
    stopped.Notify();
  });
  put->done.WaitForNotification();
  EXPECT_FALSE(put->status.ok());
  // The handler still owns its request and response, so the server must still be there.
  EXPECT_FALSE(stopped.HasBeenNotified());
  copier_.RunAll();
  stopping.join();
}

TEST_F(RpcServerTest, WhatACallerThatWentAwayWasGivenIsTakenBack) {
  Start();
  auto put = SendPut("a", 900'000);
  copier_.Await(1);
  copier_.RunAll();
  put->done.WaitForNotification();
  // Has to wait for room: "a" is copied to the second tier first.
  PendingCall<v1::ReserveResponse> reserve;
  reserve.context.AddMetadata("embcache-session", TokenToHex(OpenSession()));
  v1::ReserveRequest request;
  *request.add_items() = ProtoItem("b", 900'000);
  request.mutable_items(0)->clear_inline_();
  stub_->async()->Reserve(&reserve.context, &request, &reserve.response,
                          [&reserve](grpc::Status status) {
                            reserve.status = std::move(status);
                            reserve.done.Notify();
                          });
  copier_.Await(2);
  reserve.context.TryCancel();
  reserve.done.WaitForNotification();
  EXPECT_EQ(reserve.status.error_code(), grpc::StatusCode::CANCELLED);
  // Behind the cancellation on the same connection: when it is answered, the server knows.
  EXPECT_TRUE(Ping().ok());
  copier_.RunAll();
  server_->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(cache_->GetStats(/*per_model=*/false).reservations, 0u);
  EXPECT_EQ(registry_->GetStats().reservations, 0u);
}

TEST_F(RpcServerTest, HealthFollowsSetServing) {
  Start();
  EXPECT_EQ(Health(""), 2);
  EXPECT_EQ(Health("embcache.v1.Cache"), 2);
  server_->SetServing(true);
  EXPECT_EQ(Health(""), 1);
  EXPECT_EQ(Health("embcache.v1.Cache"), 1);
  server_->SetServing(false);
  EXPECT_EQ(Health("embcache.v1.Cache"), 2);
  std::string response;
  EXPECT_EQ(RawCall("/grpc.health.v1.Health/Check", "\x0a\x01x", &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcServerTest, ReflectionListsTheServices) {
  Start();
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto stream = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  ASSERT_TRUE(next());
  // ServerReflectionRequest{list_services: "*"}
  grpc::Slice slice(std::string("\x3a\x01*"));
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer received;
  stream->Read(&received, nullptr);
  ASSERT_TRUE(next());
  grpc::Slice answer;
  ASSERT_TRUE(received.DumpToSingleSlice(&answer).ok());
  const std::string text(reinterpret_cast<const char*>(answer.begin()), answer.size());
  EXPECT_THAT(text, HasSubstr("embcache.v1.Cache"));
  EXPECT_THAT(text, HasSubstr("embcache.v1.Admin"));
  EXPECT_THAT(text, HasSubstr("grpc.health.v1.Health"));
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(next());
  EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace embcache
