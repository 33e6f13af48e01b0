// OperatorPages: what the HTTP endpoint says.
//
//   /             the status page, which polls /stats.json
//   /metrics      for Prometheus
//   /stats.json   the answers to Stats and Sessions, recent warnings and errors, an hour's curve
//   /healthz      200 while the cache answers
//   /readyz       200, or 503 while draining
//
// No page holds keys, tokens or contents. Not thread-safe: for the endpoint's one thread.

#ifndef EMBCACHE_SERVER_OPERATOR_PAGES_H_
#define EMBCACHE_SERVER_OPERATOR_PAGES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/admin_service.h"
#include "server/cache_service.h"
#include "server/call_context.h"
#include "server/http_endpoint.h"
#include "server/metrics.h"
#include "server/rpc_server.h"
#include "server/shared_tier.h"
#include "server/stats_history.h"
#include "storage/clock.h"
#include "storage/tiered_cache.h"

namespace embcache {

class OperatorPages {
 public:
  // The counters are taken at most this often, whatever is asked.
  static constexpr absl::Duration kFreshness = absl::Milliseconds(100);
  // In /stats.json; of more, those with the most gets or pinned bytes are shown.
  static constexpr size_t kMaxModels = 50;
  static constexpr size_t kMaxSessions = 100;

  // Not owned; they outlive the pages.
  struct Deps {
    CacheService* service = nullptr;
    AdminService* admin = nullptr;
    TieredCache* cache = nullptr;
    const StatsHistory* history = nullptr;
    const SharedTier* shared = nullptr;  // null: there is none
    const RpcServer* rpc = nullptr;
    const RpcServer* tcp_rpc = nullptr;  // null: there is none
    Clock* clock = nullptr;
    // kNetwork: the sessions and the log are not shown.
    Caller caller = Caller::kNetwork;
  };
  explicit OperatorPages(const Deps& deps) : deps_(deps) {}

  HttpResponse Answer(absl::string_view path);

 private:
  const v1::StatsResponse& FreshStats();
  std::string MetricsText();
  std::string StatsJson();

  const Deps deps_;
  v1::StatsResponse stats_;
  absl::Duration taken_ = -absl::InfiniteDuration();  // monotonic
  Metrics metrics_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_OPERATOR_PAGES_H_
