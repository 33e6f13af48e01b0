#include "client/cli/top.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/output.h"

namespace embcache::cli {
namespace {

constexpr size_t kBarWidth = 24;
constexpr size_t kModels = 10;

std::string Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : absl::StrFormat("%.1f%%", 100.0 * part / whole);
}

std::string Duration(double seconds) {
  return HumanNanoseconds(static_cast<uint64_t>(std::max(0.0, seconds) * 1e9));
}

// Counters of a time, against those of a time before or against zero.
class Rates {
 public:
  Rates(const std::optional<TopSample>& before, const TopSample& now) {
    // A daemon that was restarted in between counts from zero again.
    if (before.has_value() && before->stats.epoch() == now.stats.epoch()) before_ = &before->stats;
    seconds_ = before_ != nullptr ? absl::ToDoubleSeconds(now.time - before->time)
                                  : static_cast<double>(now.stats.uptime_ms()) / 1e3;
    seconds_ = std::max(seconds_, 1e-3);
  }

  const v1::StatsResponse& before() const {
    return before_ != nullptr ? *before_ : v1::StatsResponse::default_instance();
  }
  double PerSecond(uint64_t before, uint64_t now) const {
    return now <= before ? 0 : static_cast<double>(now - before) / seconds_;
  }
  std::string Text(uint64_t before, uint64_t now) const {
    const double rate = PerSecond(before, now);
    return absl::StrFormat(rate < 10 ? "%.1f/s" : "%.0f/s", rate);
  }

 private:
  const v1::StatsResponse* before_ = nullptr;
  double seconds_ = 1;
};

std::string TierName(v1::Tier tier) { return v1::Tier_Name(tier); }

// "[####==......]": pinned as '#', otherwise in use as '='.
std::string Bar(const v1::TierStats& tier) {
  const auto cells = [&](uint64_t bytes) {
    if (tier.capacity_bytes() == 0) return size_t{0};
    const double share = static_cast<double>(bytes) / static_cast<double>(tier.capacity_bytes());
    return std::min(kBarWidth, static_cast<size_t>(share * kBarWidth + 0.5));
  };
  const size_t used = cells(tier.used_bytes());
  const size_t pinned = std::min(used, cells(tier.pinned_bytes()));
  return absl::StrCat("[", std::string(pinned, '#'), std::string(used - pinned, '='),
                      std::string(kBarWidth - used, '.'), "]");
}

class Frame {
 public:
  explicit Frame(const TopSize& size) : size_(size) {}

  void Add(std::string text, bool heading = false) {
    lines_.push_back({Shorten(TerminalText(text), size_.columns), heading});
  }
  // At most `limit` rows, and what the screen has left.
  void Add(const Table& table, size_t limit) {
    std::ostringstream text;
    table.Print(text);
    size_t rows = 0;
    for (const absl::string_view line : absl::StrSplit(text.str(), '\n', absl::SkipEmpty())) {
      if (rows > limit) break;
      Add(std::string(line), rows == 0);
      ++rows;
    }
  }
  std::vector<TopLine> Take() {
    if (size_.lines > 0 && lines_.size() > size_.lines) lines_.resize(size_.lines);
    return std::move(lines_);
  }

 private:
  const TopSize size_;
  std::vector<TopLine> lines_;
};

void AddTotals(Frame& frame, const Rates& rates, const v1::StatsResponse& now) {
  const v1::StatsResponse& before = rates.before();
  const bool serving = !now.draining();
  frame.Add(absl::StrCat("embcached ", now.version(), ", up ",
                         absl::FormatDuration(absl::Seconds(now.uptime_ms() / 1000)), ", ",
                         serving ? "serving" : "DRAINING"));
  frame.Add(absl::StrCat(
      "hits ", Percent(now.hits() - before.hits(), now.gets() - before.gets()), " (",
      Percent(now.hits(), now.gets()), " since start), gets ",
      rates.Text(before.gets(), now.gets()), ", puts ", rates.Text(before.saves(), now.saves()),
      ", saved ", Duration(rates.PerSecond(before.saved_us(), now.saved_us()) / 1e6),
      " of encoding a second (", Duration(static_cast<double>(now.saved_us()) / 1e6), " in all)"));
  frame.Add(absl::StrCat("sessions ", now.sessions(), ", leases ", now.leases(), ", reservations ",
                         now.reservations(), ", claims ", now.claims(), ", in quarantine ",
                         HumanBytes(now.quarantined_bytes())));
}

void AddTiers(Frame& frame, const Rates& rates, const v1::StatsResponse& now) {
  std::map<int, const v1::TierStats*> before;
  for (const v1::TierStats& tier : rates.before().tiers()) before[tier.tier()] = &tier;
  for (const v1::TierStats& tier : now.tiers()) {
    const auto at = before.find(tier.tier());
    const v1::TierStats& old = at != before.end() ? *at->second : v1::TierStats::default_instance();
    std::string line =
        absl::StrCat(TierName(tier.tier()), " ", Bar(tier), " ",
                     Percent(tier.used_bytes(), tier.capacity_bytes()), " of ",
                     HumanBytes(tier.capacity_bytes()), ", ", tier.entries(), " entries, hits ",
                     rates.Text(old.hits(), tier.hits()), ", evicted ",
                     rates.Text(old.evictions_capacity(), tier.evictions_capacity()));
    if (tier.tier() == v1::L3) {
      const v1::L3Stats& l3 = now.l3();
      absl::StrAppend(&line, l3.writable() ? "" : ", NOT WRITABLE", ", queued ", l3.queued_writes(),
                      ", dropped ", l3.dropped_writes(), ", errors ",
                      l3.io_errors() + l3.corruptions());
    } else {
      absl::StrAppend(&line, ", pinned ", HumanBytes(tier.pinned_bytes()),
                      absl::StrFormat(", fragmented %.0f%%", 100 * tier.fragmentation()));
      if (tier.given_back_bytes() > 0) {
        absl::StrAppend(&line, ", given back ", HumanBytes(tier.given_back_bytes()));
      }
    }
    frame.Add(line);
  }
}

void AddModels(Frame& frame, const Rates& rates, const v1::StatsResponse& now) {
  std::map<std::string, const v1::ModelStats*> before;
  for (const v1::ModelStats& model : rates.before().models()) before[model.model()] = &model;
  struct Row {
    const v1::ModelStats* now;
    const v1::ModelStats* old;
    uint64_t gets() const { return now->gets() - old->gets(); }
  };
  std::vector<Row> rows;
  for (const v1::ModelStats& model : now.models()) {
    if (model.gets() + model.saves() + model.entries() == 0) continue;
    const auto at = before.find(model.model());
    rows.push_back({&model, at != before.end() ? at->second : &v1::ModelStats::default_instance()});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.gets() != b.gets() ? a.gets() > b.gets() : a.now->gets() > b.now->gets();
  });
  if (rows.size() > kModels) rows.resize(kModels);
  Table table({"MODEL", "GETS", "HITS", "PUTS", "SAVED A SECOND", "ENTRIES", "BYTES"});
  for (const Row& row : rows) {
    table.Add({row.now->model(), rates.Text(row.old->gets(), row.now->gets()),
               Percent(row.now->hits() - row.old->hits(), row.gets()),
               rates.Text(row.old->saves(), row.now->saves()),
               Duration(rates.PerSecond(row.old->saved_us(), row.now->saved_us()) / 1e6),
               absl::StrCat(row.now->entries()), HumanBytes(row.now->bytes())});
  }
  frame.Add("");
  frame.Add(table, kModels);
}

void AddSessions(Frame& frame, const v1::SessionsResponse& response) {
  std::vector<const v1::SessionInfo*> sessions;
  for (const v1::SessionInfo& session : response.sessions()) sessions.push_back(&session);
  std::stable_sort(sessions.begin(), sessions.end(), [](const auto* a, const auto* b) {
    return a->pinned_bytes() > b->pinned_bytes();
  });
  Table table({"SESSION", "ROLE", "STATE", "PID", "LEASES", "RESERVATIONS", "PINNED", "AGE"});
  for (const v1::SessionInfo* session : sessions) {
    table.Add({session->name(), session->writer() ? "writer" : "reader", session->state(),
               absl::StrCat(session->pid()), absl::StrCat(session->leases()),
               absl::StrCat(session->reservations()), HumanBytes(session->pinned_bytes()),
               absl::FormatDuration(absl::Seconds(session->age_ms() / 1000))});
  }
  frame.Add("");
  frame.Add(table, sessions.size());
}

}  // namespace

std::vector<TopLine> TopFrame(const std::optional<TopSample>& before, const TopSample& now,
                              const TopSize& size) {
  const Rates rates(before, now);
  Frame frame(size);
  AddTotals(frame, rates, now.stats);
  AddTiers(frame, rates, now.stats);
  AddModels(frame, rates, now.stats);
  AddSessions(frame, now.sessions);
  return frame.Take();
}

}  // namespace embcache::cli
