#include "storage/entry.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MetadataTest, NamesAndValuesOfAnyBytesAreAllowed) {
  EXPECT_TRUE(ValidateMetadata({}).ok());
  EXPECT_TRUE(ValidateMetadata({{"grid_thw", std::string("\0\xff", 2)}, {"empty", ""}}).ok());
}

TEST(MetadataTest, ExactlyTheLimitIsAllowedAndOneByteMoreIsNot) {
  const std::string name = "name";
  EXPECT_TRUE(ValidateMetadata({{name, std::string(kMaxMetadataBytes - 4, 'x')}}).ok());
  const absl::Status status = ValidateMetadata({{name, std::string(kMaxMetadataBytes - 3, 'x')}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("65537"), HasSubstr("at most 65536")));
}

TEST(MetadataTest, NamesCountTowardTheLimit) {
  EXPECT_FALSE(ValidateMetadata({{std::string(kMaxMetadataBytes + 1, 'n'), ""}}).ok());
  EXPECT_FALSE(ValidateMetadata({{"a", std::string(kMaxMetadataBytes / 2, 'x')},
                                 {"b", std::string(kMaxMetadataBytes / 2, 'x')}})
                   .ok());
}

TEST(MetadataTest, AnEmptyNameIsRefused) {
  EXPECT_THAT(ValidateMetadata({{"a", ""}, {"", "value"}}).message(),
              HasSubstr("metadata[1]: the name is empty"));
}

TEST(MetadataTest, ANameUsedTwiceIsRefusedAndALongOneCutInTheMessage) {
  EXPECT_THAT(ValidateMetadata({{"a", "1"}, {"b", "2"}, {"a", "3"}}).message(),
              HasSubstr("metadata[2]: the name \"a\" is used twice"));
  const std::string name(10'000, 'n');
  EXPECT_LT(ValidateMetadata({{name, ""}, {name, ""}}).message().size(), 200u);
}

TEST(TierNameTest, EveryTierHasItsName) {
  EXPECT_EQ(TierName(TierId::kL1), "l1");
  EXPECT_EQ(TierName(TierId::kL2), "l2");
  EXPECT_EQ(TierName(TierId::kL3), "l3");
  EXPECT_EQ(TierName(static_cast<TierId>(9)), "?");
}

}  // namespace
}  // namespace embcache
