// Session: one connection to the daemon: the control socket, the segments mapped from it, and the
// gRPC channel of the same daemon. Internal to the client.
//
// Shared by the Connection and by every lease and reservation taken through it, so that the
// mappings live as long as anybody may look at them. The last owner's release unmaps, and says
// Goodbye.
//
// A segment is known by (session, id, generation), and a session belongs to one epoch: bytes of a
// dead daemon are never taken for those of the next.

#ifndef EMBCACHE_CLIENT_CPP_SESSION_H_
#define EMBCACHE_CLIENT_CPP_SESSION_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cpp/unique_fd.h"
#include "embcache/v1/control.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"

namespace embcache::client::internal {

class Releaser;

// The gRPC channel of the daemon whose sockets are in `directory`; each call makes a new
// connection.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& directory);
absl::Status FromGrpc(const grpc::Status& status);

struct SessionOptions {
  std::string directory;
  std::string name;
  bool writer = false;
  absl::Duration timeout;  // of connecting, and of each call
};

class Session {
 public:
  // `acknowledges` is the token of an earlier session of this process that is no longer in use, or
  // empty. `releaser` is where leases of this session are given back.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const SessionOptions& options,
                                                       absl::string_view acknowledges,
                                                       std::shared_ptr<Releaser> releaser);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& token() const { return welcome_.token(); }
  const std::string& epoch() const { return welcome_.epoch(); }
  const embcache::v1::Limits& limits() const { return welcome_.limits(); }
  bool writer() const { return options_.writer; }
  int control_fd() const { return control_.get(); }
  Releaser& releaser() { return *releaser_; }

  // The address of `location` here, or nullptr when it is in device memory. INTERNAL when the
  // daemon names a place that this session does not have.
  absl::StatusOr<uint8_t*> Resolve(const embcache::v1::Location& location) const;

  // A hold is one lease or reservation. TakeHold fails once the session is lost, so that after that
  // a count of 0 stays 0 and the daemon may be told that nothing is touched any more.
  bool TakeHold();
  void DropHold() { holds_.fetch_sub(1); }
  int64_t holds() const { return holds_.load(); }
  bool connected() const { return connected_.load(); }
  void MarkLost() { connected_.store(false); }

  // False in a fork of the process that connected.
  bool in_own_process() const;

  // One unary call with the session's token and deadline.
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response) {
    if (!in_own_process()) {
      return absl::FailedPreconditionError("the client was connected before a fork");
    }
    grpc::ClientContext context;
    Prepare(&context);
    absl::Status status = FromGrpc((stub_.get()->*method)(&context, request, response));
    if (absl::IsDeadlineExceeded(status)) Doubt();
    return status;
  }

  // The same for a call that the daemon may keep waiting for `wait`, over a connection of its own:
  // calls that wait would fill that of the others, which bears only so many at a time.
  template <typename Method, typename Request, typename Response>
  absl::Status CallWaiting(Method method, const Request& request, Response* response,
                           absl::Duration wait) {
    if (wait <= absl::ZeroDuration()) return Call(method, request, response);
    if (!in_own_process()) {
      return absl::FailedPreconditionError("the client was connected before a fork");
    }
    grpc::ClientContext context;
    Prepare(&context, wait);
    absl::Status status = FromGrpc((waiting_stub().*method)(&context, request, response));
    if (absl::IsDeadlineExceeded(status)) Doubt();
    return status;
  }

  // Readable once a call has gone unanswered for too long: the daemon may have granted a lease or
  // reservation that nobody here knows of. Only the session's end is sure to give it back.
  int doubt_fd() const { return doubt_event_.get(); }

 private:
  struct Mapping {
    uint64_t generation = 0;
    uint64_t bytes = 0;
    uint8_t* base = nullptr;  // nullptr: device memory
  };

  explicit Session(SessionOptions options) : options_(std::move(options)) {}
  absl::Status ConnectControl();
  absl::Status Send(const embcache::v1::ClientPacket& packet, int flags);
  absl::Status ReceiveWelcome(std::vector<UniqueFd>* descriptors);
  absl::Status MapSegments(const std::vector<UniqueFd>& descriptors);
  absl::Status MapSegment(const embcache::v1::Segment& segment, int fd);
  absl::Status OpenStub();
  void Doubt() const;
  void Prepare(grpc::ClientContext* context, absl::Duration wait = absl::ZeroDuration()) const;
  embcache::v1::Cache::Stub& waiting_stub();

  const SessionOptions options_;
  std::shared_ptr<Releaser> releaser_;
  pid_t pid_ = 0;
  UniqueFd control_;
  UniqueFd doubt_event_;
  embcache::v1::Welcome welcome_;
  std::string token_hex_;
  absl::flat_hash_map<uint32_t, Mapping> mappings_;
  std::unique_ptr<embcache::v1::Cache::Stub> stub_;
  absl::once_flag waiting_once_;
  std::unique_ptr<embcache::v1::Cache::Stub> waiting_stub_;  // made when first used
  std::atomic<bool> connected_{true};
  std::atomic<int64_t> holds_{0};
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_SESSION_H_
