// Makes absl's locks, and the last use of a shared absl::Status, visible to ThreadSanitizer.
//
// Debian's Abseil is compiled without the sanitizer, so TSan sees neither its locks nor what they
// order, and reports a race for everything a Mutex guards. These definitions take the place of the
// library's own (the program's symbols come first), call them, and tell TSan what they mean.
// Conditions are evaluated inside the library, by whichever thread holds the lock there; their
// reads are not looked at. Linked into every test of the tsan preset, and only there.

#include <dlfcn.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

// A test that forks to be two clients starts threads in the child.
const char* __tsan_default_options();
const char* __tsan_default_options() { return "die_after_fork=0"; }

// Abseil's graph of lock orders is guarded by a spin lock inside the library, which is not seen.
const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return "race:absl::*::synchronization_internal::GraphCycles::\n";
}
}

namespace {

template <typename Function>
Function Original(const char* symbol) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
}

struct IgnoreReads {
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

#pragma GCC diagnostic ignored "-Wmissing-declarations"

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto original = Original<void (*)(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  original(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto original = Original<void (*)(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  IgnoreReads ignore;
  original(this);
}

bool Mutex::TryLock() {
  static const auto original = Original<bool (*)(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  const bool locked = original(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

// This orders readers among themselves too: what only they do hides no race of a writer.
void Mutex::ReaderLock() {
  static const auto original = Original<void (*)(Mutex*)>("_ZN4absl7debian35Mutex10ReaderLockEv");
  original(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto original = Original<void (*)(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_release(this);
  IgnoreReads ignore;
  original(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto original = Original<void (*)(Mutex*, const Condition&)>(
      "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    IgnoreReads ignore;
    original(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto original = Original<bool (*)(Mutex*, const Condition&, Duration)>(
      "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  bool held;
  {
    IgnoreReads ignore;
    held = original(this, condition, timeout);
  }
  __tsan_acquire(this);
  return held;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto original = Original<bool (*)(Mutex*, const Condition&, Time)>(
      "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  bool held;
  {
    IgnoreReads ignore;
    held = original(this, condition, deadline);
  }
  __tsan_acquire(this);
  return held;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto original =
      Original<void (*)(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  original(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto original = Original<bool (*)(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool timed_out = original(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto original = Original<bool (*)(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool timed_out = original(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  static const auto original =
      Original<void (*)(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(this);
  original(this);
}

void Notification::WaitForNotification() const {
  static const auto original = Original<void (*)(const Notification*)>(
      "_ZNK4absl7debian312Notification19WaitForNotificationEv");
  original(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto original = Original<bool (*)(const Notification*, Duration)>(
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = original(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static const auto original =
      Original<bool (*)(BlockingCounter*)>("_ZN4absl7debian315BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return original(this);
}

void BlockingCounter::Wait() {
  static const auto original =
      Original<void (*)(BlockingCounter*)>("_ZN4absl7debian315BlockingCounter4WaitEv");
  original(this);
  __tsan_acquire(this);
}

// Counts the uses inside the library, and frees after the last what other threads have read.
void Status::UnrefNonInlined(uintptr_t rep) {
  static const auto original =
      Original<void (*)(uintptr_t)>("_ZN4absl7debian36Status15UnrefNonInlinedEm");
  IgnoreReads ignore;  // and writes
  original(rep);
}

ABSL_NAMESPACE_END
}  // namespace absl
