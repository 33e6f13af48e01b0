#include "storage/executor.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace embcache {

ThreadPoolExecutor::ThreadPoolExecutor(absl::string_view name, int threads, size_t queue_limit)
    : queue_limit_(queue_limit) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { RunTasks(); });
    pthread_setname_np(threads_.back().native_handle(),
                       absl::StrCat(name.substr(0, 12), "-", i).c_str());
  }
}

ThreadPoolExecutor::~ThreadPoolExecutor() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPoolExecutor::Schedule(Task task) {
  absl::MutexLock lock(&mu_);
  if (stopping_ || queue_.size() >= queue_limit_) return false;
  queue_.push_back(std::move(task));
  return true;
}

void ThreadPoolExecutor::RunTasks() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      };
      mu_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

bool ManualExecutor::Schedule(Task task) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(task));
  return true;
}

size_t ManualExecutor::pending() const {
  absl::MutexLock lock(&mu_);
  return queue_.size();
}

void ManualExecutor::RunOne(size_t i) {
  Task task;
  {
    absl::MutexLock lock(&mu_);
    EMB_CHECK(i < queue_.size());
    task = std::move(queue_[i]);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  task();
}

void ManualExecutor::RunAll() {
  while (pending() > 0) RunOne();
}

}  // namespace embcache
