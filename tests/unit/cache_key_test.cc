#include "storage/cache_key.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char kHash[] = "0123456789abcdef";

CacheKey Key(absl::string_view model, absl::string_view hash, absl::string_view variant) {
  absl::StatusOr<CacheKey> key = CacheKey::Create(model, hash, variant);
  EXPECT_TRUE(key.ok()) << key.status();
  return *std::move(key);
}

std::string RandomBytes(std::mt19937& random, size_t least, size_t most) {
  std::string bytes(least + random() % (most - least + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(CacheKeyTest, GivesBackItsFields) {
  const CacheKey key = Key("qwen2-vl", kHash, "tile=2");
  EXPECT_EQ(key.model(), "qwen2-vl");
  EXPECT_EQ(key.content_hash(), kHash);
  EXPECT_EQ(key.variant(), "tile=2");
}

TEST(CacheKeyTest, FieldsMayHoldAnyBytes) {
  const std::string zeros(8, '\0');
  const CacheKey key = Key(absl::string_view("\0\xff/", 3), zeros, absl::string_view("\0", 1));
  EXPECT_EQ(key.model(), absl::string_view("\0\xff/", 3));
  EXPECT_EQ(key.content_hash(), zeros);
  EXPECT_EQ(key.variant(), absl::string_view("\0", 1));
}

TEST(CacheKeyTest, EveryLimitIsAllowedItself) {
  const CacheKey largest = Key(std::string(255, 'm'), std::string(64, 'h'), std::string(1024, 'v'));
  EXPECT_EQ(largest.model().size(), 255u);
  EXPECT_EQ(largest.content_hash().size(), 64u);
  EXPECT_EQ(largest.variant().size(), 1024u);
  const CacheKey smallest = Key("m", "12345678", "");
  EXPECT_EQ(smallest.content_hash().size(), 8u);
  EXPECT_EQ(smallest.variant(), "");
}

TEST(CacheKeyTest, AFieldOutsideItsLimitsIsNamedWithBoth) {
  const auto refused = [](absl::string_view model, absl::string_view hash,
                          absl::string_view variant) {
    const absl::Status status = CacheKey::Create(model, hash, variant).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("", kHash, ""), AllOf(HasSubstr("key.model: 0"), HasSubstr("255")));
  EXPECT_THAT(refused(std::string(256, 'm'), kHash, ""), HasSubstr("key.model: 256"));
  EXPECT_THAT(refused("m", "1234567", ""), AllOf(HasSubstr("key.content_hash: 7"), HasSubstr("8")));
  EXPECT_THAT(refused("m", std::string(65, 'h'), ""), HasSubstr("key.content_hash: 65"));
  EXPECT_THAT(refused("m", kHash, std::string(1025, 'v')),
              AllOf(HasSubstr("key.variant: 1025"), HasSubstr("1024")));
}

TEST(CacheKeyTest, TheSameBytesCutElsewhereAreAnotherKey) {
  EXPECT_NE(Key("a:b", "cccccccc", "x"), Key("a", "b:cccccccc", "x"));
  EXPECT_NE(Key("ab", "cccccccc", "d"), Key("a", "bcccccccc", "d"));
  EXPECT_NE(Key("a", "ccccccccd", ""), Key("a", "cccccccc", "d"));
}

TEST(CacheKeyTest, EqualFieldsAreOneKey) {
  EXPECT_EQ(Key("m", kHash, "v"), Key("m", kHash, "v"));
  EXPECT_FALSE(Key("m", kHash, "v") != Key("m", kHash, "v"));
}

TEST(CacheKeyTest, KeysAreEqualExactlyWhenAllFieldsAreEqual) {
  std::mt19937 random(1);
  // Few letters and lengths, so that concatenations often agree.
  const auto word = [&](size_t least, size_t most) {
    std::string text(least + random() % (most - least + 1), 'a');
    for (char& c : text) c = random() % 8 == 0 ? 'b' : 'a';
    return text;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string a[] = {word(1, 3), word(8, 10), word(0, 2)};
    const std::string b[] = {word(1, 3), word(8, 10), word(0, 2)};
    EXPECT_EQ(Key(a[0], a[1], a[2]) == Key(b[0], b[1], b[2]), std::equal(a, a + 3, b));
  }
}

TEST(CacheKeyTest, DecodeIsTheInverseOfEncoded) {
  std::mt19937 random(2);
  for (int i = 0; i < 5'000; ++i) {
    const std::string model = RandomBytes(random, 1, 255);
    const std::string hash = RandomBytes(random, 8, 64);
    const std::string variant = RandomBytes(random, 0, 1024);
    const CacheKey key = Key(model, hash, variant);
    const absl::StatusOr<CacheKey> decoded = CacheKey::Decode(key.encoded());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, key);
    EXPECT_EQ(decoded->model(), model);
    EXPECT_EQ(decoded->content_hash(), hash);
    EXPECT_EQ(decoded->variant(), variant);
  }
}

TEST(CacheKeyTest, TheEncodingIsTheOneOnDisk) {
  EXPECT_EQ(Key("m", "12345678", "vw").encoded(), absl::string_view("\x01m\x08"
                                                                    "12345678\x02\0vw",
                                                                    15));
  const std::string variant(0x0304, 'v');
  EXPECT_EQ(Key("m", "12345678", variant).encoded().substr(11, 2), absl::string_view("\x04\x03"));
}

TEST(CacheKeyTest, ACutOrLengthenedEncodingIsRefused) {
  const std::string whole(Key("model", kHash, "variant").encoded());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(CacheKey::Decode(whole.substr(0, length)).ok()) << length;
  }
  EXPECT_EQ(CacheKey::Decode(whole + "x").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CacheKeyTest, AnEncodingWithFieldsOutsideTheLimitsIsRefused) {
  EXPECT_THAT(CacheKey::Decode(absl::string_view("\0\x08"
                                                 "12345678\0\0",
                                                 12))
                  .status()
                  .message(),
              HasSubstr("key.model"));
  EXPECT_THAT(CacheKey::Decode(absl::string_view("\x01m\x01h\0\0", 6)).status().message(),
              HasSubstr("key.content_hash"));
  std::string encoded(
      "\x01m\x08"
      "12345678");
  encoded += "\x01\x04" + std::string(1025, 'v');
  EXPECT_THAT(CacheKey::Decode(encoded).status().message(), HasSubstr("key.variant: 1025"));
}

TEST(CacheKeyTest, RandomBytesAreRefusedOrAreTheEncodingOfWhatTheyDecodeTo) {
  std::mt19937 random(3);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    // Small length bytes, so that some are keys by chance.
    std::string bytes = RandomBytes(random, 0, 24);
    for (char& byte : bytes) byte = static_cast<char>(byte & 0x0b);
    const absl::StatusOr<CacheKey> key = CacheKey::Decode(bytes);
    if (!key.ok()) continue;
    ++accepted;
    EXPECT_EQ(key->encoded(), bytes);
    EXPECT_EQ(Key(key->model(), key->content_hash(), key->variant()), *key);
  }
  EXPECT_GT(accepted, 10) << "the test no longer reaches the accepting path";
}

TEST(CacheKeyTest, OrderIsThatOfTheEncodedBytes) {
  std::vector<CacheKey> keys = {Key("\xff", kHash, ""), Key("a", kHash, "b"), Key("a", kHash, "a")};
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys[0].variant(), "a");
  EXPECT_EQ(keys[1].variant(), "b");
  EXPECT_EQ(keys[2].model(), "\xff");
  EXPECT_FALSE(keys[0] < keys[0]);
}

TEST(CacheKeyTest, HashingAgreesWithEquality) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {Key("m", kHash, ""), Key("m", kHash, "v"), Key("n", kHash, ""), Key("a:b", "cccccccc", "x"),
       Key("a", "b:cccccccc", "x")}));
}

TEST(CacheKeyTest, DebugStringShowsTheHashInHex) {
  EXPECT_EQ(Key("m", "\x01\x02\x03\x04\x05\x06\x07\xff", "v").DebugString(),
            "m/01020304050607ff/v");
}

}  // namespace
}  // namespace embcache
