#include "storage/record_format.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include "storage/byte_codec.h"
#include "tests/unit/store_test_util.h"

namespace embcache {
namespace {

StoredRecord Example() {
  const TensorSpec main{"embeds", DType::kBF16, {5, 100}};
  const TensorSpec absent{"deepstack", DType::kInvalid, {}, true};
  EntryInfo info{TestKey("k"),
                 *LayOutTensors({main, absent}),
                 {{"grid", "1,2"}},
                 77,
                 absl::FromUnixNanos(123456789)};
  return {std::make_shared<const EntryInfo>(std::move(info)), 42, 3};
}

TEST(RecordFormatTest, AHeaderComesBackWhole) {
  const StoredRecord record = Example();
  const absl::StatusOr<RecordHeader> header = DecodeHeader(EncodeHeader(record, {11, 12}));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->hash, (PayloadHash{11, 12}));
  EXPECT_EQ(header->record.generation, 42);
  EXPECT_EQ(header->record.model_epoch, 3);
  EXPECT_EQ(header->record.info->key, record.info->key);
  EXPECT_EQ(header->record.info->layout.tensors, record.info->layout.tensors);
  EXPECT_EQ(header->record.info->layout.payload_bytes, 1000);
  EXPECT_EQ(header->record.info->metadata, record.info->metadata);
  EXPECT_EQ(header->record.info->expires, absl::InfiniteFuture());
}

TEST(RecordFormatTest, AFlippedBitAnywhereInAHeaderIsDamage) {
  const std::string whole = EncodeHeader(Example(), {11, 12});
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] ^= 1 << bit % 8;
    EXPECT_TRUE(absl::IsDataLoss(DecodeHeader(damaged).status())) << "bit " << bit;
  }
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeHeader(whole.substr(0, bytes)).status())) << bytes;
  }
}

TEST(RecordFormatTest, AFooterComesBackWholeForItsOwnFileOnly) {
  std::vector<FooterEntry> entries;
  entries.push_back({TestKey("a"), 0, 100, 7, 1, absl::FromUnixNanos(5), absl::InfiniteFuture(),
                     absl::FromUnixNanos(6)});
  entries.push_back({TestKey("b"),
                     3,
                     200,
                     8,
                     2,
                     absl::FromUnixNanos(5),
                     absl::FromUnixNanos(9),
                     absl::FromUnixNanos(6),
                     {4096, 300, 2, 3},
                     40'000});
  const std::string bytes = EncodeFooter(9, entries);
  EXPECT_GE(bytes.size(), kFooterMinBytes);
  const absl::StatusOr<std::vector<FooterEntry>> decoded = DecodeFooter(9, bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), 2);
  EXPECT_EQ((*decoded)[1].key, TestKey("b"));
  EXPECT_EQ((*decoded)[1].entry, 3);
  EXPECT_EQ((*decoded)[1].payload_bytes, 200);
  EXPECT_EQ((*decoded)[1].generation, 8);
  EXPECT_EQ((*decoded)[1].model_epoch, 2);
  EXPECT_EQ((*decoded)[1].expires, absl::FromUnixNanos(9));
  EXPECT_EQ((*decoded)[1].position, (RecordPosition{4096, 300, 2, 3}));
  EXPECT_EQ((*decoded)[0].heap_bytes, 0);
  EXPECT_EQ((*decoded)[1].heap_bytes, 40'000);
  EXPECT_TRUE(absl::IsDataLoss(DecodeFooter(10, bytes).status()));
}

// A footer of file 9 with one entry.
std::string OldFooter(absl::string_view magic, bool positions) {
  ByteWriter old;
  for (char byte : magic) old.Number(byte);
  old.Number(uint64_t{9});
  old.Number(uint32_t{1});
  old.Number(uint32_t{3});
  for (int field : {200, 8, 2}) old.Number(static_cast<uint64_t>(field));
  for (int i = 0; i < 3; ++i) old.Time(absl::FromUnixNanos(5 + i));
  if (positions) {
    old.Number(uint64_t{4096});
    old.Number(uint32_t{300});
    old.Number(uint8_t{2});
    old.Number(uint8_t{3});
  }
  old.Text<uint16_t>(TestKey("b").encoded());
  old.PadTo(kFooterMinBytes);
  const uint64_t hash = XXH3_64bits(old.bytes().data(), old.bytes().size());
  old.Number(hash);
  return old.bytes();
}

TEST(RecordFormatTest, AFooterOfVersionTwoIsReadAndDoesNotTellHeapBytes) {
  const absl::StatusOr<std::vector<FooterEntry>> decoded = DecodeFooter(9, OldFooter("EMF2", true));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), 1);
  EXPECT_EQ((*decoded)[0].key, TestKey("b"));
  EXPECT_EQ((*decoded)[0].payload_bytes, 200);
  EXPECT_EQ((*decoded)[0].position, (RecordPosition{4096, 300, 2, 3}));
  EXPECT_EQ((*decoded)[0].heap_bytes, 0);
}

TEST(RecordFormatTest, AFooterOfVersionOneIsReadAndTellsNoPositions) {
  const absl::StatusOr<std::vector<FooterEntry>> decoded =
      DecodeFooter(9, OldFooter("EMF1", false));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), 1);
  EXPECT_EQ((*decoded)[0].key, TestKey("b"));
  EXPECT_EQ((*decoded)[0].generation, 8);
  EXPECT_EQ((*decoded)[0].last_access, absl::FromUnixNanos(7));
  EXPECT_FALSE((*decoded)[0].position.known());
}

TEST(RecordFormatTest, ADamagedByteAnywhereInAFooterIsDamage) {
  std::vector<FooterEntry> entries;
  entries.push_back({TestKey("a"), 0, 100, 7, 1, absl::FromUnixNanos(5), absl::InfiniteFuture(),
                     absl::FromUnixNanos(6)});
  const std::string whole = EncodeFooter(9, entries);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 0x10;
    EXPECT_TRUE(absl::IsDataLoss(DecodeFooter(9, damaged).status())) << at;
  }
}

}  // namespace
}  // namespace embcache
