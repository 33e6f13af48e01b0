#include "server/device_choice.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "spdlog/spdlog.h"

namespace embcache {
namespace {

constexpr absl::string_view kCuda = "cuda:";
constexpr size_t kMaxIndexDigits = 4;
constexpr size_t kMinUuidLength = 36;  // without the prefix

GpuDeviceOptions MakeOptions(const Config& config, absl::string_view which) {
  GpuDeviceOptions options;
  options.which = std::string(which);
  options.host_memory.huge_pages = config.huge_pages;
  options.copy_threads = static_cast<int>(config.copy_threads);
  options.log = [](absl::string_view line) { spdlog::warn("device: {}", std::string(line)); };
  return options;
}

// Why `auto` does not take the device; empty: it does.
std::string WhyNot(const Config& config, const GpuDevice& device) {
  const std::string there =
      absl::StrCat("there is ", device.uuid(), " (", device.name(), "), but ");
  if (config.l1_capacity_bytes == 0) return absl::StrCat(there, "--l1-capacity is 0");
  if (config.l2_capacity_bytes == 0) {
    return absl::StrCat(there,
                        "without --l2-capacity its memory could serve clients of the device ",
                        "alone; --device=cuda:0 takes it all the same");
  }
  const absl::StatusOr<uint64_t> free = device.FreeBytes();
  if (!free.ok()) return absl::StrCat(there, free.status().message());
  if (*free < config.l1_capacity_bytes) {
    return absl::StrCat(there, "only ", *free,
                        " bytes of its memory are free, and --l1-capacity is ",
                        config.l1_capacity_bytes);
  }
  return "";
}

void LogDevice(absl::string_view setting, const GpuDevice& device) {
  spdlog::info("device {}: {} ({}); L1 is its memory", std::string(setting), device.uuid(),
               device.name());
}

std::unique_ptr<GpuDevice> ChooseAutomatically(const Config& config) {
  auto device = OpenGpuDevice(MakeOptions(config, "0"));
  const std::string why_not =
      device.ok() ? WhyNot(config, **device) : std::string(device.status().message());
  if (!why_not.empty()) {
    spdlog::info("device auto: host memory, since {}", why_not);
    return nullptr;
  }
  LogDevice("auto", **device);
  return *std::move(device);
}

}  // namespace

absl::Status CheckDeviceName(absl::string_view device) {
  if (device == "auto" || device == "host") return absl::OkStatus();
  const auto all = [](absl::string_view text, auto condition) {
    return std::all_of(text.begin(), text.end(), condition);
  };
  absl::string_view which = device;
  if (absl::ConsumePrefix(&which, kCuda) && !which.empty()) {
    const bool index = which.size() <= kMaxIndexDigits &&
                       all(which, [](char c) { return absl::ascii_isdigit(c); });
    const bool uuid = which.size() >= kMinUuidLength &&
                      all(which, [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
    if (index || uuid) return absl::OkStatus();
  }
  return absl::InvalidArgumentError("must be auto, host, cuda:<index> or cuda:<UUID>");
}

absl::StatusOr<std::unique_ptr<GpuDevice>> ChooseDevice(const Config& config) {
  absl::string_view which = config.device;
  if (which == "host") return nullptr;
  if (which == "auto") return ChooseAutomatically(config);
  absl::ConsumePrefix(&which, kCuda);
  auto device = OpenGpuDevice(MakeOptions(config, which));
  if (!device.ok()) {
    return absl::Status(device.status().code(),
                        absl::StrCat("--device=", config.device, ": ", device.status().message()));
  }
  LogDevice(config.device, **device);
  if (config.l2_capacity_bytes == 0) {
    spdlog::warn(
        "without --l2-capacity, clients that do not see the device can store and read "
        "inline values only");
  }
  return device;
}

}  // namespace embcache
