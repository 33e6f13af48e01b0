// CallGate: what all calls of a server share, and what each of them learns of its caller. Internal
// to RpcServer.

#ifndef EMBCACHE_SERVER_CALL_GATE_H_
#define EMBCACHE_SERVER_CALL_GATE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/grpcpp.h"
#include "server/answer_budget.h"
#include "server/call_context.h"
#include "server/connection_table.h"

namespace embcache {

// Thread-safe.
struct CallGate {
  const int max_in_flight;
  const uint64_t max_message_bytes;
  const bool over_network;
  const ConnectionTable* const connections;
  AnswerBudget answers;
  // Call objects beyond this: some have been answered, and the answers do not leave.
  int many_calls = 0;
  std::atomic<int> in_flight = 0;  // handlers that have not answered
  std::atomic<int> calls = 0;      // call objects, armed or running
  absl::Notification no_calls;     // possible only once the server takes no new ones

  bool Enter() {
    if (in_flight.fetch_add(1, std::memory_order_relaxed) < max_in_flight) return true;
    Leave();
    return false;
  }
  void Leave() { in_flight.fetch_sub(1, std::memory_order_relaxed); }
  bool piled_up() const { return calls.load(std::memory_order_relaxed) > many_calls; }
  void CallMade() { calls.fetch_add(1, std::memory_order_relaxed); }
  void CallGone() {
    if (calls.fetch_sub(1, std::memory_order_acq_rel) == 1) no_calls.Notify();
  }
};

// `by_peer`: what the call may do depends on the connection also when a session is named.
absl::StatusOr<CallContext> MakeCallContext(const grpc::ServerContext& rpc, const CallGate& gate,
                                            bool by_peer);

grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CALL_GATE_H_
