// What the tests of the persistent stores share: records with reproducible bytes, and directories.

#ifndef EMBCACHE_TESTS_UNIT_STORE_TEST_UTIL_H_
#define EMBCACHE_TESTS_UNIT_STORE_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/persistent_store.h"

namespace embcache {

// A directory of its own that goes with the test.
class TestDirectory {
 public:
  TestDirectory() : path_(testing::TempDir() + "/embcache_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline CacheKey TestKey(absl::string_view name, absl::string_view model = "model") {
  return *CacheKey::Create(model, absl::StrCat("hash-of-", name), "");
}

// Incompressible bytes that tell their seed.
inline std::string TestBytes(uint64_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (uint64_t i = 0; i < bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(text.data() + i, &state, std::min<uint64_t>(8, bytes - i));
  }
  return text;
}

inline std::unique_ptr<char[]> CopyOf(absl::string_view bytes) {
  std::unique_ptr<char[]> copy(new char[bytes.size()]);
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  return copy;
}

struct TestRecord {
  StoredRecord stored;
  std::string payload;
};

// One tensor of `bytes`, filled by the generation.
inline TestRecord MakeRecord(const CacheKey& key, uint64_t bytes, uint64_t generation) {
  TensorSpec tensor{"embeds", DType::kU8, {static_cast<int64_t>(bytes)}};
  EntryInfo info{key, *LayOutTensors({tensor}), {}, 0, absl::FromUnixSeconds(1'700'000'000)};
  return {{std::make_shared<const EntryInfo>(std::move(info)), generation, 0},
          TestBytes(bytes, generation)};
}

inline absl::Status PutRecord(PersistentStore& store, const TestRecord& record) {
  const std::atomic<bool> cancelled{false};
  return store.Put(record.stored, CopyOf(record.payload), cancelled);
}

// What is stored under the key; the status' text when there is nothing to be had.
inline std::string ReadPayload(PersistentStore& store, const CacheKey& key) {
  const std::optional<StoredPlace> place = store.Find(key);
  if (!place) return "not found";
  std::string bytes(place->payload_bytes, '\0');
  const absl::StatusOr<StoredRecord> read = store.Read(key, place->generation, bytes.data());
  return read.ok() ? bytes : read.status().ToString();
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_STORE_TEST_UTIL_H_
