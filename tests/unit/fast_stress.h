// The protocol of a hit without a call under stress: one writer takes entries away as the daemon
// does, readers pin them as clients do, and every byte read under a pin says whether it may be
// read.
//
// Included by four tests, of which three leave out one part of the protocol
// (client/fast/protocol.h) and must be found out. What makes a missing fence visible is the row of
// stores that miss the caches, just before the pin: they fill the processor's store buffer, so that
// the pin becomes known late, as it may.

#ifndef EMBCACHE_TESTS_UNIT_FAST_STRESS_H_
#define EMBCACHE_TESTS_UNIT_FAST_STRESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/fast/protocol.h"
#include "gpu/host_memory.h"
#include "gtest/gtest.h"
#include "storage/fast_path.h"

namespace embcache {

class FastStress {
 public:
  static constexpr int kReaders = 2;
  static constexpr int kKeys = 4;
  static constexpr int kCells = 64;
  static constexpr int kWords = 32;       // of a cell: what a payload is here
  static constexpr int kSlowStores = 12;  // that miss the caches, before each pin

  FastStress()
      : path_(*FastPath::Create(&memory_, kCells)),
        index_(reinterpret_cast<const embcache_fast_header*>(path_->memory()->host_data())),
        cells_(kCells * kWords) {
    for (int i = 0; i < kReaders; ++i) {
      auto table = FastTable::Create(&memory_, 0);
      tables_.push_back(*table);
      path_->AddTable(*std::move(table));
    }
    for (int i = 0; i < kKeys; ++i) {
      infos_.push_back({.key = *CacheKey::Create("model", absl::StrCat("content", i), ""),
                        .layout = {.tensors = {}, .payload_bytes = kWords * sizeof(uint64_t)}});
    }
    for (uintptr_t i = 0; i < kCells; ++i) free_.push_back(i);
  }

  // Until a violation was seen, or `hits` are done, or `time` is over.
  void Run(uint64_t hits, absl::Duration time) {
    const absl::Time deadline = absl::Now() + time;
    std::vector<std::thread> readers;
    for (int i = 0; i < kReaders; ++i) {
      readers.emplace_back([this, i] { Read(i); });
    }
    std::thread writer([this] { Write(); });
    while (violations_ == 0 && hits_ < hits && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    stop_ = true;
    writer.join();
    for (std::thread& reader : readers) reader.join();
  }

  uint64_t hits() const { return hits_; }
  uint64_t violations() const { return violations_; }
  uint64_t waited() const { return waited_; }  // ranges that were held when their entry went

 private:
  static uint64_t Next(uint64_t* random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
  }

#ifdef __SANITIZE_THREAD__
  // Plain, as payloads are in life: ThreadSanitizer is to object where nothing orders a reuse after
  // the reads. The index and the tables have the same addresses for both sides here, as it needs.
  static uint64_t Load(const uint64_t* word) { return *word; }
  static void Store(uint64_t* word, uint64_t value) { *word = value; }
#else
  // The controls race on purpose, which only atomics may.
  static uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
  static void Store(uint64_t* word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
  }
#endif

  void Fill(uintptr_t cell, uint64_t value) {
    for (int i = 0; i < kWords; ++i) Store(&cells_[cell * kWords + i], value);
  }

  // The daemon: each entry in turn goes, and comes back somewhere else. A cell that is free says so
  // in every word.
  void Write() {
    struct Published {
      uint64_t publication = 0;
      uintptr_t cell = 0;
    };
    Published published[kKeys];
    uint64_t random = 88172645463325252u;
    while (!stop_) {
      const uint64_t key = Next(&random) % kKeys;
      Published& entry = published[key];
      if (entry.publication != 0) {
        if (path_->Retire(entry.publication)) {
          // The owner says which cell it is.
          path_->SetOwner(entry.publication, reinterpret_cast<CacheEntry*>(entry.cell));
          ++waited_;
        } else {
          Fill(entry.cell, 0);
          free_.push_back(entry.cell);
        }
        entry.publication = 0;
      }
      for (CacheEntry* owner : path_->Reclaim()) {
        const auto cell = reinterpret_cast<uintptr_t>(owner);
        Fill(cell, 0);
        free_.push_back(cell);
      }
      if (free_.empty()) continue;
      entry.cell = free_.back();
      free_.pop_back();
      // Told apart by the key: a reader knows what it asked for.
      Fill(entry.cell, key + 1);
      entry.publication =
          path_->Publish({.info = &infos_[key],
                          .location = {.offset = entry.cell, .bytes = kWords * sizeof(uint64_t)}},
                         nullptr);
      if (entry.publication == 0) free_.push_back(entry.cell);
    }
  }

  void Read(int reader) {
    auto* table = reinterpret_cast<embcache_fast_table*>(tables_[reader]->memory().host_data());
    __atomic_store_n(&table->lanes[0].pins_used, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&table->lanes_used, 1, __ATOMIC_RELEASE);
    uint64_t* const pin = &table->lanes[0].pins[0];
    // Larger than any cache, and the reader's own.
    constexpr uint64_t kScratch = uint64_t{1} << 23;
    const auto scratch = std::make_unique<uint64_t[]>(kScratch);
    uint64_t random = 362436069u + reader;
    FastHash hashes[kKeys];
    for (int i = 0; i < kKeys; ++i) hashes[i] = HashForFastIndex(infos_[i].key.encoded());
    while (!stop_) {
      const uint64_t key = Next(&random) % kKeys;
      embcache_fast_found found;
      if (!embcache_fast_find(index_, hashes[key].low, hashes[key].high, &found)) continue;
      for (int i = 0; i < kSlowStores; ++i) {
        __atomic_store_n(&scratch[Next(&random) % kScratch], random, __ATOMIC_RELAXED);
      }
      if (!embcache_fast_pin(index_, &found, pin)) continue;
      const auto* blob = reinterpret_cast<const embcache_fast_blob*>(
          reinterpret_cast<const char*>(index_) + found.blob);
      const uint64_t cell = Load(&blob->offset) % kCells;
      bool right = true;
      for (int i = 0; i < kWords; ++i) {
        right = right && Load(&cells_[cell * kWords + i]) == key + 1;
      }
      // Once more, at the end of the time that the pin promises.
      right = right && Load(&cells_[cell * kWords]) == key + 1 &&
              Load(&blob->publication) == found.publication;
      embcache_fast_unpin(pin);
      if (!right) ++violations_;
      ++hits_;
    }
  }

  HostMemory memory_;
  std::unique_ptr<FastPath> path_;
  const embcache_fast_header* const index_;
  std::vector<std::shared_ptr<FastTable>> tables_;
  std::vector<EntryInfo> infos_;
  std::vector<uint64_t> cells_;
  std::vector<uintptr_t> free_;  // of the writer
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> hits_ = 0;
  std::atomic<uint64_t> violations_ = 0;
  std::atomic<uint64_t> waited_ = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_FAST_STRESS_H_
