// What the parts of ControlSocket need to put packets together and send them.

#ifndef EMBCACHE_SERVER_CONTROL_PACKETS_H_
#define EMBCACHE_SERVER_CONTROL_PACKETS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "embcache/v1/control.pb.h"
#include "server/session_registry.h"
#include "storage/tiered_cache.h"

namespace embcache {

inline constexpr size_t kMaxPacketBytes = size_t{64} * 1024;
inline constexpr size_t kDescriptorsPerPacket = 64;

// False when the packet could not be sent whole at once.
bool SendPacket(int socket, const v1::ServerPacket& packet, absl::Span<const int> descriptors = {});

// Adds those of `segments` from `next` on, at most `most`, and their descriptors. Returns where to
// go on.
size_t DescribeSegments(const std::vector<TieredCache::SegmentInfo>& segments, size_t next,
                        size_t most, bool writable,
                        google::protobuf::RepeatedPtrField<v1::WelcomeSegment>* to,
                        std::vector<int>* descriptors);

std::string Describe(const SessionPeer& peer);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_CONTROL_PACKETS_H_
