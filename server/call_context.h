// What every handler of a service gets besides its request, whatever the transport.

#ifndef EMBCACHE_SERVER_CALL_CONTEXT_H_
#define EMBCACHE_SERVER_CALL_CONTEXT_H_

#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/session_registry.h"

namespace embcache {

// How a handler says that its call may wait for long, for other callers: it then does not count
// among those being handled, which are few. May be called more than once and from any thread.
class LongWait {
 public:
  virtual ~LongWait() = default;
  virtual void Begin() = 0;
};

// Who calls, as far as the connection tells.
enum class Caller {
  kNetwork,  // somebody over TCP: may look, and change nothing
  kLocal,    // a user of this machine who is allowed to connect; its session says what it may do
  kAdmin,    // one who may administer, too
};

struct CallContext {
  std::optional<Token> session;  // as sent; nobody has checked yet that it lives
  Caller caller = Caller::kNetwork;
  absl::Time deadline = absl::InfiniteFuture();
  LongWait* long_wait = nullptr;  // until the answer; none: nobody counts
};

// How a handler answers: exactly once, from any thread, also inside the call that took it. Request
// and response stay valid until then and must not be touched afterwards.
using Done = absl::AnyInvocable<void(absl::Status)>;

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CALL_CONTEXT_H_
