// CacheService: every call of embcache.v1.Cache, without a transport. It validates, translates
// between messages and the cache's types, and joins the cache with the sessions; it keeps no
// entries itself.
//
// Handlers never block: what waits for a copy or a disk answers later, from another thread.
//
// Thread-safe. Must outlive every call it has not answered.

#ifndef EMBCACHE_SERVER_CACHE_SERVICE_H_
#define EMBCACHE_SERVER_CACHE_SERVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "embcache/v1/embcache.pb.h"
#include "gpu/gpu_device.h"
#include "server/call_context.h"
#include "server/claim_table.h"
#include "server/claiming_lookup.h"
#include "server/event_stream.h"
#include "server/idle_shrinker.h"
#include "server/session_registry.h"
#include "server/shared_tier.h"
#include "storage/clock.h"
#include "storage/latency_histogram.h"
#include "storage/tiered_cache.h"

namespace embcache {

struct CacheServiceLimits {
  uint32_t max_batch = 1024;                  // items, keys, leases or reservations of one call
  uint64_t inline_limit = uint64_t{1} << 20;  // bytes of a value, and of all values of an answer
};

// The pointers are not owned and outlive the service.
struct CacheServiceDeps {
  TieredCache* cache = nullptr;
  SessionRegistry* registry = nullptr;
  Clock* clock = nullptr;
  Token epoch = {};
  CacheServiceLimits limits;
  std::string version;
  GpuDevice* device = nullptr;  // whose memory L1 is; nullptr: it is host memory
  ClaimLimits claims;
  size_t max_watchers = 64;
  IdleShrinker* idle = nullptr;  // nullptr: L1 is never shrunk for want of use
  SharedTier* shared = nullptr;  // nullptr: there is none
};

// What latencies are kept of.
enum class Operation {
  kGet,
  kPut,
  kReserve,
  kCommit,
  kAbort,
  kRelease,
  kShare,
  kAdopt,
  kContains,
  kDelete,
  kPop,
  kAdvanceEpoch,
  kList,
  kAbandon,
};
inline constexpr int kOperations = static_cast<int>(Operation::kAbandon) + 1;
absl::string_view OperationName(Operation operation);  // "get", ...

class CacheService {
 public:
  explicit CacheService(CacheServiceDeps deps);
  ~CacheService();

  CacheService(const CacheService&) = delete;
  CacheService& operator=(const CacheService&) = delete;

  // embcache.proto says what each call does.
  void Segments(const CallContext& context, const v1::SegmentsRequest& request,
                v1::SegmentsResponse* response, Done done);
  void Get(const CallContext& context, const v1::GetRequest& request, v1::GetResponse* response,
           Done done);
  void Put(const CallContext& context, const v1::PutRequest& request, v1::PutResponse* response,
           Done done);
  void Reserve(const CallContext& context, const v1::ReserveRequest& request,
               v1::ReserveResponse* response, Done done);
  void Commit(const CallContext& context, const v1::CommitRequest& request,
              v1::CommitResponse* response, Done done);
  void Abort(const CallContext& context, const v1::AbortRequest& request,
             v1::AbortResponse* response, Done done);
  void Release(const CallContext& context, const v1::ReleaseRequest& request,
               v1::ReleaseResponse* response, Done done);
  void Share(const CallContext& context, const v1::ShareRequest& request,
             v1::ShareResponse* response, Done done);
  void Adopt(const CallContext& context, const v1::AdoptRequest& request,
             v1::AdoptResponse* response, Done done);
  void Abandon(const CallContext& context, const v1::AbandonRequest& request,
               v1::AbandonResponse* response, Done done);
  void Contains(const CallContext& context, const v1::ContainsRequest& request,
                v1::ContainsResponse* response, Done done);
  void Delete(const CallContext& context, const v1::DeleteRequest& request,
              v1::DeleteResponse* response, Done done);
  void Pop(const CallContext& context, const v1::PopRequest& request, v1::PopResponse* response,
           Done done);
  void AdvanceEpoch(const CallContext& context, const v1::AdvanceEpochRequest& request,
                    v1::AdvanceEpochResponse* response, Done done);
  void List(const CallContext& context, const v1::ListRequest& request, v1::ListResponse* response,
            Done done);
  void Stats(const CallContext& context, const v1::StatsRequest& request,
             v1::StatsResponse* response, Done done);
  void Ping(const CallContext& context, const v1::PingRequest& request, v1::PingResponse* response,
            Done done);

  // Watch: what to tell, and whom to wake when there is something. RESOURCE_EXHAUSTED: too many
  // watchers.
  absl::StatusOr<std::unique_ptr<EventStream>> Watch(const v1::WatchRequest& request,
                                                     std::weak_ptr<Watcher> watcher);
  // Ends every Watch, and refuses those that come.
  void EndWatches() { hub_.EndAll(); }

  // The transport found out that a successful answer never reached its caller, who therefore does
  // not know what it holds: leases, reservations and claims given in the answer are taken back.
  void Undelivered(const CallContext& context, const v1::GetResponse& response);
  void Undelivered(const CallContext& context, const v1::ReserveResponse& response);
  void Undelivered(const CallContext& context, const v1::CommitResponse& response);
  void Undelivered(const CallContext& context, const v1::AdoptResponse& response);
  void Undelivered(const CallContext& context, const v1::ContainsResponse& response);
  void Undelivered(const CallContext& context, const v1::PopResponse& response);

  // From now on calls that would take something new (Get, Put, Reserve, Adopt, Pop, and Contains
  // with a lease) answer UNAVAILABLE, also those that wait for a claim; what is held can still be
  // used and given back.
  void Drain();
  bool draining() const { return draining_.load(std::memory_order_relaxed); }

  // The model's epoch will be, and was, advanced in the cache by another way than AdvanceEpoch.
  void EpochAdvancing(absl::string_view model);
  void EpochAdvanced(absl::string_view model);

  // Ends claims and waits that are past their time; returns after Drain. For a thread of its own.
  void ExpireClaims();

  const LatencyHistogram& latency(Operation operation) const {
    return latencies_[static_cast<size_t>(operation)];
  }

 private:
  class GetCall;
  class PutCall;
  class PutItemWrite;
  class PutItemImport;
  class ReserveCall;
  class DeleteCall;

  LatencyTimer Timer(Operation operation) {
    return LatencyTimer(&latencies_[static_cast<size_t>(operation)]);
  }
  absl::Status RefuseIfDraining() const;
  // OK with a live session; UNAUTHENTICATED when `context` has none.
  absl::Status RequireSession(const CallContext& context, bool need_writer) const;
  // OK with a live writer's session, or without a session if the caller is an administrator.
  absl::Status RequireWriter(const CallContext& context) const;
  // OK also without a session.
  absl::Status CheckOptionalSession(const CallContext& context) const;
  absl::Status CheckExpectations(const CallContext& context, const v1::GetRequest& request) const;
  absl::Status CheckBatch(absl::string_view field, int size) const;
  void ReleaseUndelivered(const CallContext& context, const std::vector<LeaseId>& leases);

  // What the caller can use: a session that does not see the device is served from host memory.
  // FAILED_PRECONDITION: it asks for device memory that there is not, or that it does not see.
  absl::StatusOr<Place> PlaceFor(const CallContext& context, v1::Place place) const;
  // Whether the session of `context` can use what is at `location`.
  bool CanUse(const CallContext& context, const Location& location) const;
  // Whether the CPU can read it.
  void StartClaimingLookup(const CallContext& context, const v1::GetRequest& request, CacheKey key,
                           std::vector<TensorExpectation> expect, Place place,
                           ClaimingLookup::Callback done);
  // One that fits no tier is refused, and what the cache has of its key goes; so it must there.
  void UnshareTooLarge(const embcache::ReserveRequest& request);
  // A client's entry has been committed.
  void ShareStored(const EntryInfo& info, uint64_t generation) {
    if (deps_.shared != nullptr) deps_.shared->Stored(info, generation);
  }
  // Whom to ask for what the cache has not; nullptr: nobody.
  SharedTier* SharedFor(const CallContext& context) const;
  // A put that named `claim` (0: none) has failed.
  void FailClaim(const CallContext& context, ClaimId claim);

  // Fills `result` from a hit and, with a session, turns its pin into a lease. Returns the inline
  // bytes put into `result`, at most `inline_limit`. `staged`: the bytes of an entry that the CPU
  // cannot read, if they are wanted.
  uint64_t FillHit(const CallContext& context, ReadHandle handle, TierId source,
                   uint64_t inline_limit, std::string staged, v1::GetResult* result);

  const CacheServiceDeps deps_;
  const absl::Duration started_;  // monotonic
  std::atomic<bool> draining_ = false;
  ClaimTable claims_;
  EventHub hub_;
  std::array<LatencyHistogram, kOperations> latencies_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CACHE_SERVICE_H_
