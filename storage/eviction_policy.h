// EvictionPolicy: decides in which order the entries of one tier leave. It never frees anything:
// the cache asks for candidates, skips those that are pinned, and acts.
//
// Entries are known by their hook, a member of the cache's entry that the policy links into its own
// order; it allocates nothing. Not thread-safe: guarded by the cache's lock.

#ifndef EMBCACHE_STORAGE_EVICTION_POLICY_H_
#define EMBCACHE_STORAGE_EVICTION_POLICY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace embcache {

struct PolicyHook {
  PolicyHook* previous = nullptr;
  PolicyHook* next = nullptr;

  bool linked() const { return previous != nullptr; }
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A new entry of the tier. REQUIRES: not linked.
  virtual void Insert(PolicyHook* hook) = 0;
  // The entry was got or put. REQUIRES: linked here.
  virtual void Touch(PolicyHook* hook) = 0;
  virtual void Remove(PolicyHook* hook) = 0;
  // Calls `visit` with entries in the order in which they should leave, until it returns false.
  // `visit` must not change the policy.
  virtual void VisitCandidates(absl::FunctionRef<bool(PolicyHook*)> visit) const = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_EVICTION_POLICY_H_
