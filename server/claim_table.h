// ClaimTable: who encodes which missing key, and who waits for it.
//
// A claim is one session's right and duty to encode a key. There is at most one for a key. Others
// wait for it, in the order in which they came, and hear one of these: the value may be there (look
// again), the claim is yours now, its value is announced, or your time is up.
//
//   Join --nobody claims--> claim --Stored--------------------------> gone; all waiters look again
//        --somebody does--> waits   --Fail, expiry, session's end---> the first waiter that may
//                                                                     claim gets a claim of its own
//
// Waits are bounded. When all are taken, a session that has fewer than another takes one over, and
// the newest wait of the one that has the most is refused: so in the end all have equally many.
//
// Only bookkeeping: no calls, no cache, no threads but the caller of AwaitExpired; the clock is
// given. The race between "the cache has no such key" and Join is closed by its callers: whoever
// gets a claim looks into the cache once more, and every commit is followed by Stored. So a commit
// that the look does not see finds the claim, and ends it.
//
// A waiter that may not claim waits also for a key that nobody claims yet. When a claim ends
// without a value and all who would take it hold as many as they may, they are refused, like those
// who come.
//
// Thread-safe. What waiters are owed is never called under the lock: it is collected in Wakes.

#ifndef EMBCACHE_SERVER_CLAIM_TABLE_H_
#define EMBCACHE_SERVER_CLAIM_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/session_registry.h"
#include "storage/cache_key.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/entry.h"

namespace embcache {

using ClaimId = uint64_t;  // never 0, never reused in the daemon's life

struct ClaimLimits {
  absl::Duration ttl = absl::Seconds(30);
  absl::Duration max_wait = absl::Minutes(1);  // longer ones are cut
  uint64_t max_claims = 65536;
  uint64_t max_claims_per_session = 1024;
  uint64_t max_waiters = 8192;  // shared out evenly when they are short
};

struct ClaimStats {
  uint64_t claims = 0;
  uint64_t waiters = 0;
  uint64_t granted = 0;
  uint64_t failed = 0;  // given up, expired, or ended with their session
  uint64_t waits = 0;
};

class ClaimTable {
 public:
  enum class Verdict {
    kLookAgain,  // the key was stored
    kClaimed,    // `claim` is the caller's; see above what to do before relying on it
    kPending,    // `pending` says what will be stored
    kTimedOut,   // `claimed` says whether somebody has the claim
    kRefused,    // `status` says why
  };
  struct Outcome {
    Verdict verdict = Verdict::kLookAgain;
    ClaimId claim = 0;
    std::shared_ptr<const EntryInfo> pending;
    bool claimed = false;
    absl::Status status;
  };
  using Callback = absl::AnyInvocable<void(Outcome)>;

  // What waiters are owed; told when it is destroyed, which must be without locks.
  class Wakes {
   public:
    Wakes() = default;
    Wakes(Wakes&&) = default;
    // REQUIRES: it is empty.
    Wakes& operator=(Wakes&& other) {
      EMB_CHECK(owed_.empty());
      owed_.swap(other.owed_);
      return *this;
    }
    ~Wakes() {
      for (auto& [callback, outcome] : owed_) callback(std::move(outcome));
    }
    bool empty() const { return owed_.empty(); }

   private:
    friend class ClaimTable;
    void Add(Callback callback, Outcome outcome) {
      owed_.emplace_back(std::move(callback), std::move(outcome));
    }
    std::vector<std::pair<Callback, Outcome>> owed_;
  };

  struct Request {
    CacheKey key;
    std::optional<Token> session;
    bool may_claim = false;       // REQUIRES: session
    bool accept_pending = false;  // be told when the claimer has announced its value
    absl::Duration until;         // monotonic; the past: does not wait
  };

  ClaimTable(const ClaimLimits& limits, const Clock* clock);

  ClaimTable(const ClaimTable&) = delete;
  ClaimTable& operator=(const ClaimTable&) = delete;

  const ClaimLimits& limits() const { return limits_; }

  // For a key that the cache has not. Answers now, or keeps `callback` and answers later (nullopt).
  // Whoever has the claim already is answered with it again.
  std::optional<Outcome> Join(const Request& request, Callback callback);

  bool IsClaimed(const CacheKey& key) const;

  // `key` has been committed, by whomever: its claim is over, everybody looks again.
  [[nodiscard]] Wakes Stored(const CacheKey& key);

  // Whether a put of `key` may name `claim`. OK also for one that is over: what is encoded is worth
  // storing. INVALID_ARGUMENT: it is another session's, or of another key. FAILED_PRECONDITION: the
  // model's epoch was advanced since it was given.
  absl::Status CheckPut(ClaimId claim, const std::optional<Token>& session,
                        const CacheKey& key) const;
  // The claimer has reserved room and so said what it will store.
  [[nodiscard]] Wakes Reserved(ClaimId claim, ReservationId reservation,
                               std::shared_ptr<const EntryInfo> announced);
  // That reservation, if it was made for a claim, ended without a commit.
  [[nodiscard]] Wakes ReservationFailed(ReservationId reservation);
  // The claim ends without a value. False, and nothing happens, unless `session` has it.
  bool Fail(ClaimId claim, const Token& session, Wakes* wakes);
  // An answer with this claim did not reach its caller. The claim ends if no other answer did.
  [[nodiscard]] Wakes Undelivered(ClaimId claim, const Token& session);

  // The session's claims fail, its waiters are refused.
  [[nodiscard]] Wakes EndSession(const Token& session);
  // To be called after the cache's epoch has risen: what is being encoded may not be stored any
  // more, so waiters get claims of their own.
  [[nodiscard]] Wakes AdvanceEpoch(absl::string_view model);

  // Ends what is past its time.
  [[nodiscard]] Wakes Expire();
  // Blocks until something is past its time, by the machine's clock; nullopt after Close.
  std::optional<Wakes> AwaitExpired();
  // Refuses every waiter, and everybody from now on, with UNAVAILABLE. Idempotent.
  [[nodiscard]] Wakes Close();

  ClaimStats GetStats() const;

 private:
  using WaiterId = uint64_t;
  struct Waiter {
    std::optional<Token> session;
    bool may_claim = false;
    bool accept_pending = false;
    absl::Duration until;
    Callback callback;
  };
  struct KeyState {
    explicit KeyState(const CacheKey& of) : key(of) {}
    const CacheKey key;
    ClaimId claim = 0;                          // 0: nobody's
    absl::btree_map<WaiterId, Waiter> waiters;  // in the order of their coming
  };
  struct Claim {
    KeyState* state = nullptr;  // nullptr: of an earlier model epoch, nobody waits for it
    CacheKey key;
    Token session = {};
    absl::Duration deadline;
    ReservationId reservation = 0;
    std::shared_ptr<const EntryInfo> announced;
    uint32_t answers = 0;  // that said so and have not come back
  };
  struct SessionState {
    absl::flat_hash_set<ClaimId> claims;
    absl::btree_map<WaiterId, KeyState*> waiters;
  };

  uint64_t ClaimsOfLocked(const Token& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayGrantLocked(const Token& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why MayGrantLocked is false.
  absl::Status NoMoreClaimsLocked(const Token& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ClaimId GrantLocked(KeyState* state, const Token& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WaitLocked(KeyState* state, const Request& request, Callback callback)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes room for one more wait of `session`: the session with the most waits loses its last one,
  // unless that would leave it with fewer than the other would have then. The error says why not.
  // REQUIRES: there is a wait.
  absl::Status PushOutLocked(const Token& session, Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a waiter out and owes it `outcome`.
  void WakeLocked(KeyState* state, absl::btree_map<WaiterId, Waiter>::iterator waiter,
                  Outcome outcome, Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the claim, and says which key lacks one now.
  KeyState* EraseClaimLocked(ClaimId claim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailLocked(ClaimId claim, Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the claim of a key that has none to the next waiter that may have it, or refuses those
  // who may not; forgets the key if nobody is left.
  void PromoteLocked(KeyState* state, Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLocked(absl::Duration now, Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration NextDeadlineLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OwnsLocked(ClaimId claim, const Token& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ClaimLimits limits_;
  const Clock* const clock_;

  mutable absl::Mutex mu_;
  absl::CondVar earlier_deadline_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  ClaimId next_claim_ ABSL_GUARDED_BY(mu_) = 1;
  WaiterId next_waiter_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<CacheKey, std::unique_ptr<KeyState>> keys_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ClaimId, Claim> claims_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Token, SessionState> sessions_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<uint64_t, Token>> most_waits_ ABSL_GUARDED_BY(mu_);  // not 0
  absl::flat_hash_map<ReservationId, ClaimId> reservations_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<absl::Duration, ClaimId>> claim_deadlines_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<std::pair<absl::Duration, WaiterId>, KeyState*> wait_deadlines_
      ABSL_GUARDED_BY(mu_);
  ClaimStats stats_ ABSL_GUARDED_BY(mu_);  // the counters
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CLAIM_TABLE_H_
