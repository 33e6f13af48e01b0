#include "gpu/available_memory.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

using testing::HasSubstr;

class AvailableMemoryTest : public testing::Test {
 protected:
  AvailableMemoryTest() {
    root_ = testing::TempDir() + "available_memory_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMeminfo(int kibibytes) {
    Write("/proc/meminfo", "MemTotal:       99999 kB\nMemFree:  7 kB\nMemAvailable:  " +
                               std::to_string(kibibytes) + " kB\nBuffers: 3 kB\n");
  }
  void WriteGroup(const std::string& path, const std::string& max, const std::string& current) {
    Write("/sys/fs/cgroup" + path + "/memory.max", max + "\n");
    Write("/sys/fs/cgroup" + path + "/memory.current", current + "\n");
  }

  std::string root_;
};

TEST_F(AvailableMemoryTest, WhatCannotBeReadIsNoBound) {
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, std::numeric_limits<uint64_t>::max());
}

TEST_F(AvailableMemoryTest, WithoutACgroupItIsMemAvailable) {
  WriteMeminfo(1000);
  const AvailableMemory available = ReadAvailableMemory(root_);
  EXPECT_EQ(available.bytes, 1'024'000u);
  EXPECT_THAT(available.source, HasSubstr("MemAvailable"));
}

TEST_F(AvailableMemoryTest, ATighterCgroupLimitCounts) {
  WriteMeminfo(1000);
  Write("/proc/self/cgroup", "4:memory:/v1\n0::/pod/box\n");
  WriteGroup("/pod/box", "5000", "2000");
  const AvailableMemory available = ReadAvailableMemory(root_);
  EXPECT_EQ(available.bytes, 3000u);
  EXPECT_THAT(available.source, HasSubstr("/pod/box/memory.max of 5000"));
}

TEST_F(AvailableMemoryTest, TheLimitOfAnEnclosingCgroupCounts) {
  WriteMeminfo(1000);
  Write("/proc/self/cgroup", "0::/pod/box\n");
  WriteGroup("/pod/box", "max", "2000");
  WriteGroup("/pod", "2500", "2000");
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, 500u);
}

TEST_F(AvailableMemoryTest, TheRootOfACgroupNamespaceCounts) {
  WriteMeminfo(1000);
  Write("/proc/self/cgroup", "0::/\n");
  WriteGroup("", "4096", "96");
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, 4000u);
}

TEST_F(AvailableMemoryTest, ALooserCgroupLimitDoesNotCount) {
  WriteMeminfo(1);
  Write("/proc/self/cgroup", "0::/box\n");
  WriteGroup("/box", "999999999", "0");
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, 1024u);
}

TEST_F(AvailableMemoryTest, CacheThatTheKernelGivesBackCountsAsAvailable) {
  WriteMeminfo(1000);
  Write("/proc/self/cgroup", "0::/box\n");
  WriteGroup("/box", "5000", "4000");
  Write("/sys/fs/cgroup/box/memory.stat", "anon 1000\nfile 3000\ninactive_file 2500\n");
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, 3500u);
}

TEST_F(AvailableMemoryTest, AnOverdrawnCgroupHasNothing) {
  WriteMeminfo(1000);
  Write("/proc/self/cgroup", "0::/box\n");
  WriteGroup("/box", "5000", "6000");
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, 0u);
}

TEST_F(AvailableMemoryTest, NonsenseIsNoBound) {
  Write("/proc/meminfo", "MemAvailable: many kB\n");
  Write("/proc/self/cgroup", "0::/box\n");
  WriteGroup("/box", "-5", "x");
  EXPECT_EQ(ReadAvailableMemory(root_).bytes, std::numeric_limits<uint64_t>::max());
}

TEST(AvailableMemoryOfThisMachineTest, IsSomething) {
  EXPECT_GT(ReadAvailableMemory().bytes, 0u);
  EXPECT_LT(ReadAvailableMemory().bytes, std::numeric_limits<uint64_t>::max());
}

}  // namespace
}  // namespace embcache
