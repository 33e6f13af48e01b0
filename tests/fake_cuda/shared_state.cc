#include "tests/fake_cuda/shared_state.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

namespace fakecuda {
namespace {

[[noreturn]] void Die(const char* what) {
  fprintf(stderr, "fake CUDA driver: %s\n", what);
  abort();
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : strtoull(text, nullptr, 0);
}

struct flock SlotLock(int slot) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  return lock;
}

void InitMutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

}  // namespace

int FunctionByName(const char* name) {
#define FAKECUDA_COMPARE(function, symbol) \
  if (strcmp(name, #function) == 0 || strcmp(name, #symbol) == 0) return k_##symbol;
  FAKECUDA_FUNCTIONS(FAKECUDA_COMPARE)
#undef FAKECUDA_COMPARE
  return -1;
}

SharedLock::SharedLock(Shared* shared) : shared_(shared) {
  const int error = pthread_mutex_lock(&shared_->mutex);
  // A holder was killed. It changed the tables in small steps that Sweep() can live with.
  if (error == EOWNERDEAD) pthread_mutex_consistent(&shared_->mutex);
  if (error != 0 && error != EOWNERDEAD) Die("cannot lock the shared state");
}

SharedLock::~SharedLock() { pthread_mutex_unlock(&shared_->mutex); }

Attachment* Attachment::Open() {
  const char* directory = getenv("EMBCACHE_TEST_FAKE_CUDA_DIR");
  if (directory == nullptr || *directory == '\0') return nullptr;
  const std::string path = std::string(directory) + "/state";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  auto* attachment = new Attachment(directory, fd);
  if (attachment->Map() && attachment->TakeSlot()) return attachment;
  // The process can go on without a device, and the descriptor goes with it.
  delete attachment;
  close(fd);
  return nullptr;
}

bool Attachment::Map() {
  flock(fd_, LOCK_EX);  // for whoever comes first; independent of the slots' record locks
  const bool first = lseek(fd_, 0, SEEK_END) == 0;
  void* mapped = MAP_FAILED;
  if (!first || ftruncate(fd_, sizeof(Shared)) == 0) {
    mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  if (mapped != MAP_FAILED) shared_ = static_cast<Shared*>(mapped);
  if (shared_ != nullptr && first) {
    InitMutex(&shared_->mutex);
    std::random_device random;
    shared_->secret = (uint64_t{random()} << 32) | random();
    shared_->next_id = 1;
    const uint64_t devices = FromEnvironment("EMBCACHE_TEST_FAKE_CUDA_DEVICES", 1);
    shared_->devices = static_cast<int32_t>(devices < kMaxDevices ? devices : kMaxDevices);
    shared_->driver_version =
        static_cast<int32_t>(FromEnvironment("EMBCACHE_TEST_FAKE_CUDA_DRIVER", 12090));
    ResetSettings();
  }
  flock(fd_, LOCK_UN);
  return shared_ != nullptr;
}

void Attachment::ResetSettings() {
  SharedLock lock(shared_);
  const uint64_t vram = FromEnvironment("EMBCACHE_TEST_FAKE_CUDA_VRAM", uint64_t{256} << 20);
  for (uint64_t& bytes : shared_->vram) bytes = vram;
  shared_->host_limit = FromEnvironment("EMBCACHE_TEST_FAKE_CUDA_HOST_LIMIT", UINT64_MAX);
  shared_->delay_us = FromEnvironment("EMBCACHE_TEST_FAKE_CUDA_DELAY_US", 200);
  shared_->strict = static_cast<int32_t>(FromEnvironment("EMBCACHE_TEST_FAKE_CUDA_STRICT", 0));
  shared_->held_pid = -1;
  shared_->rule_count = 0;
  for (Rule& rule : shared_->rules) rule = {};
  for (Process& process : shared_->processes) {
    process.pageable_copies = 0;
    for (auto& calls : process.calls) calls = 0;
  }
}

bool Attachment::TakeSlot() {
  SharedLock lock(shared_);
  for (int reuse = 0; reuse < 2 && slot_ < 0; ++reuse) {  // the counters of the dead may be wanted
    for (int slot = 0; slot < kMaxProcesses && slot_ < 0; ++slot) {
      const bool used = shared_->processes[slot].pid != 0;
      if (!used || (reuse == 1 && !Alive(slot))) slot_ = slot;
    }
  }
  if (slot_ < 0) return false;
  struct flock slot_lock = SlotLock(slot_);
  if (fcntl(fd_, F_SETLK, &slot_lock) != 0) return false;
  Process& mine = process();
  mine.pid = getpid();
  mine.sticky = 0;
  mine.pageable_copies = 0;
  for (auto& calls : mine.calls) calls = 0;
  for (Allocation& allocation : shared_->allocations) {
    if (allocation.id == 0) continue;
    allocation.imports[slot_] = 0;
    if (allocation.owner == slot_) allocation.owned = false;
    Collect(&allocation);
  }
  AddRulesOfEnvironment();
  return true;
}

// EMBCACHE_TEST_FAKE_CUDA_FAIL=function:nth:code,...
void Attachment::AddRulesOfEnvironment() {
  const char* text = getenv("EMBCACHE_TEST_FAKE_CUDA_FAIL");
  if (text == nullptr) return;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t first = item.find(':');
    const size_t second = item.find(':', first + 1);
    if (second == std::string::npos) Die("EMBCACHE_TEST_FAKE_CUDA_FAIL: not function:nth:code");
    const int function = FunctionByName(item.substr(0, first).c_str());
    if (function < 0) Die("EMBCACHE_TEST_FAKE_CUDA_FAIL: unknown function");
    for (Rule& rule : shared_->rules) {
      if (rule.nth != 0) continue;
      rule = {getpid(), function, atoi(item.c_str() + first + 1), atoi(item.c_str() + second + 1)};
      ++shared_->rule_count;
      break;
    }
  }
}

std::string Attachment::BlockPath(uint64_t block_id) const {
  return directory_ + "/block." + std::to_string(block_id);
}

bool Attachment::Alive(int slot) const {
  if (slot == slot_) return true;
  struct flock lock = SlotLock(slot);
  return fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void Attachment::Sweep() {
  bool dead[kMaxProcesses] = {};
  for (int slot = 0; slot < kMaxProcesses; ++slot) {
    dead[slot] = shared_->processes[slot].pid != 0 && !Alive(slot);
  }
  for (Allocation& allocation : shared_->allocations) {
    if (allocation.id == 0) continue;
    bool changed = false;
    for (int slot = 0; slot < kMaxProcesses; ++slot) {
      if (!dead[slot]) continue;
      changed |= allocation.imports[slot] != 0;
      allocation.imports[slot] = 0;
      if (allocation.owner == slot && allocation.owned) {
        allocation.owned = false;
        changed = true;
      }
    }
    if (changed) Collect(&allocation);
  }
}

bool Attachment::Imported(const Allocation& allocation) const {
  for (uint16_t count : allocation.imports) {
    if (count != 0) return true;
  }
  return false;
}

void Attachment::Collect(Allocation* allocation) {
  if (allocation->owned || Imported(*allocation)) return;
  const int block_index = allocation->block;
  allocation->id = 0;
  for (const Allocation& other : shared_->allocations) {
    if (other.id != 0 && other.block == block_index) return;
  }
  Block& block = shared_->blocks[block_index];
  unlink(BlockPath(block.id).c_str());
  block.id = 0;
}

uint64_t Attachment::UsedBytes(int device) {
  Sweep();
  uint64_t used = 0;
  for (const Block& block : shared_->blocks) {
    if (block.id != 0 && block.device == device) used += block.bytes;
  }
  return used;
}

Block* Attachment::NewBlock(int device, uint64_t bytes) {
  for (Block& block : shared_->blocks) {
    if (block.id != 0) continue;
    block = {shared_->next_id++, device, bytes};
    return &block;
  }
  return nullptr;
}

Allocation* Attachment::NewAllocation(int block, uint64_t offset, uint64_t bytes) {
  for (Allocation& allocation : shared_->allocations) {
    if (allocation.id != 0) continue;
    allocation = {};
    allocation.id = shared_->next_id++;
    allocation.block = block;
    allocation.offset = offset;
    allocation.bytes = bytes;
    allocation.owner = slot_;
    allocation.owned = true;
    allocation.exportable = true;
    return &allocation;
  }
  return nullptr;
}

Allocation* Attachment::FindAllocation(uint64_t id) {
  for (Allocation& allocation : shared_->allocations) {
    if (id != 0 && allocation.id == id) return &allocation;
  }
  return nullptr;
}

}  // namespace fakecuda
