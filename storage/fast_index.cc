#include "storage/fast_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "storage/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace embcache {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

int64_t ExpiryMillis(const EntryInfo& info) {
  if (info.expires == absl::InfiniteFuture()) return 0;
  return std::max<int64_t>(1, absl::ToUnixMillis(info.expires));
}

// Text goes to the end of the blob; answers where it is.
uint32_t Append(absl::string_view text, std::string* blob) {
  const auto at = static_cast<uint32_t>(blob->size());
  blob->append(text.data(), text.size());
  return at;
}

template <typename T>
void PutAt(const T& record, size_t at, std::string* blob) {
  std::memcpy(blob->data() + at, &record, sizeof(record));
}

}  // namespace

FastHash HashForFastIndex(absl::string_view encoded_key) {
  const XXH128_hash_t hash = XXH3_128bits(encoded_key.data(), encoded_key.size());
  return {hash.low64, hash.high64};
}

std::string EncodeFastBlob(const FastEntry& entry) {
  const std::vector<TensorSpec>& tensors = entry.info->layout.tensors;
  const Metadata& metadata = entry.info->metadata;
  const size_t tensors_at = sizeof(embcache_fast_blob);
  const size_t metadata_at = tensors_at + tensors.size() * sizeof(embcache_fast_tensor);
  std::string blob(metadata_at + metadata.size() * sizeof(embcache_fast_metadata), '\0');
  embcache_fast_blob head = {};
  head.generation = entry.generation;
  head.segment_generation = entry.location.segment_generation;
  head.offset = entry.location.offset;
  head.bytes = entry.location.bytes;
  head.encode_cost_us = entry.info->encode_cost_us;
  head.segment = entry.location.segment;
  head.tier = static_cast<uint32_t>(entry.location.tier) + 1;
  head.key_bytes = static_cast<uint32_t>(entry.info->key.encoded().size());
  head.key_at = Append(entry.info->key.encoded(), &blob);
  head.tensors = static_cast<uint32_t>(tensors.size());
  head.metadata = static_cast<uint32_t>(metadata.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    embcache_fast_tensor record = {};
    record.offset = tensor.offset;
    record.bytes = tensor.bytes;
    record.dtype = static_cast<uint8_t>(tensor.dtype);
    record.absent = tensor.absent ? 1 : 0;
    record.rank = static_cast<uint8_t>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), record.shape);
    record.name_bytes = static_cast<uint16_t>(tensor.name.size());
    record.name_at = Append(tensor.name, &blob);
    PutAt(record, tensors_at + i * sizeof(record), &blob);
  }
  for (size_t i = 0; i < metadata.size(); ++i) {
    embcache_fast_metadata record = {};
    record.name_bytes = static_cast<uint32_t>(metadata[i].first.size());
    record.name_at = Append(metadata[i].first, &blob);
    record.value_bytes = static_cast<uint32_t>(metadata[i].second.size());
    record.value_at = Append(metadata[i].second, &blob);
    PutAt(record, metadata_at + i * sizeof(record), &blob);
  }
  head.blob_bytes = static_cast<uint32_t>(blob.size());
  PutAt(head, 0, &blob);
  return blob;
}

absl::StatusOr<std::unique_ptr<FastIndex>> FastIndex::Create(MemoryResource* memory,
                                                             uint64_t entries) {
  EMB_CHECK(entries > 0);
  // At most half full, so that probes are short.
  const uint64_t slots = std::bit_ceil(entries * 2);
  const uint64_t slots_at =
      RoundUp(sizeof(embcache_fast_header) + EMBCACHE_FAST_MODELS * sizeof(uint64_t), 64);
  const uint64_t blobs_at =
      RoundUp(slots_at + slots * sizeof(embcache_fast_slot), SegmentArena::kAlignment);
  const uint64_t bytes = RoundUp(blobs_at + entries * kBlobBytesPerEntry,
                                 std::max<uint64_t>(memory->granularity(), 1));
  absl::StatusOr<std::unique_ptr<MemorySegment>> segment =
      memory->Allocate("embcache-index", bytes);
  if (!segment.ok()) return segment.status();
  EMB_CHECK((*segment)->host_data() != nullptr);
  return std::unique_ptr<FastIndex>(
      new FastIndex(*std::move(segment), entries, slots, slots_at, blobs_at));
}

FastIndex::FastIndex(std::shared_ptr<const MemorySegment> memory, uint64_t max_entries,
                     uint64_t slots, uint64_t slots_at, uint64_t blobs_at)
    : memory_(std::move(memory)),
      max_entries_(max_entries),
      slot_mask_(slots - 1),
      blobs_at_(blobs_at),
      header_(reinterpret_cast<embcache_fast_header*>(memory_->host_data())),
      model_epochs_(reinterpret_cast<uint64_t*>(header_ + 1)),
      slots_(reinterpret_cast<embcache_fast_slot*>(memory_->host_data() + slots_at)),
      blobs_(memory_->bytes() - blobs_at) {
  std::memset(memory_->host_data(), 0, blobs_at);
  *header_ = {.magic = EMBCACHE_FAST_MAGIC,
              .version = EMBCACHE_FAST_VERSION,
              .state = EMBCACHE_FAST_LIVE,
              .slot_mask = slot_mask_,
              .slots_at = slots_at,
              .blobs_at = blobs_at,
              .blobs_bytes = memory_->bytes() - blobs_at,
              .total_bytes = memory_->bytes()};
}

void FastIndex::WriteSlot(embcache_fast_slot* slot, const embcache_fast_slot& value) {
  const uint64_t seq = slot->seq;
  __atomic_store_n(&slot->seq, seq + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  __atomic_store_n(&slot->hash_low, value.hash_low, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->hash_high, value.hash_high, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->publication, value.publication, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->blob, value.blob, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->expires_unix_ms, value.expires_unix_ms, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->model_epoch, value.model_epoch, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->model, value.model, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->size, value.size, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->seq, seq + 2, __ATOMIC_RELEASE);
}

std::optional<FastIndex::Blob> FastIndex::Insert(const FastHash& hash, uint64_t publication,
                                                 const FastEntry& entry) {
  if (entries_ == max_entries_) return std::nullopt;
  std::string bytes = EncodeFastBlob(entry);
  const std::optional<uint64_t> at = blobs_.Allocate(bytes.size());
  if (!at.has_value()) return std::nullopt;
  const Blob blob{blobs_at_ + *at, bytes.size()};
  std::memcpy(bytes.data() + offsetof(embcache_fast_blob, publication), &publication,
              sizeof(publication));
  std::memcpy(memory_->host_data() + blob.at, bytes.data(), bytes.size());
  uint64_t i = hash.low & slot_mask_;
  while (slots_[i].publication != 0) i = (i + 1) & slot_mask_;
  WriteSlot(&slots_[i], {.hash_low = hash.low,
                         .hash_high = hash.high,
                         .publication = publication,
                         .blob = blob.at,
                         .expires_unix_ms = ExpiryMillis(*entry.info),
                         .model_epoch = entry.model_epoch,
                         .model = entry.model,
                         .size = static_cast<uint32_t>((entry.location.bytes + 255) / 256)});
  ++entries_;
  return blob;
}

void FastIndex::Erase(const FastHash& hash, uint64_t publication) {
  uint64_t hole = hash.low & slot_mask_;
  while (slots_[hole].publication != publication) {
    EMB_CHECK(slots_[hole].publication != 0);
    hole = (hole + 1) & slot_mask_;
  }
  // What was pushed past the hole moves up, so that no probe ends too early. For a moment it is in
  // both slots, never in none.
  for (uint64_t i = (hole + 1) & slot_mask_; slots_[i].publication != 0; i = (i + 1) & slot_mask_) {
    const uint64_t home = slots_[i].hash_low & slot_mask_;
    if (((i - home) & slot_mask_) < ((i - hole) & slot_mask_)) continue;
    WriteSlot(&slots_[hole], slots_[i]);
    hole = i;
  }
  WriteSlot(&slots_[hole], {});
  --entries_;
}

void FastIndex::SetModelEpoch(uint32_t model, uint64_t epoch) {
  EMB_CHECK(model < EMBCACHE_FAST_MODELS);
  __atomic_store_n(&model_epochs_[model], epoch, __ATOMIC_RELEASE);
}

void FastIndex::SetState(embcache_fast_state state) {
  __atomic_store_n(&header_->state, static_cast<uint32_t>(state), __ATOMIC_RELEASE);
}

}  // namespace embcache
