// ClaimingLookup: one key of a Get that, when the cache has it not, claims it or waits for whoever
// does. Before, it asks the shared tier, if there is one. It owns itself from Start to its answer,
// and counts one hit or one miss: a hit if it ends with the value, at once or after a wait, else a
// miss.

#ifndef EMBCACHE_SERVER_CLAIMING_LOOKUP_H_
#define EMBCACHE_SERVER_CLAIMING_LOOKUP_H_

#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/call_context.h"
#include "server/claim_table.h"
#include "server/session_registry.h"
#include "server/shared_tier.h"
#include "storage/tiered_cache.h"

namespace embcache {

class ClaimingLookup {
 public:
  struct Answer {
    absl::StatusOr<LookupResult> found = LookupResult{};
    // Of a miss, at most one of these:
    ClaimId claim = 0;                         // the caller's
    std::shared_ptr<const EntryInfo> pending;  // what will be stored
    bool claimed_elsewhere = false;
  };
  using Callback = absl::AnyInvocable<void(Answer)>;

  struct Deps {
    TieredCache* cache = nullptr;
    SessionRegistry* registry = nullptr;
    ClaimTable* claims = nullptr;
    LongWait* long_wait = nullptr;    // told before a wait; may be nullptr
    SharedTier* shared = nullptr;     // may be nullptr
    LongWait* shared_wait = nullptr;  // told before it is asked; may be nullptr
  };

  static void Start(const Deps& deps, ClaimTable::Request request,
                    std::vector<TensorExpectation> expect, Place place, Callback done);

 private:
  ClaimingLookup(const Deps& deps, ClaimTable::Request request,
                 std::vector<TensorExpectation> expect, Place place, Callback done)
      : deps_(deps),
        request_(std::move(request)),
        expect_(std::move(expect)),
        place_(place),
        done_(std::move(done)) {}

  void Look();
  void Found(absl::StatusOr<LookupResult> found);
  // Whether it is asked, and will look again.
  bool AskShared();
  void Joined(ClaimTable::Outcome outcome);
  void Missed(Answer answer);
  void Finish(Answer answer);

  const Deps deps_;
  const ClaimTable::Request request_;
  const std::vector<TensorExpectation> expect_;
  const Place place_;
  Callback done_;
  ClaimId claim_ = 0;
  bool shared_asked_ = false;
  MissReason reason_ = MissReason::kAbsent;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CLAIMING_LOOKUP_H_
