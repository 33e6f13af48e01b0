// What every MemoryResource promises, and what a segment passed by descriptor promises besides.

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu/host_memory.h"
#include "gtest/gtest.h"
#include "storage/memory_resource.h"
#include "tests/unit/heap_memory.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kBytes = uint64_t{3} << 20;
constexpr uint64_t kHeapLimit = uint64_t{16} << 20;
constexpr uint64_t kTooMuch = uint64_t{1} << 50;  // more than any machine has

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<MemoryResource>()> make;
  bool zeroed;
};

std::vector<Implementation> HostImplementations() {
  return {
      {"Host", [] { return std::make_unique<HostMemory>(); }, true},
      {"HostHugePages",
       [] { return std::make_unique<HostMemory>(HostMemoryOptions{.huge_pages = true}); }, true}};
}

std::vector<Implementation> AllImplementations() {
  std::vector<Implementation> all = HostImplementations();
  all.push_back({"Heap", [] { return std::make_unique<HeapMemory>(kHeapLimit); }, false});
  return all;
}

int OpenDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

bool IsMapped(const std::string& label) {
  std::ifstream maps("/proc/self/maps");
  std::ostringstream text;
  text << maps.rdbuf();
  return text.str().find(label) != std::string::npos;
}

class Conformance : public testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<MemorySegment> Allocate(uint64_t bytes = kBytes,
                                          absl::string_view label = "emb-test") {
    absl::StatusOr<std::unique_ptr<MemorySegment>> segment = memory_->Allocate(label, bytes);
    EXPECT_TRUE(segment.ok()) << segment.status();
    return *std::move(segment);
  }

  std::unique_ptr<MemoryResource> memory_ = GetParam().make();
};

std::string NameOf(const testing::TestParamInfo<Implementation>& info) { return info.param.name; }

using MemoryResourceTest = Conformance;
INSTANTIATE_TEST_SUITE_P(All, MemoryResourceTest, testing::ValuesIn(AllImplementations()), NameOf);

TEST_P(MemoryResourceTest, ASegmentHasExactlyTheBytesAskedFor) {
  for (const uint64_t granules : {1, 2, 7, 513}) {
    EXPECT_EQ(Allocate(granules * memory_->granularity())->bytes(),
              granules * memory_->granularity());
  }
}

TEST_P(MemoryResourceTest, EveryByteCanBeWrittenAndReadBack) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  char* data = segment->host_data();
  for (uint64_t i = 0; i < kBytes; ++i) data[i] = static_cast<char>(i * 7 + i / 4096);
  for (uint64_t i = 0; i < kBytes; ++i) {
    ASSERT_EQ(data[i], static_cast<char>(i * 7 + i / 4096)) << i;
  }
}

TEST_P(MemoryResourceTest, FreshBytesAreZeroOnlyWhereThatIsPromised) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  const char expected = GetParam().zeroed ? 0 : static_cast<char>(0xCD);
  EXPECT_TRUE(std::all_of(segment->host_data(), segment->host_data() + kBytes,
                          [&](char byte) { return byte == expected; }));
}

TEST_P(MemoryResourceTest, SizesThatAreNoMultipleOfTheGranularityAreRefused) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, memory_->granularity() + 1}) {
    const absl::Status status = memory_->Allocate("emb-odd", bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("emb-odd"), HasSubstr(std::to_string(bytes)),
                                        HasSubstr(std::to_string(memory_->granularity()))));
  }
}

TEST_P(MemoryResourceTest, AskingForTooMuchIsRefusedWithBothSizesAndLeaksNothing) {
  const int before = OpenDescriptors();
  const absl::Status status = memory_->Allocate("emb-greedy", kTooMuch).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("emb-greedy"), HasSubstr(std::to_string(kTooMuch)),
                                      HasSubstr("are available")));
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_FALSE(IsMapped("emb-greedy"));
  EXPECT_NE(Allocate(), nullptr) << "a refusal must not spoil what follows";
}

TEST_P(MemoryResourceTest, SegmentsDoNotShareBytes) {
  const std::unique_ptr<MemorySegment> a = Allocate();
  const std::unique_ptr<MemorySegment> b = Allocate();
  std::memset(a->host_data(), 1, kBytes);
  std::memset(b->host_data(), 2, kBytes);
  EXPECT_EQ(a->host_data()[0], 1);
  EXPECT_EQ(a->host_data()[kBytes - 1], 1);
}

TEST_P(MemoryResourceTest, ADestroyedSegmentGivesEverythingBack) {
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) Allocate(4 * kBytes, "emb-short");  // more than the heap's limit
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_FALSE(IsMapped("emb-short"));
}

TEST_P(MemoryResourceTest, ASegmentOutlivesItsResource) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  memory_.reset();
  segment->host_data()[kBytes - 1] = 42;
  EXPECT_EQ(segment->host_data()[kBytes - 1], 42);
}

TEST_P(MemoryResourceTest, HostMemoryIsNoDevice) {
  EXPECT_EQ(memory_->device_uuid(), "");
  EXPECT_EQ(Allocate()->cuda_ipc_handle(), "");
}

// Runs `work` in a forked child and returns what it returns.
int InChild(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char* MapShared(int fd, int protection) {
  void* data = mmap(nullptr, kBytes, protection, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

using ExportedByDescriptorTest = Conformance;
INSTANTIATE_TEST_SUITE_P(All, ExportedByDescriptorTest, testing::ValuesIn(HostImplementations()),
                         NameOf);

TEST_P(ExportedByDescriptorTest, AnotherProcessSeesAndWritesTheSameBytes) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  segment->host_data()[5] = 'p';
  EXPECT_EQ(InChild([&] {
              char* data = MapShared(segment->writable_fd(), PROT_READ | PROT_WRITE);
              if (data == nullptr || data[5] != 'p') return 1;
              data[kBytes - 1] = 'c';
              return 0;
            }),
            0);
  EXPECT_EQ(segment->host_data()[kBytes - 1], 'c');
}

TEST_P(ExportedByDescriptorTest, AReaderSeesLaterWrites) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  char* view = MapShared(segment->read_only_fd(), PROT_READ);
  ASSERT_NE(view, nullptr);
  segment->host_data()[99] = 'x';
  EXPECT_EQ(view[99], 'x');
  munmap(view, kBytes);
}

TEST_P(ExportedByDescriptorTest, NothingCanBeWrittenThroughTheReadOnlyDescriptor) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  const int fd = segment->read_only_fd();
  EXPECT_EQ(MapShared(fd, PROT_READ | PROT_WRITE), nullptr);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(write(fd, "x", 1), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  char* view = MapShared(fd, PROT_READ);
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(mprotect(view, kBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  munmap(view, kBytes);
}

TEST_P(ExportedByDescriptorTest, TheReadOnlyDescriptorCannotBeReopenedForWriting) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  const int fd = segment->read_only_fd();
  struct stat file;
  ASSERT_EQ(fstat(fd, &file), 0);
  EXPECT_EQ(file.st_mode & 0777, mode_t{0400});
  // Root may do anything, so the child becomes an ordinary user who owns the file.
  constexpr uid_t kNobody = 65534;
  if (geteuid() == 0) {
    ASSERT_EQ(fchown(fd, kNobody, kNobody), 0);
  }
  EXPECT_EQ(InChild([&] {
              if (geteuid() == 0 && setuid(kNobody) != 0) return 1;
              prctl(PR_SET_DUMPABLE, 1);  // else /proc/self/fd is closed to the new user
              const std::string path = "/proc/self/fd/" + std::to_string(fd);
              if (open(path.c_str(), O_RDONLY | O_CLOEXEC) < 0) return 2;
              if (open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0) return 3;
              return errno == EACCES ? 0 : 4;
            }),
            0);
}

TEST_P(ExportedByDescriptorTest, NobodyCanChangeTheSizeOrTheSeals) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  const int fd = segment->writable_fd();
  EXPECT_EQ(ftruncate(fd, kBytes - 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd, kBytes + 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST_P(ExportedByDescriptorTest, EveryPageIsReserved) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  struct stat file;
  ASSERT_EQ(fstat(segment->writable_fd(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_size), kBytes);
  EXPECT_GE(static_cast<uint64_t>(file.st_blocks) * 512, kBytes);
}

TEST_P(ExportedByDescriptorTest, DescriptorsAreNotInheritedAcrossExec) {
  const std::unique_ptr<MemorySegment> segment = Allocate();
  EXPECT_TRUE(fcntl(segment->writable_fd(), F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(fcntl(segment->read_only_fd(), F_GETFD) & FD_CLOEXEC);
}

TEST_P(ExportedByDescriptorTest, TheLabelIsSeenInProc) {
  const std::unique_ptr<MemorySegment> segment = Allocate(kBytes, "emb-label");
  char target[512] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(segment->writable_fd());
  ASSERT_GT(readlink(path.c_str(), target, sizeof(target) - 1), 0);
  EXPECT_THAT(target, HasSubstr("memfd:emb-label"));
  EXPECT_TRUE(IsMapped("emb-label"));
}

TEST_P(ExportedByDescriptorTest, AnOverlongLabelIsCut) {
  EXPECT_NE(Allocate(kBytes, std::string(1000, 'n')), nullptr);
}

TEST_P(ExportedByDescriptorTest, AnotherProcessKeepsTheBytesAfterTheSegmentIsGone) {
  std::unique_ptr<MemorySegment> segment = Allocate();
  segment->host_data()[0] = 'k';
  char* view = MapShared(segment->read_only_fd(), PROT_READ);
  ASSERT_NE(view, nullptr);
  segment.reset();
  EXPECT_EQ(view[0], 'k');
  munmap(view, kBytes);
}

// The limits are set in a child, so that they bind nothing else.
int AllocateUnderLimit(MemoryResource& memory, int resource, rlim_t limit, const char* expected) {
  return InChild([&] {
    const rlimit limits{limit, limit};
    if (setrlimit(static_cast<__rlimit_resource>(resource), &limits) != 0) return 2;
    const absl::Status status = memory.Allocate("emb-limit", kBytes).status();
    if (status.code() != absl::StatusCode::kResourceExhausted) return 3;
    return status.message().find(expected) != absl::string_view::npos ? 0 : 4;
  });
}

TEST_P(ExportedByDescriptorTest, AFileSizeLimitIsAnErrorAndNotASignal) {
  EXPECT_EQ(AllocateUnderLimit(*memory_, RLIMIT_FSIZE, kBytes - 1, "RLIMIT_FSIZE"), 0);
}

TEST_P(ExportedByDescriptorTest, RunningOutOfDescriptorsIsAnError) {
  EXPECT_EQ(AllocateUnderLimit(*memory_, RLIMIT_NOFILE, 3, "emb-limit"), 0);
}

}  // namespace
}  // namespace embcache
