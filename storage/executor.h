// Executor: the port on which the cache runs work that may block (disk reads and writes).
//
// Schedule never blocks and never runs the task in the calling thread, so it may be called with
// locks held. Every scheduled task runs exactly once, also at shutdown. Thread-safe.

#ifndef EMBCACHE_STORAGE_EXECUTOR_H_
#define EMBCACHE_STORAGE_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace embcache {

class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;

  // False, and `task` is dropped, when the queue is full or the executor is stopping.
  [[nodiscard]] virtual bool Schedule(Task task) = 0;
};

// A fixed number of named threads over one bounded first-in-first-out queue. The destructor runs
// what is queued, then joins.
class ThreadPoolExecutor : public Executor {
 public:
  // `name` (at most 12 characters) is the threads' name prefix as seen in top and gdb.
  ThreadPoolExecutor(absl::string_view name, int threads, size_t queue_limit);
  ~ThreadPoolExecutor() override;

  bool Schedule(Task task) override;

 private:
  void RunTasks();

  const size_t queue_limit_;
  absl::Mutex mu_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Runs tasks only when a test says so, in the order the test picks. What is pending when it is
// destroyed never runs.
class ManualExecutor : public Executor {
 public:
  bool Schedule(Task task) override;

  size_t pending() const;
  // Runs the i-th oldest pending task in the calling thread. REQUIRES: i < pending().
  void RunOne(size_t i = 0);
  // Runs until nothing is pending, also what the tasks schedule.
  void RunAll();

 private:
  mutable absl::Mutex mu_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_EXECUTOR_H_
