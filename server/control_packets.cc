#include "server/control_packets.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/proto_convert.h"
#include "storage/check.h"
#include "storage/memory_resource.h"

namespace embcache {
namespace {

void SegmentToProto(const TieredCache::SegmentInfo& segment, v1::Segment* to) {
  to->set_id(segment.id);
  to->set_generation(segment.generation);
  to->set_tier(TierToProto(segment.tier));
  to->set_bytes(segment.memory->bytes());
  to->set_device_uuid(segment.device_uuid);
  to->set_cuda_ipc_handle(segment.memory->cuda_ipc_handle());
}

}  // namespace

bool SendPacket(int socket, const v1::ServerPacket& packet, absl::Span<const int> descriptors) {
  EMB_CHECK(descriptors.size() <= kDescriptorsPerPacket);
  std::string bytes;
  if (!packet.SerializeToString(&bytes) || bytes.size() > kMaxPacketBytes) return false;
  iovec data = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsPerPacket * sizeof(int))] = {};
  if (!descriptors.empty()) {
    const size_t size = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), descriptors.data(), size);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

size_t DescribeSegments(const std::vector<TieredCache::SegmentInfo>& segments, size_t next,
                        size_t most, bool writable,
                        google::protobuf::RepeatedPtrField<v1::WelcomeSegment>* to,
                        std::vector<int>* descriptors) {
  const size_t end = std::min(segments.size(), next + most);
  for (; next < end; ++next) {
    const TieredCache::SegmentInfo& segment = segments[next];
    v1::WelcomeSegment* const described = to->Add();
    SegmentToProto(segment, described->mutable_segment());
    const int fd = writable ? segment.memory->writable_fd() : segment.memory->read_only_fd();
    described->set_passed_by_descriptor(fd >= 0);
    if (fd >= 0) descriptors->push_back(fd);
  }
  return next;
}

std::string Describe(const SessionPeer& peer) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(peer.name), "\" (",
                      peer.writer ? "writer" : "reader", ", pid ", peer.pid, ", uid ", peer.uid,
                      ")");
}

}  // namespace embcache
