#include "storage/pending_segment.h"

#include <utility>

#include "storage/check.h"

namespace embcache {

uint64_t PendingRecord::FileBytes() const {
  constexpr uint64_t kPerItemBytes = 96;  // key, lengths, block trailer, index entry
  const uint64_t items = 1 + (payload_bytes() + kChunkBytes - 1) / kChunkBytes;
  return header.size() + payload_bytes() + items * kPerItemBytes + 2 * FooterEntryBytes(key());
}

uint32_t PendingSegment::Add(std::shared_ptr<const PendingRecord> record) {
  file_bytes += record->FileBytes();
  ++live;
  records.push_back(std::move(record));
  return static_cast<uint32_t>(records.size() - 1);
}

void PendingSegment::Release(uint32_t entry) {
  EMB_CHECK(entry < records.size() && records[entry] != nullptr);
  file_bytes -= records[entry]->FileBytes();
  --live;
  records[entry] = nullptr;
}

}  // namespace embcache
