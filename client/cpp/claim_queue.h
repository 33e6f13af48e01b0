// ClaimQueue: lets one thread of a client at a time ask for, or have, the claim of a key. The
// daemon gives claims to sessions, and the threads of a client share one. Internal to the client.
// Thread-safe.

#ifndef EMBCACHE_CLIENT_CPP_CLAIM_QUEUE_H_
#define EMBCACHE_CLIENT_CPP_CLAIM_QUEUE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"

namespace embcache::client::internal {

class ClaimQueue {
 public:
  enum class Turn {
    kMine,      // Leave has to follow
    kStored,    // another thread has had it, and the value should be there
    kTimedOut,  // another thread still has it
  };
  // Waits while another thread has the turn.
  Turn Enter(const Key& key, absl::Time deadline);
  void Leave(const Key& key, bool stored);

 private:
  struct Slot {
    bool taken = true;
    bool stored = false;  // by the one that had it last
    uint64_t turn = 0;    // how often it has been left
    int waiting = 0;
    absl::CondVar left;
  };
  using Name = std::pair<std::string, std::pair<std::string, std::string>>;
  static Name NameOf(const Key& key) { return {key.model, {key.content_hash, key.variant}}; }

  absl::Mutex mutex_;
  absl::flat_hash_map<Name, std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_CLAIM_QUEUE_H_
