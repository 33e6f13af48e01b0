// What every CopyEngine promises, over HostCopyEngine and the tests' own ManualCopyEngine.

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gpu/host_copy_engine.h"
#include "gtest/gtest.h"
#include "storage/copy_engine.h"
#include "tests/unit/heap_memory.h"
#include "tests/unit/manual_copy_engine.h"

namespace embcache {
namespace {

constexpr uint64_t kBytes = uint64_t{24} << 20;

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<CopyEngine>()> make;
  // Makes the engine do what was asked of it; nothing for one that does it by itself.
  std::function<void(CopyEngine*)> drive;
};

std::vector<Implementation> Implementations() {
  const auto nothing = [](CopyEngine*) {};
  return {{"Host", [] { return std::make_unique<HostCopyEngine>("copy", 2); }, nothing},
          {"HostOneThread", [] { return std::make_unique<HostCopyEngine>("copy", 1); }, nothing},
          {"Manual", [] { return std::make_unique<ManualCopyEngine>(); },
           [](CopyEngine* engine) { static_cast<ManualCopyEngine*>(engine)->RunAll(); }}};
}

std::unique_ptr<MemorySegment> MakeSegment(uint64_t bytes = kBytes) {
  HeapMemory memory;
  return *memory.Allocate("copy-test", bytes);
}

void FillWithPattern(char* data, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<char>((i + seed) * 0x9E3779B97F4A7C15 >> 56);
  }
}

bool AllAre(const char* begin, const char* end, char value) {
  while (begin != end) {
    if (*begin++ != value) return false;
  }
  return true;
}

class CopyEngineTest : public testing::TestWithParam<Implementation> {
 protected:
  // Starts a copy through `start` and waits for its end.
  absl::Status Finish(const std::function<void(CopyEngine::Done)>& start) {
    absl::Notification ended;
    absl::Status result;
    start([&](absl::Status status) {
      result = std::move(status);
      ended.Notify();
    });
    GetParam().drive(engine_.get());
    ended.WaitForNotification();
    return result;
  }

  std::unique_ptr<CopyEngine> engine_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(All, CopyEngineTest, testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CopyEngineTest, CopiesExactlyTheRangeAskedFor) {
  const auto from = MakeSegment();
  const auto to = MakeSegment();
  FillWithPattern(from->host_data(), kBytes, 1);
  // From one byte to sizes that are split over threads, with a remainder.
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{255}, uint64_t{1} << 20,
                               (uint64_t{8} << 20) + 3, (uint64_t{20} << 20) + 1}) {
    std::memset(to->host_data(), 0x55, kBytes);
    ASSERT_TRUE(Finish([&](CopyEngine::Done done) {
                  engine_->Copy(to.get(), 777, from.get(), 4096, bytes, std::move(done));
                }).ok());
    EXPECT_EQ(std::memcmp(to->host_data() + 777, from->host_data() + 4096, bytes), 0) << bytes;
    EXPECT_TRUE(AllAre(to->host_data(), to->host_data() + 777, 0x55)) << bytes;
    EXPECT_TRUE(AllAre(to->host_data() + 777 + bytes, to->host_data() + kBytes, 0x55)) << bytes;
  }
}

TEST_P(CopyEngineTest, UploadsFromAndDownloadsToOrdinaryMemory) {
  const auto segment = MakeSegment();
  std::string source(100'000, '\0');
  FillWithPattern(source.data(), source.size(), 2);
  std::string target(source.size(), '\0');
  ASSERT_TRUE(Finish([&](CopyEngine::Done done) {
                engine_->Upload(segment.get(), 1000, source.data(), source.size(), std::move(done));
              }).ok());
  ASSERT_TRUE(Finish([&](CopyEngine::Done done) {
                engine_->Download(target.data(), segment.get(), 1000, target.size(),
                                  std::move(done));
              }).ok());
  EXPECT_EQ(target, source);
}

TEST_P(CopyEngineTest, ACopyMayGoToAnotherPlaceInTheSameSegment) {
  const auto segment = MakeSegment();
  FillWithPattern(segment->host_data(), 5000, 3);
  ASSERT_TRUE(Finish([&](CopyEngine::Done done) {
                engine_->Copy(segment.get(), 5000, segment.get(), 0, 5000, std::move(done));
              }).ok());
  EXPECT_EQ(std::memcmp(segment->host_data(), segment->host_data() + 5000, 5000), 0);
}

TEST_P(CopyEngineTest, ACopyOfNothingSucceeds) {
  const auto segment = MakeSegment();
  EXPECT_TRUE(Finish([&](CopyEngine::Done done) {
                engine_->Copy(segment.get(), kBytes, segment.get(), 0, 0, std::move(done));
              }).ok());
  EXPECT_TRUE(Finish([&](CopyEngine::Done done) {
                engine_->Upload(segment.get(), 0, nullptr, 0, std::move(done));
              }).ok());
}

TEST_P(CopyEngineTest, DoneNeverRunsInsideTheCallThatStartedTheCopy) {
  const auto segment = MakeSegment();
  const std::thread::id caller = std::this_thread::get_id();
  bool in_call = false;  // touched by this thread only
  bool ran_inside = false;
  absl::BlockingCounter ended(100);
  for (uint64_t i = 0; i < 100; ++i) {
    in_call = true;
    engine_->Copy(segment.get(), 1000 + 16 * i, segment.get(), 0, 10, [&](absl::Status) {
      if (std::this_thread::get_id() == caller && in_call) ran_inside = true;
      ended.DecrementCount();
    });
    in_call = false;
  }
  GetParam().drive(engine_.get());
  ended.Wait();
  EXPECT_FALSE(ran_inside);
}

TEST_P(CopyEngineTest, ADoneMayStartAnotherCopy) {
  const auto segment = MakeSegment();
  std::memcpy(segment->host_data(), "chain", 5);
  EXPECT_TRUE(Finish([&](CopyEngine::Done done) {
                engine_->Copy(segment.get(), 100, segment.get(), 0, 5,
                              [&, done = std::move(done)](absl::Status) mutable {
                                engine_->Copy(segment.get(), 200, segment.get(), 100, 5,
                                              std::move(done));
                              });
              }).ok());
  EXPECT_EQ(std::string(segment->host_data() + 200, 5), "chain");
}

TEST_P(CopyEngineTest, EveryDoneRunsExactlyOnceWithManyCallers) {
  constexpr int kCallers = 4;
  constexpr int kCopies = 500;
  const auto from = MakeSegment();
  const auto to = MakeSegment();
  FillWithPattern(from->host_data(), kBytes, 4);
  std::vector<std::atomic<int>> ended(kCallers * kCopies);
  absl::BlockingCounter left(kCallers * kCopies);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = caller * kCopies; i < (caller + 1) * kCopies; ++i) {
        const uint64_t at = static_cast<uint64_t>(i) * 4096;
        engine_->Copy(to.get(), at, from.get(), at, 4096, [&, i](absl::Status) {
          ++ended[i];
          left.DecrementCount();
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  GetParam().drive(engine_.get());
  left.Wait();
  for (const std::atomic<int>& count : ended) EXPECT_EQ(count, 1);
  EXPECT_EQ(std::memcmp(to->host_data(), from->host_data(), kCallers * kCopies * 4096), 0);
}

TEST_P(CopyEngineTest, RangesOutsideTheSegmentAbort) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const auto engine = GetParam().make();
        const auto small = MakeSegment(4096);
        engine->Copy(small.get(), 4000, small.get(), 0, 97, [](absl::Status) {});
      },
      "invariant broken");
  EXPECT_DEATH(
      {
        const auto engine = GetParam().make();
        const auto small = MakeSegment(4096);
        char out[8];
        engine->Download(out, small.get(), UINT64_MAX - 1, 4, [](absl::Status) {});
      },
      "invariant broken");
}

// VRAM, as far as the CPU is concerned.
class UnseenSegment : public MemorySegment {
 public:
  uint64_t bytes() const override { return 4096; }
  char* host_data() const override { return nullptr; }
  int writable_fd() const override { return -1; }
  int read_only_fd() const override { return -1; }
  std::string cuda_ipc_handle() const override { return ""; }
};

TEST(HostCopyEngineTest, MemoryThatTheCpuDoesNotSeeIsAnErrorThroughDone) {
  HostCopyEngine engine;
  const UnseenSegment unseen;
  char byte = 0;
  absl::Notification ended;
  engine.Upload(&unseen, 0, &byte, 1, [&](absl::Status status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    ended.Notify();
  });
  ended.WaitForNotification();
}

TEST(HostCopyEngineTest, DestructionFinishesWhatWasQueued) {
  const auto from = MakeSegment();
  const auto to = MakeSegment();
  FillWithPattern(from->host_data(), kBytes, 5);
  int ended = 0;
  {
    absl::Notification go;
    HostCopyEngine engine("copy", 1);
    engine.Copy(to.get(), 0, from.get(), 0, 1, [&](absl::Status) { go.WaitForNotification(); });
    for (uint64_t at = 0; at < kBytes; at += kBytes / 8) {
      engine.Copy(to.get(), at, from.get(), at, kBytes / 8, [&](absl::Status) { ++ended; });
    }
    go.Notify();
  }
  EXPECT_EQ(ended, 8);
  EXPECT_EQ(std::memcmp(to->host_data(), from->host_data(), kBytes), 0);
}

TEST(HostCopyEngineTest, ItsThreadsAreNamed) {
  HostCopyEngine engine("mover", 1);
  const auto segment = MakeSegment(4096);
  char name[16] = {};
  absl::Notification ended;
  engine.Copy(segment.get(), 1, segment.get(), 0, 1, [&](absl::Status) {
    pthread_getname_np(pthread_self(), name, sizeof(name));
    ended.Notify();
  });
  ended.WaitForNotification();
  EXPECT_STREQ(name, "mover-0");
}

TEST(ManualCopyEngineTest, NothingIsCopiedBeforeTheTestSaysSo) {
  ManualCopyEngine engine;
  const auto segment = MakeSegment(4096);
  int ended = 0;
  engine.Upload(segment.get(), 0, "ab", 2, [&](absl::Status) { ++ended; });
  EXPECT_EQ(engine.pending(), 1u);
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(AllAre(segment->host_data(), segment->host_data() + 2, static_cast<char>(0xCD)));
  engine.RunOne();
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(engine.pending(), 0u);
  EXPECT_EQ(std::string(segment->host_data(), 2), "ab");
}

TEST(ManualCopyEngineTest, TheTestPicksTheOrder) {
  ManualCopyEngine engine;
  const auto segment = MakeSegment(4096);
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    engine.Upload(segment.get(), 0, "x", 1, [&order, name](absl::Status) { order += name; });
  }
  engine.RunOne(1);
  engine.RunOne(1);
  engine.RunOne(0);
  EXPECT_EQ(order, "bca");
}

TEST(ManualCopyEngineTest, ACopyCanBeMadeToFailHalfWay) {
  ManualCopyEngine engine;
  const auto segment = MakeSegment(4096);
  absl::Status ended;
  engine.Upload(segment.get(), 0, "abcd", 4, [&](absl::Status status) { ended = status; });
  engine.FailOne(0, absl::InternalError("planned"));
  EXPECT_EQ(ended, absl::InternalError("planned"));
  EXPECT_EQ(std::string(segment->host_data(), 2), "ab");
  EXPECT_EQ(segment->host_data()[3], static_cast<char>(0xCD));
  EXPECT_EQ(engine.pending(), 0u);
}

}  // namespace
}  // namespace embcache
