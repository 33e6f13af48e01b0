#include "tests/fake_cuda/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace fakecuda {
namespace {

constexpr uint64_t kSmallAlignment = 512;

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// An address range, aligned to 2 MiB, that is nobody's and cannot be accessed; 0: there is none.
uint64_t ReserveAddresses(uint64_t bytes) {
  const uint64_t padded = bytes + kBlockBytes;
  void* at = mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  const uint64_t start = reinterpret_cast<uint64_t>(at);
  const uint64_t aligned = RoundUp(start, kBlockBytes);
  if (aligned > start) munmap(at, aligned - start);
  const uint64_t end = aligned + bytes;
  if (start + padded > end) munmap(reinterpret_cast<void*>(end), start + padded - end);
  return aligned;
}

}  // namespace

Memory& Memory::Get() {
  static auto* memory = new Memory;
  return *memory;
}

CUresult Memory::Allocate(CUcontext context, uint64_t bytes, bool exportable, uint64_t* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(mutex_);
  Attachment* attached = attachment();
  SharedLock shared_lock(attached->shared());
  const bool small = bytes < kBlockBytes;
  const uint64_t rounded = RoundUp(bytes, small ? kSmallAlignment : kBlockBytes);
  if (rounded < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t block_id = 0;
  uint64_t offset = 0;
  if (!small || !FindRoom(context->device, rounded, &block_id, &offset)) {
    const CUresult result = NewBlock(context, small ? kBlockBytes : rounded, &block_id);
    if (result != CUDA_SUCCESS) return result;
    mappings_[block_id].small = small;
  }
  int block_index = 0;
  while (attached->shared()->blocks[block_index].id != block_id) ++block_index;
  Allocation* allocation = attached->NewAllocation(block_index, offset, bytes);
  if (allocation == nullptr) {
    Unuse(block_id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Mapping& mapping = mappings_[block_id];
  ++mapping.users;
  *address = mapping.address + offset;
  allocation->address = *address;
  allocation->exportable = exportable && exportable_;
  pieces_[*address] = {block_id, allocation->id, bytes, 0, allocation->exportable};
  return CUDA_SUCCESS;
}

CUresult Memory::NewBlock(CUcontext context, uint64_t bytes, uint64_t* block_id) {
  Attachment* attached = attachment();
  const uint64_t total = attached->shared()->vram[context->device];
  const uint64_t used = attached->UsedBytes(context->device);
  if (used > total || bytes > total - used) return CUDA_ERROR_OUT_OF_MEMORY;
  Block* block = attached->NewBlock(context->device, bytes);
  if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::string path = attached->BlockPath(block->id);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const bool made = fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  if (fd >= 0) close(fd);
  if (!made || !Map(block->id, bytes, context->device, 0)) {
    unlink(path.c_str());
    block->id = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *block_id = block->id;
  return CUDA_SUCCESS;
}

bool Memory::FindRoom(int device, uint64_t bytes, uint64_t* block_id, uint64_t* offset) const {
  for (const auto& [id, mapping] : mappings_) {
    if (!mapping.small || mapping.device != device || HasFreedImports(id)) continue;
    uint64_t free_from = mapping.address;
    auto piece = pieces_.lower_bound(mapping.address);
    for (; piece != pieces_.end() && piece->first < mapping.address + mapping.bytes; ++piece) {
      if (piece->first - free_from >= bytes) break;
      free_from = RoundUp(piece->first + piece->second.bytes, kSmallAlignment);
    }
    if (free_from + bytes > mapping.address + mapping.bytes) continue;
    *block_id = id;
    *offset = free_from - mapping.address;
    return true;
  }
  return false;
}

bool Memory::HasFreedImports(uint64_t block_id) {
  const Shared* shared = attachment()->shared();
  for (const Allocation& allocation : shared->allocations) {
    if (allocation.id == 0 || allocation.owned) continue;
    if (shared->blocks[allocation.block].id == block_id) return true;
  }
  return false;
}

bool Memory::Map(uint64_t block_id, uint64_t bytes, int device, uint64_t not_at) {
  const int fd = open(attachment()->BlockPath(block_id).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  void* shadow = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (shadow == MAP_FAILED) return false;
  uint64_t address = ReserveAddresses(bytes);
  if (address != 0 && address == not_at) {  // an importer never sees the exporter's address
    const uint64_t other = ReserveAddresses(bytes);
    munmap(reinterpret_cast<void*>(address), bytes);
    address = other;
  }
  if (address == 0) {
    munmap(shadow, bytes);
    return false;
  }
  was_device_[address] = bytes;
  mappings_[block_id] = {bytes, device, false, address, static_cast<char*>(shadow), 0};
  return true;
}

void Memory::Unuse(uint64_t block_id) {
  const auto found = mappings_.find(block_id);
  Mapping& mapping = found->second;
  if (--mapping.users > 0) return;
  munmap(mapping.shadow, mapping.bytes);
  mappings_.erase(found);
}

void Memory::ForgetPiece(std::map<uint64_t, Piece>::iterator piece) {
  const uint64_t block_id = piece->second.block_id;
  pieces_.erase(piece);
  Unuse(block_id);
}

CUresult Memory::Free(uint64_t address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = pieces_.find(address);
  if (piece == pieces_.end() || piece->second.opens > 0) return CUDA_ERROR_INVALID_VALUE;
  Attachment* attached = attachment();
  SharedLock shared_lock(attached->shared());
  attached->Sweep();
  Allocation* allocation = attached->FindAllocation(piece->second.allocation_id);
  if (attached->Imported(*allocation) && attached->shared()->strict.load() != 0) {
    fprintf(stderr, "fake CUDA driver: memory freed while another process has it open\n");
    abort();
  }
  allocation->owned = false;
  attached->Collect(allocation);
  ForgetPiece(piece);
  return CUDA_SUCCESS;
}

CUresult Memory::Open(CUcontext context, uint64_t allocation_id, uint64_t* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  Attachment* attached = attachment();
  SharedLock shared_lock(attached->shared());
  attached->Sweep();
  Allocation* allocation = attached->FindAllocation(allocation_id);
  // Known once: freed, or its process has died. Memory that only importers hold is no longer
  // opened.
  if (allocation == nullptr || !allocation->owned) return CUDA_ERROR_MAP_FAILED;
  if (allocation->owner == attached->slot()) return CUDA_ERROR_INVALID_CONTEXT;
  const Block& block = attached->shared()->blocks[allocation->block];
  if (block.device != context->device) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = mappings_.find(block.id);
  if (mapping == mappings_.end()) {
    const uint64_t there = allocation->address - allocation->offset;
    if (!Map(block.id, block.bytes, block.device, there)) return CUDA_ERROR_MAP_FAILED;
    mapping = mappings_.find(block.id);
  }
  *address = mapping->second.address + allocation->offset;
  Piece& piece = pieces_[*address];
  if (piece.opens++ == 0) {
    piece = {block.id, allocation_id, allocation->bytes, 1, false};
    ++mapping->second.users;
  }
  ++allocation->imports[attached->slot()];
  return CUDA_SUCCESS;
}

CUresult Memory::Close(uint64_t address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = pieces_.find(address);
  if (piece == pieces_.end() || piece->second.opens == 0) return CUDA_ERROR_INVALID_VALUE;
  Attachment* attached = attachment();
  SharedLock shared_lock(attached->shared());
  Allocation* allocation = attached->FindAllocation(piece->second.allocation_id);
  --allocation->imports[attached->slot()];
  attached->Collect(allocation);
  if (--piece->second.opens == 0) ForgetPiece(piece);
  return CUDA_SUCCESS;
}

void Memory::DropDevice(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  Attachment* attached = attachment();
  SharedLock shared_lock(attached->shared());
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    const auto next = std::next(piece);
    if (mappings_[piece->second.block_id].device == device) {
      Allocation* allocation = attached->FindAllocation(piece->second.allocation_id);
      if (piece->second.opens == 0) allocation->owned = false;
      allocation->imports[attached->slot()] = 0;
      attached->Collect(allocation);
      ForgetPiece(piece);
    }
    piece = next;
  }
}

CUresult Memory::PinLocked(uint64_t address, uint64_t bytes, bool own) {
  const auto next = pinned_.lower_bound(address);
  if (next != pinned_.end() && next->first < address + bytes) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (FindPinned(address) != pinned_.end()) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const uint64_t limit = attachment()->shared()->host_limit.load();
  if (bytes > limit || pinned_bytes_ > limit - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  pinned_[address] = {bytes, own};
  pinned_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult Memory::Pin(void* address, uint64_t bytes) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(mutex_);
  return PinLocked(reinterpret_cast<uint64_t>(address), bytes, false);
}

CUresult Memory::Unpin(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pinned_.find(reinterpret_cast<uint64_t>(address));
  if (found == pinned_.end() || found->second.own) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  pinned_bytes_ -= found->second.bytes;
  pinned_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Memory::AllocateHost(uint64_t bytes, void** address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard<std::mutex> lock(mutex_);
  const CUresult result = PinLocked(reinterpret_cast<uint64_t>(at), bytes, true);
  if (result == CUDA_SUCCESS) {
    *address = at;
  } else {
    munmap(at, bytes);
  }
  return result;
}

CUresult Memory::FreeHost(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pinned_.find(reinterpret_cast<uint64_t>(address));
  if (found == pinned_.end() || !found->second.own) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second.bytes);
  pinned_bytes_ -= found->second.bytes;
  pinned_.erase(found);
  return CUDA_SUCCESS;
}

std::map<uint64_t, Memory::Piece>::const_iterator Memory::FindPiece(uint64_t address) const {
  auto piece = pieces_.upper_bound(address);
  if (piece == pieces_.begin()) return pieces_.end();
  --piece;
  return address - piece->first < piece->second.bytes ? piece : pieces_.end();
}

std::map<uint64_t, Memory::Pinned>::const_iterator Memory::FindPinned(uint64_t address) const {
  auto pinned = pinned_.upper_bound(address);
  if (pinned == pinned_.begin()) return pinned_.end();
  --pinned;
  return address - pinned->first < pinned->second.bytes ? pinned : pinned_.end();
}

bool Memory::WasDevice(uint64_t address) const {
  auto range = was_device_.upper_bound(address);
  if (range == was_device_.begin()) return false;
  --range;
  return address - range->first < range->second;
}

bool Memory::IsPinned(const void* address, uint64_t bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  const auto pinned = FindPinned(start);
  return pinned != pinned_.end() && bytes <= pinned->second.bytes - (start - pinned->first);
}

uint64_t Memory::pinned_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pinned_bytes_;
}

bool Memory::Find(uint64_t address, Range* range) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto piece = FindPiece(address); piece != pieces_.end()) {
    *range = {piece->first,
              piece->second.bytes,
              mappings_.at(piece->second.block_id).device,
              piece->second.allocation_id,
              piece->second.exportable,
              piece->second.opens > 0};
    return true;
  }
  if (const auto pinned = FindPinned(address); pinned != pinned_.end()) {
    *range = {pinned->first, pinned->second.bytes};
    return true;
  }
  return false;
}

bool Memory::Contains(uint64_t address, uint64_t bytes) const {
  Range range;
  return Find(address, &range) && bytes <= range.bytes - (address - range.base);
}

Memory::Use Memory::Begin(uint64_t address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = FindPiece(address);
  if (piece == pieces_.end()) {
    // Not device memory, or not any more: what is reserved or unmapped would fault, so only what
    // was never a device address may be touched.
    return {!WasDevice(address), 0, 0, address, reinterpret_cast<char*>(address)};
  }
  if (bytes > piece->second.bytes - (address - piece->first)) return {};
  Mapping& mapping = mappings_.at(piece->second.block_id);
  ++mapping.users;
  return {true, piece->second.block_id, piece->second.allocation_id, address,
          mapping.shadow + (address - mapping.address)};
}

bool Memory::End(const Use& use) {
  if (use.block_id == 0) return use.ok;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = FindPiece(use.address);
  const bool there = piece != pieces_.end() && piece->second.allocation_id == use.allocation_id;
  Unuse(use.block_id);
  return there;
}

CUresult Memory::Copy(uint64_t to, uint64_t from, uint64_t bytes) {
  const Use target = Begin(to, bytes);
  const Use source = Begin(from, bytes);
  if (target.ok && source.ok) memmove(target.at, source.at, bytes);
  const bool target_there = End(target);
  return End(source) && target_there ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult Memory::Fill(uint64_t to, unsigned char value, uint64_t bytes) {
  const Use target = Begin(to, bytes);
  if (target.ok) memset(target.at, value, bytes);
  return End(target) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

Memory::Use Memory::BeginInBlock(uint64_t address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, mapping] : mappings_) {
    if (address < mapping.address || address - mapping.address > mapping.bytes) continue;
    if (bytes > mapping.bytes - (address - mapping.address)) continue;
    ++mapping.users;
    return {true, id, 0, address, mapping.shadow + (address - mapping.address)};
  }
  return {};
}

bool Memory::Peek(uint64_t address, void* to, uint64_t bytes) {
  const Use use = BeginInBlock(address, bytes);
  if (use.ok) memcpy(to, use.at, bytes);
  End(use);
  return use.ok;
}

bool Memory::Poke(uint64_t address, const void* from, uint64_t bytes) {
  const Use use = BeginInBlock(address, bytes);
  if (use.ok) memcpy(use.at, from, bytes);
  End(use);
  return use.ok;
}

void Memory::set_exportable(bool exportable) {
  std::lock_guard<std::mutex> lock(mutex_);
  exportable_ = exportable;
}

}  // namespace fakecuda
