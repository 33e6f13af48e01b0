#include "client/cpp/client.h"

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/connection.h"
#include "client/cpp/convert.h"
#include "client/cpp/fast_get.h"
#include "client/cpp/held.h"
#include "client/cpp/releaser.h"
#include "client/cpp/session.h"
#include "google/protobuf/arena.h"
#include "proto/message_json.h"

namespace embcache::client {
namespace {

namespace v1 = embcache::v1;
using internal::FromProto;
using internal::Session;
using internal::ToProto;
using Stub = v1::Cache::Stub;

// A hit becomes a lease, a miss nullopt.
absl::StatusOr<std::optional<Lease>> ToLease(const std::shared_ptr<Session>& session,
                                             const Key& key, const v1::GetResult& result,
                                             absl::Time asked) {
  switch (result.verdict()) {
    case v1::GetResult::HIT: {
      absl::StatusOr<Lease> lease = internal::MakeLease(session, key, result, asked);
      if (!lease.ok()) return lease.status();
      return std::optional<Lease>(*std::move(lease));
    }
    case v1::GetResult::MISS:
      return std::optional<Lease>();
    default:
      return result.status().code() == 0 ? absl::InternalError("a result without verdict")
                                         : FromProto(result.status());
  }
}

// Leases that have ended here may still count against the session's quota, for they are given back
// in the background: a call that runs into the quota is made once more when they have been.
template <typename Work>
auto WithRoom(Session& session, Work work) {
  auto result = work();
  if (absl::IsResourceExhausted(result.status()) && session.releaser().Flush()) result = work();
  return result;
}

absl::Status WrongCount(absl::string_view call, int got, size_t asked) {
  return absl::InternalError(absl::StrCat(call, ": ", got, " results for ", asked, " items"));
}

}  // namespace

absl::string_view TierName(Tier tier) {
  switch (tier) {
    case Tier::kL1:
      return "L1";
    case Tier::kL2:
      return "L2";
    case Tier::kL3:
      return "L3";
    case Tier::kUnknown:
      break;
  }
  return "unknown";
}

absl::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kAbsent:
      return "absent";
    case MissReason::kMismatch:
      return "mismatch";
    case MissReason::kExpired:
      return "expired";
    case MissReason::kDamaged:
      return "damaged";
    case MissReason::kNone:
      break;
  }
  return "none";
}

std::string DefaultSocketDir() {
  const char* dir = std::getenv("EMBCACHE_SOCKET_DIR");
  if (dir != nullptr && *dir != '\0') return dir;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0') return absl::StrCat(runtime, "/embcache");
  return "/run/embcache";
}

Client::Client(std::unique_ptr<internal::Connection> connection)
    : connection_(std::move(connection)) {}

Client::~Client() {
  // In a fork the threads to be joined do not exist.
  if (!connection_->in_own_process()) connection_.release();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  internal::SessionOptions session;
  session.directory = options.socket_dir.empty() ? DefaultSocketDir() : options.socket_dir;
  session.name = options.name.empty() ? program_invocation_short_name : options.name;
  session.writer = options.role == Role::kWriter;
  session.timeout = options.rpc_timeout;
  session.device_memory = options.device_memory;
  session.fast_path = options.fast_path;
  auto connection = internal::Connection::Open(session, options.reconnect);
  if (!connection.ok()) return connection.status();
  return std::unique_ptr<Client>(new Client(*std::move(connection)));
}

absl::StatusOr<std::optional<Lease>> Client::Get(const Key& key, const GetOptions& options) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  if (options.place == Place::kAny) {
    if (std::optional<Lease> hit = internal::FastGet(*session, key, options.expect)) return hit;
  }
  // The messages of a hit fit the block: no allocations but those of the lease.
  char block[2048];
  google::protobuf::Arena arena(block, sizeof(block));
  auto* request = google::protobuf::Arena::CreateMessage<v1::GetRequest>(&arena);
  v1::GetItem* item = request->add_items();
  ToProto(key, item->mutable_key());
  for (const Expectation& expectation : options.expect) {
    ToProto(expectation, item->add_expect());
  }
  request->set_place(ToProto(options.place));
  return WithRoom(**session, [&]() -> absl::StatusOr<std::optional<Lease>> {
    auto* response = google::protobuf::Arena::CreateMessage<v1::GetResponse>(&arena);
    const absl::Time asked = absl::Now();
    absl::Status status = (*session)->Call(&Stub::Get, *request, response);
    if (!status.ok()) return status;
    if (response->results_size() != 1) return WrongCount("Get", response->results_size(), 1);
    return ToLease(*session, key, response->results(0), asked);
  });
}

namespace {

// Gets the keys at `wanted` and puts the answers into the same places of `results`.
absl::Status GetBatch(const std::shared_ptr<Session>& session, absl::Span<const Key> keys,
                      absl::Span<const size_t> wanted, std::vector<GetResult>* results) {
  v1::GetRequest request;
  for (size_t i : wanted) ToProto(keys[i], request.add_items()->mutable_key());
  v1::GetResponse response;
  const absl::Time asked = absl::Now();
  absl::Status status = session->Call(&Stub::Get, request, &response);
  if (!status.ok()) return status;
  if (static_cast<size_t>(response.results_size()) != wanted.size()) {
    return WrongCount("Get", response.results_size(), wanted.size());
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const v1::GetResult& got = response.results(static_cast<int>(i));
    GetResult result;
    auto lease = ToLease(session, keys[wanted[i]], got, asked);
    result.status = lease.status();
    if (lease.ok()) result.lease = *std::move(lease);
    if (result.status.ok() && !result.lease.has_value()) result.reason = FromProto(got.reason());
    (*results)[wanted[i]] = std::move(result);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<GetResult>> Client::GetMany(absl::Span<const Key> keys) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  const size_t limit = (*session)->limits().max_batch();
  const size_t max_batch = limit == 0 ? keys.size() : limit;
  std::vector<GetResult> results(keys.size());
  std::vector<size_t> wanted;
  const auto send = [&] {
    absl::Status status = GetBatch(*session, keys, wanted, &results);
    wanted.clear();
    return status;
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    results[i].lease = internal::FastGet(*session, keys[i], {});
    if (!results[i].lease.has_value()) wanted.push_back(i);
    if (wanted.empty()) continue;
    if (wanted.size() < max_batch && i + 1 < keys.size()) continue;
    absl::Status status = send();
    if (!status.ok()) return status;
  }
  // Those that ran into the quota once more, as with a single Get (see WithRoom).
  for (size_t i = 0; i < keys.size(); ++i) {
    if (absl::IsResourceExhausted(results[i].status) && wanted.size() < max_batch) {
      wanted.push_back(i);
    }
  }
  if (!wanted.empty() && (*session)->releaser().Flush()) {
    absl::Status status = send();
    if (!status.ok()) return status;
  }
  return results;
}

absl::Status Client::Put(const Key& key, const std::vector<TensorSpec>& tensors,
                         absl::Span<const Bytes> data, const PutOptions& options) {
  if (data.size() != tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", data.size(), " views for ", tensors.size(), " tensors"));
  }
  // The sizes given here are what will be copied; the daemon holds them against dtype and shape.
  std::vector<TensorSpec> sized = tensors;
  for (size_t i = 0; i < sized.size(); ++i) {
    if (!sized[i].absent && data[i].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data[", i, "]: empty, but tensor ", sized[i].name, " is not absent"));
    }
    sized[i].bytes = data[i].size();
  }
  absl::StatusOr<Reservation> reservation = Reserve(key, sized, options);
  if (!reservation.ok()) return reservation.status();
  for (size_t i = 0; i < data.size(); ++i) {
    absl::Status written = reservation->Write(i, data[i]);
    if (!written.ok()) return written;
  }
  return reservation->Commit().status();
}

absl::StatusOr<Reservation> Client::Reserve(const Key& key, const std::vector<TensorSpec>& tensors,
                                            const PutOptions& options) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  if (!(*session)->writer()) {
    return absl::PermissionDeniedError("this client was connected as a reader");
  }
  v1::ReserveRequest request;
  ToProto(key, tensors, options, request.add_items());
  request.set_place(ToProto(options.place));
  return WithRoom(**session, [&]() -> absl::StatusOr<Reservation> {
    v1::ReserveResponse response;
    const absl::Time asked = absl::Now();
    absl::Status status = (*session)->Call(&Stub::Reserve, request, &response);
    if (!status.ok()) return status;
    if (response.results_size() != 1) return WrongCount("Reserve", response.results_size(), 1);
    const v1::ReserveResult& result = response.results(0);
    status = FromProto(result.status());
    if (!status.ok()) return status;
    if (static_cast<size_t>(result.tensors_size()) != tensors.size()) {
      return WrongCount("Reserve: tensors", result.tensors_size(), tensors.size());
    }
    return internal::MakeReservation(*session, request.items(0), result, asked);
  });
}

absl::StatusOr<std::optional<Tier>> Client::Contains(const Key& key) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::ContainsRequest request;
  ToProto(key, request.add_keys());
  v1::ContainsResponse response;
  absl::Status status = (*session)->Call(&Stub::Contains, request, &response);
  if (!status.ok()) return status;
  if (response.results_size() != 1) return WrongCount("Contains", response.results_size(), 1);
  status = FromProto(response.results(0).status());
  if (!status.ok()) return status;
  if (!response.results(0).present()) return std::optional<Tier>();
  return std::optional<Tier>(FromProto(response.results(0).tier()));
}

absl::StatusOr<bool> Client::Delete(const Key& key) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::DeleteRequest request;
  ToProto(key, request.add_keys());
  v1::DeleteResponse response;
  absl::Status status = (*session)->Call(&Stub::Delete, request, &response);
  if (!status.ok()) return status;
  if (response.results_size() != 1) return WrongCount("Delete", response.results_size(), 1);
  status = FromProto(response.results(0).status());
  if (!status.ok()) return status;
  return response.results(0).existed();
}

absl::StatusOr<std::optional<Lease>> Client::Pop(const Key& key) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::PopRequest request;
  ToProto(key, request.mutable_key());
  v1::PopResponse response;
  const absl::Time asked = absl::Now();
  absl::Status status = (*session)->Call(&Stub::Pop, request, &response);
  if (!status.ok()) return status;
  return ToLease(*session, key, response.result(), asked);
}

absl::StatusOr<uint64_t> Client::AdvanceEpoch(absl::string_view model) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::AdvanceEpochRequest request;
  request.set_model(std::string(model));
  v1::AdvanceEpochResponse response;
  absl::Status status = (*session)->Call(&Stub::AdvanceEpoch, request, &response);
  if (!status.ok()) return status;
  return response.model_epoch();
}

absl::StatusOr<ListPage> Client::List(const ListOptions& options) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::ListRequest request;
  request.set_model(options.model);
  request.set_content_hash_hex_prefix(options.hash_hex_prefix);
  request.set_page_size(options.page_size);
  request.set_page_token(options.page_token);
  v1::ListResponse response;
  absl::Status status = (*session)->Call(&Stub::List, request, &response);
  if (!status.ok()) return status;
  ListPage page;
  for (const v1::ListedEntry& entry : response.entries()) page.entries.push_back(FromProto(entry));
  page.next_page_token = response.next_page_token();
  return page;
}

absl::StatusOr<std::string> Client::StatsJson(const StatsOptions& options) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::StatsRequest request;
  request.set_per_model(options.per_model);
  request.set_latencies(options.latencies);
  v1::StatsResponse response;
  absl::Status status = (*session)->Call(&Stub::Stats, request, &response);
  if (!status.ok()) return status;
  return MessageToJson(response);
}

absl::StatusOr<std::string> Client::Share(absl::Span<const Lease* const> leases,
                                          absl::Duration ttl) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::ShareRequest request;
  for (const Lease* lease : leases) {
    if (lease->held_ == nullptr || lease->held_->session != *session) {
      return absl::FailedPreconditionError("leases: one is of a lost session, or moved from");
    }
    absl::Status known = internal::MakeKnown(lease->held_.get());
    if (!known.ok()) return known;
    request.add_leases(lease->held_->id);
  }
  request.set_ttl_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(ttl)));
  v1::ShareResponse response;
  absl::Status status = (*session)->Call(&Stub::Share, request, &response);
  if (!status.ok()) return status;
  return response.token();
}

absl::StatusOr<std::vector<Lease>> Client::Adopt(absl::string_view token) {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::AdoptRequest request;
  request.set_token(std::string(token));
  v1::AdoptResponse response;
  const absl::Time asked = absl::Now();
  absl::Status status = (*session)->Call(&Stub::Adopt, request, &response);
  if (!status.ok()) return status;
  std::vector<Lease> leases;
  for (const v1::GetResult& result : response.results()) {
    absl::StatusOr<Lease> lease =
        internal::MakeLease(*session, FromProto(result.entry().key()), result, asked);
    if (!lease.ok()) return lease.status();
    leases.push_back(*std::move(lease));
  }
  return leases;
}

absl::Status Client::Ping() {
  auto session = connection_->session();
  if (!session.ok()) return session.status();
  v1::PingResponse response;
  return (*session)->Call(&Stub::Ping, v1::PingRequest(), &response);
}

std::string Client::epoch() const {
  auto session = connection_->session();
  return session.ok() ? (*session)->epoch() : std::string();
}

bool Client::draining() const { return connection_->draining(); }

}  // namespace embcache::client
