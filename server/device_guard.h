// DeviceGuard: for the end of the daemon. While it exists, a device that has stopped in the middle
// of a copy is not waited for: after `patience` it is given up, as GpuDevice says.

#ifndef EMBCACHE_SERVER_DEVICE_GUARD_H_
#define EMBCACHE_SERVER_DEVICE_GUARD_H_

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gpu/gpu_device.h"

namespace embcache {

class DeviceGuard {
 public:
  // `device` may be null, and outlives this. `given_up` tells of it, also to a later guard.
  DeviceGuard(GpuDevice* device, absl::Duration patience, std::atomic<bool>* given_up);
  ~DeviceGuard();

  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  void Watch();

  GpuDevice* const device_;
  const absl::Duration patience_;
  std::atomic<bool>* const given_up_;
  absl::Notification done_;
  std::thread thread_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_DEVICE_GUARD_H_
