// Admin.Resize with all that it takes: the cache, the resizer, and sessions on a control socket.

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/admin_service.h"
#include "server/control_socket.h"
#include "server/idle_shrinker.h"
#include "server/resizer.h"
#include "server/segment_board.h"
#include "tests/server/cache_fixture.h"
#include "tests/server/control_client.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kSegment = uint64_t{1} << 19;  // of which L1 has two

v1::ClientPacket ModernHello() {
  v1::ClientPacket packet = HelloPacket();
  packet.mutable_hello()->set_segment_changes(true);
  return packet;
}

v1::ClientPacket Seen(uint64_t change) {
  v1::ClientPacket packet;
  packet.mutable_segments_seen()->set_change(change);
  return packet;
}

class ResizeCallTest : public CacheFixture {
 protected:
  struct Call {
    v1::ResizeRequest request;
    v1::ResizeResponse response;
    absl::Status status;
    absl::Notification done;
  };

  ResizeCallTest() : registry_(SessionLimits{}, cache_.get(), &clock_) {
    char name[] = "/tmp/resize.XXXXXX";
    dir_ = mkdtemp(name);
    options_.path = dir_ + "/control.sock";
    options_.tick_period = absl::Milliseconds(1);
    options_.board = &board_;
  }
  ~ResizeCallTest() override {
    if (resizer_ != nullptr) resizer_->Stop();
    control_.reset();
    unlink(options_.path.c_str());
    rmdir(dir_.c_str());
  }

  void Start() {
    StartControl();
    StartResizer();
  }
  void StartControl() {
    auto control = ControlSocket::Start(
        options_, &registry_,
        [this] {
          WelcomeInfo info;
          info.segments_version = cache_->segments_version();
          info.segments = cache_->Segments();
          return info;
        },
        [this] { cache_->Tick(); });
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = *std::move(control);
  }
  void StartResizer() {
    resizer_ =
        std::make_unique<Resizer>(cache_.get(), &board_, [this](TierId) { return free_.load(); });
    admin_ = std::make_unique<AdminService>(
        AdminServiceDeps{.cache = cache_.get(), .registry = &registry_, .resizer = resizer_.get()});
  }

  std::unique_ptr<Call> Resize(uint64_t bytes, absl::Duration timeout = absl::InfiniteDuration(),
                               v1::Tier tier = v1::L1, Caller caller = Caller::kAdmin) {
    auto call = std::make_unique<Call>();
    call->request.set_tier(tier);
    call->request.set_capacity_bytes(bytes);
    CallContext context{.caller = caller, .deadline = absl::Now() + timeout};
    admin_->Resize(context, call->request, &call->response,
                   [call = call.get()](absl::Status status) {
                     call->status = std::move(status);
                     call->done.Notify();
                   });
    return call;
  }
  std::unique_ptr<Call> ResizeNow(uint64_t bytes, absl::Duration timeout = absl::InfiniteDuration(),
                                  v1::Tier tier = v1::L1) {
    auto call = Resize(bytes, timeout, tier);
    call->done.WaitForNotification();
    return call;
  }

  // Without a deadline for its pins.
  std::unique_ptr<Call> ResizeForNow(uint64_t bytes, uint64_t choice) {
    auto call = std::make_unique<Call>();
    resizer_->ResizeForNow(
        TierId::kL1,
        {bytes, choice, absl::InfiniteFuture(), [this] { return worth_waiting_.load(); }},
        [call = call.get()](absl::StatusOr<Resizer::Resized> resized) {
          call->status = resized.status();
          call->done.Notify();
        });
    return call;
  }

  static v1::SegmentsChanged NextChange(ControlClient& client) {
    const auto packet = client.Receive();
    EXPECT_TRUE(packet.has_value() && packet->has_segments_changed());
    return packet.has_value() ? packet->segments_changed() : v1::SegmentsChanged();
  }

  std::string dir_;
  ControlSocketOptions options_;
  std::atomic<uint64_t> free_ = uint64_t{1} << 40;
  std::atomic<bool> worth_waiting_ = true;
  SessionRegistry registry_;
  SegmentBoard board_;
  std::unique_ptr<ControlSocket> control_;
  std::unique_ptr<Resizer> resizer_;
  std::unique_ptr<AdminService> admin_;
};

TEST_F(ResizeCallTest, ASessionIsToldWhatGoesAndTheAnswerWaitsForIts) {
  Start();
  ControlClient client(options_.path);
  EXPECT_EQ(client.SayHello(ModernHello()).segments_size(), 2);
  const std::weak_ptr<const MemorySegment> going = cache_->Segments()[1].memory;
  auto call = Resize(kSegment);
  const v1::SegmentsChanged change = NextChange(client);
  ASSERT_EQ(change.removed_size(), 1);
  EXPECT_EQ(change.removed(0), 1u);
  EXPECT_EQ(change.added_size(), 0);
  EXPECT_FALSE(call->done.HasBeenNotified());
  EXPECT_FALSE(going.expired()) << "the memory is there until it has answered";
  EXPECT_TRUE(client.Send(Seen(change.change())));
  call->done.WaitForNotification();
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_EQ(call->response.previous_bytes(), 2 * kSegment);
  EXPECT_EQ(call->response.capacity_bytes(), kSegment);
  EXPECT_EQ(cache_->GetStats(false).memory[0].capacity_bytes, kSegment);
  EXPECT_TRUE(going.expired());
}

TEST_F(ResizeCallTest, ASessionGetsNewSegmentsBeforeAnythingIsInThem) {
  Start();
  ControlClient client(options_.path);
  client.SayHello(ModernHello());
  const size_t before = client.descriptors().size();
  auto call = ResizeNow(4 * kSegment);
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_EQ(call->response.capacity_bytes(), 4 * kSegment);
  // It was sent before the answer, so it is there.
  const v1::SegmentsChanged change = NextChange(client);
  ASSERT_EQ(change.added_size(), 2);
  ASSERT_EQ(client.descriptors().size(), before + 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(change.added(i).passed_by_descriptor());
    EXPECT_EQ(change.added(i).segment().id(), static_cast<uint32_t>(2 + i));
    struct stat file = {};
    EXPECT_EQ(fstat(client.descriptors()[before + static_cast<size_t>(i)].get(), &file), 0);
    EXPECT_EQ(static_cast<uint64_t>(file.st_size), kSegment);
  }
}

TEST_F(ResizeCallTest, NewSegmentsAreNotUsedBeforeTheControlThreadHasTold) {
  StartResizer();
  auto call = Resize(4 * kSegment);
  while (cache_->Segments().size() < 4) std::this_thread::yield();
  EXPECT_FALSE(call->done.HasBeenNotified());
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 2 * kSegment);
  StartControl();
  call->done.WaitForNotification();
  EXPECT_TRUE(call->status.ok()) << call->status;
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 4 * kSegment);
}

TEST_F(ResizeCallTest, ATooLargeSegmentIsReplacedByASmallerOne) {
  Start();
  ControlClient client(options_.path);
  client.SayHello(ModernHello());
  auto call = Resize(kSegment + kSegment / 2);
  const v1::SegmentsChanged went = NextChange(client);
  ASSERT_EQ(went.removed_size(), 1);
  EXPECT_TRUE(client.Send(Seen(went.change())));
  call->done.WaitForNotification();
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_EQ(call->response.capacity_bytes(), kSegment + kSegment / 2);
  const v1::SegmentsChanged came = NextChange(client);
  ASSERT_EQ(came.added_size(), 1);
  EXPECT_EQ(came.added(0).segment().bytes(), kSegment / 2);
}

TEST_F(ResizeCallTest, ASessionThatNeverAnswersHoldsNothingUpForLong) {
  options_.segments_patience = absl::Milliseconds(20);
  Start();
  ControlClient silent(options_.path);
  const Token session = TokenOf(silent.SayHello(ModernHello()));
  const std::weak_ptr<const MemorySegment> going = cache_->Segments()[1].memory;
  auto call = ResizeNow(kSegment);
  EXPECT_TRUE(call->status.ok()) << call->status;
  EXPECT_TRUE(going.expired());
  EXPECT_TRUE(registry_.Check(session, false).ok()) << "it keeps its connection";
  EXPECT_TRUE(silent.Send(Seen(NextChange(silent).change()))) << "and may still answer";
  ControlClient other(options_.path);
  EXPECT_EQ(other.SayHello(ModernHello()).segments_size(), 1);
}

TEST_F(ResizeCallTest, ASessionThatEndsMeanwhileIsNotWaitedFor) {
  options_.segments_patience = absl::Hours(1);
  Start();
  ControlClient client(options_.path);
  client.SayHello(ModernHello());
  auto call = Resize(kSegment);
  NextChange(client);
  client.Close();
  call->done.WaitForNotification();
  EXPECT_TRUE(call->status.ok()) << call->status;
}

TEST_F(ResizeCallTest, AClientThatKnowsNoChangesConnectsAnewAndGoesOn) {
  options_.segments_patience = absl::Milliseconds(20);
  Start();
  ControlClient old(options_.path);
  old.SayHello();
  auto grown = ResizeNow(4 * kSegment);
  EXPECT_TRUE(grown->status.ok()) << grown->status;
  EXPECT_TRUE(old.AwaitEnd());
  ControlClient again(options_.path);
  EXPECT_EQ(again.SayHello().segments_size(), 4);
  auto shrunk = ResizeNow(kSegment);
  EXPECT_TRUE(shrunk->status.ok()) << shrunk->status;
  EXPECT_TRUE(again.AwaitEnd());
  EXPECT_EQ(ControlClient(options_.path).SayHello().segments_size(), 1);
}

TEST_F(ResizeCallTest, ManyNewSegmentsComeInSeveralPackets) {
  Start();
  ControlClient client(options_.path);
  client.SayHello(ModernHello());
  auto call = ResizeNow(102 * kSegment);
  ASSERT_TRUE(call->status.ok()) << call->status;
  const v1::SegmentsChanged first = NextChange(client);
  const v1::SegmentsChanged second = NextChange(client);
  EXPECT_EQ(first.added_size(), 64);
  EXPECT_EQ(second.added_size(), 36);
  EXPECT_EQ(first.change(), second.change());
}

TEST_F(ResizeCallTest, WhatStaysPinnedUntilTheDeadlineIsAnErrorWithTheNumbers) {
  Start();
  // The first fills its segment so far that the second goes to the other.
  std::vector<ReadHandle> pins;
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) pins.push_back(Pin(std::to_string(i)));
  auto call = ResizeNow(kSegment, absl::Milliseconds(40));
  EXPECT_EQ(call->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(call->status.message()),
      AllOf(HasSubstr("has 1048576 bytes instead of 524288, and had 1048576"), HasSubstr("of")));
  // Its segment is in use as before, and leaves when the pins are gone.
  pins.clear();
  call = ResizeNow(kSegment);
  EXPECT_TRUE(call->status.ok()) << call->status;
}

TEST_F(ResizeCallTest, MoreMemoryThanThereIsIsRefusedWithBothNumbersAndChangesNothing) {
  Start();
  free_ = 1000;
  auto call = ResizeNow(4 * kSegment);
  EXPECT_EQ(call->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(call->status.message()),
              AllOf(HasSubstr("1048576 bytes more"), HasSubstr("only 1000 are available")));
  EXPECT_EQ(cache_->Segments().size(), 2u);
}

TEST_F(ResizeCallTest, TheTierAndTheCapacityHaveToMakeSense) {
  Start();
  EXPECT_EQ(ResizeNow(kSegment, absl::Seconds(9), v1::L3)->status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ResizeNow(uint64_t{1} << 39)->status.code(), absl::StatusCode::kInvalidArgument)
      << "more than 4096 segments";
  // A tier is not lost by rounding down to nothing.
  const absl::Status least = ResizeNow(1)->status;
  EXPECT_EQ(least.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(least.message()), HasSubstr("capacity_bytes: 1; must be 0 or at least"));
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 2 * kSegment);
  const absl::Status none = ResizeNow(0)->status;
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("l2 has no memory either"));
}

TEST_F(ResizeCallTest, ATierThatWasOffCanBeHad) {
  Start();
  auto call = ResizeNow(kSegment, absl::InfiniteDuration(), v1::L2);
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_EQ(call->response.previous_bytes(), 0u);
  EXPECT_EQ(call->response.capacity_bytes(), kSegment);
  EXPECT_TRUE(ResizeNow(0)->status.ok()) << "now L1 may go";
  EXPECT_EQ(cache_->GetStats(false).memory[0].capacity_bytes, 0u);
}

TEST_F(ResizeCallTest, OneAtATimeAndForAdministrators) {
  options_.segments_patience = absl::Hours(1);
  Start();
  ControlClient client(options_.path);
  client.SayHello(ModernHello());
  auto first = Resize(kSegment);
  const v1::SegmentsChanged change = NextChange(client);
  EXPECT_EQ(ResizeNow(4 * kSegment)->status.code(), absl::StatusCode::kAborted);
  auto other = Resize(kSegment, absl::Seconds(9), v1::L1, Caller::kLocal);
  EXPECT_EQ(other->status.code(), absl::StatusCode::kPermissionDenied);
  client.Send(Seen(change.change()));
  first->done.WaitForNotification();
  EXPECT_TRUE(first->status.ok()) << first->status;
}

TEST_F(ResizeCallTest, WhatIsForNowDoesNotChangeWhatIsChosen) {
  Start();
  EXPECT_EQ(resizer_->chosen(TierId::kL1).capacity_bytes, 2 * kSegment);
  auto shrunk = ResizeForNow(kSegment, 0);
  shrunk->done.WaitForNotification();
  EXPECT_TRUE(shrunk->status.ok()) << shrunk->status;
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), kSegment);
  EXPECT_EQ(resizer_->chosen(TierId::kL1).capacity_bytes, 2 * kSegment);
  EXPECT_EQ(resizer_->chosen(TierId::kL1).number, 0u);
  // An operator may choose what it happens to have.
  EXPECT_TRUE(ResizeNow(kSegment)->status.ok());
  EXPECT_EQ(resizer_->chosen(TierId::kL1).capacity_bytes, kSegment);
  EXPECT_EQ(resizer_->chosen(TierId::kL1).number, 1u);
  free_ = 0;
  EXPECT_FALSE(ResizeNow(4 * kSegment)->status.ok());
  EXPECT_EQ(resizer_->chosen(TierId::kL1).number, 1u) << "nothing changed";
}

TEST_F(ResizeCallTest, WhatIsForNowAndWasMeantForAnotherChoiceIsAborted) {
  Start();
  EXPECT_TRUE(ResizeNow(3 * kSegment)->status.ok());
  auto late = ResizeForNow(kSegment, 0);
  late->done.WaitForNotification();
  EXPECT_EQ(late->status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 3 * kSegment);
}

TEST_F(ResizeCallTest, AnOperatorDoesNotWaitForPinsThatSomethingForNowWaitsFor) {
  Start();
  std::vector<ReadHandle> pins;
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) pins.push_back(Pin(std::to_string(i)));
  auto for_now = ResizeForNow(kSegment, 0);
  while (cache_->AwaitShrunk(TierId::kL1, absl::InfinitePast())) std::this_thread::yield();
  auto another = ResizeForNow(kSegment, 0);
  another->done.WaitForNotification();
  EXPECT_EQ(another->status.code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(for_now->done.HasBeenNotified());
  auto operators = ResizeNow(4 * kSegment);
  EXPECT_TRUE(operators->status.ok()) << operators->status;
  EXPECT_TRUE(for_now->done.HasBeenNotified());
  EXPECT_EQ(for_now->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(resizer_->chosen(TierId::kL1).capacity_bytes, 4 * kSegment);
}

TEST_F(ResizeCallTest, WhatIsForNowDoesNotWaitForPinsLongerThanItIsWorth) {
  Start();
  std::vector<ReadHandle> pins;
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) pins.push_back(Pin(std::to_string(i)));
  auto call = ResizeForNow(kSegment, 0);
  while (cache_->AwaitShrunk(TierId::kL1, absl::InfinitePast())) std::this_thread::yield();
  worth_waiting_ = false;
  call->done.WaitForNotification();
  EXPECT_EQ(call->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 2 * kSegment);
}

TEST_F(ResizeCallTest, AnIdleL1GivesItsMemoryBackAndTakesItAgain) {
  Start();
  ControlClient client(options_.path);
  client.SayHello(ModernHello());
  IdleShrinker idle({absl::Minutes(10), 0}, MakeIdleL1(cache_.get(), resizer_.get(), &board_),
                    &clock_);
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) Pin(std::to_string(i));
  idle.Tick();
  clock_.Advance(absl::Minutes(10));
  idle.Tick();
  const v1::SegmentsChanged went = NextChange(client);
  ASSERT_EQ(went.removed_size(), 1);
  EXPECT_TRUE(client.Send(Seen(went.change())));
  while (idle.given_back_bytes() != kSegment) std::this_thread::yield();
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), kSegment);
  cache_->Lookup(Key("absent"), {}, [](absl::StatusOr<LookupResult>) {});
  idle.Tick();
  EXPECT_EQ(NextChange(client).added_size(), 1);
  while (idle.given_back_bytes() != 0) std::this_thread::yield();
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 2 * kSegment);
  resizer_->Stop();
}

TEST_F(ResizeCallTest, WhatASilentClientStillHasIsKnownUntilItAnswers) {
  options_.segments_patience = absl::ZeroDuration();
  Start();
  ControlClient silent(options_.path);
  silent.SayHello(ModernHello());
  EXPECT_TRUE(ResizeNow(kSegment)->status.ok());
  EXPECT_TRUE(board_.held());
  EXPECT_TRUE(ResizeNow(2 * kSegment)->status.ok());
  EXPECT_TRUE(board_.held());
  EXPECT_TRUE(silent.Send(Seen(NextChange(silent).change())));
  while (board_.held()) std::this_thread::yield();
}

TEST_F(ResizeCallTest, AUseEndsTheWaitForPinsOfAnIdleL1) {
  Start();
  IdleShrinker idle({absl::Minutes(10), 0}, MakeIdleL1(cache_.get(), resizer_.get(), &board_),
                    &clock_);
  std::vector<ReadHandle> pins;
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) pins.push_back(Pin(std::to_string(i)));
  while (cache_->AwaitShrunk(TierId::kL1, absl::InfinitePast())) {
    clock_.Advance(absl::Minutes(10));
    idle.Tick();
    std::this_thread::yield();
  }
  cache_->Lookup(Key("absent"), {}, [](absl::StatusOr<LookupResult>) {});
  while (!cache_->AwaitShrunk(TierId::kL1, absl::InfinitePast())) std::this_thread::yield();
  EXPECT_EQ(cache_->capacity_bytes(TierId::kL1), 2 * kSegment);
  // Later it is tried again.
  pins.clear();
  while (idle.given_back_bytes() != kSegment) {
    clock_.Advance(absl::Minutes(1));
    idle.Tick();
    std::this_thread::yield();
  }
  resizer_->Stop();
}

TEST_F(ResizeCallTest, AStopDoesNotWaitForPins) {
  Start();
  std::vector<ReadHandle> pins;
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) pins.push_back(Pin(std::to_string(i)));
  auto call = Resize(kSegment);
  while (cache_->AwaitShrunk(TierId::kL1, absl::InfinitePast())) std::this_thread::yield();
  resizer_->Stop();
  EXPECT_TRUE(call->done.HasBeenNotified());
  EXPECT_EQ(ResizeNow(4 * kSegment)->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ResizeForNow(kSegment, 0)->status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(ResizeCallTest, AStopDoesNotWaitForThePinsOfWhatIsForNow) {
  Start();
  std::vector<ReadHandle> pins;
  for (uint64_t i = 0; i <= kSegment / kPayloadBytes; ++i) pins.push_back(Pin(std::to_string(i)));
  auto call = ResizeForNow(kSegment, 0);
  while (cache_->AwaitShrunk(TierId::kL1, absl::InfinitePast())) std::this_thread::yield();
  resizer_->Stop();
  EXPECT_TRUE(call->done.HasBeenNotified());
}

}  // namespace
}  // namespace embcache
