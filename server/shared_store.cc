#include "server/shared_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

constexpr size_t kMaxNamespaceBytes = 64;

absl::Status Refused(absl::string_view command, const RedisReply& reply) {
  if (reply.kind == RedisReply::Kind::kError) {
    return absl::AbortedError(absl::StrCat("redis: ", command, ": ", reply.text));
  }
  return absl::InternalError(absl::StrCat("redis: ", command, ": not an answer to that"));
}

absl::Status ClosedModel(absl::string_view model) {
  return absl::FailedPreconditionError(
      absl::StrCat("model \"", model, "\" is not shared under this namespace any more"));
}

}  // namespace

absl::Status CheckSharedNamespace(absl::string_view name) {
  const bool good = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (good && name.size() <= kMaxNamespaceBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("must be letters, digits, '.', '_' and '-', at most ", kMaxNamespaceBytes));
}

std::string SharedStore::NameOf(const CacheKey& key) const {
  return absl::StrCat("embcache:1:", options_.name_space, ":e:", key.encoded());
}

absl::StatusOr<bool> SharedStore::IsClosed(absl::string_view model, absl::Duration deadline) {
  const std::string marker = absl::StrCat("embcache:1:", options_.name_space, ":closed:", model);
  absl::StatusOr<RedisReply> reply = client_.Call(marker, {"EXISTS", marker}, 0, deadline);
  if (!reply.ok()) return reply.status();
  if (reply->kind != RedisReply::Kind::kInteger) return Refused("EXISTS", *reply);
  return reply->integer != 0;
}

absl::Status SharedStore::Close(absl::string_view model, absl::Duration deadline) {
  const std::string marker = absl::StrCat("embcache:1:", options_.name_space, ":closed:", model);
  absl::StatusOr<RedisReply> reply = client_.Call(marker, {"SET", marker, "1"}, 0, deadline);
  if (!reply.ok()) return reply.status();
  if (reply->kind != RedisReply::Kind::kStatus) return Refused("SET", *reply);
  return absl::OkStatus();
}

absl::Status SharedStore::Remove(const CacheKey& key, absl::Duration deadline) {
  const std::string name = NameOf(key);
  absl::StatusOr<RedisReply> reply = client_.Call(name, {"UNLINK", name}, 0, deadline);
  if (!reply.ok()) return reply.status();
  if (reply->kind != RedisReply::Kind::kInteger) return Refused("UNLINK", *reply);
  return absl::OkStatus();
}

absl::StatusOr<SharedStore::Found> SharedStore::Read(const CacheKey& key, absl::Duration deadline) {
  const std::string name = NameOf(key);
  const std::string last = absl::StrCat(options_.max_value_bytes - 1);
  // Not GET: so a value that is too large for us is neither sent nor buffered as a whole.
  absl::StatusOr<RedisReply> reply =
      client_.Call(name, {"GETRANGE", name, "0", last}, options_.max_value_bytes, deadline);
  if (!reply.ok()) return reply.status();
  if (absl::StartsWith(reply->text, "WRONGTYPE")) {
    Remove(key, deadline).IgnoreError();
    return absl::DataLossError("not a string there");
  }
  if (reply->kind != RedisReply::Kind::kBytes) return Refused("GETRANGE", *reply);
  if (reply->size == 0) return absl::NotFoundError("no such value");
  const absl::StatusOr<bool> closed = IsClosed(key.model(), deadline);
  if (!closed.ok()) return closed.status();
  if (*closed) return ClosedModel(key.model());

  absl::StatusOr<CheckedSharedValue> value = CheckSharedValue(key, reply->view());
  absl::Status bad = value.status();
  if (absl::IsOutOfRange(bad)) {
    if (reply->size == options_.max_value_bytes) return absl::NotFoundError("larger than we take");
    bad = absl::DataLossError(bad.message());
  }
  if (!bad.ok()) {
    Remove(key, deadline).IgnoreError();
    return bad;
  }
  if (value->info->expires <= clock_->Now()) return absl::NotFoundError("it has expired");
  return Found{std::move(reply->bytes), *std::move(value)};
}

absl::Status SharedStore::Write(const EntryInfo& info, const SharedValue& value,
                                absl::Duration deadline) {
  const absl::Duration lives = std::min(options_.ttl, info.expires - clock_->Now());
  const int64_t ms = absl::ToInt64Milliseconds(lives);
  if (ms <= 0) return absl::NotFoundError("it has expired");
  const std::string name = NameOf(info.key);
  const std::string px = absl::StrCat(ms);
  absl::StatusOr<RedisReply> reply =
      client_.Call(name, {"SET", name, value.view(), "PX", px}, 0, deadline);
  if (!reply.ok()) return reply.status();
  if (reply->kind != RedisReply::Kind::kStatus) return Refused("SET", *reply);
  const absl::StatusOr<bool> closed = IsClosed(info.key.model(), deadline);
  if (!closed.ok()) return closed.status();
  if (!*closed) return absl::OkStatus();
  Remove(info.key, deadline).IgnoreError();
  return ClosedModel(info.key.model());
}

}  // namespace embcache
