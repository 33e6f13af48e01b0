#include "server/session_registry.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace embcache {
namespace {

constexpr absl::Duration kMaxShareTtl = absl::Minutes(10);

absl::Status NoSuchSession(const Token& session) {
  // A quarter of the token is enough to find it in a log and too little to use it.
  return absl::NotFoundError(
      absl::StrCat("no connected session ", TokenToHex(session).substr(0, 8), "..."));
}

absl::string_view StateName(int state) {
  constexpr absl::string_view kNames[] = {"CONNECTED", "LOST", "QUARANTINED"};
  return kNames[state];
}

}  // namespace

Token RandomToken() {
  Token token;
  size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t n = getrandom(token.data() + filled, token.size() - filled, 0);
    EMB_CHECK(n > 0 || errno == EINTR);
    if (n > 0) filled += static_cast<size_t>(n);
  }
  return token;
}

std::string TokenToHex(const Token& token) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(token.data()), token.size()));
}

std::optional<Token> TokenFromHex(absl::string_view hex) {
  Token token;
  if (hex.size() != 2 * token.size() || !std::all_of(hex.begin(), hex.end(), [](unsigned char c) {
        return absl::ascii_isxdigit(c);
      })) {
    return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

SessionRegistry::SessionRegistry(const SessionLimits& limits, TieredCache* cache, Clock* clock)
    : limits_(limits), cache_(cache), clock_(clock) {}

SessionRegistry::~SessionRegistry() {
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    while (!sessions_.empty()) EndLocked(sessions_.begin(), &garbage);
    ExpireSharesLocked(absl::InfiniteDuration(), &garbage);
  }
  Free(garbage);
}

// --- Sessions -----------------------------------------------------------------------------------

absl::StatusOr<Token> SessionRegistry::Open(const SessionPeer& peer) {
  const Token token = RandomToken();
  absl::MutexLock lock(&mu_);
  if (draining_) return absl::UnavailableError("the daemon is draining: no new sessions");
  if (sessions_.size() >= limits_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many sessions: ", sessions_.size(), " of ", limits_.max_sessions));
  }
  uint32_t& of_uid = sessions_of_uid_[peer.uid];
  if (of_uid >= limits_.max_sessions_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("too many sessions of uid ", peer.uid, ": ",
                                                     of_uid, " of ", limits_.max_sessions_per_uid));
  }
  const auto [session, inserted] = sessions_.try_emplace(token);
  EMB_CHECK(inserted);
  session->second.peer = peer;
  session->second.opened = clock_->MonotonicNow();
  ++of_uid;
  if (peer.sees_device) ++device_sessions_;
  return token;
}

void SessionRegistry::Close(const Token& session) {
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) return;
    EndLocked(it, &garbage);
  }
  Free(garbage);
}

void SessionRegistry::Acknowledge(const Token& session, uid_t uid) {
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    const auto it = sessions_.find(session);
    if (it == sessions_.end() || it->second.peer.uid != uid) return;
    EndLocked(it, &garbage);
  }
  Free(garbage);
}

void SessionRegistry::ConnectionLost(const Token& session) {
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    const auto it = sessions_.find(session);
    if (it == sessions_.end() || it->second.state != State::kConnected) return;
    it->second.state = State::kLost;
    if (it->second.holds_nothing()) EndLocked(it, &garbage);
  }
  Free(garbage);
}

void SessionRegistry::ProcessGone(const Token& session) {
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    const auto it = sessions_.find(session);
    if (it == sessions_.end() || it->second.state == State::kQuarantined) return;
    it->second.state = State::kQuarantined;
    it->second.quarantine_end = clock_->MonotonicNow() + limits_.quarantine;
    if (it->second.holds_nothing()) EndLocked(it, &garbage);
  }
  Free(garbage);
}

absl::StatusOr<std::shared_ptr<const FastTable>> SessionRegistry::OpenFastTable(
    const Token& session) {
  auto table = cache_->OpenFastTable(limits_.max_pinned_bytes);
  if (!table.ok()) return table.status();
  {
    absl::MutexLock lock(&mu_);
    Session* const holder = FindConnectedLocked(session);
    if (holder != nullptr && holder->fast == nullptr) {
      holder->fast = *table;
      return table;
    }
  }
  cache_->CloseFastTable(**table);
  return NoSuchSession(session);
}

bool SessionRegistry::Exists(const Token& session) const {
  absl::MutexLock lock(&mu_);
  return sessions_.contains(session);
}

absl::Status SessionRegistry::Check(const Token& session, bool need_writer) const {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || it->second.state != State::kConnected) {
    return NoSuchSession(session);
  }
  if (need_writer && !it->second.peer.writer) {
    return absl::PermissionDeniedError(
        absl::StrCat("session \"", it->second.peer.name, "\" has the role READER"));
  }
  return absl::OkStatus();
}

bool SessionRegistry::SeesDevice(const Token& session) const {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  return it != sessions_.end() && it->second.state == State::kConnected &&
         it->second.peer.sees_device;
}

// --- Leases -------------------------------------------------------------------------------------

absl::StatusOr<LeaseId> SessionRegistry::AddLease(const Token& session, ReadHandle handle) {
  EMB_CHECK(static_cast<bool>(handle));
  const uint64_t bytes = handle.location().bytes;
  // Declared before the lock, so that a refused pin is released after it.
  auto pin = std::make_shared<const ReadHandle>(std::move(handle));
  MeasureFastPins(session);
  absl::MutexLock lock(&mu_);
  Session* const holder = FindConnectedLocked(session);
  if (holder == nullptr) return NoSuchSession(session);
  if (absl::Status fits = CheckQuotaLocked(*holder, 1, bytes); !fits.ok()) return fits;
  const LeaseId id = next_lease_++;
  holder->leases.emplace_hint(holder->leases.end(), id,
                              Lease{std::move(pin), clock_->MonotonicNow() + limits_.lease_ttl});
  holder->pinned_bytes += bytes;
  return id;
}

absl::StatusOr<uint32_t> SessionRegistry::Release(const Token& session,
                                                  absl::Span<const LeaseId> leases) {
  Garbage garbage;  // freed after the lock
  garbage.pins.reserve(leases.size());
  absl::MutexLock lock(&mu_);
  Session* const holder = FindConnectedLocked(session);
  if (holder == nullptr) return NoSuchSession(session);
  for (const LeaseId id : leases) {
    const auto it = holder->leases.find(id);
    if (it == holder->leases.end()) continue;
    holder->pinned_bytes -= it->second.pin->location().bytes;
    garbage.pins.push_back(std::move(it->second.pin));
    holder->leases.erase(it);
  }
  return static_cast<uint32_t>(garbage.pins.size());
}

absl::StatusOr<Token> SessionRegistry::Share(const Token& session, absl::Span<const LeaseId> leases,
                                             absl::Duration ttl) {
  if (leases.empty()) return absl::InvalidArgumentError("leases: none given");
  if (ttl <= absl::ZeroDuration() || ttl > kMaxShareTtl) {
    return absl::InvalidArgumentError(absl::StrCat("ttl: ", absl::FormatDuration(ttl),
                                                   " is not above 0 and at most ",
                                                   absl::FormatDuration(kMaxShareTtl)));
  }
  const Token token = RandomToken();
  SharedLeases shared;  // declared before the lock: pins given up on an error end after it
  shared.owner = session;
  MeasureFastPins(session);
  absl::MutexLock lock(&mu_);
  Session* const owner = FindConnectedLocked(session);
  if (owner == nullptr) return NoSuchSession(session);
  for (const LeaseId id : leases) {
    const auto it = owner->leases.find(id);
    if (it == owner->leases.end()) {
      return absl::NotFoundError(absl::StrCat("lease ", id, " is not held by this session"));
    }
    shared.bytes += it->second.pin->location().bytes;
    shared.pins.push_back(it->second.pin);
  }
  if (owner->share_tokens >= limits_.max_share_tokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("share tokens: ", owner->share_tokens, " held of ", limits_.max_share_tokens));
  }
  // A token outlives the leases it was made from, so it is charged like one.
  if (absl::Status fits = CheckQuotaLocked(*owner, leases.size(), shared.bytes); !fits.ok()) {
    return fits;
  }
  ++owner->share_tokens;
  owner->shared_leases += leases.size();
  owner->pinned_bytes += shared.bytes;
  shared.expires = clock_->MonotonicNow() + ttl;
  shares_.emplace(token, std::move(shared));
  return token;
}

absl::StatusOr<std::vector<SessionRegistry::AdoptedLease>> SessionRegistry::Adopt(
    const Token& session, const Token& share) {
  std::vector<AdoptedLease> adopted;
  MeasureFastPins(session);
  absl::MutexLock lock(&mu_);
  Session* const adopter = FindConnectedLocked(session);
  if (adopter == nullptr) return NoSuchSession(session);
  const auto it = shares_.find(share);
  const absl::Duration now = clock_->MonotonicNow();
  if (it == shares_.end() || it->second.expires <= now) {
    return absl::NotFoundError("share token: unknown or expired");
  }
  const SharedLeases& shared = it->second;
  if (absl::Status fits = CheckQuotaLocked(*adopter, shared.pins.size(), shared.bytes);
      !fits.ok()) {
    return fits;
  }
  adopted.reserve(shared.pins.size());
  for (const Pin& pin : shared.pins) {
    const LeaseId id = next_lease_++;
    adopter->leases.emplace_hint(adopter->leases.end(), id, Lease{pin, now + limits_.lease_ttl});
    adopted.push_back({id, pin->info(), pin->location(), pin->generation()});
  }
  adopter->pinned_bytes += shared.bytes;
  return adopted;
}

// --- Reservations -------------------------------------------------------------------------------

absl::Status SessionRegistry::BeginReservation(const Token& session, uint64_t bytes) {
  MeasureFastPins(session);
  absl::MutexLock lock(&mu_);
  Session* const holder = FindConnectedLocked(session);
  if (holder == nullptr) return NoSuchSession(session);
  if (absl::Status fits = CheckQuotaLocked(*holder, 1, bytes); !fits.ok()) return fits;
  holder->pinned_bytes += bytes;
  ++holder->begun_reservations;
  return absl::OkStatus();
}

absl::Status SessionRegistry::FinishReservation(const Token& session, ReservationId id,
                                                uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSuchSession(session);
  Session& holder = it->second;
  --holder.begun_reservations;
  if (holder.state != State::kConnected) {
    // The client never learns of this range, so nobody writes into it: it need not be kept.
    holder.pinned_bytes -= bytes;
    return NoSuchSession(session);
  }
  holder.reservations.emplace(id, bytes);
  return absl::OkStatus();
}

void SessionRegistry::CancelReservation(const Token& session, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  --it->second.begun_reservations;
  it->second.pinned_bytes -= bytes;
}

absl::Status SessionRegistry::TakeReservation(const Token& session, ReservationId id) {
  absl::MutexLock lock(&mu_);
  Session* const holder = FindConnectedLocked(session);
  if (holder == nullptr) return NoSuchSession(session);
  const auto it = holder->reservations.find(id);
  if (it == holder->reservations.end()) {
    return absl::NotFoundError(absl::StrCat("reservation ", id, " is not held by this session"));
  }
  holder->pinned_bytes -= it->second;
  holder->reservations.erase(it);
  return absl::OkStatus();
}

// --- Time and state -----------------------------------------------------------------------------

void SessionRegistry::Drain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
}

bool SessionRegistry::draining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

void SessionRegistry::Tick() {
  Garbage garbage;
  {
    absl::MutexLock lock(&mu_);
    const absl::Duration now = clock_->MonotonicNow();
    std::vector<Token> ended;
    for (auto& [token, session] : sessions_) {
      ExpireLeasesLocked(&session, now, &garbage);
      const bool quarantine_over =
          session.state == State::kQuarantined && session.quarantine_end <= now;
      if (quarantine_over || (session.state == State::kLost && session.holds_nothing())) {
        ended.push_back(token);
      }
    }
    for (const Token& token : ended) EndLocked(sessions_.find(token), &garbage);
    ExpireSharesLocked(now, &garbage);
  }
  Free(garbage);
}

RegistryStats SessionRegistry::GetStats() const {
  absl::MutexLock lock(&mu_);
  RegistryStats stats;
  stats.sessions = static_cast<uint32_t>(sessions_.size());
  stats.leases_expired = leases_expired_;
  stats.device_sessions = device_sessions_;
  for (const auto& [token, session] : sessions_) {
    stats.leases += session.leases.size() + session.fast_pins();
    stats.reservations += session.reservations.size();
    if (session.state != State::kConnected) {
      stats.quarantined_bytes += session.pinned_bytes + session.fast_bytes();
    }
  }
  return stats;
}

std::vector<SessionSnapshot> SessionRegistry::Sessions() const {
  absl::MutexLock lock(&mu_);
  const absl::Duration now = clock_->MonotonicNow();
  std::vector<SessionSnapshot> snapshots;
  snapshots.reserve(sessions_.size());
  for (const auto& [token, session] : sessions_) {
    snapshots.push_back({session.peer, std::string(StateName(static_cast<int>(session.state))),
                         session.leases.size() + session.fast_pins(), session.reservations.size(),
                         session.pinned_bytes + session.fast_bytes(), now - session.opened});
  }
  std::sort(snapshots.begin(), snapshots.end(),
            [](const auto& a, const auto& b) { return a.age > b.age; });
  return snapshots;
}

// --- Under the lock -----------------------------------------------------------------------------

void SessionRegistry::MeasureFastPins(const Token& session) {
  std::shared_ptr<const FastTable> table;
  {
    absl::MutexLock lock(&mu_);
    const Session* const holder = FindConnectedLocked(session);
    if (holder != nullptr) table = holder->fast;
  }
  if (table != nullptr && table->CountPins() > 0) cache_->MeasureFastPins();
}

SessionRegistry::Session* SessionRegistry::FindConnectedLocked(const Token& session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || it->second.state != State::kConnected) return nullptr;
  return &it->second;
}

absl::Status SessionRegistry::CheckQuotaLocked(const Session& session, uint64_t count,
                                               uint64_t bytes) const {
  const uint64_t held = session.held();
  if (held > limits_.max_leases || count > limits_.max_leases - held) {
    return absl::ResourceExhaustedError(absl::StrCat("lease quota of session \"", session.peer.name,
                                                     "\": ", held, " held + ", count, " asked > ",
                                                     limits_.max_leases));
  }
  const uint64_t limit = limits_.max_pinned_bytes;
  const uint64_t pinned = session.pinned_bytes + session.fast_bytes();
  if (pinned == 0 && count == 1) return absl::OkStatus();  // one entry of any size
  if (limit != 0 && (pinned > limit || bytes > limit - pinned)) {
    return absl::ResourceExhaustedError(absl::StrCat("pinned bytes of session \"",
                                                     session.peer.name, "\": ", pinned, " held + ",
                                                     bytes, " asked > ", limit));
  }
  return absl::OkStatus();
}

void SessionRegistry::EndLocked(SessionMap::iterator session, Garbage* garbage) {
  for (auto& [id, lease] : session->second.leases) garbage->pins.push_back(std::move(lease.pin));
  for (const auto& [id, bytes] : session->second.reservations) {
    garbage->reservations.push_back(id);
  }
  if (session->second.fast != nullptr) garbage->tables.push_back(std::move(session->second.fast));
  const auto of_uid = sessions_of_uid_.find(session->second.peer.uid);
  EMB_CHECK(of_uid != sessions_of_uid_.end() && of_uid->second > 0);
  if (--of_uid->second == 0) sessions_of_uid_.erase(of_uid);
  sessions_.erase(session);
}

void SessionRegistry::ExpireLeasesLocked(Session* session, absl::Duration now, Garbage* garbage) {
  while (!session->leases.empty() && session->leases.begin()->second.expires <= now) {
    const auto oldest = session->leases.begin();
    session->pinned_bytes -= oldest->second.pin->location().bytes;
    garbage->pins.push_back(std::move(oldest->second.pin));
    session->leases.erase(oldest);
    ++leases_expired_;
  }
}

void SessionRegistry::ExpireSharesLocked(absl::Duration now, Garbage* garbage) {
  for (auto it = shares_.begin(); it != shares_.end();) {
    const auto share = it++;
    SharedLeases& shared = share->second;
    if (shared.expires > now) continue;
    if (const auto owner = sessions_.find(shared.owner); owner != sessions_.end()) {
      --owner->second.share_tokens;
      owner->second.shared_leases -= shared.pins.size();
      owner->second.pinned_bytes -= shared.bytes;
    }
    for (Pin& pin : shared.pins) garbage->pins.push_back(std::move(pin));
    shares_.erase(share);
  }
}

void SessionRegistry::Free(const Garbage& garbage) {
  for (const ReservationId id : garbage.reservations) {
    // NOT_FOUND only says that a commit or abort under way came first.
    cache_->Abort(id).IgnoreError();
  }
  for (const auto& table : garbage.tables) cache_->CloseFastTable(*table);
}

}  // namespace embcache
