// Reads the #include lines of the product: who may include whom is in docs/architecture.md.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace embcache {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = fs::path(EMBCACHE_TEST_DATA).parent_path().parent_path();

struct Include {
  std::string file;
  std::string header;
};

std::vector<Include> IncludesOf(const std::string& folder) {
  std::vector<Include> includes;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("#include ", 0) != 0) continue;
      const size_t begin = line.find_first_of("<\"") + 1;
      includes.push_back({fs::relative(entry.path(), kRoot),
                          line.substr(begin, line.find_last_of(">\"") - begin)});
    }
  }
  return includes;
}

std::string FirstFolder(const std::string& header) { return header.substr(0, header.find('/')); }

TEST(LayeringTest, EveryFolderIncludesOnlyTheFoldersBelowIt) {
  const std::map<std::string, std::set<std::string>> allowed = {
      {"storage", {"storage"}},
      {"gpu", {"gpu", "storage"}},
      {"server", {"server", "gpu", "storage", "embcache"}},
      {"client", {"client", "embcache"}}};
  const std::set<std::string> ours = {"storage", "gpu", "server", "client", "tests", "embcache"};
  for (const auto& [folder, below] : allowed) {
    const std::vector<Include> includes = IncludesOf(folder);
    EXPECT_GT(includes.size(), 20u) << folder;
    for (const Include& include : includes) {
      const std::string from = FirstFolder(include.header);
      // What lies in memory that the daemon and its clients share is said once.
      if (folder == "client" && include.header == "storage/fast_layout.h") continue;
      EXPECT_TRUE(ours.count(from) == 0 || below.count(from) == 1)
          << include.file << " includes " << include.header;
    }
  }
}

TEST(LayeringTest, BelowTheServerThereIsNoGrpcAndNoProtobuf) {
  for (const char* folder : {"storage", "gpu"}) {
    for (const Include& include : IncludesOf(folder)) {
      const std::string from = FirstFolder(include.header);
      EXPECT_TRUE(from != "grpc" && from != "grpcpp" && from != "google" && from != "spdlog")
          << include.file << " includes " << include.header;
    }
  }
}

TEST(LayeringTest, OnlyTheRocksDbFilesIncludeRocksDb) {
  for (const Include& include : IncludesOf("storage")) {
    if (FirstFolder(include.header) != "rocksdb") continue;
    EXPECT_EQ(include.file.rfind("storage/rocksdb_", 0), 0u) << include.file;
  }
}

TEST(LayeringTest, OnlyTheGpuFolderIncludesCuda) {
  for (const char* folder : {"storage", "server", "client"}) {
    for (const Include& include : IncludesOf(folder)) {
      EXPECT_NE(include.header, "cuda.h") << include.file;
    }
  }
}

}  // namespace
}  // namespace embcache
