// redis-2mb, redis-16mb: a hit against a GET from a Redis on the same machine.

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/bench.h"
#include "tests/integration/child_process.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

using testing_support::ChildProcess;
using testing_support::DaemonProcess;

struct ContextDeleter {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

// Debian's Redis: a unix socket in `directory` only, nothing on disk. Ends with this object.
class RedisServer {
 public:
  explicit RedisServer(const std::string& directory)
      : socket_(directory + "/redis.sock"),
        watch_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
        process_({"/usr/bin/redis-server", "--port", "0", "--unixsocket", socket_, "--save", "",
                  "--appendonly", "no", "--dir", directory},
                 directory + "/redis.log", false) {
    inotify_add_watch(watch_, directory.c_str(), IN_CREATE);
  }
  ~RedisServer() { close(watch_); }

  absl::Status Connect() {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    bool connected = TryConnect();
    while (!connected && absl::Now() < deadline && !process_.HasEnded()) {
      // The socket that appears wakes us. That Redis then listens on it gives no event.
      pollfd event = {watch_, POLLIN, 0};
      poll(&event, 1, 20);
      char ignored[4096];
      while (read(watch_, ignored, sizeof(ignored)) > 0) {
      }
      connected = TryConnect();
    }
    return connected ? absl::OkStatus() : absl::UnavailableError("redis-server did not start");
  }

  absl::Status Set(const std::vector<uint8_t>& value) {
    const Reply reply(static_cast<redisReply*>(
        redisCommand(context_.get(), "SET entry %b", value.data(), value.size())));
    if (reply == nullptr || reply->type != REDIS_REPLY_STATUS) return Failed("SET");
    return absl::OkStatus();
  }

  // The value is in memory of this process; what it says is left to the caller, as with a hit.
  absl::Status Get(uint64_t bytes) {
    const Reply reply(static_cast<redisReply*>(redisCommand(context_.get(), "GET entry")));
    if (reply == nullptr || reply->type != REDIS_REPLY_STRING || reply->len != bytes) {
      return Failed("GET");
    }
    return absl::OkStatus();
  }

 private:
  bool TryConnect() {
    context_.reset(redisConnectUnix(socket_.c_str()));
    return context_ != nullptr && context_->err == 0;
  }

  absl::Status Failed(absl::string_view command) const {
    return absl::InternalError(absl::StrCat("redis ", command, ": ", context_->errstr));
  }

  const std::string socket_;
  const int watch_;  // tells when the socket appears
  ChildProcess process_;
  std::unique_ptr<redisContext, ContextDeleter> context_;
};

absl::Status CompareWithRedis(Report* report, const std::string& name, uint64_t bytes, int hits,
                              int gets, double times_faster) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=1GiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  auto client = daemon.Connect(client::Role::kWriter, "bench");
  if (!client.ok()) return client.status();
  const std::vector<uint8_t> payload = MakePayload(bytes);
  status = PutEntry(**client, 1, payload);
  if (!status.ok()) return status;
  RedisServer redis(daemon.directory());
  status = redis.Connect();
  if (status.ok()) status = redis.Set(payload);
  if (!status.ok()) return status;
  const client::Key key = MakeKey(1);
  const auto compared = Interleave(15, MedianLatency(hits, [&] { return Hit(**client, key); }),
                                   MedianLatency(gets, [&] { return redis.Get(bytes); }));
  if (!compared.ok()) return compared.status();
  report->Add({name, compared->value, "us", compared->baseline, compared->ratio,
               AtMost(1 / times_faster),
               absl::StrCat("until the bytes can be read in this process; a hit is ",
                            static_cast<int>(1 / compared->ratio),
                            " times as fast as hiredis's GET over a unix socket. Reading them is "
                            "the caller's, and the same for both")});
  return absl::OkStatus();
}

}  // namespace

absl::Status Redis2Mb(Report* report) {
  return CompareWithRedis(report, "redis-2mb", 2 << 20, 300, 50, 500);
}

absl::Status Redis16Mb(Report* report) {
  return CompareWithRedis(report, "redis-16mb", 16 << 20, 300, 10, 50);
}

}  // namespace embcache::bench
