// The fixture of RocksDbStore's tests.

#ifndef EMBCACHE_TESTS_UNIT_ROCKSDB_STORE_TEST_UTIL_H_
#define EMBCACHE_TESTS_UNIT_ROCKSDB_STORE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/rocksdb_store.h"
#include "tests/unit/store_test_util.h"

namespace embcache {

inline void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline uint64_t SumOfFileSizes(const std::string& path) {
  uint64_t sum = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) sum += entry.file_size();
  }
  return sum;
}

class RocksDbStoreFixture : public testing::Test {
 protected:
  RocksDbStoreFixture() {
    options_.path = directory_.path() + "/l3";
    options_.capacity_bytes = kMinStoreBytes;
    options_.clock = &clock_;
    options_.min_free_bytes = 0;
    options_.background_thread = false;
  }

  void Open() { OpenAt(options_.path); }
  void OpenAt(const std::string& path) {
    store_ = nullptr;
    RocksDbStoreOptions options = options_;
    options.path = path;
    absl::StatusOr<std::unique_ptr<RocksDbStore>> opened = RocksDbStore::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  void Reopen() { OpenAt(options_.path); }

  // What a crash at this moment would leave.
  std::string CopyDirectory() {
    const std::string copy = absl::StrCat(directory_.path(), "/copy", ++copies_);
    std::filesystem::copy(options_.path, copy, std::filesystem::copy_options::recursive);
    return copy;
  }

  static std::vector<std::string> FilesOf(const std::string& path, const std::string& prefix,
                                          const std::string& extension) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path + "/db")) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(prefix, 0) == 0 && entry.path().extension() == extension) {
        files.push_back(entry.path().string());
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  // Reads keys "0" to "<keys - 1>"; whatever is returned must be its generation's bytes. Returns
  // how many were.
  static int ExpectOnlyRightBytes(PersistentStore& store, int keys) {
    int right = 0;
    for (int i = 0; i < keys; ++i) {
      const CacheKey key = TestKey(absl::StrCat(i));
      const auto place = store.Find(key);
      if (!place) continue;
      std::string bytes(place->payload_bytes, '\0');
      const auto read = store.Read(key, place->generation, bytes.data());
      if (!read.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
        EXPECT_FALSE(store.Find(key).has_value());
        continue;
      }
      EXPECT_EQ(bytes, TestBytes(place->payload_bytes, place->generation)) << i;
      ++right;
    }
    return right;
  }

  TestDirectory directory_;
  SimulatedClock clock_;
  RocksDbStoreOptions options_;
  std::unique_ptr<RocksDbStore> store_;

 private:
  int copies_ = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_ROCKSDB_STORE_TEST_UTIL_H_
