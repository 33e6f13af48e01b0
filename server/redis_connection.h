// RedisConnection: one connection to a server that speaks the Redis protocol (RESP2), and the few
// kinds of replies that the shared tier needs.
//
// A client of its own because of what it promises and the libraries do not: a call ends by its
// deadline however the peer behaves (also one that sends a byte now and then), a reply never makes
// it allocate more than its caller allows, and whoever stops the daemon ends every wait.
//
// Blocks. Not thread-safe. After an error the connection is broken: destroy it.

#ifndef EMBCACHE_SERVER_REDIS_CONNECTION_H_
#define EMBCACHE_SERVER_REDIS_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/unique_fd.h"

namespace embcache {

struct RedisAddress {
  std::string unix_path;  // empty: host and port
  std::string host;
  std::string port;

  std::string ToString() const;
};
// "host:port", "[host]:port" or "unix:/path".
absl::StatusOr<RedisAddress> ParseRedisAddress(absl::string_view text);

struct RedisReply {
  enum class Kind { kStatus, kError, kInteger, kBytes, kNil };

  Kind kind = Kind::kNil;
  std::string text;  // of kStatus and kError
  int64_t integer = 0;
  std::unique_ptr<char[]> bytes;  // of kBytes
  uint64_t size = 0;

  absl::string_view view() const { return {bytes.get(), size}; }
};

class RedisConnection {
 public:
  // `stop_fd` is not owned; when it becomes readable every wait ends with CANCELLED. Deadlines are
  // by the machine's monotonic clock (SystemClock). DEADLINE_EXCEEDED, UNAVAILABLE: not reached.
  // Resolving a host's name is bounded by the resolver's own time-outs alone.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Connect(const RedisAddress& address,
                                                                  int stop_fd,
                                                                  absl::Duration deadline);

  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Sends a command and gives its reply, which may be the server's refusal (kError).
  // RESOURCE_EXHAUSTED: the reply has more than `max_bytes`. INTERNAL: it is not RESP, or of a kind
  // that is not known here. UNAVAILABLE: the peer has closed the connection.
  absl::StatusOr<RedisReply> Call(absl::Span<const absl::string_view> command, uint64_t max_bytes,
                                  absl::Duration deadline);

 private:
  RedisConnection(UniqueFd fd, int stop_fd) : fd_(std::move(fd)), stop_fd_(stop_fd) {}

  absl::Status Wait(int events, absl::Duration deadline) const;
  absl::Status Send(absl::string_view bytes, absl::Duration deadline) const;
  // At least one byte, at most `size`.
  absl::StatusOr<uint64_t> Receive(char* to, uint64_t size, absl::Duration deadline) const;
  // Up to and without the next CR LF.
  absl::StatusOr<std::string> ReadLine(absl::Duration deadline);
  absl::Status ReadBytes(char* to, uint64_t size, absl::Duration deadline);

  UniqueFd fd_;
  const int stop_fd_;
  std::string received_;  // and not yet looked at
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_REDIS_CONNECTION_H_
