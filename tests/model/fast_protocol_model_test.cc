// The protocol of a hit without a call, explored exhaustively: every interleaving of one reader and
// the daemon, and every order in which their stores may become visible, of a small program in which
// an entry goes, its range is used for another one, and that goes too. Each step here is one access
// of client/fast/protocol.h (Reader) or of FastIndex::WriteSlot and FastPath::Retire (Daemon).
//
// Two machines. TSO (x86): a thread's stores wait in a queue and become visible in order. Relaxed:
// they become visible in any order that release stores, release fences and full fences leave.
// In both, loads are made in program order: that the real ones are comes from acquire, which is
// argued in docs/architecture.md and not explored here.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace embcache {
namespace {

enum class Machine { kTso, kRelaxed };

struct Protocol {
  bool fence = true;         // the reader's
  bool check = true;         // the reader's second look
  bool pin = true;           // the reader's store
  bool daemon_fence = true;  // between unlinking and looking for pins
};

enum Variable : uint8_t { kSeq, kPublication, kPayload, kPin, kVariables };

struct Store {
  uint8_t variable;
  uint8_t value;
  bool ordered;  // after all that the thread stored before

  auto operator<=>(const Store&) const = default;
};

struct Thread {
  uint8_t pc = 0;
  uint8_t round = 0;
  uint8_t seq = 0;            // what it read
  uint8_t publication = 0;    // likewise
  std::vector<Store> stores;  // not visible yet

  auto operator<=>(const Thread&) const = default;
};

struct State {
  std::array<uint8_t, kVariables> memory = {};
  Thread reader;
  Thread daemon;

  auto operator<=>(const State&) const = default;
};

// A range holds the number of the publication that it belongs to; kFree when it belongs to nobody.
constexpr uint8_t kFree = 99;
constexpr uint8_t kRounds = 3;  // publications 1, 2, 3, all in the same slot and the same range

class Explorer {
 public:
  Explorer(Machine machine, const Protocol& protocol) : machine_(machine), protocol_(protocol) {}

  // The number of states, or 0: somebody read under a pin what was not its publication's.
  size_t Explore() {
    State start;
    start.memory = {2, 1, 1, 0};  // publication 1, whole
    std::vector<State> open = {start};
    seen_ = {start};
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      next_.clear();
      StepReader(state);
      StepDaemon(state);
      MakeVisible(state, &State::reader);
      MakeVisible(state, &State::daemon);
      if (violated_) return 0;
      for (State& next : next_) {
        if (seen_.insert(next).second) open.push_back(std::move(next));
      }
    }
    return seen_.size();
  }

 private:
  // A thread sees its own stores before others do.
  static uint8_t Load(const State& state, const Thread& thread, Variable variable) {
    for (size_t i = thread.stores.size(); i-- > 0;) {
      if (thread.stores[i].variable == variable) return thread.stores[i].value;
    }
    return state.memory[variable];
  }

  static void Put(Thread* thread, Variable variable, uint8_t value, bool ordered) {
    thread->stores.push_back({variable, value, ordered});
  }

  void MakeVisible(const State& state, Thread State::*which) {
    const std::vector<Store>& stores = (state.*which).stores;
    for (size_t i = 0; i < stores.size(); ++i) {
      bool may = i == 0;
      if (machine_ == Machine::kRelaxed && !may) {
        may = !stores[i].ordered;
        for (size_t k = 0; k < i; ++k) may = may && stores[k].variable != stores[i].variable;
      }
      if (!may) continue;
      State next = state;
      next.memory[stores[i].variable] = stores[i].value;
      (next.*which).stores.erase((next.*which).stores.begin() + static_cast<int64_t>(i));
      next_.push_back(std::move(next));
    }
  }

  void StepReader(const State& state) {
    const Thread& now = state.reader;
    if (now.round == kRounds) return;
    State next = state;
    Thread& reader = next.reader;
    const auto again = [&] {
      reader.pc = 0;
      ++reader.round;
    };
    switch (reader.pc++) {
      case 0:  // embcache_fast_look
        reader.seq = Load(state, now, kSeq);
        break;
      case 1:
        reader.publication = Load(state, now, kPublication);
        break;
      case 2:
        if ((reader.seq & 1) != 0 || Load(state, now, kSeq) != reader.seq ||
            reader.publication == 0) {
          again();
        }
        break;
      case 3:  // embcache_fast_pin
        if (protocol_.pin) Put(&reader, kPin, reader.publication, true);
        break;
      case 4:
        if (protocol_.fence && !now.stores.empty()) return;  // until all is visible
        break;
      case 5:
        if (protocol_.check && Load(state, now, kSeq) != reader.seq) {
          Put(&reader, kPin, 0, true);
          again();
        }
        break;
      case 6:
      case 7:
        violated_ |= Load(state, now, kPayload) != reader.publication;
        break;
      case 8:  // embcache_fast_unpin
        if (protocol_.pin) Put(&reader, kPin, 0, true);
        again();
        break;
    }
    next_.push_back(std::move(next));
  }

  void StepDaemon(const State& state) {
    const Thread& now = state.daemon;
    const auto publication = static_cast<uint8_t>(now.round + 1);
    if (publication > kRounds) return;
    State next = state;
    Thread& daemon = next.daemon;
    switch (daemon.pc++) {
      case 0:  // FastIndex::Erase
        daemon.seq = Load(state, now, kSeq);
        Put(&daemon, kSeq, static_cast<uint8_t>(daemon.seq + 1), false);
        break;
      case 1:
        Put(&daemon, kPublication, 0, true);  // after a release fence
        break;
      case 2:
        Put(&daemon, kSeq, static_cast<uint8_t>(daemon.seq + 2), true);
        break;
      case 3:  // FastPath::Retire
        if (protocol_.daemon_fence && !now.stores.empty()) return;
        break;
      case 4:
        if (Load(state, now, kPin) == publication) return;  // in limbo: looks again later
        break;
      case 5:  // the range is free, and then another's
        Put(&daemon, kPayload, kFree, false);
        break;
      case 6:
        Put(&daemon, kPayload, static_cast<uint8_t>(publication + 1), false);
        break;
      case 7:  // FastIndex::Insert
        Put(&daemon, kSeq, static_cast<uint8_t>(daemon.seq + 3), false);
        break;
      case 8:
        Put(&daemon, kPublication, static_cast<uint8_t>(publication + 1), true);
        break;
      case 9:
        Put(&daemon, kSeq, static_cast<uint8_t>(daemon.seq + 4), true);
        daemon.pc = 0;
        ++daemon.round;
        break;
    }
    next_.push_back(std::move(next));
  }

  const Machine machine_;
  const Protocol protocol_;
  std::set<State> seen_;
  std::vector<State> next_;
  bool violated_ = false;
};

class FastProtocolModelTest : public ::testing::TestWithParam<Machine> {
 protected:
  static bool IsSafe(const Protocol& protocol) {
    return Explorer(GetParam(), protocol).Explore() > 0;
  }
};

TEST_P(FastProtocolModelTest, NoOrderOfEventsLetsAReaderSeeAnothersBytes) {
  const size_t states = Explorer(GetParam(), {}).Explore();
  EXPECT_GT(states, 1000u);
  RecordProperty("states", static_cast<int>(states));
}

TEST_P(FastProtocolModelTest, EveryPartIsNeeded) {
  EXPECT_FALSE(IsSafe({.fence = false}));
  EXPECT_FALSE(IsSafe({.check = false}));
  EXPECT_FALSE(IsSafe({.pin = false}));
  EXPECT_FALSE(IsSafe({.daemon_fence = false}));
}

INSTANTIATE_TEST_SUITE_P(Machines, FastProtocolModelTest,
                         ::testing::Values(Machine::kTso, Machine::kRelaxed), [](const auto& info) {
                           return info.param == Machine::kTso ? "Tso" : "Relaxed";
                         });

}  // namespace
}  // namespace embcache
