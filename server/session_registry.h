// SessionRegistry: who is connected, and what each session holds: leases (pins on entries),
// reservations (writable ranges) and share tokens; the quotas on them; and what happens to them
// when a session ends.
//
//   CONNECTED --Close (Goodbye, or acknowledged by a later Hello)--> ended: everything freed at
//   once CONNECTED --ConnectionLost, process may live--> LOST --ProcessGone--> QUARANTINED LOST
//   --Close (acknowledged)--> ended CONNECTED --ProcessGone--> QUARANTINED QUARANTINED --after the
//   quarantine--> ended
//
// A session that holds nothing ends at once whichever way it goes.
//
// A reader's or writer's device may still be working for a moment after its process is gone; that
// is what the quarantine waits for. A live process that lost its connection may still touch what it
// held, so nothing of it is freed until it acknowledges or dies.
//
// Thread-safe. Handles are destroyed and the cache is called without the registry's lock.

#ifndef EMBCACHE_SERVER_SESSION_REGISTRY_H_
#define EMBCACHE_SERVER_SESSION_REGISTRY_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/clock.h"
#include "storage/tiered_cache.h"

namespace embcache {

// 128 random bits: a session's token, an epoch, a share token.
using Token = std::array<uint8_t, 16>;
Token RandomToken();
std::string TokenToHex(const Token& token);
// nullopt unless `hex` is 32 hexadecimal digits.
std::optional<Token> TokenFromHex(absl::string_view hex);

using LeaseId = uint64_t;  // never 0, never reused in the daemon's life

struct SessionLimits {
  uint32_t max_sessions = 1024;
  uint32_t max_sessions_per_uid = 1024;
  uint64_t max_leases = 65536;       // per session; reservations and shared leases count too
  uint64_t max_pinned_bytes = 0;     // per session; 0 = no bound; one entry may always be held
  uint32_t max_share_tokens = 4096;  // per session
  absl::Duration lease_ttl = absl::InfiniteDuration();
  absl::Duration quarantine = absl::Milliseconds(100);
};

struct SessionPeer {
  std::string name;
  bool writer = false;
  bool sees_device = false;  // the one whose memory L1 is
  pid_t pid = 0;             // 0 = unknown
  uid_t uid = 0;
};

struct SessionSnapshot {
  SessionPeer peer;
  std::string state;  // "CONNECTED", "LOST" or "QUARANTINED"
  uint64_t leases = 0;
  uint64_t reservations = 0;
  uint64_t pinned_bytes = 0;
  absl::Duration age;
};

struct RegistryStats {
  uint32_t sessions = 0;
  uint64_t leases = 0;
  uint64_t reservations = 0;
  uint64_t quarantined_bytes = 0;  // held by sessions that are not CONNECTED
  uint64_t leases_expired = 0;
  uint64_t device_sessions = 0;  // ever opened that see the device
};

class SessionRegistry {
 public:
  // `cache` and `clock` outlive the registry; the registry is destroyed before the cache, freeing
  // all.
  SessionRegistry(const SessionLimits& limits, TieredCache* cache, Clock* clock);
  ~SessionRegistry();

  // `observer` is told, without locks, of every session that is not CONNECTED any more; by nobody
  // after it has been replaced (nullptr: by none) unless a call was under way.
  void OnSessionEnd(std::function<void(const Token&)> observer);

  // RESOURCE_EXHAUSTED: too many sessions, in total or of the peer's uid. UNAVAILABLE: draining.
  absl::StatusOr<Token> Open(const SessionPeer& peer);
  void Close(const Token& session);
  void ConnectionLost(const Token& session);
  void ProcessGone(const Token& session);
  // Close, for an old session named by a new one's Hello: nothing happens unless `uid` owned it.
  void Acknowledge(const Token& session, uid_t uid);
  // Gives the session a pin table, by which it holds entries without a call; they count as leases,
  // and until the session ends. FAILED_PRECONDITION: there is no fast path.
  absl::StatusOr<std::shared_ptr<const FastTable>> OpenFastTable(const Token& session);
  // See TieredCache.
  std::shared_ptr<const MemorySegment> FastIndexMemory() const { return cache_->FastIndexMemory(); }
  // Whether anything of the session is left, in whatever state.
  bool Exists(const Token& session) const;

  // OK, NOT_FOUND (no CONNECTED session has this token), or PERMISSION_DENIED (`need_writer` and it
  // is a reader).
  absl::Status Check(const Token& session, bool need_writer) const;

  // Whether it is a connected session that sees the device.
  bool SeesDevice(const Token& session) const;

  // Turns a pin into a lease. NOT_FOUND; RESOURCE_EXHAUSTED names the quota, what is held and what
  // was asked; `handle` is released in both cases.
  absl::StatusOr<LeaseId> AddLease(const Token& session, ReadHandle handle);
  // Ends those of `leases` that the session holds; returns how many.
  absl::StatusOr<uint32_t> Release(const Token& session, absl::Span<const LeaseId> leases);

  // Charges `bytes` before the cache is asked for a range, so that a session over its quota evicts
  // nobody. Each success is followed by one Finish or Cancel.
  absl::Status BeginReservation(const Token& session, uint64_t bytes);
  // NOT_FOUND when the session ended meanwhile: the caller then aborts the reservation.
  absl::Status FinishReservation(const Token& session, ReservationId id, uint64_t bytes);
  void CancelReservation(const Token& session, uint64_t bytes);
  // Takes a reservation out of the session, to commit or abort it. NOT_FOUND: not one of its own.
  absl::Status TakeReservation(const Token& session, ReservationId id);

  // NOT_FOUND names the lease. `ttl` is at most 10 minutes. The token holds pins of its own.
  absl::StatusOr<Token> Share(const Token& session, absl::Span<const LeaseId> leases,
                              absl::Duration ttl);
  struct AdoptedLease {
    LeaseId id = 0;
    std::shared_ptr<const EntryInfo> info;
    Location location;
    uint64_t generation = 0;
  };
  // All of the token's leases or none. NOT_FOUND: unknown or expired token, or unknown session.
  absl::StatusOr<std::vector<AdoptedLease>> Adopt(const Token& session, const Token& share);

  // No session can be opened from now on.
  void Drain();
  bool draining() const;
  // Ends what is past its time: quarantines, leases, share tokens. Call it every 100 ms or less.
  void Tick();

  RegistryStats GetStats() const;
  std::vector<SessionSnapshot> Sessions() const;

 private:
  // Leases and share tokens hold a pin together: the last of them to go unpins.
  using Pin = std::shared_ptr<const ReadHandle>;
  struct Lease {
    Pin pin;
    absl::Duration expires;  // monotonic
  };
  enum class State { kConnected, kLost, kQuarantined };
  struct Session {
    SessionPeer peer;
    State state = State::kConnected;
    absl::Duration opened;          // monotonic
    absl::Duration quarantine_end;  // monotonic, when kQuarantined
    uint64_t pinned_bytes = 0;      // leases, reservations (begun ones too), share tokens
    // By id, which is also the order of expiry: ids grow and all leases live equally long.
    absl::btree_map<LeaseId, Lease> leases;
    // -> bytes. Stays when the cache's time for it is over: its writer may still write.
    absl::flat_hash_map<ReservationId, uint64_t> reservations;
    uint32_t begun_reservations = 0;  // neither finished nor cancelled yet
    uint32_t share_tokens = 0;
    uint64_t shared_leases = 0;             // in those tokens
    std::shared_ptr<const FastTable> fast;  // may be null

    uint64_t fast_pins() const { return fast == nullptr ? 0 : fast->CountPins(); }
    uint64_t fast_bytes() const { return fast == nullptr ? 0 : fast->pinned_bytes(); }
    uint64_t held() const {
      return leases.size() + reservations.size() + begun_reservations + shared_leases + fast_pins();
    }
    // Of what a process that is gone, or has no connection, may still be using. A process that
    // lives may go on pinning by way of its table.
    bool holds_nothing() const {
      return leases.empty() && reservations.empty() &&
             (fast == nullptr || (state == State::kQuarantined && fast_pins() == 0));
    }
  };
  struct SharedLeases {
    Token owner;
    absl::Duration expires;  // monotonic
    uint64_t bytes = 0;
    std::vector<Pin> pins;
  };
  // What has been taken out under the lock, to be freed after it: the pins by destruction.
  struct Garbage {
    std::vector<Pin> pins;
    std::vector<ReservationId> reservations;
    std::vector<std::shared_ptr<const FastTable>> tables;
  };
  using SessionMap = absl::flat_hash_map<Token, Session>;

  // Brings up to date what the session pins without a call, before its quota is asked.
  void MeasureFastPins(const Token& session) ABSL_LOCKS_EXCLUDED(mu_);
  Session* FindConnectedLocked(const Token& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // OK when `session` may hold `count` things of `bytes` bytes more.
  absl::Status CheckQuotaLocked(const Session& session, uint64_t count, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(SessionMap::iterator session, Garbage* garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLeasesLocked(Session* session, absl::Duration now, Garbage* garbage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireSharesLocked(absl::Duration now, Garbage* garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Free(const Garbage& garbage) ABSL_LOCKS_EXCLUDED(mu_);
  void TellSessionEnd(const Token& session) ABSL_LOCKS_EXCLUDED(mu_);

  const SessionLimits limits_;
  TieredCache* const cache_;
  Clock* const clock_;

  mutable absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void(const Token&)> on_session_end_ ABSL_GUARDED_BY(mu_);
  LeaseId next_lease_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t leases_expired_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t device_sessions_ ABSL_GUARDED_BY(mu_) = 0;
  SessionMap sessions_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uid_t, uint32_t> sessions_of_uid_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Token, SharedLeases> shares_ ABSL_GUARDED_BY(mu_);
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_SESSION_REGISTRY_H_
