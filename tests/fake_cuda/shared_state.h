// What the processes that use one fake device share: a file in the fake's directory, mapped by
// each. It holds settings, counters, and the table of device memory; the bytes of each block of
// device memory are a file of their own beside it. Internal to the fake.
//
// Every process has a slot and holds a record lock on the slot's byte of the file for as long as it
// lives, so that others see its end, whatever the way, at once.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_SHARED_STATE_H_
#define EMBCACHE_TESTS_FAKE_CUDA_SHARED_STATE_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "tests/fake_cuda/functions.h"

namespace fakecuda {

constexpr int kMaxDevices = 8;
constexpr int kMaxProcesses = 64;
constexpr int kMaxBlocks = 1024;
constexpr int kMaxAllocations = 8192;
constexpr int kMaxRules = 32;
constexpr uint64_t kBlockBytes = uint64_t{2} << 20;

struct Process {
  std::atomic<int32_t> pid;  // 0: never used
  std::atomic<int32_t> sticky;
  std::atomic<uint64_t> pageable_copies;
  std::atomic<uint64_t> calls[kFunctionCount];
};

struct Rule {
  int32_t pid;  // 0: any
  int32_t function;
  int32_t nth;  // calls until it fires; 0: unused; -1: fires always
  int32_t code;
};

// Physical memory: whole multiples of 2 MiB. Gone when no allocation in it is owned or imported.
struct Block {
  uint64_t id;  // 0: unused
  int32_t device;
  uint64_t bytes;
};

// What cuMemAlloc returned, known by an id that is never used again.
struct Allocation {
  uint64_t id;  // 0: unused
  int32_t block;
  uint64_t offset;
  uint64_t bytes;
  int32_t owner;  // slot
  bool owned;     // not freed by its owner, who lives
  bool exportable;
  uint64_t address;  // in its owner
  uint16_t imports[kMaxProcesses];
};

struct Shared {
  pthread_mutex_t mutex;
  uint64_t secret;
  std::atomic<uint64_t> host_limit;
  std::atomic<uint64_t> delay_us;
  std::atomic<int32_t> held_pid;  // -1: nobody's streams are held; 0: all are
  std::atomic<int32_t> strict;
  std::atomic<int32_t> rule_count;  // rules in use
  int32_t devices;
  int32_t driver_version;
  // Guarded by mutex, from here on (processes: the assignment of slots).
  uint64_t next_id;
  uint64_t vram[kMaxDevices];
  Rule rules[kMaxRules];
  Process processes[kMaxProcesses];
  Block blocks[kMaxBlocks];
  Allocation allocations[kMaxAllocations];
};

// Locks the shared tables. Survives holders that are killed.
class SharedLock {
 public:
  explicit SharedLock(Shared* shared);
  ~SharedLock();
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  Shared* const shared_;
};

// The calling process's part in a fake device. Never destroyed once made.
class Attachment {
 public:
  // nullptr when $EMBCACHE_TEST_FAKE_CUDA_DIR names no usable directory.
  static Attachment* Open();

  Shared* shared() const { return shared_; }
  int slot() const { return slot_; }
  Process& process() const { return shared_->processes[slot_]; }

  std::string BlockPath(uint64_t block_id) const;
  // Applies the environment's settings anew.
  void ResetSettings();

  // The rest needs the lock.
  bool Alive(int slot) const;
  // Forgets what dead processes owned and imported.
  void Sweep();
  uint64_t UsedBytes(int device);
  Block* NewBlock(int device, uint64_t bytes);  // nullptr: the table is full
  Allocation* NewAllocation(int block, uint64_t offset, uint64_t bytes);
  Allocation* FindAllocation(uint64_t id);
  // After an allocation lost its owner or an import: frees what nobody has any more.
  void Collect(Allocation* allocation);
  bool Imported(const Allocation& allocation) const;

 private:
  Attachment(std::string directory, int fd) : directory_(std::move(directory)), fd_(fd) {}
  bool Map();
  bool TakeSlot();
  void AddRulesOfEnvironment();

  const std::string directory_;
  const int fd_;
  Shared* shared_ = nullptr;
  int slot_ = -1;
};

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_SHARED_STATE_H_
