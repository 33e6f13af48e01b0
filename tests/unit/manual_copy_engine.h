// ManualCopyEngine: a CopyEngine whose copies happen when a test says so, in the order it picks, or
// fail with what it picks. Until then the destination is untouched, so a cache that reads too early
// is found out. `done` runs in the thread that calls Run or Fail. Thread-safe; pending copies are
// dropped by the destructor, without their `done`.

#ifndef EMBCACHE_TESTS_UNIT_MANUAL_COPY_ENGINE_H_
#define EMBCACHE_TESTS_UNIT_MANUAL_COPY_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "storage/check.h"
#include "storage/copy_engine.h"

namespace embcache {

class ManualCopyEngine : public CopyEngine {
 public:
  void Copy(const MemorySegment* to, uint64_t to_offset, const MemorySegment* from,
            uint64_t from_offset, uint64_t bytes, Done done) override {
    Add({Place(to, to_offset, bytes), Place(from, from_offset, bytes), bytes, std::move(done)});
  }
  void Upload(const MemorySegment* to, uint64_t to_offset, const char* from, uint64_t bytes,
              Done done) override {
    Add({Place(to, to_offset, bytes), from, bytes, std::move(done)});
  }
  void Download(char* to, const MemorySegment* from, uint64_t from_offset, uint64_t bytes,
                Done done) override {
    Add({to, Place(from, from_offset, bytes), bytes, std::move(done)});
  }

  size_t pending() const {
    absl::MutexLock lock(&mu_);
    return jobs_.size();
  }
  // Makes the i-th oldest pending copy. REQUIRES: i < pending(), here and below.
  void RunOne(size_t i = 0) {
    Job job = Take(i);
    if (job.bytes > 0) std::memcpy(job.to, job.from, job.bytes);
    job.done(absl::OkStatus());
  }
  // Until nothing is pending, also what the `done`s start.
  void RunAll() {
    while (pending() > 0) RunOne();
  }
  // Ends the i-th oldest with `status`. As of a copy that broke off, half the bytes are there.
  void FailOne(size_t i, absl::Status status) {
    EMB_CHECK(!status.ok());
    Job job = Take(i);
    if (job.bytes > 1) std::memcpy(job.to, job.from, job.bytes / 2);
    job.done(std::move(status));
  }

 private:
  struct Job {
    char* to = nullptr;
    const char* from = nullptr;
    uint64_t bytes = 0;
    Done done;
  };

  static char* Place(const MemorySegment* segment, uint64_t offset, uint64_t bytes) {
    EMB_CHECK(offset <= segment->bytes() && bytes <= segment->bytes() - offset);
    EMB_CHECK(segment->host_data() != nullptr);
    return segment->host_data() + offset;
  }

  void Add(Job job) {
    absl::MutexLock lock(&mu_);
    jobs_.push_back(std::move(job));
  }

  Job Take(size_t i) {
    absl::MutexLock lock(&mu_);
    EMB_CHECK(i < jobs_.size());
    Job job = std::move(jobs_[i]);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    return job;
  }

  mutable absl::Mutex mu_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_MANUAL_COPY_ENGINE_H_
