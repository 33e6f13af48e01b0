// RedisClient: commands to a Redis or Valkey, alone or a Cluster, over connections that are made
// when they are needed.
//
// In a Cluster a key belongs to one of 16,384 slots and a slot to one node; a node that is asked
// for another's key answers with the right one (MOVED, or ASK while a slot is on its way). That is
// all the client knows of Clusters: it begins at the given address, follows, and remembers; what a
// node that fails had, it asks the given address for again.
//
// Blocks, as RedisConnection does. Not thread-safe: each thread has its own.

#ifndef EMBCACHE_SERVER_REDIS_CLIENT_H_
#define EMBCACHE_SERVER_REDIS_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/redis_connection.h"

namespace embcache {

struct RedisClientOptions {
  RedisAddress address;
  std::string user;           // empty: the default one
  std::string password_file;  // read at every connection; empty: no password
};

// The slot that `key` belongs to; of a key with "{...}", what is inside counts.
uint32_t RedisSlot(absl::string_view key);

class RedisClient {
 public:
  RedisClient(RedisClientOptions options, int stop_fd);

  // Sends `command`, which is about `key`, where that belongs. Errors as of RedisConnection; a
  // refusal by the server (kError) is no error here. A connection found closed is made anew, once.
  absl::StatusOr<RedisReply> Call(absl::string_view key,
                                  absl::Span<const absl::string_view> command, uint64_t max_bytes,
                                  absl::Duration deadline);

  // How many connections have been made.
  uint64_t connections() const { return connections_; }

 private:
  struct Node {
    RedisAddress address;
    std::unique_ptr<RedisConnection> connection;
  };

  absl::Status Open(Node* node, absl::Duration deadline);
  absl::StatusOr<RedisReply> CallNode(size_t node, bool asking,
                                      absl::Span<const absl::string_view> command,
                                      uint64_t max_bytes, absl::Duration deadline);
  // The node that a "MOVED 7 host:port" names; -1: it names none.
  int FindNode(absl::string_view redirect, RedisAddress from);
  void Forget(size_t node);

  const RedisClientOptions options_;
  const int stop_fd_;
  std::vector<Node> nodes_;      // the first has the given address
  std::vector<uint16_t> slots_;  // whose each is; empty: all are the first node's
  uint64_t connections_ = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_REDIS_CLIENT_H_
