#include "client/cli/top.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/output.h"

namespace embcache::cli {
namespace {

constexpr size_t kBarWidth = 24;
constexpr size_t kNarrowBarWidth = 10;
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
std::string Bar(const v1::TierStats& tier, size_t width) {
  const auto cells = [&](uint64_t bytes) {
    if (tier.capacity_bytes() == 0) return size_t{0};
    const double share = static_cast<double>(bytes) / static_cast<double>(tier.capacity_bytes());
    return std::min(width, static_cast<size_t>(share * static_cast<double>(width) + 0.5));
  };
  const size_t used = cells(tier.used_bytes());
  const size_t pinned = std::min(used, cells(tier.pinned_bytes()));
  return absl::StrCat("[", std::string(pinned, '#'), std::string(used - pinned, '='),
                      std::string(width - used, '.'), "]");
}

// A part of a line, and how it is said where the screen is too narrow for the whole line.
struct Part {
  std::string text;
  std::string brief = text;
};

class Frame {
 public:
  explicit Frame(const TopSize& size) : size_(size) {}

  void Add(std::string text, bool heading = false) {
    lines_.push_back({Shorten(TerminalText(text), size_.columns), heading});
  }
  // Parts with commas between. If they do not fit they are brief, and those that still do not fit
  // are left out, but for the first.
  void Add(const std::vector<Part>& parts) {
    std::string whole, brief;
    for (const Part& part : parts) {
      const char* const comma = whole.empty() ? "" : ", ";
      absl::StrAppend(&whole, comma, part.text);
      if (brief.empty() || Width(brief) + 2 + Width(part.brief) <= size_.columns) {
        absl::StrAppend(&brief, comma, part.brief);
      }
    }
    Add(Width(whole) <= size_.columns ? whole : brief);
  }
  // At most `limit` rows, and what the screen has left. The columns named in `dispensable` go first
  // where the screen is too narrow.
  void Add(Table table, size_t limit, const std::vector<std::string>& dispensable) {
    table.FitInto(size_.columns, dispensable);
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
  frame.Add({{absl::StrCat("embcached ", now.version())},
             {absl::StrCat("up ", absl::FormatDuration(absl::Seconds(now.uptime_ms() / 1000)))},
             {serving ? "serving" : "DRAINING"}});
  const std::string hits =
      absl::StrCat("hits ", Percent(now.hits() - before.hits(), now.gets() - before.gets()));
  const std::string saved =
      absl::StrCat("saved ", Duration(rates.PerSecond(before.saved_us(), now.saved_us()) / 1e6));
  frame.Add({{absl::StrCat(hits, " (", Percent(now.hits(), now.gets()), " since start)"), hits},
             {absl::StrCat("gets ", rates.Text(before.gets(), now.gets()))},
             {absl::StrCat("puts ", rates.Text(before.saves(), now.saves()))},
             {absl::StrCat(saved, " of encoding a second (",
                           Duration(static_cast<double>(now.saved_us()) / 1e6), " in all)"),
              saved + "/s"}});
  frame.Add({{absl::StrCat("sessions ", now.sessions())},
             {absl::StrCat("leases ", now.leases())},
             {absl::StrCat("reservations ", now.reservations()),
              absl::StrCat("reserved ", now.reservations())},
             {absl::StrCat("claims ", now.claims())},
             {absl::StrCat("in quarantine ", HumanBytes(now.quarantined_bytes()))}});
}

void AddTiers(Frame& frame, const Rates& rates, const v1::StatsResponse& now) {
  std::map<int, const v1::TierStats*> before;
  for (const v1::TierStats& tier : rates.before().tiers()) before[tier.tier()] = &tier;
  for (const v1::TierStats& tier : now.tiers()) {
    const auto at = before.find(tier.tier());
    const v1::TierStats& old = at != before.end() ? *at->second : v1::TierStats::default_instance();
    const auto head = [&tier](size_t bar_width) {
      return absl::StrCat(TierName(tier.tier()), " ", Bar(tier, bar_width), " ",
                          Percent(tier.used_bytes(), tier.capacity_bytes()), " of ",
                          HumanBytes(tier.capacity_bytes()));
    };
    std::vector<Part> parts = {{head(kBarWidth), head(kNarrowBarWidth)}};
    const v1::L3Stats& l3 = now.l3();
    const bool disk = tier.tier() == v1::L3;
    if (disk && !l3.writable()) parts.push_back({"NOT WRITABLE"});
    parts.push_back({absl::StrCat(tier.entries(), " entries")});
    parts.push_back({absl::StrCat("hits ", rates.Text(old.hits(), tier.hits()))});
    parts.push_back({absl::StrCat(
        "evicted ", rates.Text(old.evictions_capacity(), tier.evictions_capacity()))});
    if (disk) {
      parts.push_back({absl::StrCat("queued ", l3.queued_writes())});
      parts.push_back({absl::StrCat("dropped ", l3.dropped_writes())});
      parts.push_back({absl::StrCat("errors ", l3.io_errors() + l3.corruptions())});
    } else {
      parts.push_back({absl::StrCat("pinned ", HumanBytes(tier.pinned_bytes()))});
      parts.push_back({absl::StrFormat("fragmented %.0f%%", 100 * tier.fragmentation())});
      if (tier.given_back_bytes() > 0) {
        parts.push_back({absl::StrCat("given back ", HumanBytes(tier.given_back_bytes()))});
      }
    }
    frame.Add(parts);
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
  frame.Add(std::move(table), kModels, {"SAVED A SECOND", "PUTS", "ENTRIES", "BYTES"});
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
  frame.Add(std::move(table), sessions.size(),
            {"RESERVATIONS", "AGE", "ROLE", "LEASES", "STATE", "PID"});
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
