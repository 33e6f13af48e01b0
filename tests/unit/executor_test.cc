#include "storage/executor.h"

#include <pthread.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

TEST(ThreadPoolExecutorTest, TasksRunInTheOrderOfSchedulingOnOneThread) {
  std::vector<int> order;
  {
    ThreadPoolExecutor pool("order", 1, 100);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(pool.Schedule([&order, i] { order.push_back(i); }));
    }
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadPoolExecutorTest, TasksNeverRunInTheSchedulingThread) {
  std::thread::id ran_in;
  absl::Notification ran;
  ThreadPoolExecutor pool("other", 1, 1);
  ASSERT_TRUE(pool.Schedule([&] {
    ran_in = std::this_thread::get_id();
    ran.Notify();
  }));
  ran.WaitForNotification();
  EXPECT_NE(ran_in, std::this_thread::get_id());
}

TEST(ThreadPoolExecutorTest, AFullQueueRefusesAndDropsTheTask) {
  absl::Notification started;
  absl::Notification go;
  ThreadPoolExecutor pool("full", 1, 2);
  ASSERT_TRUE(pool.Schedule([&] {
    started.Notify();
    go.WaitForNotification();
  }));
  started.WaitForNotification();
  std::atomic<int> ran = 0;
  EXPECT_TRUE(pool.Schedule([&] { ++ran; }));
  EXPECT_TRUE(pool.Schedule([&] { ++ran; }));
  auto held = std::make_shared<int>();
  EXPECT_FALSE(pool.Schedule([&ran, held] { ran += 100; }));
  EXPECT_EQ(held.use_count(), 1) << "the refused task is still alive";
  go.Notify();
  absl::Notification last;
  while (!pool.Schedule([&] { last.Notify(); })) std::this_thread::yield();
  last.WaitForNotification();
  EXPECT_EQ(ran, 2);
}

TEST(ThreadPoolExecutorTest, DestructionRunsWhatIsQueued) {
  std::atomic<int> ran = 0;
  {
    absl::Notification go;
    ThreadPoolExecutor pool("drain", 2, 1000);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool.Schedule([&] { go.WaitForNotification(); }));
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(pool.Schedule([&] { ++ran; }));
    go.Notify();
  }
  EXPECT_EQ(ran, 500);
}

TEST(ThreadPoolExecutorTest, WhatATaskSchedulesDuringDestructionRunsOrIsRefused) {
  std::atomic<int> accepted = 0;
  std::atomic<int> ran = 0;
  {
    ThreadPoolExecutor pool("stopping", 1, 1'000'000);
    ASSERT_TRUE(pool.Schedule([&] {
      // Goes on until the destructor has begun.
      while (pool.Schedule([&] { ++ran; })) ++accepted;
    }));
  }
  EXPECT_EQ(ran, accepted);
}

TEST(ThreadPoolExecutorTest, TasksRunSideBySideOnSeveralThreads) {
  absl::BlockingCounter running(3);
  absl::Notification go;
  ThreadPoolExecutor pool("parallel", 3, 10);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pool.Schedule([&] {
      running.DecrementCount();
      go.WaitForNotification();
    }));
  }
  running.Wait();  // none has ended
  go.Notify();
}

TEST(ThreadPoolExecutorTest, EveryTaskRunsOnceWithManySchedulers) {
  std::vector<std::atomic<int>> ran(4000);
  {
    ThreadPoolExecutor pool("many", 3, 4000);
    std::vector<std::thread> schedulers;
    for (int s = 0; s < 4; ++s) {
      schedulers.emplace_back([&, s] {
        for (int i = s * 1000; i < (s + 1) * 1000; ++i) {
          EXPECT_TRUE(pool.Schedule([&ran, i] { ++ran[i]; }));
        }
      });
    }
    for (std::thread& scheduler : schedulers) scheduler.join();
  }
  for (const std::atomic<int>& count : ran) EXPECT_EQ(count, 1);
}

TEST(ThreadPoolExecutorTest, ItsThreadsAreNamedAndLongNamesCut) {
  for (const auto& [given, expected] : std::vector<std::pair<std::string, std::string>>{
           {"disk", "disk-0"}, {"averyveryverylongname", "averyveryver-0"}}) {
    ThreadPoolExecutor pool(given, 1, 1);
    char name[16] = {};
    absl::Notification ran;
    ASSERT_TRUE(pool.Schedule([&] {
      pthread_getname_np(pthread_self(), name, sizeof(name));
      ran.Notify();
    }));
    ran.WaitForNotification();
    EXPECT_EQ(name, expected);
  }
}

TEST(ManualExecutorTest, NothingRunsBeforeTheTestSaysSo) {
  ManualExecutor executor;
  int ran = 0;
  EXPECT_TRUE(executor.Schedule([&] { ++ran; }));
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(executor.pending(), 1u);
  executor.RunOne();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(executor.pending(), 0u);
}

TEST(ManualExecutorTest, TheTestPicksTheOrder) {
  ManualExecutor executor;
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    EXPECT_TRUE(executor.Schedule([&order, name] { order += name; }));
  }
  executor.RunOne(2);
  executor.RunOne(0);
  executor.RunOne(0);
  EXPECT_EQ(order, "cab");
}

TEST(ManualExecutorTest, RunAllRunsWhatTasksScheduleToo) {
  ManualExecutor executor;
  int ran = 0;
  EXPECT_TRUE(executor.Schedule([&] {
    ++ran;
    EXPECT_TRUE(executor.Schedule([&] { ++ran; }));
  }));
  executor.RunAll();
  EXPECT_EQ(ran, 2);
}

TEST(ManualExecutorDeathTest, RunningATaskThatIsNotThereAborts) {
  ManualExecutor executor;
  EXPECT_DEATH(executor.RunOne(), "invariant broken");
}

}  // namespace
}  // namespace embcache
