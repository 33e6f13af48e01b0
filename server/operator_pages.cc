#include "server/operator_pages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/message_json.h"
#include "server/logging.h"
#include "server/status_page.h"

namespace embcache {
namespace {

// Keeps the `limit` items that `more` puts first.
template <typename Items, typename More>
size_t Truncate(Items* items, size_t limit, More more) {
  std::stable_sort(items->begin(), items->end(), more);
  const size_t size = static_cast<size_t>(items->size());
  if (size <= limit) return 0;
  items->DeleteSubrange(static_cast<int>(limit), static_cast<int>(size - limit));
  return size - limit;
}

std::string HistoryJson(const std::vector<StatsHistory::Point>& points) {
  std::string json = "[";
  for (const StatsHistory::Point& point : points) {
    absl::StrAppend(&json, json.size() == 1 ? "" : ",", "{\"unix_ms\":", point.unix_ms,
                    ",\"gets\":", point.gets, ",\"hits\":", point.hits,
                    ",\"saved_us\":", point.saved_us, "}");
  }
  return json + "]";
}

std::string ProblemsJson(const std::vector<LogLine>& lines) {
  std::string json = "[";
  for (const LogLine& line : lines) {
    absl::StrAppend(
        &json, json.size() == 1 ? "" : ",", "{\"unix_ms\":", absl::ToUnixMillis(line.time),
        ",\"level\":", JsonString(line.level), ",\"message\":", JsonString(line.message), "}");
  }
  return json + "]";
}

MetricsInput::Operation Take(absl::string_view name, const LatencyHistogram& histogram) {
  return {std::string(name), histogram.Take()};
}

}  // namespace

const v1::StatsResponse& OperatorPages::FreshStats() {
  const absl::Duration now = deps_.clock->MonotonicNow();
  if (now - taken_ < kFreshness) return stats_;
  v1::StatsRequest request;
  request.set_per_model(true);
  request.set_latencies(true);
  v1::StatsResponse stats;
  deps_.service->Stats({}, request, &stats, [](const absl::Status&) {});  // answers at once
  stats_ = std::move(stats);
  taken_ = now;
  return stats_;
}

std::string OperatorPages::MetricsText() {
  MetricsInput input;
  input.stats = FreshStats();
  for (int i = 0; i < kOperations; ++i) {
    const auto operation = static_cast<Operation>(i);
    input.durations.push_back(Take(OperationName(operation), deps_.service->latency(operation)));
  }
  const CacheWork& work = deps_.cache->work();
  input.sizes = {Take("get", work.hit_bytes), Take("put", work.saved_bytes)};
  for (const auto& [name, step] : work.Steps()) {
    input.durations.push_back(Take(name, step->duration));
    input.sizes.push_back(Take(name, step->bytes));
  }
  for (const auto& [name, rpc] : {std::pair{"unix", deps_.rpc}, std::pair{"tcp", deps_.tcp_rpc}}) {
    if (rpc != nullptr) input.listeners.push_back({name, rpc->connections(), rpc->unread_bytes()});
  }
  input.process = ReadProcessStats();
  if (deps_.shared != nullptr) input.shared = deps_.shared->GetStats();
  return metrics_.Render(input);
}

std::string OperatorPages::StatsJson() {
  v1::StatsResponse stats = FreshStats();
  v1::SessionsResponse sessions;
  const bool local = deps_.caller != Caller::kNetwork;
  deps_.admin->Sessions({.caller = deps_.caller}, v1::SessionsRequest(), &sessions,
                        [](const absl::Status&) {});
  const size_t models_left = Truncate(
      stats.mutable_models(), kMaxModels,
      [](const v1::ModelStats& a, const v1::ModelStats& b) { return a.gets() > b.gets(); });
  const size_t sessions_left = Truncate(sessions.mutable_sessions(), kMaxSessions,
                                        [](const v1::SessionInfo& a, const v1::SessionInfo& b) {
                                          return a.pinned_bytes() > b.pinned_bytes();
                                        });
  std::string session_list = "[";
  for (const v1::SessionInfo& session : sessions.sessions()) {
    absl::StrAppend(&session_list, session_list.size() == 1 ? "" : ",", MessageToJson(session));
  }
  return absl::StrCat("{\"unix_ms\":", absl::ToUnixMillis(deps_.clock->Now()),
                      ",\"local\":", local ? "true" : "false", ",\"stats\":", MessageToJson(stats),
                      ",\"models_left_out\":", models_left, ",\"sessions\":", session_list,
                      "],\"sessions_left_out\":", sessions_left, ",\"problems\":",
                      ProblemsJson(local ? RecentProblems() : std::vector<LogLine>()),
                      ",\"history\":", HistoryJson(deps_.history->Points()), "}\n");
}

HttpResponse OperatorPages::Answer(absl::string_view path) {
  if (path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = MetricsText()};
  }
  if (path == "/stats.json") {
    return {.content_type = "application/json; charset=utf-8", .body = StatsJson()};
  }
  if (path == "/") {
    return {.content_type = "text/html; charset=utf-8",
            .body = kStatusPageHtml,
            .headers = {{"Content-Security-Policy", StatusPagePolicy()},
                        {"Referrer-Policy", "no-referrer"}}};
  }
  if (path == "/healthz") {
    FreshStats();  // does not return while the cache's lock is stuck
    return {.body = "ok\n"};
  }
  if (path == "/readyz") {
    if (!deps_.service->draining()) return {.body = "ready\n"};
    return {.status = 503, .body = "draining\n"};
  }
  return {.status = 404, .body = "try /, /metrics, /stats.json, /healthz, /readyz\n"};
}

}  // namespace embcache
