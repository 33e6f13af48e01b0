#include "client/cpp/convert.h"

namespace embcache::client::internal {

namespace v1 = embcache::v1;

void ToProto(const Key& key, v1::Key* out) {
  out->set_model(key.model);
  out->set_content_hash(key.content_hash);
  out->set_variant(key.variant);
}

void ToProto(const Expectation& expectation, v1::Expectation* out) {
  out->set_tensor(expectation.tensor);
  out->set_dtype(static_cast<v1::DType>(expectation.dtype));
  out->mutable_shape()->Assign(expectation.shape.begin(), expectation.shape.end());
  out->set_rows(expectation.rows);
  out->set_bytes(expectation.bytes);
}

void ToProto(const Key& key, const std::vector<TensorSpec>& tensors, const PutOptions& options,
             v1::PutItem* out) {
  ToProto(key, out->mutable_key());
  for (const TensorSpec& tensor : tensors) {
    v1::Tensor* t = out->add_tensors();
    t->set_name(tensor.name);
    t->set_dtype(static_cast<v1::DType>(tensor.dtype));
    t->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    t->set_absent(tensor.absent);
    t->set_bytes(tensor.bytes);
  }
  for (const auto& [name, value] : options.metadata) (*out->mutable_metadata())[name] = value;
  out->set_encode_cost_us(options.encode_cost_us);
  if (options.ttl > absl::ZeroDuration() && options.ttl != absl::InfiniteDuration()) {
    // Rounded up: 0 would mean no time to live.
    out->set_ttl_ms(static_cast<uint64_t>(
        absl::ToInt64Milliseconds(absl::Ceil(options.ttl, absl::Milliseconds(1)))));
  }
}

v1::Place ToProto(Place place) {
  switch (place) {
    case Place::kDevice:
      return v1::PLACE_DEVICE;
    case Place::kHost:
      return v1::PLACE_HOST;
    case Place::kAny:
      break;
  }
  return v1::PLACE_ANY;
}

Key FromProto(const v1::Key& key) { return {key.model(), key.content_hash(), key.variant()}; }

Tier FromProto(v1::Tier tier) {
  switch (tier) {
    case v1::L1:
      return Tier::kL1;
    case v1::L2:
      return Tier::kL2;
    case v1::L3:
      return Tier::kL3;
    default:
      return Tier::kUnknown;
  }
}

TensorSpec FromProto(const v1::Tensor& tensor) {
  TensorSpec out;
  out.name = tensor.name();
  out.dtype = static_cast<DType>(tensor.dtype());
  out.shape.assign(tensor.shape().begin(), tensor.shape().end());
  out.absent = tensor.absent();
  out.offset = tensor.offset();
  out.bytes = tensor.bytes();
  return out;
}

ListedEntry FromProto(const v1::ListedEntry& entry) {
  ListedEntry out;
  out.key = FromProto(entry.key());
  out.tier = FromProto(entry.tier());
  out.bytes = entry.bytes();
  out.generation = entry.generation();
  out.on_disk = entry.on_disk();
  out.pins = entry.pins();
  out.created_unix_ms = entry.created_unix_ms();
  out.encode_cost_us = entry.encode_cost_us();
  return out;
}

MissReason FromProto(v1::GetResult::MissReason reason) {
  switch (reason) {
    case v1::GetResult::MISMATCH:
      return MissReason::kMismatch;
    case v1::GetResult::EXPIRED:
      return MissReason::kExpired;
    case v1::GetResult::DAMAGED:
      return MissReason::kDamaged;
    default:
      return MissReason::kAbsent;
  }
}

absl::Status FromProto(const v1::ItemStatus& status) {
  if (status.code() == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

}  // namespace embcache::client::internal
