#include "client/cpp/cuda_segment.h"

#include <unistd.h>

#include <cstring>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace embcache::client::internal {
namespace {

using SegmentKey = std::tuple<std::string, uint32_t, uint64_t>;  // epoch, segment, generation

struct Table {
  absl::Mutex mutex;
  absl::flat_hash_map<SegmentKey, std::weak_ptr<CudaSegment>> segments ABSL_GUARDED_BY(mutex);
};

// Never destroyed: leases may end after main().
Table& GetTable() {
  static auto* table = new Table;
  return *table;
}

}  // namespace

std::shared_ptr<CudaSegment> CudaSegment::Share(absl::string_view epoch,
                                                const embcache::v1::Segment& segment) {
  const SegmentKey key(std::string(epoch), segment.id(), segment.generation());
  Table& table = GetTable();
  absl::MutexLock lock(&table.mutex);
  if (const auto found = table.segments.find(key); found != table.segments.end()) {
    if (std::shared_ptr<CudaSegment> open = found->second.lock()) return open;
  }
  absl::erase_if(table.segments, [](const auto& entry) { return entry.second.expired(); });
  auto made = std::make_shared<CudaSegment>(segment.device_uuid(), segment.cuda_ipc_handle());
  table.segments[key] = made;
  return made;
}

CudaSegment::CudaSegment(std::string device_uuid, std::string handle)
    : device_uuid_(std::move(device_uuid)), handle_(std::move(handle)), pid_(getpid()) {}

CudaSegment::~CudaSegment() {
  // A fork has no part in its parent's mappings, nor may it use the driver.
  if (context_ == nullptr || getpid() != pid_) return;
  if (address_.ok()) driver_->CloseMemory(context_, *address_);
  driver_->ReleaseContext(device_uuid_);
}

absl::StatusOr<uint64_t> CudaSegment::Address() {
  absl::call_once(once_, [this] { address_ = Open(); });
  return address_;
}

absl::StatusOr<uint64_t> CudaSegment::Open() {
  CudaIpcHandle handle;
  if (handle_.size() != sizeof(handle.bytes)) {
    return absl::InternalError(
        absl::StrCat("a CUDA handle of ", handle_.size(), " bytes; must be 64"));
  }
  std::memcpy(handle.bytes, handle_.data(), sizeof(handle.bytes));
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  driver_ = *driver;
  absl::StatusOr<CudaDriver::Context> context = driver_->RetainContext(device_uuid_);
  if (!context.ok()) return context.status();
  context_ = *context;
  return driver_->OpenMemory(context_, handle);
}

}  // namespace embcache::client::internal
