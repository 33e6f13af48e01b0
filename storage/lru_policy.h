// LruPolicy: exact least recently used. Insert and Touch make an entry the last to leave.
//
// The order is an intrusive doubly linked ring through the entries' hooks: every operation is a few
// pointer writes and nothing is allocated.

#ifndef EMBCACHE_STORAGE_LRU_POLICY_H_
#define EMBCACHE_STORAGE_LRU_POLICY_H_

#include <memory>

#include "storage/eviction_policy.h"

namespace embcache {

std::unique_ptr<EvictionPolicy> NewLruPolicy();

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_LRU_POLICY_H_
