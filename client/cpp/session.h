// Session: one connection to the daemon: the control socket, the segments mapped from it, and the
// gRPC channel of the same daemon. Internal to the client.
//
// Shared by the Connection and by every lease and reservation taken through it, so that the
// mappings live as long as anybody may look at them. The last owner's release unmaps, and says
// Goodbye.
//
// A segment is known by (session, id, generation), and a session belongs to one epoch: bytes of a
// dead daemon are never taken for those of the next. Segments come and go while the session lives:
// one that is not known yet is announced in what the control socket has to read, since the daemon
// sends that first.
//
// Segments in device memory are opened by whoever first asks for an address in them, and closed
// when the session is lost and nothing taken through it is held any more: until then a daemon
// started anew may find no memory on the device.

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
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/cuda_segment.h"
#include "client/cpp/host_segment.h"
#include "client/cpp/unique_fd.h"
#include "client/fast/embcache_fast.h"
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
  bool device_memory = false;  // wants what lies in device memory, too
  bool fast_path = true;
  absl::Duration timeout;  // of connecting, and of each call
};

// Where an entry is: in memory mapped here, or in a segment of device memory.
struct Resolved {
  uint8_t* base = nullptr;
  std::shared_ptr<const HostSegment> host;  // null: device memory
  std::shared_ptr<CudaSegment> device;      // null: host memory
  uint64_t device_offset = 0;

  friend bool operator==(const Resolved&, const Resolved&) = default;
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

  // nullptr: there is no fast path.
  embcache_fast* fast() const { return fast_.get(); }
  enum class Packet { kNone, kHandled, kOver };
  // Takes one packet off the control socket, if one is there. kOver: so is the connection.
  Packet HandlePacket();
  // Whether the daemon has said that it is.
  bool draining() const { return draining_.load(); }
  // Tells the daemon of segments that went and that nothing has here any more. True if others are
  // left.
  bool TellUnmapped();

  // INTERNAL when the daemon names a place that this session does not have.
  absl::StatusOr<Resolved> Resolve(const embcache::v1::Location& location) {
    return Resolve(location.segment(), location.segment_generation(), location.offset(),
                   location.bytes());
  }
  absl::StatusOr<Resolved> Resolve(uint32_t segment, uint64_t generation, uint64_t offset,
                                   uint64_t bytes);

  // A hold is one lease or reservation. TakeHold fails once the session is lost, so that after that
  // a count of 0 stays 0 and the daemon may be told that nothing is touched any more.
  // `bytes` of it count against what the session may pin: those that the daemon knows of.
  bool TakeHold(uint64_t bytes);
  void DropHold(uint64_t bytes);
  int64_t holds() const { return holds_.load(); }
  bool connected() const { return connected_.load(); }
  // Whether it is served from device memory; false once it is lost.
  bool has_device() const;
  // Leases then alone keep device memory open.
  void MarkLost();

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

  // Readable when whoever watches the session shall look at it: at doubts, and at TellUnmapped.
  int wake_fd() const { return wake_event_.get(); }
  // A call has gone unanswered for too long: the daemon may have granted a lease or reservation
  // that nobody here knows of. Only the session's end is sure to give it back.
  void Doubt();
  // Whether there was doubt since the last time.
  bool TakeDoubt() { return in_doubt_.exchange(false); }

 private:
  struct Mapping {
    uint64_t generation = 0;
    uint64_t bytes = 0;
    std::shared_ptr<const HostSegment> host;
    std::shared_ptr<CudaSegment> device;  // null, and so is `host`: the session is lost
  };
  using Mappings = absl::flat_hash_map<uint32_t, Mapping>;
  // Segments that a change removed, until nothing here has them any more.
  struct Removed {
    uint64_t change = 0;
    std::vector<std::weak_ptr<const void>> segments;
  };

  explicit Session(SessionOptions options) : options_(std::move(options)) {}
  absl::Status ConnectControl();
  absl::Status Send(const embcache::v1::ClientPacket& packet, int flags);
  absl::Status ReceiveWelcome(std::vector<UniqueFd>* descriptors);
  // Returns how many of the descriptors were segments'.
  absl::StatusOr<size_t> MapSegments(
      const google::protobuf::RepeatedPtrField<embcache::v1::WelcomeSegment>& segments,
      absl::Span<const UniqueFd> descriptors);
  absl::StatusOr<std::shared_ptr<const HostSegment>> MapSegment(
      const embcache::v1::Segment& segment, int fd) const;
  void ChangeSegments(const embcache::v1::SegmentsChanged& changed,
                      absl::Span<const UniqueFd> descriptors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(control_mutex_);
  absl::StatusOr<Resolved> FindPlace(uint32_t segment, uint64_t generation, uint64_t offset,
                                     uint64_t bytes) const;
  void OpenFastPath(absl::Span<const UniqueFd> descriptors);
  absl::Status OpenStub();
  void Prepare(grpc::ClientContext* context, absl::Duration wait = absl::ZeroDuration()) const;
  embcache::v1::Cache::Stub& waiting_stub();

  const SessionOptions options_;
  std::shared_ptr<Releaser> releaser_;
  pid_t pid_ = 0;
  UniqueFd control_;
  UniqueFd wake_event_;
  embcache::v1::Welcome welcome_;
  std::string token_hex_;
  absl::Mutex control_mutex_;  // held by whoever takes packets off the control socket
  std::vector<Removed> removed_ ABSL_GUARDED_BY(control_mutex_);
  mutable absl::Mutex segments_mutex_;
  Mappings mappings_ ABSL_GUARDED_BY(segments_mutex_);
  struct CloseFast {
    void operator()(embcache_fast* fast) const { embcache_fast_close(fast); }
  };
  std::unique_ptr<embcache_fast, CloseFast> fast_;
  std::unique_ptr<embcache::v1::Cache::Stub> stub_;
  absl::once_flag waiting_once_;
  std::unique_ptr<embcache::v1::Cache::Stub> waiting_stub_;  // made when first used
  std::atomic<bool> connected_{true};
  std::atomic<bool> draining_{false};
  std::atomic<bool> in_doubt_{false};
  std::atomic<int64_t> holds_{0};
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_SESSION_H_
