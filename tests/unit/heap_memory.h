// HeapMemory: a MemoryResource over the heap, for tests: nothing to map, no descriptors, and a
// limit that can be reached on purpose. Fresh bytes are 0xCD, so that whoever counts on zeroes is
// found out. Thread-safe; segments may outlive it.

#ifndef EMBCACHE_TESTS_UNIT_HEAP_MEMORY_H_
#define EMBCACHE_TESTS_UNIT_HEAP_MEMORY_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "storage/check.h"
#include "storage/memory_resource.h"

namespace embcache {

class HeapMemory : public MemoryResource {
 public:
  explicit HeapMemory(uint64_t limit_bytes = std::numeric_limits<uint64_t>::max(),
                      uint64_t granularity = 4096)
      : granularity_(granularity), budget_(std::make_shared<Budget>(limit_bytes)) {}

  absl::StatusOr<std::unique_ptr<MemorySegment>> Allocate(absl::string_view label,
                                                          uint64_t bytes) override {
    if (bytes == 0 || bytes % granularity_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          label, ": ", bytes, " bytes; must be a positive multiple of ", granularity_));
    }
    absl::Status taken = budget_->Take(label, bytes);
    if (!taken.ok()) return taken;
    return std::make_unique<Segment>(budget_, bytes);
  }
  uint64_t granularity() const override { return granularity_; }
  std::string device_uuid() const override { return ""; }

  uint64_t used_bytes() const { return budget_->used(); }

 private:
  class Budget {
   public:
    explicit Budget(uint64_t limit) : limit_(limit) {}
    absl::Status Take(absl::string_view label, uint64_t bytes) {
      absl::MutexLock lock(&mu_);
      if (bytes > limit_ - used_) {
        return absl::ResourceExhaustedError(
            absl::StrCat(label, ": asked for ", bytes, " bytes of heap memory, but only ",
                         limit_ - used_, " are available (the limit is ", limit_, ")"));
      }
      used_ += bytes;
      return absl::OkStatus();
    }
    void GiveBack(uint64_t bytes) {
      absl::MutexLock lock(&mu_);
      used_ -= bytes;
    }
    uint64_t used() const {
      absl::MutexLock lock(&mu_);
      return used_;
    }

   private:
    mutable absl::Mutex mu_;
    const uint64_t limit_;
    uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  };

  class Segment : public MemorySegment {
   public:
    Segment(std::shared_ptr<Budget> budget, uint64_t bytes)
        : budget_(std::move(budget)), bytes_(bytes), data_(static_cast<char*>(std::malloc(bytes))) {
      EMB_CHECK(data_ != nullptr);
      std::memset(data_, 0xCD, bytes_);
    }
    ~Segment() override {
      std::free(data_);
      budget_->GiveBack(bytes_);
    }
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    uint64_t bytes() const override { return bytes_; }
    char* host_data() const override { return data_; }
    int writable_fd() const override { return -1; }
    int read_only_fd() const override { return -1; }
    std::string cuda_ipc_handle() const override { return ""; }

   private:
    const std::shared_ptr<Budget> budget_;
    const uint64_t bytes_;
    char* const data_;
  };

  const uint64_t granularity_;
  const std::shared_ptr<Budget> budget_;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_HEAP_MEMORY_H_
