// The calling process's device memory and pinned host memory. Internal to the fake.
//
// A block of device memory is mapped twice: at its device address, where nothing may be read or
// written, so that a CPU that dereferences a device pointer faults; and at a shadow address, which
// only the fake knows and through which it copies.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_MEMORY_H_
#define EMBCACHE_TESTS_FAKE_CUDA_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>

#include "tests/fake_cuda/process.h"

namespace fakecuda {

// What an address belongs to.
struct Range {
  uint64_t base = 0;
  uint64_t bytes = 0;
  int device = 0;
  uint64_t allocation_id = 0;  // 0: host memory
  bool exportable = false;
  bool imported = false;
};

class Memory {
 public:
  static Memory& Get();

  CUresult Allocate(CUcontext context, uint64_t bytes, bool exportable, uint64_t* address);
  // INVALID_VALUE unless `address` is what Allocate() gave.
  CUresult Free(uint64_t address);
  CUresult Open(CUcontext context, uint64_t allocation_id, uint64_t* address);
  CUresult Close(uint64_t address);
  // Frees and closes all that the process has on a device.
  void DropDevice(int device);

  CUresult Pin(void* address, uint64_t bytes);
  CUresult Unpin(void* address);
  // Pinned memory of the driver's own.
  CUresult AllocateHost(uint64_t bytes, void** address);
  CUresult FreeHost(void* address);
  bool IsPinned(const void* address, uint64_t bytes) const;
  uint64_t pinned_bytes() const;

  // The allocation, import or pinned range that contains `address`.
  bool Find(uint64_t address, Range* range) const;
  // Whether all of the range lies in one allocation, import or pinned range.
  bool Contains(uint64_t address, uint64_t bytes) const;
  // What an operation on a stream does, now. ILLEGAL_ADDRESS when device memory is not there any
  // more, or goes away before the copy has ended. Addresses outside of it are the host's.
  CUresult Copy(uint64_t to, uint64_t from, uint64_t bytes);
  CUresult Fill(uint64_t to, unsigned char value, uint64_t bytes);
  // Copies bounded by what is mapped and not by allocations; false: not mapped.
  bool Peek(uint64_t address, void* to, uint64_t bytes);
  bool Poke(uint64_t address, const void* from, uint64_t bytes);

  void set_exportable(bool exportable);

 private:
  struct Mapping {  // of a block
    uint64_t bytes = 0;
    int device = 0;
    bool small = false;  // shared by allocations below 2 MiB
    uint64_t address = 0;
    char* shadow = nullptr;
    int users = 0;  // allocations and imports in it
  };
  struct Piece {  // an allocation or import
    uint64_t block_id = 0;
    uint64_t allocation_id = 0;
    uint64_t bytes = 0;
    int opens = 0;  // 0: owned
    bool exportable = false;
  };
  struct Pinned {
    uint64_t bytes = 0;
    bool own = false;
  };

  // A mapping that cannot go away while an operation runs.
  struct Use {
    bool ok = false;
    uint64_t block_id = 0;  // 0: host memory
    uint64_t allocation_id = 0;
    uint64_t address = 0;
    char* at = nullptr;
  };
  Use Begin(uint64_t address, uint64_t bytes);
  // False when the allocation or import is gone.
  bool End(const Use& use);
  Use BeginInBlock(uint64_t address, uint64_t bytes);

  CUresult NewBlock(CUcontext context, uint64_t bytes, uint64_t* block_id);
  // A place for a small allocation in a block that has room; false: none.
  bool FindRoom(int device, uint64_t bytes, uint64_t* block_id, uint64_t* offset) const;
  // Maps a block of this process's or another's; false when the file is gone.
  bool Map(uint64_t block_id, uint64_t bytes, int device, uint64_t not_at);
  void Unuse(uint64_t block_id);
  // Whether memory freed by this process in a block of its own is still open elsewhere.
  static bool HasFreedImports(uint64_t block_id);
  bool WasDevice(uint64_t address) const;
  void ForgetPiece(std::map<uint64_t, Piece>::iterator piece);
  std::map<uint64_t, Piece>::const_iterator FindPiece(uint64_t address) const;
  std::map<uint64_t, Pinned>::const_iterator FindPinned(uint64_t address) const;
  CUresult PinLocked(uint64_t address, uint64_t bytes, bool own);

  mutable std::mutex mutex_;              // before the shared lock
  std::map<uint64_t, Mapping> mappings_;  // by block id
  std::map<uint64_t, Piece> pieces_;      // by device address
  std::map<uint64_t, Pinned> pinned_;     // by address
  // Addresses that device memory has had. They stay reserved, so that a stale device pointer is
  // seen to be one; the reservation costs no memory.
  std::map<uint64_t, uint64_t> was_device_;
  uint64_t pinned_bytes_ = 0;
  bool exportable_ = true;
};

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_MEMORY_H_
