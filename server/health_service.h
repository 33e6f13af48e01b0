// HealthService: grpc.health.v1.Health without a transport, for "" and "embcache.v1.Cache", and for
// "device" where L1 is memory of one.
//
// gRPC brings one of its own, but that adds threads which poll every connection and cost each call
// of ours a quarter of its time. Thread-safe.

#ifndef EMBCACHE_SERVER_HEALTH_SERVICE_H_
#define EMBCACHE_SERVER_HEALTH_SERVICE_H_

#include <atomic>

#include "grpc/health/v1/health.pb.h"
#include "server/call_context.h"

namespace embcache {

class HealthService {
 public:
  enum class Device { kNone, kServing, kLost };

  void SetServing(bool serving) { serving_.store(serving, std::memory_order_relaxed); }
  void SetDevice(Device device) { device_.store(device, std::memory_order_relaxed); }

  void Check(const CallContext& context, const grpc::health::v1::HealthCheckRequest& request,
             grpc::health::v1::HealthCheckResponse* response, Done done);

 private:
  std::atomic<bool> serving_ = false;
  std::atomic<Device> device_ = Device::kNone;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_HEALTH_SERVICE_H_
