// AdminService: every call of embcache.v1.Admin, without a transport. Thread-safe; must outlive
// every call it has not answered.

#ifndef EMBCACHE_SERVER_ADMIN_SERVICE_H_
#define EMBCACHE_SERVER_ADMIN_SERVICE_H_

#include "absl/functional/any_invocable.h"
#include "embcache/v1/admin.pb.h"
#include "server/call_context.h"
#include "server/resizer.h"
#include "server/session_registry.h"
#include "storage/tiered_cache.h"

namespace embcache {

// The pointers are not owned and outlive the service.
struct AdminServiceDeps {
  TieredCache* cache = nullptr;
  SessionRegistry* registry = nullptr;
  // Makes the whole daemon drain. Must return at once, may be called more than once and from
  // several threads at a time.
  absl::AnyInvocable<void() const> drain;
  // Told of every model that Clear has cleared; may be empty. Must return at once.
  absl::AnyInvocable<void(absl::string_view) const> epoch_advanced;
  Resizer* resizer = nullptr;
  // The same as epoch_advanced, before.
  absl::AnyInvocable<void(absl::string_view) const> epoch_advancing;
};

class AdminService {
 public:
  explicit AdminService(AdminServiceDeps deps);

  AdminService(const AdminService&) = delete;
  AdminService& operator=(const AdminService&) = delete;

  // admin.proto says what each call does.
  void Flush(const CallContext& context, const v1::FlushRequest& request,
             v1::FlushResponse* response, Done done);
  void Clear(const CallContext& context, const v1::ClearRequest& request,
             v1::ClearResponse* response, Done done);
  void Drain(const CallContext& context, const v1::DrainRequest& request,
             v1::DrainResponse* response, Done done);
  void SetLogLevel(const CallContext& context, const v1::SetLogLevelRequest& request,
                   v1::SetLogLevelResponse* response, Done done);
  void VerifyL3(const CallContext& context, const v1::VerifyL3Request& request,
                v1::VerifyL3Response* response, Done done);
  void Resize(const CallContext& context, const v1::ResizeRequest& request,
              v1::ResizeResponse* response, Done done);
  void Sessions(const CallContext& context, const v1::SessionsRequest& request,
                v1::SessionsResponse* response, Done done);

 private:
  const AdminServiceDeps deps_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_ADMIN_SERVICE_H_
