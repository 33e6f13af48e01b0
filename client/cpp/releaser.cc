#include "client/cpp/releaser.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/session.h"

namespace embcache::client::internal {
namespace {

namespace v1 = embcache::v1;

constexpr size_t kBatch = 256;
constexpr size_t kMaxQueue = 4096;
constexpr absl::Duration kMaxDelay = absl::Milliseconds(10);
// Of the session's quota: with this share in the queue it is sent without delay, ...
constexpr uint64_t kUrgentShare = 4;
// ... and with this one by whoever ends the next lease, so that they cannot outrun the thread.
constexpr uint64_t kFullShare = 2;
constexpr absl::Duration kMaxFlushWait = absl::Seconds(1);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

}  // namespace

Releaser::Releaser() : thread_([this] { Run(); }) {}

Releaser::~Releaser() { Stop(); }

void Releaser::Add(std::shared_ptr<Session> session, uint64_t lease, uint64_t bytes) {
  const uint64_t quota = session->limits().max_pinned_bytes();
  std::vector<Item> overflow;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    queue_.push_back({std::move(session), lease, bytes});
    queue_bytes_ += bytes;
    if (quota != 0 && queue_bytes_ > quota / kUrgentShare) urgent_ = true;
    if (queue_.size() >= kMaxQueue || (quota != 0 && queue_bytes_ > quota / kFullShare)) {
      overflow = TakeQueue();
    }
  }
  if (!overflow.empty()) PutBack(Send(std::move(overflow)));
}

bool Releaser::Flush() {
  std::vector<Item> items;
  bool sending;
  {
    absl::MutexLock lock(&mutex_);
    sending = sending_ > 0;
    items = TakeQueue();
  }
  const bool any = sending || !items.empty();
  if (!items.empty()) PutBack(Send(std::move(items)));
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &Releaser::NothingBeingSent), kMaxFlushWait);
  return any;
}

// However often that happens, there are no more ids than the daemon lets a session have leases.
void Releaser::PutBack(std::vector<Item> items) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  for (Item& item : items) {
    queue_bytes_ += item.bytes;
    queue_.push_back(std::move(item));
  }
}

std::vector<Releaser::Item> Releaser::TakeQueue() {
  queue_bytes_ = 0;
  urgent_ = false;
  if (!queue_.empty()) ++sending_;
  return std::exchange(queue_, {});
}

void Releaser::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool Releaser::SomethingToDo() const { return stopping_ || !queue_.empty(); }

bool Releaser::BatchIsFull() const { return stopping_ || urgent_ || queue_.size() >= kBatch; }

std::vector<Releaser::Item> Releaser::NextBatch() {
  absl::MutexLock lock(&mutex_);
  do {  // again when somebody else has sent the queue meanwhile
    mutex_.Await(absl::Condition(this, &Releaser::SomethingToDo));
    mutex_.AwaitWithTimeout(absl::Condition(this, &Releaser::BatchIsFull), kMaxDelay);
  } while (queue_.empty() && !stopping_);
  return TakeQueue();
}

bool Releaser::NothingBeingSent() const { return sending_ == 0; }

void Releaser::Run() {
  pthread_setname_np(pthread_self(), "emb-release");
  while (true) {
    std::vector<Item> batch = NextBatch();
    if (batch.empty()) return;
    std::vector<Item> again = Send(std::move(batch));
    if (again.empty()) continue;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kRetryDelay);
    }
    PutBack(std::move(again));
  }
}

std::vector<Releaser::Item> Releaser::Send(std::vector<Item> items) {
  std::vector<Item> again = Call(std::move(items));
  absl::MutexLock lock(&mutex_);
  --sending_;
  return again;
}

std::vector<Releaser::Item> Releaser::Call(std::vector<Item> items) {
  absl::flat_hash_map<Session*, std::vector<Item>> by_session;
  for (Item& item : items) {
    if (item.session->connected()) by_session[item.session.get()].push_back(std::move(item));
  }
  std::vector<Item> again;
  for (auto& [session, own] : by_session) {
    const size_t max_batch = std::max<uint32_t>(1, session->limits().max_batch());
    for (size_t begin = 0; begin < own.size(); begin += max_batch) {
      const auto batch = absl::MakeSpan(own).subspan(begin, max_batch);
      v1::ReleaseRequest request;
      for (const Item& item : batch) request.add_leases(item.lease);
      v1::ReleaseResponse response;
      const absl::Status status = session->Call(&v1::Cache::Stub::Release, request, &response);
      // Trying again is safe. Any other error says that the daemon has no such leases.
      if (absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) {
        for (Item& item : batch) again.push_back(std::move(item));
      }
    }
  }
  return again;
}

}  // namespace embcache::client::internal
