#include "server/health_service.h"

#include "absl/strings/str_cat.h"

namespace embcache {

void HealthService::Check(const CallContext& context,
                          const grpc::health::v1::HealthCheckRequest& request,
                          grpc::health::v1::HealthCheckResponse* response, Done done) {
  const Device device = device_.load(std::memory_order_relaxed);
  const bool of_device = request.service() == "device" && device != Device::kNone;
  if (!of_device && !request.service().empty() && request.service() != "embcache.v1.Cache") {
    return done(absl::NotFoundError(
        absl::StrCat("service: \"", request.service(), "\" is not served here")));
  }
  response->set_status(serving_.load(std::memory_order_relaxed) &&
                               !(of_device && device == Device::kLost)
                           ? grpc::health::v1::HealthCheckResponse::SERVING
                           : grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  done(absl::OkStatus());
}

}  // namespace embcache
