// overload: what 16 busy clients keep of their throughput beside a thousand idle sessions and
// clients that do not read their answers.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "embcache/v1/control.pb.h"
#include "embcache/v1/embcache.pb.h"
#include "server/unique_fd.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"
#include "tests/server/unread_client.h"

namespace embcache::bench {
namespace {

using client::Client;
using testing_support::DaemonProcess;

constexpr uint64_t kBytes = 1 << 20;
constexpr int kBusy = 16;
constexpr int kIdle = 1000;
constexpr int kSlow = 50;
constexpr int kCallsOfSlow = 100;

// A session that does nothing. No descriptor: it could not be opened.
UniqueFd OpenSession(const std::string& path) {
  UniqueFd control(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (connect(control.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return {};
  v1::ClientPacket packet;
  packet.mutable_hello()->set_protocol_version(1);
  packet.mutable_hello()->set_role(v1::Hello::READER);
  const std::string hello = packet.SerializeAsString();
  char welcome;
  if (send(control.get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0 ||
      recv(control.get(), &welcome, 1, MSG_TRUNC) <= 1) {
    return {};
  }
  return control;
}

// Clients that do nothing, and clients that do not read.
struct Crowd {
  std::vector<UniqueFd> sessions;
  std::vector<std::unique_ptr<UnreadClient>> silent;
  std::vector<std::unique_ptr<UnreadClient>> slow;

  absl::Status Join(const DaemonProcess& daemon) {
    const std::string rpc = daemon.socket_dir() + "/embcached.sock";
    for (int i = 0; i < kIdle; ++i) {
      sessions.push_back(OpenSession(daemon.socket_dir() + "/control.sock"));
      if (!sessions.back()) return absl::InternalError(absl::StrCat("session ", i, " failed"));
      silent.push_back(std::make_unique<UnreadClient>(rpc));
    }
    const client::Key key = MakeKey(0);
    v1::GetRequest request;
    request.set_inline_limit(kBytes);
    v1::Key* asked = request.add_items()->mutable_key();
    asked->set_model(key.model);
    asked->set_content_hash(key.content_hash);
    asked->set_variant(key.variant);
    for (int i = 0; i < kSlow; ++i) {
      slow.push_back(std::make_unique<UnreadClient>(rpc));
      for (int call = 0; call < kCallsOfSlow; ++call) {
        slow.back()->Call("embcache.v1.Cache/Get", request.SerializeAsString());
      }
    }
    return absl::OkStatus();
  }
};

// A daemon with an entry for each of its busy clients.
struct Busy {
  DaemonProcess daemon{{"--l1-capacity=256MiB", "--max-sessions=2048"}};
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<client::Key> keys;

  absl::Status Start() {
    absl::Status status = daemon.Start();
    const std::vector<uint8_t> payload = MakePayload(kBytes);
    for (int i = 0; i < kBusy && status.ok(); ++i) {
      auto client = daemon.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
      if (!client.ok()) return client.status();
      status = PutEntry(**client, i, payload);
      clients.push_back(*std::move(client));
      keys.push_back(MakeKey(i));
    }
    return status;
  }
  Round Hits() {
    return CallRate(kBusy, 0.4, [this](int thread) { return Hit(*clients[thread], keys[thread]); });
  }
};

}  // namespace

absl::Status Overload(Report* report) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  Busy alone;
  Busy crowded;
  for (Busy* busy : {&alone, &crowded}) {
    if (absl::Status status = busy->Start(); !status.ok()) return status;
  }
  Crowd crowd;
  if (absl::Status joined = crowd.Join(crowded.daemon); !joined.ok()) return joined;
  const auto compared = Interleave(11, crowded.Hits(), alone.Hits());
  if (!compared.ok()) return compared.status();
  report->Add({"overload", compared->value, "calls/s", compared->baseline, compared->ratio,
               AtLeast(0.8),
               absl::StrCat(kBusy, " clients beside ", kIdle, " idle sessions and ", kSlow,
                            " clients that do not read, against the same alone")});
  return absl::OkStatus();
}

}  // namespace embcache::bench
