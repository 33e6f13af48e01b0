#include "server/redis_client.h"

#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace embcache {
namespace {

constexpr uint32_t kSlots = 16384;
constexpr size_t kMaxNodes = 1024;
constexpr int kMaxRedirects = 5;
constexpr absl::string_view kAsking[] = {"ASKING"};

// CRC16 as Redis Cluster has it: polynomial 0x1021, starting from 0.
constexpr std::array<uint16_t, 256> MakeCrcTable() {
  std::array<uint16_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
    table[i] = static_cast<uint16_t>(crc);
  }
  return table;
}

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  std::ifstream file(path);
  std::string password{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  absl::StripTrailingAsciiWhitespace(&password);
  if (!file.is_open() || password.empty()) {
    return absl::UnavailableError(absl::StrCat("redis: no password in ", path));
  }
  return password;
}

}  // namespace

uint32_t RedisSlot(absl::string_view key) {
  static constexpr std::array<uint16_t, 256> kTable = MakeCrcTable();
  const size_t open = key.find('{');
  if (open != absl::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != absl::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  uint32_t crc = 0;
  for (const char byte : key) {
    crc = ((crc << 8) & 0xffff) ^ kTable[((crc >> 8) ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return crc % kSlots;
}

RedisClient::RedisClient(RedisClientOptions options, int stop_fd)
    : options_(std::move(options)), stop_fd_(stop_fd) {
  nodes_.push_back({options_.address, nullptr});
}

absl::Status RedisClient::Open(Node* node, absl::Duration deadline) {
  auto connection = RedisConnection::Connect(node->address, stop_fd_, deadline);
  if (!connection.ok()) return connection.status();
  ++connections_;
  if (!options_.password_file.empty()) {
    const absl::StatusOr<std::string> password = ReadPassword(options_.password_file);
    if (!password.ok()) return password.status();
    std::vector<absl::string_view> command = {"AUTH"};
    if (!options_.user.empty()) command.push_back(options_.user);
    command.push_back(*password);
    const absl::StatusOr<RedisReply> reply = (*connection)->Call(command, 0, deadline);
    if (!reply.ok()) return reply.status();
    if (reply->kind != RedisReply::Kind::kStatus) {
      return absl::UnavailableError(absl::StrCat("redis: AUTH: ", reply->text));
    }
  }
  node->connection = *std::move(connection);
  return absl::OkStatus();
}

absl::StatusOr<RedisReply> RedisClient::CallNode(size_t index, bool asking,
                                                 absl::Span<const absl::string_view> command,
                                                 uint64_t max_bytes, absl::Duration deadline) {
  Node& node = nodes_[index];
  while (true) {
    // One that was idle may have been closed by the server since; that is no failure of anybody's.
    const bool was_open = node.connection != nullptr;
    if (!was_open) {
      if (absl::Status opened = Open(&node, deadline); !opened.ok()) return opened;
    }
    absl::StatusOr<RedisReply> reply;
    if (asking) reply = node.connection->Call(kAsking, 0, deadline);
    if (!asking || reply.ok()) reply = node.connection->Call(command, max_bytes, deadline);
    if (reply.ok()) return reply;
    node.connection.reset();
    if (!was_open || !absl::IsUnavailable(reply.status())) return reply;
  }
}

int RedisClient::FindNode(absl::string_view redirect, RedisAddress from) {
  const std::vector<absl::string_view> words = absl::StrSplit(redirect, ' ');
  if (words.size() < 3) return -1;
  RedisAddress address;
  if (absl::StartsWith(words[2], ":") && from.unix_path.empty()) {
    address = std::move(from);  // "the host that you know me by"
    address.port = std::string(words[2].substr(1));
  } else {
    // An IPv6 address comes without brackets.
    const size_t colon = words[2].rfind(':');
    if (colon == absl::string_view::npos || colon == 0) return -1;
    address.host = std::string(words[2].substr(0, colon));
    address.port = std::string(words[2].substr(colon + 1));
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].address.ToString() == address.ToString()) return static_cast<int>(i);
  }
  if (nodes_.size() >= kMaxNodes) {  // most of them long gone
    nodes_.resize(1);
    slots_.clear();
  }
  nodes_.push_back({std::move(address), nullptr});
  return static_cast<int>(nodes_.size() - 1);
}

void RedisClient::Forget(size_t node) {
  for (uint16_t& owner : slots_) {
    if (owner == node) owner = 0;
  }
}

absl::StatusOr<RedisReply> RedisClient::Call(absl::string_view key,
                                             absl::Span<const absl::string_view> command,
                                             uint64_t max_bytes, absl::Duration deadline) {
  const uint32_t slot = RedisSlot(key);
  size_t node = slots_.empty() ? 0 : slots_[slot];
  bool asking = false;
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    absl::StatusOr<RedisReply> reply = CallNode(node, asking, command, max_bytes, deadline);
    if (!reply.ok()) {
      Forget(node);
      return reply;
    }
    const bool moved = absl::StartsWith(reply->text, "MOVED ");
    asking = absl::StartsWith(reply->text, "ASK ");
    if (reply->kind != RedisReply::Kind::kError || (!moved && !asking)) return reply;
    const int next = FindNode(reply->text, nodes_[node].address);
    if (next < 0) return absl::InternalError(absl::StrCat("redis: not a node: ", reply->text));
    node = static_cast<size_t>(next);
    if (!moved) continue;
    if (slots_.empty()) slots_.resize(kSlots, 0);
    slots_[slot] = static_cast<uint16_t>(node);
  }
  return absl::UnavailableError("redis: sent from node to node without an end");
}

}  // namespace embcache
