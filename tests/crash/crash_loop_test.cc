// embcached is killed at random moments under load, again and again: afterwards every key reads
// back exactly, as a version that was put and is not older than the last one known to be on disk,
// or it misses.
//
// EMBCACHE_TEST_ROUNDS: how often (15). EMBCACHE_TEST_SEED: repeats the moments and the load.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/context.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "tests/integration/daemon_process.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;
using client::Client;
using testing_support::ChildProcess;
using testing_support::DaemonProcess;
using testing_support::Hear;
using testing_support::RunThisTest;
using testing_support::Say;

constexpr int kClients = 2;
constexpr int kKeysPerClient = 150;

client::Key KeyOf(int number) { return {"model", absl::StrCat("content hash ", number), ""}; }

// All of a value follows from its key and version, which are its first words.
std::vector<uint64_t> ValueOf(uint64_t key, uint64_t version) {
  uint64_t state = (key << 40 ^ version) * 0x9e3779b97f4a7c15 + 1;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  // Mostly some KiB, now and then more than a chunk.
  const uint64_t bytes = next() % 16 == 0 ? 1'000'000 + next() % 500'000 : 2'000 + next() % 90'000;
  std::vector<uint64_t> words(bytes / 8);
  for (uint64_t& word : words) word = next();
  words[0] = key;
  words[1] = version;
  return words;
}

absl::Status PutVersion(Client& client, int key, uint64_t version) {
  const std::vector<uint64_t> words = ValueOf(key, version);
  const size_t bytes = words.size() * sizeof(uint64_t);
  client::TensorSpec tensor;
  tensor.name = "main";
  tensor.dtype = client::DType::kU8;
  tensor.shape = {static_cast<int64_t>(bytes)};
  return client.Put(KeyOf(key), {tensor},
                    {client::Bytes(reinterpret_cast<const uint8_t*>(words.data()), bytes)});
}

// --- The load, in processes of their own
// ----------------------------------------------------------

// What a client did, in the order in which it did it, in a file that outlives everybody:
//   t KEY VERSION   begins to put        p KEY VERSION   has put
//   d KEY VERSION   has deleted          f 0 0           has flushed all of the above
class Journal {
 public:
  explicit Journal(const std::string& path)
      : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {}
  ~Journal() { close(fd_); }
  void Note(char what, int key, uint64_t version) const {
    const std::string line = absl::StrCat(std::string(1, what), " ", key, " ", version, "\n");
    if (write(fd_, line.data(), line.size()) < 0) std::abort();
  }

 private:
  const int fd_;
};

// The child process of the loop below, which starts this program with it: no test by itself.
TEST(CrashLoad, DISABLED_PutsUntilTheDaemonIsGone) {
  const std::string socket_dir = Hear();
  const Journal journal(Hear());
  const int number = std::stoi(Hear());
  std::mt19937_64 random(std::stoull(Hear()));
  uint64_t version = std::stoull(Hear());
  client::ClientOptions options;
  options.socket_dir = socket_dir;
  options.role = client::Role::kWriter;
  options.reconnect = false;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const cli::Context context{.socket_dir = socket_dir};
  const auto admin = v1::Admin::NewStub(context.Channel());
  Say("ready");
  for (int i = 1;; ++i) {
    const int key = static_cast<int>(random() % kKeysPerClient) * kClients + number;
    if (random() % 24 == 0) {
      if (!(*client)->Delete(KeyOf(key)).ok()) return;
      journal.Note('d', key, version);
      continue;
    }
    if (random() % 3 == 0) {  // what is read is written again when its file is dropped
      if (!(*client)->Get(KeyOf(key)).ok()) return;
    }
    journal.Note('t', key, ++version);
    const absl::Status put = PutVersion(**client, key, version);
    if (absl::IsUnavailable(put) || absl::IsDeadlineExceeded(put)) return;
    if (put.ok()) journal.Note('p', key, version);
    if (random() % 20 == 0) {
      v1::FlushResponse response;
      if (!cli::CallDaemon(context, *admin, &v1::Admin::Stub::Flush, v1::FlushRequest(), &response)
               .ok()) {
        return;
      }
      journal.Note('f', 0, 0);
    }
  }
}

// --- The killing and the checks
// -------------------------------------------------------------------

struct Promise {
  std::set<uint64_t> tried;
  uint64_t put = 0;      // the last version that was accepted
  uint64_t durable = 0;  // the last one known to be on disk; 0 when it was deleted since
  uint64_t deleted = 0;  // no version up to this one comes back
};

class CrashLoopTest : public ::testing::Test {
 protected:
  CrashLoopTest() : daemon_({"--l1-capacity=48MiB", "--l3-dir={dir}/l3", "--l3-capacity=64MiB"}) {}

  std::string JournalPath(int number) const {
    return absl::StrCat(daemon_.directory(), "/journal", number);
  }

  void RunUntilKilled(absl::Duration time, uint64_t first_version) {
    std::vector<std::unique_ptr<ChildProcess>> clients;
    for (int i = 0; i < kClients; ++i) {
      fs::remove(JournalPath(i));
      clients.push_back(RunThisTest("CrashLoad", "PutsUntilTheDaemonIsGone"));
      clients.back()->WriteLine(daemon_.socket_dir());
      clients.back()->WriteLine(JournalPath(i));
      clients.back()->WriteLine(absl::StrCat(i));
      clients.back()->WriteLine(absl::StrCat(random_()));
      clients.back()->WriteLine(absl::StrCat(first_version));
    }
    for (auto& client : clients) ASSERT_EQ(client->ReadLine(), "ready");
    absl::SleepFor(time);  // the moment of the kill is what is random here; nothing waits for it
    ASSERT_EQ(daemon_.Kill(), -SIGKILL) << daemon_.Log();
    clients.clear();
    for (int i = 0; i < kClients; ++i) ReadJournal(JournalPath(i));
  }

  void ReadJournal(const std::string& path) {
    std::ifstream file(path);
    std::vector<int> put;
    char what;
    int key;
    uint64_t version;
    while (file >> what >> key >> version) {
      Promise& promise = promises_[key];
      if (what == 't') promise.tried.insert(version);
      if (what == 'p') {
        promise.put = version;
        put.push_back(key);
        ++puts_;
      }
      if (what == 'd') {
        promise.deleted = version;
        promise.durable = 0;
        promise.put = 0;
      }
      if (what == 'f') {
        for (int done : put) promises_[done].durable = promises_[done].put;
        put.clear();
        ++flushes_;
      }
    }
  }

  void CheckEverything() {
    auto client = daemon_.Connect();
    ASSERT_TRUE(client.ok()) << client.status();
    for (auto& [key, promise] : promises_) {
      const auto lease = (*client)->Get(KeyOf(key));
      ASSERT_TRUE(lease.ok()) << lease.status();
      if (!lease->has_value()) continue;
      ++hits_;
      const client::Bytes bytes = (*lease)->data(0);
      uint64_t words[2];
      ASSERT_GE(bytes.size(), sizeof(words));
      std::memcpy(words, bytes.data(), sizeof(words));
      EXPECT_EQ(words[0], key);
      EXPECT_EQ(promise.tried.count(words[1]), 1) << "key " << key << " version " << words[1];
      EXPECT_GE(words[1], promise.durable) << "key " << key << " is older than what was flushed";
      EXPECT_GT(words[1], promise.deleted) << "key " << key << " was deleted";
      const std::vector<uint64_t> expected = ValueOf(key, words[1]);
      ASSERT_EQ(bytes.size(), expected.size() * sizeof(uint64_t));
      EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0) << "key " << key;
      promise.durable = promise.put = words[1];  // it came from the disk
    }
    ExpectTidy(**client);
  }

  void ExpectTidy(Client& client) {
    const std::string l3 = daemon_.directory() + "/l3";
    uint64_t tables = 0;
    nlohmann::json stats;
    // What was given up at the start may be written and dropped a moment later.
    for (const absl::Time deadline = absl::Now() + absl::Seconds(10); absl::Now() < deadline;) {
      const absl::StatusOr<std::string> text = client.StatsJson();
      ASSERT_TRUE(text.ok()) << text.status();
      stats = nlohmann::json::parse(*text)["l3"];
      tables = 0;
      for (const auto& entry : fs::directory_iterator(l3 + "/db")) {
        if (entry.path().extension() == ".sst") ++tables;
      }
      if (tables == stats["files"] && fs::is_empty(l3 + "/stage")) break;
    }
    EXPECT_EQ(tables, stats["files"]) << "a file that nobody refers to";
    EXPECT_TRUE(fs::is_empty(l3 + "/stage"));
    EXPECT_EQ(stats["corruptions"], 0) << daemon_.Log();
    EXPECT_TRUE(stats["writable"]) << daemon_.Log();
    EXPECT_FALSE(fs::exists(l3 + "/db.corrupt"));
  }

  DaemonProcess daemon_;
  std::mt19937_64 random_;
  std::map<int, Promise> promises_;
  uint64_t puts_ = 0;
  uint64_t flushes_ = 0;
  uint64_t hits_ = 0;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::stoull(text) : otherwise;
}

TEST_F(CrashLoopTest, AfterEveryKillEveryKeyReadsBackExactlyOrMisses) {
  const uint64_t rounds = FromEnvironment("EMBCACHE_TEST_ROUNDS", 15);
  const uint64_t seed = FromEnvironment("EMBCACHE_TEST_SEED", std::random_device()());
  std::printf("EMBCACHE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  random_.seed(seed);
  double slowest_start = 0;
  ASSERT_TRUE(daemon_.Start().ok());
  for (uint64_t round = 1; round <= rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    ASSERT_NO_FATAL_FAILURE(
        RunUntilKilled(absl::Milliseconds(20 + random_() % 900), round * 1'000'000));
    if (round % 4 == 0) {  // killed while it starts, too
      ChildProcess starting(daemon_.command(), daemon_.directory() + "/log", false);
      absl::SleepFor(absl::Milliseconds(random_() % 80));  // likewise
      starting.Signal(SIGKILL);
      starting.Wait();
    }
    const absl::Time begin = absl::Now();
    const absl::Status started = daemon_.Start();
    ASSERT_TRUE(started.ok()) << started;
    slowest_start = std::max(slowest_start, absl::ToDoubleSeconds(absl::Now() - begin));
    ASSERT_NO_FATAL_FAILURE(CheckEverything());
    if (HasFailure()) break;
  }
  std::printf(
      "%llu rounds, %llu puts, %llu flushes, %llu hits after a kill, slowest start %.2f s\n",
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(puts_),
      static_cast<unsigned long long>(flushes_), static_cast<unsigned long long>(hits_),
      slowest_start);
  EXPECT_GT(puts_, rounds * 10);
  EXPECT_GT(hits_, rounds * 10);
  EXPECT_GT(flushes_, rounds / 2);
}

}  // namespace
}  // namespace embcache
