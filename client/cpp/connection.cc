#include "client/cpp/connection.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace embcache::client::internal {
namespace {

constexpr absl::Duration kFirstBackOff = absl::Milliseconds(10);
constexpr absl::Duration kMaxBackOff = absl::Seconds(1);
// How often lost and replaced sessions, and segments that went, are looked at while there are any.
constexpr int kLostCheckMs = 100;

}  // namespace

Connection::Connection(SessionOptions options, bool reconnect)
    : options_(std::move(options)),
      reconnect_(reconnect),
      pid_(getpid()),
      releaser_(std::make_shared<Releaser>()),
      stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const SessionOptions& options,
                                                             bool reconnect) {
  std::unique_ptr<Connection> connection(new Connection(options, reconnect));
  if (!connection->stop_event_.ok()) return absl::ResourceExhaustedError("eventfd failed");
  absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open(connection->options_, "", connection->releaser_);
  if (!session.ok()) return session.status();
  connection->SetSession(*std::move(session));
  connection->thread_ = std::thread([c = connection.get()] { c->Watch(); });
  return connection;
}

Connection::~Connection() {
  releaser_->Stop();
  eventfd_write(stop_event_.get(), 1);
  if (thread_.joinable()) thread_.join();
  // Leases that outlive the client: nobody watches their session from now on.
  std::shared_ptr<Session> last;
  {
    absl::MutexLock lock(&mutex_);
    last.swap(session_);
  }
  if (last != nullptr && last->holds() > 0) last->MarkLost();
  for (const auto& session : replaced_) session->MarkLost();
}

bool Connection::in_own_process() const { return getpid() == pid_; }

absl::StatusOr<std::shared_ptr<Session>> Connection::session() const {
  if (!in_own_process()) {
    return absl::FailedPreconditionError("the client was connected before a fork");
  }
  absl::MutexLock lock(&mutex_);
  if (session_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("no connection to the daemon at ", options_.directory));
  }
  return session_;
}

bool Connection::draining() const {
  absl::MutexLock lock(&mutex_);
  return session_ != nullptr && session_->draining();
}

void Connection::SetSession(std::shared_ptr<Session> session) {
  absl::MutexLock lock(&mutex_);
  session_.swap(session);
}

void Connection::Watch() {
  pthread_setname_np(pthread_self(), "emb-control");
  std::shared_ptr<Session> current = session().value_or(nullptr);
  while (current != nullptr) {
    switch (WatchSession(current.get())) {
      case Watched::kStopped:
        return;
      case Watched::kInDoubt:
        current = Replace(std::move(current));
        continue;
      case Watched::kLost:
        break;
    }
    current->MarkLost();
    SetSession(nullptr);
    lost_.push_back(std::move(current));
    if (!reconnect_) return;
    current = Reconnect();
    if (current == nullptr) return;
    SetSession(current);
  }
}

Connection::Watched Connection::WatchSession(Session* session) {
  while (true) {
    pollfd events[3] = {{session->control_fd(), POLLIN, 0},
                        {stop_event_.get(), POLLIN, 0},
                        {session->wake_fd(), POLLIN, 0}};
    const bool mapped = session->TellUnmapped();  // what it shall not be for long
    const bool idle = lost_.empty() && replaced_.empty() && !mapped;
    const int ready = poll(events, 3, idle ? -1 : kLostCheckMs);
    if (ready < 0 && errno != EINTR) return Watched::kLost;
    if (events[1].revents != 0) return Watched::kStopped;
    if (ready > 0 && events[0].revents != 0 && session->HandlePacket() == Session::Packet::kOver) {
      return Watched::kLost;
    }
    AcknowledgeLost(*session);
    EndReplaced();
    eventfd_t ignored;
    if (ready > 0 && events[2].revents != 0) eventfd_read(session->wake_fd(), &ignored);
    if (session->TakeDoubt()) return Watched::kInDoubt;
  }
}

std::shared_ptr<Session> Connection::Replace(std::shared_ptr<Session> current) {
  absl::StatusOr<std::shared_ptr<Session>> fresh = Session::Open(options_, "", releaser_);
  if (!fresh.ok()) {
    // The daemon is gone, which the control socket will tell, or as slow as before.
    if (!WaitForStop(kMaxBackOff)) current->Doubt();
    return current;
  }
  SetSession(*fresh);
  replaced_.push_back(std::move(current));
  return *std::move(fresh);
}

void Connection::EndReplaced() {
  std::vector<std::shared_ptr<Session>> still_used;
  for (std::shared_ptr<Session>& session : replaced_) {
    const bool over = session->HandlePacket() == Session::Packet::kOver;
    session->TellUnmapped();
    if (over) {
      session->MarkLost();
      lost_.push_back(std::move(session));
    } else if (session.use_count() > 1) {
      still_used.push_back(std::move(session));
    }
  }
  replaced_ = std::move(still_used);
}

std::shared_ptr<Session> Connection::Reconnect() {
  absl::Duration back_off = kFirstBackOff;
  while (!WaitForStop(back_off)) {
    const auto idle = std::find_if(lost_.begin(), lost_.end(),
                                   [](const auto& session) { return session->holds() == 0; });
    const std::string acknowledges = idle == lost_.end() ? "" : (*idle)->token();
    absl::StatusOr<std::shared_ptr<Session>> session =
        Session::Open(options_, acknowledges, releaser_);
    if (session.ok()) {
      if (idle != lost_.end()) lost_.erase(idle);
      return *std::move(session);
    }
    back_off = std::min(back_off * 2, kMaxBackOff);
  }
  return nullptr;
}

void Connection::AcknowledgeLost(const Session& current) {
  std::vector<std::shared_ptr<Session>> still_lost;
  for (std::shared_ptr<Session>& lost : lost_) {
    // The next daemon knows nothing of the sessions of the one before.
    if (lost->epoch() != current.epoch()) continue;
    if (lost->holds() > 0) {
      still_lost.push_back(std::move(lost));
      continue;
    }
    // A session that exists only to say so, and ends at once.
    if (!Session::Open(options_, lost->token(), releaser_).ok()) {
      still_lost.push_back(std::move(lost));
    }
  }
  lost_ = std::move(still_lost);
}

bool Connection::WaitForStop(absl::Duration at_most) {
  pollfd event = {stop_event_.get(), POLLIN, 0};
  return poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(at_most))) > 0;
}

}  // namespace embcache::client::internal
