#include "server/answer_budget.h"

#include "absl/strings/str_cat.h"

namespace embcache {

absl::Status AnswerBudget::TooMuchUnread(uint64_t bytes) const {
  return absl::ResourceExhaustedError(
      absl::StrCat("answers of ", bytes,
                   " bytes have not been read by this client; read them, or "
                   "ask for less at a time (the daemon keeps ",
                   limits_.per_connection, ")"));
}

absl::Status AnswerBudget::Admit(const std::string& peer) const {
  absl::MutexLock lock(&mu_);
  const auto it = of_peer_.find(peer);
  // Who has read everything does not pay for those who have not.
  if (it == of_peer_.end()) return absl::OkStatus();
  if (it->second >= limits_.per_connection) return TooMuchUnread(it->second);
  if (unread() < limits_.total) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("answers of ", unread(), " bytes have not been read by the daemon's clients, ",
                   it->second, " of them by this one"));
}

absl::Status AnswerBudget::Charge(const std::string& peer, uint64_t bytes, bool may_refuse) {
  std::string greediest;
  {
    absl::MutexLock lock(&mu_);
    uint64_t& mine = of_peer_[peer];
    if (may_refuse && mine >= limits_.per_connection) return TooMuchUnread(mine);
    mine += bytes;
    const uint64_t all = unread_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (all > limits_.total) greediest = GreediestLocked();
  }
  if (!greediest.empty()) cut_(greediest);
  return absl::OkStatus();
}

void AnswerBudget::Refund(const std::string& peer, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  unread_.fetch_sub(bytes, std::memory_order_relaxed);
  const auto it = of_peer_.find(peer);
  it->second -= bytes;
  if (it->second == 0) of_peer_.erase(it);
}

const std::string& AnswerBudget::GreediestLocked() const {
  return std::max_element(of_peer_.begin(), of_peer_.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace embcache
