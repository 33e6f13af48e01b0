#include "server/admin_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/logging.h"

namespace embcache {
namespace {

// Advances the epochs of several models; answers when that of the last is durable, or cannot be.
class ClearCall {
 public:
  // `unreachable`: why not all models are known, if `all` are asked for.
  ClearCall(size_t models, bool all, absl::Status unreachable, v1::ClearResponse* response,
            Done done)
      : all_(all),
        unreachable_(std::move(unreachable)),
        response_(response),
        done_(std::move(done)),
        remaining_(models) {}

  void ModelDone(const absl::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      if (status.ok()) {
        ++cleared_;
      } else if (absl::IsUnavailable(status)) {
        ++until_restart_;
      } else {
        ++untouched_;
      }
      error_.Update(status);
      if (--remaining_ > 0) return;
    }
    Answer();
  }

  // REQUIRES: no model is left.
  void Answer() {
    const std::unique_ptr<ClearCall> self(this);
    absl::Status result;
    {
      absl::MutexLock lock(&mu_);
      response_->set_models(cleared_);
      result = ResultLocked();
    }
    done_(std::move(result));
  }

 private:
  absl::Status ResultLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!all_ || (error_.ok() && unreachable_.ok())) return error_;
    std::string text = absl::StrCat("models: ", cleared_, " cleared for good, ", until_restart_,
                                    " until a restart, ", untouched_, " not at all: ");
    if (unreachable_.ok()) {
      absl::StrAppend(&text, error_.message());
    } else {
      absl::StrAppend(&text, unreachable_.message(),
                      "; what it holds may come back if the daemon is restarted before that, so "
                      "repeat the call then");
    }
    return {unreachable_.ok() ? error_.code() : unreachable_.code(), text};
  }

  const bool all_;
  const absl::Status unreachable_;
  v1::ClearResponse* const response_;
  Done done_;
  absl::Mutex mu_;
  size_t remaining_ ABSL_GUARDED_BY(mu_);
  uint32_t cleared_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t until_restart_ ABSL_GUARDED_BY(mu_) = 0;  // L3 has not recorded it
  uint32_t untouched_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // the first
};

absl::Status RequireAdmin(const CallContext& context) {
  if (context.caller == Caller::kAdmin) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "administration is for root, the daemon's user, --admin-uid and --admin-gid, over the unix "
      "socket");
}

}  // namespace

AdminService::AdminService(AdminServiceDeps deps) : deps_(std::move(deps)) {}

void AdminService::Flush(const CallContext& context, const v1::FlushRequest& request,
                         v1::FlushResponse* response, Done done) {
  if (absl::Status allowed = RequireAdmin(context); !allowed.ok()) return done(std::move(allowed));
  deps_.cache->Flush(std::move(done));
}

void AdminService::Clear(const CallContext& context, const v1::ClearRequest& request,
                         v1::ClearResponse* response, Done done) {
  if (absl::Status allowed = RequireAdmin(context); !allowed.ok()) return done(std::move(allowed));
  if (request.all() != request.model().empty()) {
    return done(absl::InvalidArgumentError("model: give either a model or all = true"));
  }
  if (request.model().size() > kMaxModelBytes) {
    return done(absl::InvalidArgumentError(absl::StrCat(
        "model: ", request.model().size(), " bytes; must be at most ", kMaxModelBytes)));
  }
  const std::vector<std::string> models =
      request.all() ? deps_.cache->Models() : std::vector<std::string>{request.model()};
  auto* call = new ClearCall(models.size(), request.all(),
                             request.all() ? deps_.cache->L3Reachable() : absl::OkStatus(),
                             response, std::move(done));
  if (models.empty()) return call->Answer();
  for (const std::string& model : models) {
    if (deps_.epoch_advancing) deps_.epoch_advancing(model);
    deps_.cache->AdvanceEpoch(
        model, [call](absl::StatusOr<uint64_t> epoch) { call->ModelDone(epoch.status()); });
    if (deps_.epoch_advanced) deps_.epoch_advanced(model);
  }
}

void AdminService::Drain(const CallContext& context, const v1::DrainRequest& request,
                         v1::DrainResponse* response, Done done) {
  if (absl::Status allowed = RequireAdmin(context); !allowed.ok()) return done(std::move(allowed));
  deps_.drain();
  done(absl::OkStatus());
}

void AdminService::SetLogLevel(const CallContext& context, const v1::SetLogLevelRequest& request,
                               v1::SetLogLevelResponse* response, Done done) {
  if (absl::Status allowed = RequireAdmin(context); !allowed.ok()) return done(std::move(allowed));
  if (!CheckLogLevel(request.level()).ok()) {
    return done(
        absl::InvalidArgumentError("level: must be trace, debug, info, warn, error or off"));
  }
  done(embcache::SetLogLevel(request.level(), response->mutable_previous()));
}

void AdminService::VerifyL3(const CallContext& context, const v1::VerifyL3Request& request,
                            v1::VerifyL3Response* response, Done done) {
  if (absl::Status allowed = RequireAdmin(context); !allowed.ok()) return done(std::move(allowed));
  deps_.cache->CheckStore(
      [response, done = std::move(done)](absl::StatusOr<TieredCache::StoreCheck> check) mutable {
        if (check.ok()) {
          response->set_records(check->records);
          response->set_bytes(check->bytes);
          response->set_damaged(check->damaged);
          response->set_unreadable(check->failed);
        }
        done(check.status());
      });
}

void AdminService::Resize(const CallContext& context, const v1::ResizeRequest& request,
                          v1::ResizeResponse* response, Done done) {
  if (absl::Status allowed = RequireAdmin(context); !allowed.ok()) return done(std::move(allowed));
  if (request.tier() != v1::L1 && request.tier() != v1::L2) {
    return done(absl::InvalidArgumentError("tier: must be L1 or L2"));
  }
  deps_.resizer->Resize(
      request.tier() == v1::L1 ? TierId::kL1 : TierId::kL2, request.capacity_bytes(),
      context.deadline,
      [response, done = std::move(done)](absl::StatusOr<Resizer::Resized> resized) mutable {
        if (resized.ok()) {
          response->set_previous_bytes(resized->previous_bytes);
          response->set_capacity_bytes(resized->capacity_bytes);
        }
        done(resized.status());
      });
}

void AdminService::Sessions(const CallContext& context, const v1::SessionsRequest& request,
                            v1::SessionsResponse* response, Done done) {
  if (context.caller == Caller::kNetwork) {
    return done(absl::PermissionDeniedError("the daemon's sessions are not shown over TCP"));
  }
  for (const SessionSnapshot& session : deps_.registry->Sessions()) {
    v1::SessionInfo* added = response->add_sessions();
    added->set_name(session.peer.name);
    added->set_writer(session.peer.writer);
    added->set_pid(session.peer.pid);
    added->set_uid(session.peer.uid);
    added->set_state(session.state);
    added->set_leases(session.leases);
    added->set_reservations(session.reservations);
    added->set_pinned_bytes(session.pinned_bytes);
    added->set_age_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(session.age)));
  }
  done(absl::OkStatus());
}

}  // namespace embcache
