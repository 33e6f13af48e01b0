#include "server/answer_budget.h"

#include <tuple>

#include "absl/strings/str_cat.h"

namespace embcache {

absl::Status AnswerBudget::TooMuchUnread(uint64_t bytes) const {
  return absl::ResourceExhaustedError(
      absl::StrCat("answers of ", bytes,
                   " bytes have not been read by this client; read them, or "
                   "ask for less at a time (the daemon keeps ",
                   limits_.per_connection, ")"));
}

absl::Status AnswerBudget::TooMuchUnreadByAll(uint64_t mine) const {
  return absl::ResourceExhaustedError(
      absl::StrCat("answers of ", unread(), " bytes have not been read by the daemon's clients, ",
                   mine, " of them by this one"));
}

absl::Status AnswerBudget::Admit(const std::string& peer) const {
  absl::MutexLock lock(&mu_);
  const auto it = of_peer_.find(peer);
  // Who has read everything does not pay for those who have not.
  if (it == of_peer_.end()) return absl::OkStatus();
  const uint64_t mine = it->second.bytes;
  if (mine >= limits_.per_connection) return TooMuchUnread(mine);
  return unread() < limits_.total ? absl::OkStatus() : TooMuchUnreadByAll(mine);
}

absl::Status AnswerBudget::Charge(const std::string& peer, uint64_t bytes, bool may_refuse) {
  const absl::Duration now = clock_->MonotonicNow();
  std::string victim;
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    const auto it = of_peer_.try_emplace(peer, Unread{0, now}).first;
    Unread& mine = it->second;
    if (may_refuse && mine.bytes >= limits_.per_connection) return TooMuchUnread(mine.bytes);
    mine.bytes += bytes;
    if (mine.cut) of_cut_ += bytes;
    const uint64_t all = unread_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    bool room = all - of_cut_ <= limits_.total;
    if (!room) {
      victim = CutLocked(mine.bytes);
      room = !victim.empty();
    }
    if (may_refuse && (!room || mine.cut || all > 2 * limits_.total)) {
      refused = TooMuchUnreadByAll(mine.bytes - bytes);
      RefundLocked(it, bytes);
    }
  }
  if (!victim.empty()) cut_(victim);
  return refused;
}

void AnswerBudget::Refund(const std::string& peer, uint64_t bytes) {
  const absl::Duration now = clock_->MonotonicNow();
  absl::MutexLock lock(&mu_);
  const auto it = of_peer_.find(peer);
  it->second.since = now;
  RefundLocked(it, bytes);
}

void AnswerBudget::RefundLocked(OfPeer::iterator peer, uint64_t bytes) {
  unread_.fetch_sub(bytes, std::memory_order_relaxed);
  peer->second.bytes -= bytes;
  if (peer->second.cut) of_cut_ -= bytes;
  if (peer->second.bytes == 0) of_peer_.erase(peer);
}

std::string AnswerBudget::CutLocked(uint64_t mine) {
  const absl::Duration stale = clock_->MonotonicNow() - limits_.patience;
  // Those who do not read come first, then those with more, then those who read longest ago.
  const auto rank = [stale](const Unread& unread) {
    return std::make_tuple(!unread.cut, unread.since <= stale, unread.bytes, -unread.since);
  };
  const auto victim = std::max_element(
      of_peer_.begin(), of_peer_.end(),
      [&rank](const auto& a, const auto& b) { return rank(a.second) < rank(b.second); });
  Unread& chosen = victim->second;
  const bool reads = chosen.since > stale;
  if (chosen.cut || (reads && chosen.bytes <= mine)) return "";
  chosen.cut = true;
  of_cut_ += chosen.bytes;
  return victim->first;
}

}  // namespace embcache
