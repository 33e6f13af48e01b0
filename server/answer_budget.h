// AnswerBudget: bounds the bytes of answers that clients have been sent and have not read. gRPC
// keeps those in the daemon's memory for as long as a client likes.
//
// A connection with too much unread gets no more until it has read. When all connections together
// have too much, one is cut: of those that have read nothing for a while the one with the most
// unread, or else whoever has more than the one that is being answered. When there is neither,
// everybody has about as much and is reading: the answer is refused, and nobody is cut. So those
// who read do not pay for those who do not. gRPC takes a while to let go of what a connection that
// is cut had unread: so long it is counted apart, and there may be as much of it again.
// Answers below kCountedAnswerBytes are counted only when calls pile up that have been answered and
// whose answers do not leave; each then as kCallBytes, about what its call takes.
//
// Thread-safe.

#ifndef EMBCACHE_SERVER_ANSWER_BUDGET_H_
#define EMBCACHE_SERVER_ANSWER_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/clock.h"

namespace embcache {

inline constexpr uint64_t kCountedAnswerBytes = 4096;
inline constexpr uint64_t kCallBytes = 16 * 1024;

struct AnswerLimits {
  uint64_t total = uint64_t{256} << 20;
  uint64_t per_connection = uint64_t{32} << 20;  // and one answer more, however large
  // Who has unread answers and has read none of them for so long is not reading.
  absl::Duration patience = absl::Milliseconds(100);
};

class AnswerBudget {
 public:
  // `cut` ends a connection; it is called without a lock, from any thread.
  AnswerBudget(AnswerLimits limits, absl::AnyInvocable<void(absl::string_view peer) const> cut,
               const Clock* clock = SystemClock())
      : limits_(limits), cut_(std::move(cut)), clock_(clock) {}

  // Whether Admit could refuse anybody: what a call pays in the usual case.
  bool crowded() const { return unread() >= std::min(limits_.per_connection, limits_.total); }
  // RESOURCE_EXHAUSTED: a call of `peer` is not to be handled now.
  absl::Status Admit(const std::string& peer) const;

  // Counts an answer to `peer`. RESOURCE_EXHAUSTED, if it `may_refuse`: it is not counted, and not
  // to be sent.
  absl::Status Charge(const std::string& peer, uint64_t bytes, bool may_refuse);
  // The answer has left, or never will.
  void Refund(const std::string& peer, uint64_t bytes);

  uint64_t unread() const { return unread_.load(std::memory_order_relaxed); }

 private:
  struct Unread {
    uint64_t bytes = 0;
    absl::Duration since;  // monotonic: when the peer last had read an answer, or had read all
    bool cut = false;
  };
  using OfPeer = absl::flat_hash_map<std::string, Unread>;

  absl::Status TooMuchUnread(uint64_t bytes) const;
  absl::Status TooMuchUnreadByAll(uint64_t mine) const;
  // Whose connection makes room for an answer to one who has `mine` bytes unread; "": nobody's.
  std::string CutLocked(uint64_t mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefundLocked(OfPeer::iterator peer, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AnswerLimits limits_;
  const absl::AnyInvocable<void(absl::string_view peer) const> cut_;
  const Clock* const clock_;
  std::atomic<uint64_t> unread_ = 0;  // the sum of of_peer_
  mutable absl::Mutex mu_;
  OfPeer of_peer_ ABSL_GUARDED_BY(mu_);
  uint64_t of_cut_ ABSL_GUARDED_BY(mu_) = 0;  // of those that are cut
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_ANSWER_BUDGET_H_
