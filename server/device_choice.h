// What --device means on this machine.

#ifndef EMBCACHE_SERVER_DEVICE_CHOICE_H_
#define EMBCACHE_SERVER_DEVICE_CHOICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu/gpu_device.h"
#include "server/config.h"

namespace embcache {

// OK for auto, host, cuda:<index> and cuda:<UUID>.
absl::Status CheckDeviceName(absl::string_view device);

// The device whose memory L1 is to be, or nullptr for host memory; says in the log what it chose
// and why. A device asked for by name that cannot be had is an error; `auto` then takes host
// memory.
absl::StatusOr<std::unique_ptr<GpuDevice>> ChooseDevice(const Config& config);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_DEVICE_CHOICE_H_
