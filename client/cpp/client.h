// The C++ client of embcached: the whole public API.
//
//   auto client = Client::Connect({.role = Role::kWriter});
//   auto hit = (*client)->Get(key);                  // StatusOr<optional<Lease>>
//   if (hit.ok() && hit->has_value()) Use((*hit)->tensors(), (*hit)->data(0));
//
// The bytes of an entry are never copied by a get: a Lease is a view into memory that the daemon
// owns and this process has mapped. Mostly not even a call is made: the client looks into an index
// that the daemon shares with it, and asks only for what it does not find there. The bytes neither
// change nor move until the Lease is destroyed.
//
// Threads: Client is thread-safe. A Lease or Reservation may be moved between threads, but is used
// by one at a time.
//
// When the daemon goes away: no call crashes or hangs. Calls fail with UNAVAILABLE at once while
// the client reconnects by itself in the background; leases and reservations of the lost session
// stay readable and writable, but valid() turns false: of a lease, the bytes are what they were,
// and the daemon now running does not know of them.
//
// Errors, beyond those that the daemon gives (INVALID_ARGUMENT names a field and its limit,
// RESOURCE_EXHAUSTED a quota or no room, PERMISSION_DENIED a write by a reader): UNAVAILABLE, no
// daemon or it is draining; DEADLINE_EXCEEDED, no answer within rpc_timeout; FAILED_PRECONDITION,
// the object belongs to a lost session, or the process is a fork of the one that connected.
//
// Device memory (CUDA): a client with ClientOptions::device_memory gets entries where they lie on
// the cache's device, by device pointer, and can reserve memory there. Everything that a stream of
// its own does with them, the caller synchronises: before Commit, PutDevice and PutExported, and
// before a lease ends. The
// memory is opened once in a process, when the first pointer is asked for, in the device's primary
// context (that of the runtime library and of frameworks), and closed when the session is lost and
// no lease of it is left. Nothing here includes or links CUDA; the driver is loaded when a client
// asks for device memory.
//
// fork(): a child must not use the client; its calls fail, and destroying its copies does nothing.
// Connect after forking. A child that does not exec also keeps the parent's connection open.

#ifndef EMBCACHE_CLIENT_CPP_CLIENT_H_
#define EMBCACHE_CLIENT_CPP_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/tensor.h"

namespace embcache::client {

using Bytes = absl::Span<const uint8_t>;
using MutableBytes = absl::Span<uint8_t>;
using Metadata = std::map<std::string, std::string>;

// What identifies an entry.
struct Key {
  std::string model;         // 1 to 255 bytes
  std::string content_hash;  // raw, 8 to 64 bytes
  std::string variant;       // whatever else changes the output; may be empty

  friend bool operator==(const Key&, const Key&) = default;
};

enum class Tier : uint8_t { kUnknown = 0, kL1 = 1, kL2 = 2, kL3 = 3 };
absl::string_view TierName(Tier tier);  // "L1"

enum class Role : uint8_t {
  kReader,  // memory is mapped read-only; Put and Reserve are refused
  kWriter,
};

struct ClientOptions {
  std::string socket_dir;  // empty: DefaultSocketDir()
  std::string name;        // shown by the daemon; empty: the program's name
  Role role = Role::kReader;
  absl::Duration rpc_timeout = absl::Seconds(10);  // of each call, and of connecting
  bool reconnect = true;
  // Also takes entries in device memory. Connect fails with FAILED_PRECONDITION where this process
  // has no CUDA driver or device. Entries on another device than those it sees come from host
  // memory.
  bool device_memory = false;
  // Read hits from the daemon's shared index, where it has one, without a call.
  bool fast_path = true;
};

// Where bytes should be.
enum class Place : uint8_t {
  kAny = 0,  // the fastest tier that this client can reach
  kDevice,   // device memory
  kHost,     // host memory
};

// $EMBCACHE_SOCKET_DIR, else $XDG_RUNTIME_DIR/embcache, else /run/embcache.
std::string DefaultSocketDir();

struct PutOptions {
  Metadata metadata;                          // at most 64 KiB
  uint64_t encode_cost_us = 0;                // what a miss costs; 0: unknown
  absl::Duration ttl = absl::ZeroDuration();  // zero: none
  Place place = Place::kHost;                 // of the memory that Reserve gives
};

// Bytes in device memory of the caller's own process, from a CUdeviceptr or a pointer of the
// runtime library's on.
struct DeviceBytes {
  uint64_t pointer = 0;
  uint64_t bytes = 0;
};

// What a get expects of an entry; parts left empty are not compared. An entry that differs is
// removed and answered as a miss.
struct Expectation {
  std::string tensor;  // empty: the first one
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  int64_t rows = 0;  // first dimension
  uint64_t bytes = 0;
};

struct GetOptions {
  std::vector<Expectation> expect;
  Place place = Place::kAny;
};

namespace internal {
class ClaimQueue;
class Connection;
struct HeldClaim;
struct HeldLease;
struct HeldReservation;
}  // namespace internal

// The right to read an entry's bytes. Destroying it gives the right back, in the background. Leases
// should end before their Client; one that outlives it keeps its bytes, but is not valid().
class Lease {
 public:
  explicit Lease(std::unique_ptr<internal::HeldLease> held);  // made by Client
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  const Key& key() const;
  const std::vector<TensorSpec>& tensors() const;
  // Bytes of tensors()[index]; empty for an absent tensor, and for device memory (see mapped()).
  Bytes data(size_t index) const;
  // Bytes of the tensor called `name`; empty when there is none or it is absent.
  Bytes Find(absl::string_view name) const;
  const Metadata& metadata() const;
  uint64_t encode_cost_us() const;
  Tier source() const;          // where the get found the entry
  uint64_t generation() const;  // which put of the key this is
  uint64_t bytes() const;       // of the entry, with padding between tensors
  // False when the entry lies in device memory.
  bool mapped() const;
  // UUID of the device whose memory holds the entry; empty for host memory.
  std::string device_uuid() const;
  // Where tensors()[index] is in device memory (a CUdeviceptr). FAILED_PRECONDITION for host
  // memory, for an absent tensor, and, with what the driver says, when the memory cannot be opened:
  // in the daemon's own process, say.
  absl::StatusOr<uint64_t> device_pointer(size_t index) const;
  // Whether the daemon still holds the bytes for this lease; see the head of this file.
  bool valid() const;

 private:
  friend class Client;
  void End();
  std::unique_ptr<internal::HeldLease> held_;
};

// Memory to write an entry into. Invisible to others until Commit; destroying it gives it up.
class Reservation {
 public:
  explicit Reservation(std::unique_ptr<internal::HeldReservation> held);  // made by Client
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();

  const std::vector<TensorSpec>& tensors() const;
  // Where to write tensors()[index]; empty for an absent tensor, and for device memory.
  MutableBytes tensor(size_t index);
  // As for a Lease: where to write when the reservation is in device memory.
  std::string device_uuid() const;
  absl::StatusOr<uint64_t> device_pointer(size_t index) const;
  // Copies the whole of tensors()[index] into place: faster than memcpy for large ones, for it
  // leaves the processor's caches alone. INVALID_ARGUMENT unless `data` has exactly its size.
  absl::Status Write(size_t index, Bytes data);
  // The same out of device memory, into device or host memory as the reservation is; ended when it
  // returns. See Client::PutDevice.
  absl::Status WriteDevice(size_t index, DeviceBytes data);
  bool valid() const;

  // Makes the entry visible. The reservation is over, whatever the answer, except after
  // DEADLINE_EXCEEDED and UNAVAILABLE, when nobody knows. With `keep_lease` the answer has a lease.
  absl::StatusOr<std::optional<Lease>> Commit(bool keep_lease = false);
  absl::Status Abort();

 private:
  void End();
  std::unique_ptr<internal::HeldReservation> held_;
};

enum class MissReason : uint8_t {
  kNone = 0,
  kAbsent,
  kMismatch,
  kExpired,
  kDamaged,
  kClaimedElsewhere,  // somebody else encodes it, and the wait was over
};
absl::string_view MissReasonName(MissReason reason);  // "absent"

// One answer of GetMany: an error, a hit (lease) or a miss (reason).
struct GetResult {
  absl::Status status;
  std::optional<Lease> lease;
  MissReason reason = MissReason::kNone;
};

// One answer of Lookup.
struct Found {
  absl::Status status;
  std::optional<Tier> tier;    // the fastest that has the key; nullopt: none
  std::optional<Lease> lease;  // none: on the SSD only, on its way, or over the session's quota
};

struct ClaimOptions {
  absl::Duration wait = absl::Seconds(30);  // for another's encode; the daemon cuts it (--max-wait)
  std::vector<Expectation> expect;
  bool may_claim = true;        // false: only wait for a value, for those that cannot encode
  bool accept_pending = false;  // be answered when the value is announced
};

// The right and duty to encode a key: others wait for it. Encode, `Reserve`, write, and commit the
// reservation, which ends the claim. Destroying it gives it up: the next one that waits encodes.
// Ends before its Client.
class Claim {
 public:
  explicit Claim(std::unique_ptr<internal::HeldClaim> held);  // made by Client
  Claim(Claim&&) noexcept;
  Claim& operator=(Claim&&) noexcept;
  ~Claim();

  const Key& key() const;
  // False when somebody else has the claim and takes too long; encode it all the same.
  bool held() const;
  absl::StatusOr<Reservation> Reserve(const std::vector<TensorSpec>& tensors,
                                      const PutOptions& options = {});
  absl::Status Abandon();

 private:
  friend class Client;
  std::unique_ptr<internal::HeldClaim> held_;
};

// What an entry will be.
struct PendingEntry {
  std::vector<TensorSpec> tensors;
  Metadata metadata;
};

// A hit (lease), a claim, an announcement (pending), or a miss (reason).
struct ClaimResult {
  std::optional<Lease> lease;
  std::optional<Claim> claim;
  std::optional<PendingEntry> pending;
  MissReason reason = MissReason::kNone;
};

// Encodes `claim.key()` into a reservation made by claim.Reserve, and gives it back uncommitted.
using EncodeFunction = absl::FunctionRef<absl::StatusOr<Reservation>(Claim& claim)>;

struct ListOptions {
  std::string model;            // empty: all
  std::string hash_hex_prefix;  // empty: all
  uint32_t page_size = 0;       // 0: the daemon's default
  std::string page_token;       // of the page before; empty: from the start
};

struct ListedEntry {
  Key key;
  Tier tier = Tier::kUnknown;  // the fastest that has it
  uint64_t bytes = 0;
  uint64_t generation = 0;
  bool on_disk = false;
  uint32_t pins = 0;
  int64_t created_unix_ms = 0;  // memory tiers only
  uint64_t encode_cost_us = 0;  // memory tiers only
};

struct ListPage {
  std::vector<ListedEntry> entries;
  std::string next_page_token;  // empty: the last page. A page may be empty and not the last.
};

struct StatsOptions {
  bool per_model = false;
  bool latencies = false;
};

class Client {
 public:
  // Fails when there is no daemon, or it refuses; only later losses are reconnected in the
  // background.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  // Sends what leases have been given back, and disconnects.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // nullopt is a miss.
  absl::StatusOr<std::optional<Lease>> Get(const Key& key, const GetOptions& options = {});
  // In the order of `keys`, in one call per batch that the daemon allows. One bad key fails alone.
  absl::StatusOr<std::vector<GetResult>> GetMany(absl::Span<const Key> keys);

  // For keys that are expensive to encode: whoever asks first for a missing key gets the claim, the
  // others, also other threads of this client, wait until the value is there and have a hit. When
  // the claim ends without a value, the next one gets it.
  absl::StatusOr<ClaimResult> GetOrClaim(const Key& key, const ClaimOptions& options = {});
  // The whole of it: a hit, or `encode` and what it wrote. An error of `encode` is handed on. When
  // the commit is refused, what was written is lost: its memory is not the reservation's any more.
  absl::StatusOr<Lease> GetOrEncode(const Key& key, EncodeFunction encode,
                                    const ClaimOptions& options = {});

  // Copies `data` (one view per tensor, empty for absent ones) into the cache.
  absl::Status Put(const Key& key, const std::vector<TensorSpec>& tensors,
                   absl::Span<const Bytes> data, const PutOptions& options = {});
  // Copies out of the caller's own device memory (one range per tensor, empty for absent ones),
  // into device memory where this client has the cache's, else into host memory; options.place is
  // not looked at. Whatever writes the ranges must have ended before the call: an event or a stream
  // waited for. They are free again when it returns. FAILED_PRECONDITION: the bytes are on another
  // device than the cache's memory, or what the driver says; INVALID_ARGUMENT: no address in device
  // memory, or a range of the wrong size. Any client may call it; the driver is loaded then.
  absl::Status PutDevice(const Key& key, const std::vector<TensorSpec>& tensors,
                         absl::Span<const DeviceBytes> data, const PutOptions& options = {});
  // The same, but the daemon copies, on a stream of this session's in its own process: all tensors,
  // one after another without padding, in one range. FAILED_PRECONDITION also for memory that CUDA
  // IPC cannot hand over (memory pools, PyTorch's expandable_segments) and where the daemon uses no
  // device. DEADLINE_EXCEEDED when the copy takes over 10 s; the range must then stay as it is.
  absl::Status PutExported(const Key& key, const std::vector<TensorSpec>& tensors, DeviceBytes data,
                           const PutOptions& options = {});
  // For writing in place.
  absl::StatusOr<Reservation> Reserve(const Key& key, const std::vector<TensorSpec>& tensors,
                                      const PutOptions& options = {});

  // The tier that has the key, without counting a hit or a miss; nullopt: none.
  absl::StatusOr<std::optional<Tier>> Contains(const Key& key);
  // What is there, as a promise: keys in memory are leased where they are, with their tensors and
  // metadata. Touches no bytes, moves nothing, counts no hit or miss. In the order of `keys`, in
  // one call per batch that the daemon allows; one bad key fails alone.
  absl::StatusOr<std::vector<Found>> Lookup(absl::Span<const Key> keys);
  // Whether there was an entry. Leases held on it stay.
  absl::StatusOr<bool> Delete(const Key& key);
  // Removes the entry and gives it to the caller; nullopt is a miss.
  absl::StatusOr<std::optional<Lease>> Pop(const Key& key);
  // Ends every entry of `model` put before; answers with the model's new epoch.
  absl::StatusOr<uint64_t> AdvanceEpoch(absl::string_view model);
  absl::StatusOr<ListPage> List(const ListOptions& options = {});
  // The daemon's counters as a JSON object, with the field names of StatsResponse in
  // embcache.proto.
  absl::StatusOr<std::string> StatsJson(const StatsOptions& options = {});

  // A token (raw bytes) with which other clients of the same daemon, in any process, take leases of
  // their own on the same entries. Zero ttl: the daemon's default.
  absl::StatusOr<std::string> Share(absl::Span<const Lease* const> leases,
                                    absl::Duration ttl = absl::ZeroDuration());
  absl::StatusOr<std::vector<Lease>> Adopt(absl::string_view token);

  // An empty call. NOT_FOUND when the daemon no longer knows this session.
  absl::Status Ping();
  // 16 random bytes of the daemon's run; empty while disconnected.
  std::string epoch() const;
  // The daemon has said that it is stopping.
  bool draining() const;

 private:
  explicit Client(std::unique_ptr<internal::Connection> connection);
  std::unique_ptr<internal::Connection> connection_;
  const std::shared_ptr<internal::ClaimQueue> claims_;
};

}  // namespace embcache::client

#endif  // EMBCACHE_CLIENT_CPP_CLIENT_H_
