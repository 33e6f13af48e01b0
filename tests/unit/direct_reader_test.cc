#include "storage/direct_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/small_files.h"

namespace embcache {
namespace {

class DirectReaderTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kFileBytes = (uint64_t{9} << 20) + 1234;

  void SetUp() override {
    content_.resize(kFileBytes);
    std::mt19937_64 random(1);
    for (uint64_t at = 0; at + 8 <= kFileBytes; at += 8) {
      const uint64_t word = random();
      std::memcpy(content_.data() + at, &word, sizeof(word));
    }
    const ScopedFd fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(WriteAll(fd.get(), content_, path_).ok());
    const ScopedFd direct(open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (direct.get() < 0) GTEST_SKIP() << "this file system has no direct reads";
    auto reader = DirectReader::Create();
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
  }
  void TearDown() override { unlink(path_.c_str()); }

  absl::StatusOr<std::string> Read(uint64_t offset, uint64_t bytes) {
    std::string got;
    absl::Status status = reader_->Read(path_, offset, bytes, [&](absl::string_view piece) {
      got.append(piece.data(), piece.size());
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return got;
  }
  void ExpectRange(uint64_t offset, uint64_t bytes) {
    const absl::StatusOr<std::string> got = Read(offset, bytes);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(*got == content_.substr(offset, bytes)) << offset << " + " << bytes;
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/direct_reader_", getpid());
  std::string content_;
  std::unique_ptr<DirectReader> reader_;
};

TEST_F(DirectReaderTest, AnyRangeComesWholeAndInOrder) {
  for (const uint64_t bytes : {1, 4095, 4096, 4097, 262'144, 1'114'112, 2'228'225, 5'000'001}) {
    for (const uint64_t offset : {0, 1, 4095, 4096, 1'000'003}) ExpectRange(offset, bytes);
  }
  ExpectRange(0, kFileBytes);
  std::mt19937_64 random(2);
  for (int i = 0; i < 50; ++i) {
    const uint64_t offset = random() % kFileBytes;
    ExpectRange(offset, 1 + random() % (kFileBytes - offset));
  }
}

TEST_F(DirectReaderTest, TheEndOfTheFileCanBeReadAndNothingBeyond) {
  ExpectRange(kFileBytes - 1, 1);
  ExpectRange(kFileBytes - 3'000'000, 3'000'000);
  for (const uint64_t bytes : {2, 4096, 8'000'000}) {
    EXPECT_EQ(Read(kFileBytes - 1, bytes).status().code(), absl::StatusCode::kDataLoss) << bytes;
  }
}

TEST_F(DirectReaderTest, WhoeverTakesThePiecesMayStopAndTheReaderGoesOnWithTheNextRange) {
  int pieces = 0;
  const absl::Status stopped = reader_->Read(path_, 0, kFileBytes, [&](absl::string_view) {
    return ++pieces == 2 ? absl::CancelledError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(stopped, absl::CancelledError("enough"));
  EXPECT_EQ(pieces, 2);
  ExpectRange(12'345, 6'000'000);
}

TEST_F(DirectReaderTest, TheLastPieceIsShortSoThatLittleIsLeftToDoWhenItHasCome) {
  uint64_t last = 0;
  ASSERT_TRUE(reader_
                  ->Read(path_, 0, uint64_t{2} << 20,
                         [&](absl::string_view piece) {
                           last = piece.size();
                           return absl::OkStatus();
                         })
                  .ok());
  EXPECT_LE(last, uint64_t{256} << 10);
}

TEST_F(DirectReaderTest, AFileThatCannotBeOpenedIsUnavailable) {
  unlink(path_.c_str());
  EXPECT_EQ(Read(0, 1).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace embcache
