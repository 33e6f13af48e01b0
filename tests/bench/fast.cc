// fast-*: hits without a call.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/fast/embcache_fast.h"
#include "client/fast/protocol.h"
#include "gpu/host_memory.h"
#include "storage/fast_path.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

using client::Client;
using testing_support::DaemonProcess;

constexpr uint64_t kBytes = 2 << 20;

// An index and a pin table as the daemon has them, without the daemon.
class Index {
 public:
  static absl::StatusOr<std::unique_ptr<Index>> Create(uint64_t entries) {
    std::unique_ptr<Index> index(new Index);
    auto path = FastIndex::Create(&index->memory_, entries);
    if (!path.ok()) return path.status();
    index->index_ = *std::move(path);
    auto table = FastTable::Create(&index->memory_, 0);
    if (!table.ok()) return table.status();
    index->table_ = *std::move(table);
    for (uint64_t i = 0; i < entries; ++i) {
      absl::Status inserted = index->Insert(i);
      if (!inserted.ok()) return inserted;
    }
    const MemorySegment& shared = *index->index_->memory();
    index->fast_ = embcache_fast_open(shared.read_only_fd(), shared.bytes(),
                                      index->table_->memory().writable_fd(),
                                      index->table_->memory().bytes(), 0);
    if (index->fast_ == nullptr) return absl::InternalError("embcache_fast_open");
    index->lane_ = embcache_fast_take_lane(index->fast_);
    // In an order that no prefetching knows.
    uint64_t random = 88172645463325252u;
    for (uint64_t i = index->keys_.size() - 1; i > 0; --i) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      std::swap(index->keys_[i], index->keys_[random % i]);
    }
    return index;
  }
  ~Index() { embcache_fast_close(fast_); }

  // Nanoseconds a get, over `gets` of them in turn.
  absl::StatusOr<double> TimeHits(uint64_t gets) {
    return Time(gets, [this](const std::string& key) -> uint64_t {
      uint64_t hash[2];
      embcache_fast_hash(key.data(), key.size(), hash);
      embcache_fast_hit hit;
      if (!embcache_fast_get_in_lane(fast_, lane_, key.data(), key.size(), hash, 1, &hit)) return 0;
      const uint64_t bytes = hit.entry->bytes;
      embcache_fast_release(fast_, hit.pin);
      return bytes;
    });
  }

  // The same without what makes it safe: no pin, no second look, no touch.
  absl::StatusOr<double> TimeProbes(uint64_t gets) {
    const auto* index =
        reinterpret_cast<const embcache_fast_header*>(index_->memory()->host_data());
    return Time(gets, [index](const std::string& key) -> uint64_t {
      uint64_t hash[2];
      embcache_fast_hash(key.data(), key.size(), hash);
      embcache_fast_found found;
      if (!embcache_fast_find(index, hash[0], hash[1], &found)) return 0;
      if (!embcache_fast_is_of_epoch(index, &found) || found.expires_unix_ms != 0) return 0;
      const auto* blob = reinterpret_cast<const embcache_fast_blob*>(
          reinterpret_cast<const char*>(index) + found.blob);
      if (blob->key_bytes != key.size() ||
          std::memcmp(embcache_fast_text(blob, blob->key_at), key.data(), key.size()) != 0) {
        return 0;
      }
      return blob->bytes;
    });
  }

 private:
  Index() = default;

  absl::Status Insert(uint64_t number) {
    const client::Key key = MakeKey(number);
    const absl::StatusOr<CacheKey> cache_key =
        CacheKey::Create(key.model, key.content_hash, key.variant);
    if (!cache_key.ok()) return cache_key.status();
    EntryInfo info{
        .key = *cache_key,
        .layout = *LayOutTensors({{.name = "main", .dtype = DType::kBF16, .shape = {512, 2048}}}),
        .metadata = {{"grid_thw", "1,64,64"}}};
    keys_.emplace_back(cache_key->encoded());
    const FastEntry entry{.info = &info, .location = {.offset = number << 21, .bytes = kBytes}};
    const bool inserted =
        index_->Insert(HashForFastIndex(keys_.back()), number + 1, entry).has_value();
    return inserted ? absl::OkStatus() : absl::ResourceExhaustedError("the index is full");
  }

  template <typename Get>
  absl::StatusOr<double> Time(uint64_t gets, Get get) {
    uint64_t found = 0;
    const double start = NowMicros();
    for (uint64_t i = 0; i < gets; ++i) {
      // Which key is next depends on the answer, as it does for who has to have the entry before it
      // can go on; otherwise the processor would look up several at once.
      const uint64_t got = get(keys_[next_]) / kBytes;
      found += got;
      next_ = (next_ + got) & (keys_.size() - 1);
    }
    const double took = NowMicros() - start;
    if (found != gets) return absl::NotFoundError("an entry of the benchmark was not found");
    return took * 1000 / static_cast<double>(gets);
  }

  HostMemory memory_;
  std::unique_ptr<FastIndex> index_;
  std::shared_ptr<FastTable> table_;
  embcache_fast* fast_ = nullptr;
  int lane_ = 0;
  std::vector<std::string> keys_;
  size_t next_ = 0;
};

absl::Status CompareWithProbe(Report* report, const std::string& name, uint64_t entries) {
  auto index = Index::Create(entries);
  if (!index.ok()) return index.status();
  constexpr uint64_t kGets = 200'000;
  const auto compared = Interleave(
      15, [&] { return (*index)->TimeHits(kGets); }, [&] { return (*index)->TimeProbes(kGets); });
  if (!compared.ok()) return compared.status();
  report->Add({name, compared->value, "ns", compared->baseline, compared->ratio, AtMost(1.5),
               absl::StrCat("find, pin, check, touch, unpin among ", entries,
                            " entries, against finding and comparing the key alone")});
  return absl::OkStatus();
}

}  // namespace

absl::Status FastHit4k(Report* report) { return CompareWithProbe(report, "fast-hit-4k", 4096); }

absl::Status FastHit1m(Report* report) {
  return CompareWithProbe(report, "fast-hit-1m", uint64_t{1} << 20);
}

absl::Status FastHitCall(Report* report) {
  DaemonProcess daemon({"--l3-write=off", "--l1-capacity=1GiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  auto client = daemon.Connect(client::Role::kWriter, "bench");
  auto caller = daemon.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
  if (!client.ok()) return client.status();
  if (!caller.ok()) return caller.status();
  status = PutEntry(**client, 1, MakePayload(kBytes));
  if (!status.ok()) return status;
  const client::Key key = MakeKey(1);
  const auto compared = Interleave(21, MedianLatency(2000, [&] { return Hit(**client, key); }),
                                   MedianLatency(300, [&] { return Hit(**caller, key); }));
  if (!compared.ok()) return compared.status();
  report->Add({"fast-hit-call", compared->value, "us", compared->baseline, compared->ratio,
               AtMost(0.01),
               "the C++ client's get and the end of its lease, against the same by call"});
  return absl::OkStatus();
}

// Puts a second into a full cache, each of which evicts.
absl::Status FastEvictions(Report* report) {
  constexpr uint64_t kEntryBytes = 64 << 10;
  const std::vector<uint8_t> payload = MakePayload(kEntryBytes);
  DaemonProcess alone({"--l3-write=off", "--l1-capacity=64MiB"});
  DaemonProcess mapped({"--l3-write=off", "--l1-capacity=64MiB"});
  absl::Status status = alone.Start();
  if (status.ok()) status = mapped.Start();
  if (!status.ok()) return status;
  auto writer = alone.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
  auto observed = mapped.Connect(client::Role::kWriter, "bench", /*fast_path=*/false);
  if (!writer.ok()) return writer.status();
  if (!observed.ok()) return observed.status();
  std::vector<std::unique_ptr<Client>> idle;
  status = PutEntry(**observed, 0, payload);
  for (int i = 0; i < 16 && status.ok(); ++i) {
    auto client = mapped.Connect(client::Role::kReader, "idle");
    if (!client.ok()) return client.status();
    status = Hit(**client, MakeKey(0));  // has used its table
    idle.push_back(*std::move(client));
  }
  if (!status.ok()) return status;
  uint64_t next = 0;
  const auto round = [&](Client& client) {
    return [&]() -> absl::StatusOr<double> {
      constexpr int kPuts = 400;
      const double start = NowMicros();
      for (int i = 0; i < kPuts; ++i) {
        absl::Status put = PutEntry(client, ++next, payload);
        if (!put.ok()) return put;
      }
      return kPuts * 1e6 / (NowMicros() - start);
    };
  };
  for (int i = 0; i < 4; ++i) {  // until both are full
    if (auto filled = round(**writer)(); !filled.ok()) return filled.status();
    if (auto filled = round(**observed)(); !filled.ok()) return filled.status();
  }
  const auto compared = Interleave(15, round(**observed), round(**writer));
  if (!compared.ok()) return compared.status();
  report->Add({"fast-evictions", compared->value, "puts/s", compared->baseline, compared->ratio,
               AtLeast(0.8),
               "puts that evict, with 16 idle sessions that have the index, against none"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
