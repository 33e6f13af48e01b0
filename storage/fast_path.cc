#include "storage/fast_path.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace embcache {

absl::StatusOr<std::unique_ptr<FastPath>> FastPath::Create(MemoryResource* memory,
                                                           uint64_t max_entries) {
  auto index = FastIndex::Create(memory, std::min(max_entries, kFirstEntries));
  if (!index.ok()) return index.status();
  return std::unique_ptr<FastPath>(new FastPath(*std::move(index), max_entries));
}

uint64_t FastPath::Publish(const FastEntry& entry, CacheEntry* owner) {
  const FastHash hash = HashForFastIndex(entry.info->key.encoded());
  const auto blob = index_->Insert(hash, next_publication_, entry);
  if (!blob.has_value()) {
    full_ = true;
    return 0;
  }
  publications_.emplace(next_publication_, Publication{.owner = owner,
                                                       .hash = hash,
                                                       .blob = *blob,
                                                       .payload_bytes = entry.location.bytes,
                                                       .index = index_serial_});
  return next_publication_++;
}

bool FastPath::Retire(uint64_t publication) {
  const auto it = publications_.find(publication);
  EMB_CHECK(it != publications_.end() && !it->second.retired);
  index_->Erase(it->second.hash, publication);
  // Between making it unreachable and looking for pins. Its partner is in embcache_fast_pin: of the
  // two sides, at least one sees what the other wrote before its fence.
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (!IsHeld(publication)) {
    Forget(it);
    return false;
  }
  it->second.retired = true;
  limbo_.push_back(publication);
  return true;
}

bool FastPath::IsHeld(uint64_t publication) const {
  return std::any_of(tables_.begin(), tables_.end(), [&](const auto& table) {
    return table->honoured() && table->Holds(publication);
  });
}

void FastPath::Forget(Publications::iterator publication) {
  if (publication->second.index == index_serial_) index_->FreeBlob(publication->second.blob);
  publications_.erase(publication);
}

void FastPath::SetOwner(uint64_t publication, CacheEntry* owner) {
  const auto it = publications_.find(publication);
  EMB_CHECK(it != publications_.end() && it->second.retired);
  it->second.owner = owner;
}

std::vector<CacheEntry*> FastPath::Reclaim() {
  pinned_.clear();
  std::vector<uint64_t> of_table;
  for (const std::shared_ptr<FastTable>& table : tables_) {
    of_table.clear();
    uint64_t bytes = 0;
    table->VisitPins([&](uint64_t publication) {
      const auto it = publications_.find(publication);
      if (it == publications_.end()) return true;  // being given up by a reader, or rubbish
      bytes += it->second.payload_bytes;
      of_table.push_back(publication);
      return true;
    });
    table->set_pinned_bytes(bytes);
    if (!table->honoured()) continue;
    for (const uint64_t publication : of_table) pinned_.insert(publication);
  }
  std::vector<CacheEntry*> free;
  std::erase_if(limbo_, [&](uint64_t publication) {
    if (IsPinned(publication)) return false;
    const auto it = publications_.find(publication);
    free.push_back(it->second.owner);
    Forget(it);
    return true;
  });
  return free;
}

uint32_t FastPath::CountPins(uint64_t publication) const {
  uint32_t count = 0;
  for (const std::shared_ptr<FastTable>& table : tables_) {
    table->VisitPins([&](uint64_t pinned) {
      count += pinned == publication ? 1 : 0;
      return true;
    });
  }
  return count;
}

void FastPath::VisitPinned(absl::FunctionRef<void(CacheEntry*)> visit) const {
  for (const uint64_t publication : pinned_) {
    const auto it = publications_.find(publication);
    if (it != publications_.end()) visit(it->second.owner);
  }
}

void FastPath::RemoveTable(const FastTable* table) {
  std::erase_if(tables_, [&](const auto& one) { return one.get() == table; });
}

void FastPath::DrainTouches(Drain how, absl::FunctionRef<void(CacheEntry*, uint64_t)> touch) {
  if (how == Drain::kTick) touches_left_ = kMaxTouches;
  uint64_t unknown = 0;
  for (const std::shared_ptr<FastTable>& table : tables_) {
    if (how == Drain::kSome && touches_left_ == 0) break;
    unknown += table->Drain(&touches_left_, [&](uint64_t publication) {
      const auto it = publications_.find(publication);
      if (it == publications_.end()) {
        ++unknown;
      } else {
        touch(it->second.owner, 1);
      }
    });
  }
  if (unknown > 0) touch(nullptr, unknown);
  if (how == Drain::kTick) touches_left_ = kMaxTouches;
}

uint64_t FastPath::WantedEntries() const {
  if (stopped_ || !full_ || index_->max_entries() >= max_entries_) return 0;
  return std::min(max_entries_, index_->max_entries() * kGrowth);
}

void FastPath::Replace(std::unique_ptr<FastIndex> index) {
  // No pin is taken by way of the old one from here on: a reader looks at its state after its
  // fence.
  index_->SetState(EMBCACHE_FAST_MOVED);
  index_ = std::move(index);
  ++index_serial_;
  full_ = false;
}

void FastPath::Republish(uint64_t publication, const FastEntry& entry) {
  const auto it = publications_.find(publication);
  EMB_CHECK(it != publications_.end() && !it->second.retired);
  const auto blob = index_->Insert(it->second.hash, publication, entry);
  EMB_CHECK(blob.has_value());  // it is larger than the one before, and was empty
  it->second.blob = *blob;
  it->second.index = index_serial_;
}

}  // namespace embcache
