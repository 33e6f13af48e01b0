#include "server/call_gate.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

constexpr char kSessionMetadata[] = "embcache-session";

}  // namespace

absl::StatusOr<CallContext> MakeCallContext(const grpc::ServerContext& rpc, const CallGate& gate,
                                            bool by_peer) {
  CallContext context;
  context.deadline = absl::FromChrono(rpc.deadline());
  const auto sent = rpc.client_metadata().find(kSessionMetadata);
  const bool has_session = sent != rpc.client_metadata().end();
  if (gate.over_network) {
    if (!has_session) return context;
    return absl::PermissionDeniedError("sessions are for the unix socket");
  }
  context.caller = Caller::kLocal;
  if (by_peer || !has_session) {
    const std::optional<Peer> peer = gate.connections->Find(rpc.peer());
    if (peer.has_value() && peer->admin) context.caller = Caller::kAdmin;
  }
  if (!has_session) return context;
  context.session = TokenFromHex(absl::string_view(sent->second.data(), sent->second.size()));
  if (!context.session.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata ", kSessionMetadata, ": must be 32 hexadecimal digits"));
  }
  return context;
}

// The codes are the same numbers by design of both libraries.
grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace embcache
