// A disk that fails at every single operation in turn: RocksDbStore loses at most what it has not
// made durable, returns nothing wrong, never ends or blocks the process, and takes writes again.
//
// The sweep tries a sample of the operations; EMBCACHE_TEST_ALL=1 tries all of them, and
// EMBCACHE_TEST_SEED=n repeats a sample.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/fault_file_system.h"
#include "tests/unit/rocksdb_store_test_util.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

constexpr int kKeys = 10;

// What was promised about a key.
struct Promise {
  uint64_t put = 0;      // the last put that was accepted
  uint64_t durable = 0;  // the last one that a flush made durable
  uint64_t removed = 0;  // no generation up to this one comes back
};

// A small life of a store, in which anything may fail. Whatever is wrong goes to `faults`.
class Life {
 public:
  Life(const std::string& path, FaultFileSystem* disk) : disk_(disk), env_(MakeEnv(disk)) {
    options_.path = path;
    options_.capacity_bytes = kMinStoreBytes;
    options_.clock = &clock_;
    options_.min_free_bytes = 0;
    options_.background_thread = false;
    options_.max_files = 8;
    options_.env = env_.get();
  }

  const std::string& wrong() const { return wrong_; }

  void Run() {
    Open();
    for (int i = 0; i < 8; ++i) {
      Put(i);
      if (i % 2 == 1) Flush();
    }
    Check(/*restarted=*/false, /*nothing_evicted=*/true);
    Wait();
    Remove(3);
    SetEpoch();
    Put(8);
    store_ = nullptr;
    Open();
    Check(/*restarted=*/true, /*nothing_evicted=*/true);
    for (int i = 0; i < 14; ++i) {
      Put(i * 3 % kKeys);
      if (i % 2 == 1) Flush();
      if (i % 5 == 4) Remove(i * 7 % kKeys);
      if (i % 3 == 2) Wait();
      Check(/*restarted=*/true, /*nothing_evicted=*/false);
    }
  }

  void HealAndCheck() {
    disk_->Heal();
    if (store_ == nullptr) Open();
    if (store_ == nullptr) return Wrong("it cannot be opened after the disk has healed");
    clock_.Advance(absl::Seconds(11));
    store_->Tick();
    ExpectWritable();
    Check(/*restarted=*/true, /*nothing_evicted=*/false);
    store_ = nullptr;
    Open();
    if (store_ == nullptr) return Wrong("it cannot be opened again");
    Check(/*restarted=*/true, /*nothing_evicted=*/false);
    ExpectWritable();
    if (store_->GetStats().corruptions != 0) Wrong("something is damaged");
    ExpectTidy();
  }

 private:
  static std::unique_ptr<rocksdb::Env> MakeEnv(FaultFileSystem* disk) {
    return rocksdb::NewCompositeEnv(std::shared_ptr<rocksdb::FileSystem>(disk, [](auto*) {}));
  }
  static uint64_t SizeOf(uint64_t generation) { return 3000 + generation * 7919 % 60'000; }

  void Wrong(const std::string& what) { wrong_ += what + "\n"; }

  void Open() {
    absl::StatusOr<std::unique_ptr<RocksDbStore>> opened = RocksDbStore::Open(options_);
    if (!opened.ok()) return Wrong(absl::StrCat("open: ", opened.status().ToString()));
    store_ = *std::move(opened);
    // An epoch without records may be forgotten; one with records is seen by what it hides (Check).
  }

  void Put(int number) {
    if (store_ == nullptr) return;
    const TestRecord record = MakeRecord(TestKey(absl::StrCat(number)), SizeOf(next_), next_);
    if (PutRecord(*store_, record).ok()) promises_[number].put = next_;
    ++next_;
  }

  void Flush() {
    if (store_ == nullptr || !store_->Flush().ok()) return;
    for (auto& [number, promise] : promises_) promise.durable = promise.put;
  }

  void Remove(int number) {
    if (store_ == nullptr) return;
    const bool removed = store_->Remove(TestKey(absl::StrCat(number)), next_ - 1).ok();
    Promise& promise = promises_[number];
    promise.durable = 0;
    promise.put = 0;
    if (removed) promise.removed = next_ - 1;
    if (store_->Find(TestKey(absl::StrCat(number)))) Wrong("a removed key is found");
  }

  void SetEpoch() {
    if (store_ == nullptr) return;
    const CacheKey key = TestKey("x", "other");
    (void)PutRecord(*store_, MakeRecord(key, 5000, next_++));
    (void)store_->Flush();
    epoch_durable_ = store_->SetModelEpoch("other", 1).ok();
    if (store_->Find(key)) Wrong("a record of an old epoch is found");
  }

  void Wait() {
    clock_.Advance(absl::Seconds(3));
    if (store_ != nullptr) store_->Tick();
  }

  // `nothing_evicted`: what is durable has to be there.
  void Check(bool restarted, bool nothing_evicted) {
    if (store_ == nullptr) return;
    if (epoch_durable_ && store_->Find(TestKey("x", "other"))) Wrong("an old epoch is back");
    for (const auto& [number, promise] : promises_) {
      const CacheKey key = TestKey(absl::StrCat(number));
      const std::string name = absl::StrCat("key ", number, ": ");
      const auto place = store_->Find(key);
      if (!place) {
        if (nothing_evicted && promise.durable != 0 && promise.durable == promise.put) {
          Wrong(name + "what was durable is lost");
        }
        continue;
      }
      if (place->generation <= promise.removed) Wrong(name + "what was removed is back");
      if (place->generation < (restarted ? promise.durable : promise.put)) Wrong(name + "is old");
      std::string bytes(place->payload_bytes, '\0');
      const auto read = store_->Read(key, place->generation, bytes.data());
      // A drop that failed half-way may have taken it.
      if (!nothing_evicted && absl::IsNotFound(read.status())) continue;
      if (!read.ok()) {
        Wrong(name + read.status().ToString());
      } else if (bytes != TestBytes(SizeOf(place->generation), place->generation)) {
        Wrong(name + "wrong bytes");
      }
    }
  }

  void ExpectWritable() {
    const uint64_t generation = next_++;
    const TestRecord record = MakeRecord(TestKey("last"), SizeOf(generation), generation);
    absl::Status status = PutRecord(*store_, record);
    status.Update(store_->Flush());
    if (!status.ok()) Wrong(absl::StrCat("not writable again: ", status.ToString()));
    if (!store_->GetStats().writable) Wrong("it says that it is not writable");
    if (ReadPayload(*store_, TestKey("last")) != record.payload) Wrong("the last put is lost");
  }

  void ExpectTidy() {
    if (!fs::is_empty(options_.path + "/stage")) Wrong("stage/ is not empty");
    uint64_t tables = 0;
    for (const auto& entry : fs::directory_iterator(options_.path + "/db")) {
      if (entry.path().extension() == ".sst") ++tables;
    }
    const uint64_t files = store_->GetStats().files;
    if (tables != files) Wrong(absl::StrCat(tables, " tables on disk, ", files, " in use"));
  }

  FaultFileSystem* const disk_;
  const std::unique_ptr<rocksdb::Env> env_;
  SimulatedClock clock_;
  RocksDbStoreOptions options_;
  std::unique_ptr<RocksDbStore> store_;
  std::map<int, Promise> promises_;
  bool epoch_durable_ = false;
  uint64_t next_ = 1;
  std::string wrong_;
};

// In memory where there is such a file system: the sweep syncs a hundred thousand times.
std::string SweepDirectory() {
  std::string name = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir();
  name += "/embcache_faults_XXXXXX";
  return mkdtemp(name.data()) != nullptr ? name : "";
}

struct ChildEnd {
  int status = 0;  // as of waitpid
  std::string text;
};

// Runs a life in a process of its own, which is ended after a minute. REQUIRES: one thread.
ChildEnd RunChild(const std::optional<DiskFault>& fault) {
  const std::string path = SweepDirectory();
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    std::string text;
    {
      FaultFileSystem disk;
      if (fault) disk.Arm(*fault);
      Life life(path + "/l3", &disk);
      life.Run();
      if (!fault) text = absl::StrCat(disk.operations(), " operations\n");
      if (fault && disk.failed() == 0) text = "no operation failed\n";
      life.HealAndCheck();
      text += life.wrong();
    }
    (void)!write(ends[1], text.data(), std::min<size_t>(text.size(), 4000));
    _exit(text.empty() ? 0 : 1);
  }
  close(ends[1]);
  ChildEnd end;
  char piece[4096];
  for (ssize_t got; (got = read(ends[0], piece, sizeof(piece))) > 0;) end.text.append(piece, got);
  close(ends[0]);
  waitpid(pid, &end.status, 0);
  fs::remove_all(path);
  return end;
}

std::string Describe(const ChildEnd& end) {
  if (!WIFSIGNALED(end.status)) return end.text;
  return WTERMSIG(end.status) == SIGALRM
             ? "it hung"
             : absl::StrCat("it was ended by signal ", WTERMSIG(end.status), "\n", end.text);
}

class RocksDbStoreFaultSweep : public testing::TestWithParam<std::pair<DiskError, bool>> {};

TEST_P(RocksDbStoreFaultSweep, WhicheverWriteFailsNothingIsWrongAndItRecovers) {
  const ChildEnd whole = RunChild(std::nullopt);
  const int operations = std::atoi(whole.text.c_str());
  ASSERT_GT(operations, 100) << Describe(whole);
  ASSERT_EQ(whole.text, absl::StrCat(operations, " operations\n"));
  const char* given = std::getenv("EMBCACHE_TEST_SEED");
  const uint32_t seed = given != nullptr ? std::atoi(given) : std::random_device()() % 1'000'000;
  std::mt19937 random(seed);
  const bool all = std::getenv("EMBCACHE_TEST_ALL") != nullptr;
  const int step = all ? 1 : std::max(1, operations / 60);
  std::printf("%d operations, every %d. tried, EMBCACHE_TEST_SEED=%u\n", operations, step, seed);
  const auto [error, sticky] = GetParam();
  for (int at = static_cast<int>(random() % step); at < operations; at += step) {
    DiskFault fault;
    fault.error = error;
    fault.at = at;
    fault.sticky = sticky;
    const ChildEnd end = RunChild(fault);
    EXPECT_EQ(end.status, 0) << "operation " << at << ": " << Describe(end);
  }
}

using Sweep = std::pair<DiskError, bool>;

std::string NameOf(const testing::TestParamInfo<Sweep>& info) {
  constexpr const char* kNames[] = {"NoSpace", "Quota", "Io"};
  return absl::StrCat(kNames[static_cast<int>(info.param.first)],
                      info.param.second ? "Sticky" : "Once");
}

INSTANTIATE_TEST_SUITE_P(, RocksDbStoreFaultSweep,
                         testing::Values(Sweep(DiskError::kNoSpace, false),
                                         Sweep(DiskError::kNoSpace, true),
                                         Sweep(DiskError::kQuota, false),
                                         Sweep(DiskError::kIo, false), Sweep(DiskError::kIo, true)),
                         NameOf);

}  // namespace
}  // namespace embcache
