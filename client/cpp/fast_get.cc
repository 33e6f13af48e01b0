#include "client/cpp/fast_get.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/cpp/convert.h"
#include "client/cpp/releaser.h"
#include "client/fast/embcache_fast.h"
#include "embcache/v1/embcache.pb.h"

namespace embcache::client::internal {
namespace {

namespace v1 = embcache::v1;

constexpr size_t kMaxEncodedKey = 4 + 255 + 64 + 1024;

// As storage/cache_key.h has it. 0: not a key that could be there; the daemon says why.
size_t EncodeKey(const Key& key, char* out) {
  if (key.model.size() > 255 || key.content_hash.size() > 64 || key.variant.size() > 1024) return 0;
  char* at = out;
  *at++ = static_cast<char>(key.model.size());
  at = std::copy(key.model.begin(), key.model.end(), at);
  *at++ = static_cast<char>(key.content_hash.size());
  at = std::copy(key.content_hash.begin(), key.content_hash.end(), at);
  *at++ = static_cast<char>(key.variant.size() & 0xff);
  *at++ = static_cast<char>(key.variant.size() >> 8);
  at = std::copy(key.variant.begin(), key.variant.end(), at);
  return static_cast<size_t>(at - out);
}

std::vector<TensorSpec> ReadTensors(const embcache_fast_blob& entry) {
  std::vector<TensorSpec> tensors(entry.tensors);
  const embcache_fast_tensor* record = embcache_fast_tensors(&entry);
  for (TensorSpec& tensor : tensors) {
    tensor.name.assign(embcache_fast_text(&entry, record->name_at), record->name_bytes);
    tensor.dtype = static_cast<DType>(record->dtype);
    tensor.shape.assign(record->shape, record->shape + std::min<int>(record->rank, 8));
    tensor.absent = record->absent != 0;
    tensor.offset = record->offset;
    tensor.bytes = record->bytes;
    ++record;
  }
  return tensors;
}

Metadata ReadMetadata(const embcache_fast_blob& entry) {
  Metadata metadata;
  const embcache_fast_metadata* record = embcache_fast_metadata_of(&entry);
  for (uint32_t i = 0; i < entry.metadata; ++i, ++record) {
    metadata.emplace(
        std::string(embcache_fast_text(&entry, record->name_at), record->name_bytes),
        std::string(embcache_fast_text(&entry, record->value_at), record->value_bytes));
  }
  return metadata;
}

bool Meets(const std::vector<TensorSpec>& tensors, const Expectation& want) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
    return want.tensor.empty() || tensor.name == want.tensor;
  });
  if (found == tensors.end() || found->absent) return false;
  return (want.dtype == DType::kInvalid || want.dtype == found->dtype) &&
         (want.shape.empty() || want.shape == found->shape) &&
         (want.rows == 0 || want.rows == (found->shape.empty() ? 1 : found->shape[0])) &&
         (want.bytes == 0 || want.bytes == found->bytes);
}

}  // namespace

std::optional<Lease> FastGet(const std::shared_ptr<Session>& session, const Key& key,
                             const std::vector<Expectation>& expect) {
  embcache_fast* const fast = session->fast();
  if (fast == nullptr) return std::nullopt;
  char encoded[kMaxEncodedKey];
  const size_t size = EncodeKey(key, encoded);
  if (size == 0) return std::nullopt;
  uint64_t hash[2];
  embcache_fast_hash(encoded, size, hash);
  embcache_fast_hit hit;
  if (!embcache_fast_get(fast, encoded, size, hash, /*touch=*/0, &hit)) return std::nullopt;
  const embcache_fast_blob& entry = *hit.entry;
  auto held = std::make_unique<HeldLease>();
  held->fast_pin = hit.pin;
  held->tensors = ReadTensors(entry);
  held->bytes = entry.bytes;
  const bool met = std::all_of(expect.begin(), expect.end(),
                               [&](const Expectation& want) { return Meets(held->tensors, want); });
  const auto place =
      session->Resolve(entry.segment, entry.segment_generation, entry.offset, entry.bytes);
  if (!met || !place.ok() || !CheckBounds(*held).ok() || !session->TakeHold(0)) {
    embcache_fast_release(fast, hit.pin);
    return std::nullopt;
  }
  held->session = session;  // from here on the lease gives all back
  held->place = *place;
  held->key = key;
  held->metadata = ReadMetadata(entry);
  held->encode_cost_us = entry.encode_cost_us;
  held->source = entry.tier == 2 ? Tier::kL2 : Tier::kL1;
  held->generation = entry.generation;
  Lease lease(std::move(held));
  if (!embcache_fast_touch(fast, hit.publication)) return std::nullopt;
  return lease;
}

absl::Status MakeKnown(HeldLease* held) {
  if (held->id != 0) return absl::OkStatus();
  v1::ContainsRequest request;
  ToProto(held->key, request.add_keys());
  request.set_lease(true);
  v1::ContainsResponse response;
  absl::Status status = held->session->Call(&v1::Cache::Stub::Contains, request, &response);
  if (!status.ok()) return status;
  if (response.results_size() != 1) return absl::InternalError("Contains: not one result");
  const v1::ContainsResult& result = response.results(0);
  status = FromProto(result.status());
  if (!status.ok()) return status;
  const v1::GetResult& hit = result.hit();
  if (hit.lease() == 0 || hit.generation() != held->generation) {
    if (hit.lease() != 0) {
      held->session->releaser().Add(held->session, hit.lease(), hit.location().bytes());
    }
    return absl::FailedPreconditionError("leases: the entry of one was deleted or replaced");
  }
  held->id = hit.lease();
  embcache_fast* const fast = held->session->fast();
  embcache_fast_charge(fast, static_cast<int64_t>(held->bytes));
  // Unless the entry has moved to another tier: the views are of where it was.
  const auto place = held->session->Resolve(hit.location());
  if (place.ok() && *place == held->place) {
    embcache_fast_release(fast, *std::exchange(held->fast_pin, std::nullopt));
  }
  return absl::OkStatus();
}

}  // namespace embcache::client::internal
