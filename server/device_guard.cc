#include "server/device_guard.h"

#include <pthread.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace embcache {

DeviceGuard::DeviceGuard(GpuDevice* device, absl::Duration patience, std::atomic<bool>* given_up)
    : device_(device), patience_(patience), given_up_(given_up) {
  if (device_ == nullptr || given_up_->load()) return;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "device-guard");
    Watch();
  });
}

DeviceGuard::~DeviceGuard() {
  done_.Notify();
  if (thread_.joinable()) thread_.join();
}

void DeviceGuard::Watch() {
  while (!done_.WaitForNotificationWithTimeout(patience_ / 8)) {
    const absl::Duration waited = device_->LongestWait();
    if (waited < patience_) continue;
    given_up_->store(true);
    const std::string why =
        absl::StrCat("a copy has not ended for ",
                     absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))));
    spdlog::error("device {}: {}; embcached stops without waiting for it", device_->uuid(), why);
    device_->GiveUp(why);
    return;
  }
}

}  // namespace embcache
