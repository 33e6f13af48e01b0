// CudaSegment: one of the cache's segments in device memory, opened in this process. Internal to
// the client.
//
// Opened once, by the first that asks for its address, whichever client or session of the process
// that is; closed when the last of those that share it is gone. Known by (epoch, segment,
// generation) and never by its handle or address, which come again with other bytes. Thread-safe.

#ifndef EMBCACHE_CLIENT_CPP_CUDA_SEGMENT_H_
#define EMBCACHE_CLIENT_CPP_CUDA_SEGMENT_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/call_once.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/cuda_driver.h"
#include "embcache/v1/embcache.pb.h"

namespace embcache::client::internal {

class CudaSegment {
 public:
  // Makes no driver call.
  static std::shared_ptr<CudaSegment> Share(absl::string_view epoch,
                                            const embcache::v1::Segment& segment);
  CudaSegment(std::string device_uuid, std::string handle);  // for Share()
  ~CudaSegment();
  CudaSegment(const CudaSegment&) = delete;
  CudaSegment& operator=(const CudaSegment&) = delete;

  const std::string& device_uuid() const { return device_uuid_; }
  // Its address (a CUdeviceptr of the device's primary context). Opens it at the first call; later
  // ones answer the same without asking the driver.
  absl::StatusOr<uint64_t> Address();

 private:
  absl::StatusOr<uint64_t> Open();

  const std::string device_uuid_;
  const std::string handle_;
  const pid_t pid_;
  absl::once_flag once_;
  // Written once, by Address().
  absl::StatusOr<uint64_t> address_ = absl::UnknownError("not opened");
  const CudaDriver* driver_ = nullptr;
  CudaDriver::Context context_ = nullptr;
};

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_CUDA_SEGMENT_H_
