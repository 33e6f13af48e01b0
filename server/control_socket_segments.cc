// How sessions follow segments that come and go. See control_socket.h, and SegmentsChanged in
// control.proto.

#include <algorithm>
#include <utility>

#include "server/control_packets.h"
#include "server/control_socket.h"
#include "spdlog/spdlog.h"
#include "storage/clock.h"
#include "storage/memory_resource.h"

namespace embcache {
namespace {

// What `from` has and `other` has not.
std::vector<TieredCache::SegmentInfo> Without(const std::vector<TieredCache::SegmentInfo>& from,
                                              const std::vector<TieredCache::SegmentInfo>& other) {
  absl::flat_hash_set<uint32_t> ids;
  for (const TieredCache::SegmentInfo& segment : other) ids.insert(segment.id);
  std::vector<TieredCache::SegmentInfo> rest;
  for (const TieredCache::SegmentInfo& segment : from) {
    if (!ids.contains(segment.id)) rest.push_back(segment);
  }
  return rest;
}

uint64_t BytesOf(const std::vector<TieredCache::SegmentInfo>& segments) {
  uint64_t bytes = 0;
  for (const TieredCache::SegmentInfo& segment : segments) bytes += segment.memory->bytes();
  return bytes;
}

}  // namespace

bool ControlSocket::CanSee(const Connection& connection,
                           const TieredCache::SegmentInfo& segment) const {
  return options_.device_uuid.empty() || segment.device_uuid.empty() || connection.peer.sees_device;
}

std::vector<TieredCache::SegmentInfo> ControlSocket::SeenBy(
    const Connection& connection, std::vector<TieredCache::SegmentInfo> segments) const {
  std::erase_if(segments, [&](const auto& segment) { return !CanSee(connection, segment); });
  return segments;
}

void ControlSocket::AnnounceSegments() {
  WelcomeInfo info = welcome_();
  if (info.segments_version != segments_version_) {
    const auto added = Without(info.segments, segments_);
    Departure departure;
    departure.segments = Without(segments_, info.segments);
    departure.change = ++last_change_;
    departure.deadline = SystemClock()->MonotonicNow() + options_.segments_patience;
    segments_ = std::move(info.segments);
    segments_version_ = info.segments_version;
    std::vector<Connection*> left_behind;
    for (const auto& [id, connection] : connections_) {
      if (!connection->welcomed || !connection->socket) continue;
      const auto came = SeenBy(*connection, added);
      const auto went = SeenBy(*connection, departure.segments);
      if (came.empty() && went.empty()) continue;
      const bool told = connection->segment_changes && SendSegments(*connection, came, went);
      if (!told) left_behind.push_back(connection.get());
      if (went.empty()) continue;
      if (told) departure.waiting.insert(id);
      if (!told) departure.blind = true;
    }
    for (Connection* connection : left_behind) {
      spdlog::warn(
          "session of {} {} and is told of other segments by its next Welcome only: dropped",
          Describe(connection->peer),
          connection->segment_changes ? "does not read" : "knows no SegmentsChanged");
      Disconnect(connection);
    }
    if (!departure.segments.empty()) departures_.push_back(std::move(departure));
  }
  SweepDepartures();
}

bool ControlSocket::SendSegments(const Connection& connection,
                                 const std::vector<TieredCache::SegmentInfo>& added,
                                 const std::vector<TieredCache::SegmentInfo>& removed) {
  size_t next = 0;
  do {
    v1::ServerPacket packet;
    v1::SegmentsChanged& changed = *packet.mutable_segments_changed();
    changed.set_change(last_change_);
    if (next == 0) {
      for (const TieredCache::SegmentInfo& segment : removed) changed.add_removed(segment.id);
    }
    std::vector<int> descriptors;
    next = DescribeSegments(added, next, kDescriptorsPerPacket, connection.peer.writer,
                            changed.mutable_added(), &descriptors);
    if (!SendPacket(connection.socket.get(), packet, descriptors)) return false;
  } while (next < added.size());
  return true;
}

void ControlSocket::SweepDepartures() {
  const absl::Duration now = SystemClock()->MonotonicNow();
  size_t in_time = 0;
  std::erase_if(departures_, [&](Departure& departure) {
    absl::erase_if(departure.waiting, [&](uint64_t id) { return !connections_.contains(id); });
    const bool late = now >= departure.deadline;
    if (departure.waiting.empty() && (!departure.blind || late)) return true;
    if (!late) {
      ++in_time;
      return false;
    }
    // Freeing device memory that another process has open is undefined.
    const bool device = std::any_of(departure.segments.begin(), departure.segments.end(),
                                    [](const auto& one) { return !one.device_uuid.empty(); });
    if (!std::exchange(departure.overdue, true)) {
      for (const uint64_t id : departure.waiting) {
        spdlog::warn(
            "session of {} has not given up {} bytes of segments that are gone; {}",
            Describe(connections_.at(id)->peer), BytesOf(departure.segments),
            device ? "as device memory they stay allocated until it does or ends"
                   : "they are freed here, and the system's again when it unmaps them or ends");
      }
    }
    if (!device) departure.segments.clear();
    return false;
  });
  if (options_.board != nullptr) {
    options_.board->Report(segments_version_, in_time, departures_.size());
  }
}

}  // namespace embcache
