// Client::Lookup.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "client/cpp/held.h"
#include "client/cpp/session.h"

namespace embcache::client {
namespace {

namespace v1 = embcache::v1;
using internal::FromProto;
using internal::Session;

absl::StatusOr<Found> Read(const std::shared_ptr<Session>& session, const Key& key,
                           const v1::ContainsResult& result, absl::Time asked) {
  absl::Status status = FromProto(result.status());
  if (!status.ok()) return status;
  Found found;
  if (result.present()) found.tier = FromProto(result.tier());
  if (result.has_hit() && result.hit().verdict() == v1::GetResult::HIT) {
    absl::StatusOr<Lease> lease = internal::MakeLease(session, key, result.hit(), asked);
    if (!lease.ok()) return lease.status();
    found.lease = *std::move(lease);
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<Found>> Client::Lookup(absl::Span<const Key> keys) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  const size_t limit = (*session)->limits().max_batch();
  const size_t max_batch = limit == 0 ? keys.size() : limit;
  std::vector<Found> all;
  all.reserve(keys.size());
  while (all.size() < keys.size()) {
    const auto part = keys.subspan(all.size(), max_batch);
    v1::ContainsRequest request;
    request.set_lease(true);
    for (const Key& key : part) internal::ToProto(key, request.add_keys());
    v1::ContainsResponse response;
    const absl::Time asked = absl::Now();
    const absl::Status status = (*session)->Call(&v1::Cache::Stub::Contains, request, &response);
    if (!status.ok()) return status;
    if (static_cast<size_t>(response.results_size()) != part.size()) {
      return absl::InternalError(absl::StrCat("Contains: ", response.results_size(),
                                              " results for ", part.size(), " keys"));
    }
    for (size_t i = 0; i < part.size(); ++i) {
      absl::StatusOr<Found> found =
          Read(*session, part[i], response.results(static_cast<int>(i)), asked);
      if (found.ok()) {
        all.push_back(*std::move(found));
      } else {
        all.emplace_back().status = found.status();
      }
    }
  }
  return all;
}

}  // namespace embcache::client
