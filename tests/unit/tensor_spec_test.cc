#include "storage/tensor_spec.h"

#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TensorSpec Tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

TensorSpec Absent(std::string name) { return {.name = std::move(name), .absent = true}; }

std::string Refusal(std::vector<TensorSpec> tensors) {
  const absl::Status status = LayOutTensors(std::move(tensors)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::string SizeRefusal(DType dtype, const std::vector<int64_t>& shape) {
  const absl::Status status = TensorBytes(dtype, shape).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(DTypeTest, EveryDTypeHasItsNumberBitsAndName) {
  const std::map<int, std::pair<uint32_t, std::string>> expected = {
      {1, {8, "BOOL"}},         {2, {8, "U8"}},          {3, {8, "I8"}},       {4, {16, "U16"}},
      {5, {16, "I16"}},         {6, {32, "U32"}},        {7, {32, "I32"}},     {8, {64, "U64"}},
      {9, {64, "I64"}},         {10, {16, "F16"}},       {11, {16, "BF16"}},   {12, {32, "F32"}},
      {13, {64, "F64"}},        {14, {8, "F8_E4M3"}},    {15, {8, "F8_E5M2"}}, {16, {8, "F8_E8M0"}},
      {17, {4, "F4"}},          {18, {6, "F6_E2M3"}},    {19, {6, "F6_E3M2"}}, {20, {64, "C64"}},
      {21, {8, "F8_E4M3FNUZ"}}, {22, {8, "F8_E5M2FNUZ"}}};
  for (int number = 0; number < 256; ++number) {
    const DType dtype = static_cast<DType>(number);
    const auto it = expected.find(number);
    if (it == expected.end()) {
      EXPECT_EQ(DTypeBits(dtype), 0u) << number;
      EXPECT_EQ(DTypeName(dtype), "INVALID") << number;
    } else {
      EXPECT_EQ(DTypeBits(dtype), it->second.first) << number;
      EXPECT_EQ(DTypeName(dtype), it->second.second) << number;
      EXPECT_EQ(DTypeFromName(it->second.second), dtype);
    }
  }
}

TEST(DTypeTest, UnknownNamesAreInvalid) {
  for (const char* name : {"", "INVALID", "bf16", "BF16 ", "F128"}) {
    EXPECT_EQ(DTypeFromName(name), DType::kInvalid) << name;
  }
}

TEST(TensorBytesTest, IsTheProductOfShapeAndElementSize) {
  EXPECT_EQ(*TensorBytes(DType::kBF16, {256, 1152}), 256u * 1152 * 2);
  EXPECT_EQ(*TensorBytes(DType::kC64, {3}), 24u);
  EXPECT_EQ(*TensorBytes(DType::kBool, {1, 1, 1, 1, 1, 1, 1, 5}), 5u);
}

TEST(TensorBytesTest, AnEmptyShapeIsOneElement) {
  EXPECT_EQ(*TensorBytes(DType::kF64, {}), 8u);
  EXPECT_THAT(SizeRefusal(DType::kF4, {}), HasSubstr("not a whole number of bytes"));
}

TEST(TensorBytesTest, FourAndSixBitElementsArePacked) {
  EXPECT_EQ(*TensorBytes(DType::kF4, {2}), 1u);
  EXPECT_EQ(*TensorBytes(DType::kF4, {3, 2}), 3u);
  EXPECT_EQ(*TensorBytes(DType::kF6E2M3, {4}), 3u);
  EXPECT_EQ(*TensorBytes(DType::kF6E3M2, {2, 4}), 6u);
}

TEST(TensorBytesTest, APartOfAByteIsRefused) {
  EXPECT_THAT(SizeRefusal(DType::kF4, {3}), AllOf(HasSubstr("F4 [3]"), HasSubstr("whole number")));
  EXPECT_THAT(SizeRefusal(DType::kF6E2M3, {2}), HasSubstr("whole number"));
  EXPECT_THAT(SizeRefusal(DType::kF6E3M2, {3, 3}), HasSubstr("F6_E3M2 [3,3]"));
}

TEST(TensorBytesTest, UnknownDTypesAreRefused) {
  EXPECT_THAT(SizeRefusal(DType::kInvalid, {1}), HasSubstr("dtype: 0"));
  EXPECT_THAT(SizeRefusal(static_cast<DType>(200), {1}), HasSubstr("dtype: 200"));
}

TEST(TensorBytesTest, DimensionsMustBePositive) {
  EXPECT_THAT(SizeRefusal(DType::kU8, {4, 0}), HasSubstr("[4,0]"));
  EXPECT_THAT(SizeRefusal(DType::kU8, {-1}), HasSubstr("[-1]"));
  EXPECT_THAT(SizeRefusal(DType::kU8, {std::numeric_limits<int64_t>::min()}),
              HasSubstr("not positive"));
  EXPECT_THAT(SizeRefusal(DType::kU8, {kHuge, 0}), HasSubstr("shape"));
}

TEST(TensorBytesTest, TheRankIsLimited) {
  EXPECT_TRUE(TensorBytes(DType::kU8, std::vector<int64_t>(8, 2)).ok());
  EXPECT_THAT(SizeRefusal(DType::kU8, std::vector<int64_t>(9, 1)),
              AllOf(HasSubstr("rank 9"), HasSubstr("at most 8")));
}

TEST(TensorBytesTest, SizesThatOverflowAreRefused) {
  EXPECT_THAT(SizeRefusal(DType::kU8, {kHuge}), HasSubstr("overflows"));
  EXPECT_THAT(SizeRefusal(DType::kF4, {kHuge, kHuge}), HasSubstr("overflows"));
  EXPECT_THAT(SizeRefusal(DType::kU8, std::vector<int64_t>(8, int64_t{1} << 32)),
              HasSubstr("overflows"));
  // 2^60 bits are the most.
  EXPECT_EQ(*TensorBytes(DType::kU8, {int64_t{1} << 57}), uint64_t{1} << 57);
  EXPECT_THAT(SizeRefusal(DType::kU8, {(int64_t{1} << 57) + 1}), HasSubstr("overflows"));
}

TEST(LayOutTensorsTest, TensorsFollowEachOtherAtMultiplesOfTheAlignment) {
  const absl::StatusOr<TensorLayout> layout =
      LayOutTensors({Tensor("a", DType::kU8, {1}), Tensor("b", DType::kU8, {256}),
                     Tensor("c", DType::kU8, {257}), Tensor("d", DType::kF32, {2})});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->tensors[0].offset, 0u);
  EXPECT_EQ(layout->tensors[1].offset, 256u);
  EXPECT_EQ(layout->tensors[2].offset, 512u);
  EXPECT_EQ(layout->tensors[3].offset, 1024u);
  EXPECT_EQ(layout->tensors[3].bytes, 8u);
  EXPECT_EQ(layout->payload_bytes, 1032u) << "the end of the last tensor, not rounded up";
}

TEST(LayOutTensorsTest, OffsetsOfTheCallerAreReplaced) {
  TensorSpec tensor = Tensor("a", DType::kU8, {4});
  tensor.offset = 12345;
  EXPECT_EQ(LayOutTensors({tensor})->tensors[0].offset, 0u);
}

TEST(LayOutTensorsTest, AnAbsentTensorTakesNoBytes) {
  const absl::StatusOr<TensorLayout> layout =
      LayOutTensors({Absent("x"), Tensor("a", DType::kU8, {3}), Absent("y")});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->payload_bytes, 3u);
  EXPECT_TRUE(layout->tensors[0].absent);
  EXPECT_EQ(layout->tensors[2].offset, 0u);
  EXPECT_EQ(layout->tensors[2].bytes, 0u);
}

TEST(LayOutTensorsTest, ThereMustBeOneTensorThatIsNotAbsent) {
  EXPECT_THAT(Refusal({}), AllOf(HasSubstr("tensors: 0 given"), HasSubstr("1024")));
  EXPECT_THAT(Refusal({Absent("a"), Absent("b")}), HasSubstr("must not be absent"));
}

TEST(LayOutTensorsTest, TheNumberOfTensorsIsLimited) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 1024; ++i) tensors.push_back(Tensor(std::to_string(i), DType::kU8, {1}));
  EXPECT_TRUE(LayOutTensors(tensors).ok());
  tensors.push_back(Tensor("one more", DType::kU8, {1}));
  EXPECT_THAT(Refusal(tensors), HasSubstr("tensors: 1025 given"));
}

TEST(LayOutTensorsTest, NamesAreUniqueAndLimited) {
  EXPECT_THAT(Refusal({Tensor("a", DType::kU8, {1}), Absent("a")}),
              HasSubstr("tensors[1].name: \"a\" is used twice"));
  EXPECT_THAT(Refusal({Tensor("", DType::kU8, {1}), Tensor("", DType::kU8, {1})}),
              HasSubstr("tensors[1].name"));
  EXPECT_TRUE(LayOutTensors({Tensor(std::string(128, 'n'), DType::kU8, {1})}).ok());
  EXPECT_THAT(Refusal({Tensor(std::string(129, 'n'), DType::kU8, {1})}),
              AllOf(HasSubstr("tensors[0].name: 129"), HasSubstr("at most 128")));
}

TEST(LayOutTensorsTest, AnAbsentTensorHasNoShapeNoBytesAndNoUnknownDType) {
  TensorSpec absent = Absent("x");
  absent.shape = {1};
  EXPECT_THAT(Refusal({Tensor("a", DType::kU8, {1}), absent}), HasSubstr("tensors[1].absent"));
  absent = Absent("x");
  absent.bytes = 1;
  EXPECT_THAT(Refusal({Tensor("a", DType::kU8, {1}), absent}), HasSubstr("tensors[1].absent"));
  absent = Absent("x");
  absent.dtype = static_cast<DType>(99);
  EXPECT_THAT(Refusal({Tensor("a", DType::kU8, {1}), absent}), HasSubstr("tensors[1].dtype: 99"));
  absent.dtype = DType::kBF16;
  EXPECT_TRUE(LayOutTensors({Tensor("a", DType::kU8, {1}), absent}).ok());
}

TEST(LayOutTensorsTest, BytesOfTheCallerMustAgree) {
  TensorSpec tensor = Tensor("a", DType::kF16, {3});
  tensor.bytes = 6;
  EXPECT_TRUE(LayOutTensors({tensor}).ok());
  tensor.bytes = 8;
  EXPECT_THAT(Refusal({tensor}),
              AllOf(HasSubstr("tensors[0].bytes: 8"), HasSubstr("F16 [3]"), HasSubstr("takes 6")));
}

TEST(LayOutTensorsTest, AFaultyShapeNamesItsTensor) {
  EXPECT_THAT(Refusal({Tensor("a", DType::kU8, {1}), Tensor("b", DType::kU8, {0})}),
              HasSubstr("tensors[1].shape"));
  EXPECT_THAT(Refusal({Tensor("a", DType::kInvalid, {1})}), HasSubstr("tensors[0].dtype"));
}

TEST(LayOutTensorsTest, ASumThatOverflowsIsRefused) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 9; ++i) {
    tensors.push_back(Tensor(std::to_string(i), DType::kU8, {int64_t{1} << 57}));
  }
  EXPECT_THAT(Refusal(tensors),
              AllOf(HasSubstr("the sum of sizes overflows"), HasSubstr("tensors[8]")));
}

TEST(ValidateLayoutTest, AcceptsWhatLayOutTensorsGives) {
  const TensorLayout layout =
      *LayOutTensors({Absent("x"), Tensor("a", DType::kF4, {2}), Tensor("b", DType::kF32, {7, 3})});
  EXPECT_TRUE(ValidateLayout(layout).ok());
}

TEST(ValidateLayoutTest, RefusesEveryOtherPlaceOrSize) {
  const TensorLayout good =
      *LayOutTensors({Tensor("a", DType::kU8, {300}), Absent("x"), Tensor("b", DType::kU8, {5})});
  std::vector<TensorLayout> bad(6, good);
  bad[0].tensors[2].offset -= 256;  // over the first
  bad[1].tensors[2].offset = uint64_t{1} << 63;
  bad[2].payload_bytes += 1;
  bad[3].tensors[1].offset = 256;  // absent, yet placed
  bad[4].tensors[0].bytes = 0;
  bad[5].tensors.clear();
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(ValidateLayout(bad[i]).code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

class FindMismatchTest : public testing::Test {
 protected:
  const std::vector<TensorSpec> tensors_ =
      LayOutTensors({Tensor("image", DType::kBF16, {576, 1152}), Tensor("scale", DType::kF32, {}),
                     Absent("video")})
          ->tensors;

  std::string Mismatch(const TensorExpectation& want) const {
    return FindMismatch(tensors_, {want}).value_or("");
  }
};

TEST_F(FindMismatchTest, NothingExpectedIsAlwaysMet) {
  EXPECT_EQ(FindMismatch(tensors_, {}), std::nullopt);
  EXPECT_EQ(FindMismatch({}, {}), std::nullopt);
  EXPECT_EQ(Mismatch({}), "");
}

TEST_F(FindMismatchTest, WhatAgreesIsMet) {
  EXPECT_EQ(Mismatch({.name = "image",
                      .dtype = DType::kBF16,
                      .shape = {576, 1152},
                      .rows = 576,
                      .bytes = 576 * 1152 * 2}),
            "");
  EXPECT_EQ(Mismatch({.name = "scale", .dtype = DType::kF32, .rows = 1, .bytes = 4}), "");
  EXPECT_EQ(Mismatch({.name = "video"}), "");
}

TEST_F(FindMismatchTest, WithoutANameTheFirstTensorIsMeant) {
  EXPECT_EQ(Mismatch({.rows = 576}), "");
  EXPECT_THAT(Mismatch({.rows = 577}), HasSubstr("\"image\""));
  EXPECT_THAT(*FindMismatch({}, {TensorExpectation{}}), HasSubstr("no tensor"));
}

TEST_F(FindMismatchTest, EveryPartThatDiffersIsSaidWithBothSides) {
  EXPECT_EQ(Mismatch({.name = "audio"}), "no tensor \"audio\"");
  EXPECT_EQ(Mismatch({.dtype = DType::kF16}), "tensor \"image\": dtype BF16, expected F16");
  EXPECT_EQ(Mismatch({.shape = {576}}), "tensor \"image\": shape [576,1152], expected [576]");
  EXPECT_EQ(Mismatch({.rows = 5}), "tensor \"image\": rows 576, expected 5");
  EXPECT_EQ(Mismatch({.bytes = 7}), "tensor \"image\": bytes 1327104, expected 7");
}

TEST_F(FindMismatchTest, AnAbsentTensorMeetsNothingButItsName) {
  EXPECT_NE(Mismatch({.name = "video", .dtype = DType::kBF16}), "");
  EXPECT_NE(Mismatch({.name = "video", .shape = {1}}), "");
  EXPECT_EQ(Mismatch({.name = "video", .rows = 1}), "tensor \"video\": rows 0, expected 1");
  EXPECT_NE(Mismatch({.name = "video", .bytes = 1}), "");
}

TEST_F(FindMismatchTest, AllExpectationsMustBeMet) {
  EXPECT_THAT(FindMismatch(tensors_, {{.name = "image", .rows = 576}, {.name = "scale", .rows = 2}})
                  .value_or(""),
              HasSubstr("\"scale\""));
}

TEST_F(FindMismatchTest, OverlongExpectationsAreCutInTheMessage) {
  EXPECT_LT(Mismatch({.name = std::string(100'000, 'n')}).size(), 300u);
  EXPECT_LT(Mismatch({.shape = std::vector<int64_t>(100'000, 1)}).size(), 300u);
}

}  // namespace
}  // namespace embcache
