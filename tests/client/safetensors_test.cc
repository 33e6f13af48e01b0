#include "client/cli/safetensors.h"

#include <endian.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/entry_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace embcache::cli {
namespace {

namespace fs = std::filesystem;
using client::Bytes;
using client::DType;
using client::TensorSpec;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string name = (fs::temp_directory_path() / "safetensors.XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~SafetensorsTest() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::string WriteRaw(uint64_t length, const std::string& rest) const {
    const uint64_t little = htole64(length);
    std::ofstream file(Path("raw"), std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(&little), sizeof(little));
    file << rest;
    return Path("raw");
  }

  std::string directory_;
};

TensorSpec Spec(std::string name, DType dtype, std::vector<int64_t> shape) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype;
  spec.bytes = client::TensorBytes(dtype, shape).value();
  spec.shape = std::move(shape);
  return spec;
}

std::string Text(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

TEST_F(SafetensorsTest, EveryDTypeComesBackByteForByte) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<uint8_t>> values;
  std::vector<Bytes> views;
  uint8_t next = 1;
  for (DType dtype : client::AllDTypes()) {
    tensors.push_back(Spec(std::string(client::DTypeName(dtype)), dtype, {3, 4}));
    std::vector<uint8_t>& value = values.emplace_back(tensors.back().bytes);
    for (uint8_t& byte : value) byte = next++;
  }
  for (const auto& value : values) views.emplace_back(value);
  const client::Metadata metadata = {{"model", "m \"quoted\""}, {"Größe", "1,2,3"}};
  ASSERT_TRUE(WriteSafetensors(Path("all"), tensors, views, metadata).ok());

  const auto file = SafetensorsFile::Open(Path("all"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file->tensors()[i].name, tensors[i].name);
    EXPECT_EQ(file->tensors()[i].dtype, tensors[i].dtype);
    EXPECT_EQ(file->tensors()[i].shape, tensors[i].shape);
    EXPECT_EQ(Text(file->data(i)), Text(views[i]));
  }
}

TEST_F(SafetensorsTest, AScalarIsOneElement) {
  const std::vector<uint8_t> value = {1, 2, 3, 4};
  ASSERT_TRUE(
      WriteSafetensors(Path("scalar"), {Spec("s", DType::kF32, {})}, {Bytes(value)}, {}).ok());
  const auto file = SafetensorsFile::Open(Path("scalar"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors()[0].shape.empty());
  EXPECT_EQ(file->tensors()[0].bytes, 4u);
}

TEST_F(SafetensorsTest, DataStartsAtAMultipleOfEight) {
  const std::vector<uint8_t> value(5);
  ASSERT_TRUE(
      WriteSafetensors(Path("pad"), {Spec("odd", DType::kU8, {5})}, {Bytes(value)}, {}).ok());
  EXPECT_EQ((fs::file_size(Path("pad")) - 5) % 8, 0u);
}

TEST_F(SafetensorsTest, TheSampleFilesAreReadAndWrittenBackUnchanged) {
  int files = 0;
  for (const auto& item : fs::directory_iterator(EMBCACHE_TEST_DATA "/embeddings")) {
    const auto file = SafetensorsFile::Open(item.path().string());
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<Bytes> views;
    for (size_t i = 0; i < file->tensors().size(); ++i) views.push_back(file->data(i));
    ASSERT_TRUE(WriteSafetensors(Path("copy"), file->tensors(), views, file->metadata()).ok());
    const auto copy = SafetensorsFile::Open(Path("copy"));
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(copy->tensors(), file->tensors());
    EXPECT_EQ(copy->metadata(), file->metadata());
    EXPECT_EQ(Text(copy->all_data()), Text(file->all_data()));
    ++files;
  }
  EXPECT_EQ(files, 7);
}

TEST_F(SafetensorsTest, AFailedWriteLeavesNothingBehind) {
  const std::vector<uint8_t> value(4);
  const absl::Status status = WriteSafetensors(Path("none"), {Spec("a", DType::kU8, {4})},
                                               {Bytes(value)}, {{"bad", "\xff\xfe"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(SafetensorsTest, WritingTheNameOfTheMetadataIsRefused) {
  const std::vector<uint8_t> value(4);
  EXPECT_FALSE(
      WriteSafetensors(Path("x"), {Spec("__metadata__", DType::kU8, {4})}, {Bytes(value)}, {})
          .ok());
}

TEST_F(SafetensorsTest, AMissingFileIsNotFound) {
  EXPECT_EQ(SafetensorsFile::Open(Path("absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsTest, AFileTooShortForALengthIsRefused) {
  std::ofstream(Path("short")) << "1234567";
  EXPECT_FALSE(SafetensorsFile::Open(Path("short")).ok());
  std::ofstream(Path("empty"));
  EXPECT_FALSE(SafetensorsFile::Open(Path("empty")).ok());
}

TEST_F(SafetensorsTest, AHeaderLongerThanTheFileIsRefused) {
  for (uint64_t length : {uint64_t{3}, uint64_t{100}, uint64_t{1} << 40, ~uint64_t{0}}) {
    EXPECT_FALSE(SafetensorsFile::Open(WriteRaw(length, "{}")).ok()) << length;
  }
}

TEST_F(SafetensorsTest, AHeaderOverTheLimitIsRefusedEvenIfItIsThere) {
  const std::string path = WriteRaw(kMaxSafetensorsHeader + 1, "{}");
  fs::resize_file(path, kMaxSafetensorsHeader + 100);  // sparse
  EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()), HasSubstr("limit"));
}

TEST_F(SafetensorsTest, WhatIsNoSafetensorsFileIsCalledThat) {
  std::ofstream(Path("short")) << "1234567";
  std::ofstream(Path("text")) << "this is no tensor file";
  for (const std::string& path : {Path("short"), Path("text"), WriteRaw(3, "abc")}) {
    EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()),
                HasSubstr(path + ": not a safetensors file: "));
  }
}

TEST_F(SafetensorsTest, AHeaderPaddedWithSpacesIsRead) {
  EXPECT_TRUE(SafetensorsFile::Open(WriteRaw(8, "{}      ")).ok());
}

// --- Malformed headers: what is wrong, the header, bytes of data, part of the message. ---

struct BadHeader {
  const char* name;
  std::string header;
  uint64_t data_bytes;
  const char* message;
};

std::string Tensor(const char* dtype, const char* shape, const char* offsets) {
  return absl::StrCat(R"("t":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}");
}

std::string One(const char* dtype, const char* shape, const char* offsets) {
  return absl::StrCat("{", Tensor(dtype, shape, offsets), "}");
}

const BadHeader kBadHeaders[] = {
    {"Empty", "", 0, "start"},
    {"LeadingSpace", " {}", 0, "start"},
    {"NotAnObject", "[]", 0, "start"},
    {"Truncated", R"({"t":{"dtype":"U8")", 0, "JSON"},
    {"TrailingGarbage", "{} x", 0, "JSON"},
    {"NotUtf8", "{\"\xff\":{}}", 0, "JSON"},
    {"RepeatedTensor",
     absl::StrCat("{", Tensor("\"U8\"", "[1]", "[0,1]"), ",", Tensor("\"U8\"", "[1]", "[1,2]"),
                  "}"),
     2, "repeated"},
    {"RepeatedMetadata", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "repeated"},
    {"DeepNesting", "{\"t\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0,
     "deep"},
    {"MetadataNoObject", R"({"__metadata__":[]})", 0, "__metadata__"},
    {"MetadataNoString", R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
    {"TensorNoObject", R"({"t":1})", 0, "object"},
    {"NoDType", R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "dtype"},
    {"DTypeNoString", One("1", "[1]", "[0,1]"), 1, "dtype"},
    {"DTypeUnknown", One("\"F33\"", "[1]", "[0,1]"), 1, "F33"},
    {"NoShape", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "shape"},
    {"ShapeNoList", One("\"U8\"", "1", "[0,1]"), 1, "shape"},
    {"NegativeDimension", One("\"U8\"", "[-1]", "[0,1]"), 1, "shape"},
    {"FractionalDimension", One("\"U8\"", "[1.5]", "[0,1]"), 1, "shape"},
    {"HugeDimension", One("\"U8\"", "[18446744073709551615]", "[0,1]"), 1, "shape"},
    {"ZeroDimension", One("\"U8\"", "[0]", "[0,0]"), 0, "positive"},
    {"SizeOverflows", One("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "overflow"},
    {"HalfAByte", One("\"F4\"", "[3]", "[0,1]"), 1, "whole bytes"},
    {"NoOffsets", R"({"t":{"dtype":"U8","shape":[1]}})", 1, "data_offsets"},
    {"OneOffset", One("\"U8\"", "[1]", "[0]"), 1, "data_offsets"},
    {"ThreeOffsets", One("\"U8\"", "[1]", "[0,1,2]"), 1, "data_offsets"},
    {"NegativeOffset", One("\"U8\"", "[1]", "[-1,0]"), 1, "data_offsets"},
    {"OffsetsBackwards", One("\"U8\"", "[1]", "[1,0]"), 1, "data_offsets"},
    {"WrongSize", One("\"F32\"", "[2]", "[0,4]"), 4, "data_offsets"},
    {"BeyondTheFile", One("\"U8\"", "[4]", "[0,4]"), 3, "ends at 4"},
    {"GapAtTheStart", One("\"U8\"", "[1]", "[1,2]"), 2, "gap"},
    {"DataLeftOver", One("\"U8\"", "[1]", "[0,1]"), 2, "cover"},
    {"DataWithoutTensors", "{}", 1, "cover"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     3, "inside"},
};

class BadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefusedWithItsReason) {
  const auto header = ParseSafetensorsHeader(GetParam().header, GetParam().data_bytes);
  ASSERT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(header.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Safetensors, BadHeaderTest, ::testing::ValuesIn(kBadHeaders),
                         [](const auto& info) { return std::string(info.param.name); });

// --- Files as entries ----------------------------------------------------------------------------

absl::StatusOr<SafetensorsFile> Sample(const std::string& name) {
  return SafetensorsFile::Open(absl::StrCat(EMBCACHE_TEST_DATA "/embeddings/", name));
}

TEST(EntryFileTest, ASampleGivesKeyMetadataAndCost) {
  const auto file = Sample("chelsea-deepstack.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto entry = EntryFromFile(*file, {});
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->key.model, "rapidocr/PP-OCRv6_det_small.onnx@3.10.0");
  EXPECT_EQ(entry->key.content_hash.size(), 32u);
  EXPECT_THAT(entry->key.variant, HasSubstr("height=288"));
  EXPECT_EQ(entry->options.encode_cost_us, 25939u);
  EXPECT_EQ(entry->options.metadata.at("grid_thw"), "1,9,14");
  EXPECT_EQ(entry->tensors.size(), 2u);
}

TEST(EntryFileTest, TwoSizesOfOnePhotographAreTwoKeys) {
  const auto small = Sample("astronaut-small.safetensors");
  const auto large = Sample("astronaut.safetensors");
  const auto a = EntryFromFile(*small, {});
  const auto b = EntryFromFile(*large, {});
  EXPECT_EQ(a->key.content_hash, b->key.content_hash);
  EXPECT_NE(EntryFileName(a->key), EntryFileName(b->key));
}

TEST(EntryFileTest, OptionsOverrideTheFile) {
  const auto file = Sample("rocket.safetensors");
  KeyOptions options;
  options.model = "other";
  options.hash_hex = "00112233445566778899";
  options.variant = "v";
  const auto entry = EntryFromFile(*file, options);
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->key.model, "other");
  EXPECT_EQ(entry->key.content_hash.size(), 10u);
  EXPECT_EQ(entry->key.variant, "v");
}

TEST(EntryFileTest, AnImportedFileIsExportedWithTheMetadataItHad) {
  const auto file = Sample("coffee.safetensors");
  const auto entry = EntryFromFile(*file, {});
  EXPECT_EQ(FileMetadata(entry->key, entry->tensors, entry->options.metadata,
                         entry->options.encode_cost_us),
            file->metadata());
}

TEST_F(SafetensorsTest, AnyKeyCostAndAbsentTensorSurviveAFile) {
  const client::Key key = {"m", std::string("\x00\xff\x01\x02\x03\x04\x05\x06", 8), "\xfe\x01"};
  TensorSpec absent;
  absent.name = "deepstack";
  absent.absent = true;
  const std::vector<TensorSpec> tensors = {Spec("main", DType::kF32, {1, 2}), absent};
  const std::vector<uint8_t> value(8, 7);
  const client::Metadata metadata = {{"a", "b"}};
  ASSERT_TRUE(WriteSafetensors(Path("e"), tensors, {Bytes(value), Bytes()},
                               FileMetadata(key, tensors, metadata, 1234))
                  .ok());
  const auto file = SafetensorsFile::Open(Path("e"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto entry = EntryFromFile(*file, {});
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->key, key);
  EXPECT_EQ(entry->options.metadata, metadata);
  EXPECT_EQ(entry->options.encode_cost_us, 1234u);
  ASSERT_EQ(entry->tensors.size(), 2u);
  EXPECT_TRUE(entry->tensors[1].absent);
}

TEST_F(SafetensorsTest, WithoutAnImageHashTheDataAreHashed) {
  const std::string value = "abc";
  const auto* bytes = reinterpret_cast<const uint8_t*>(value.data());
  ASSERT_TRUE(
      WriteSafetensors(Path("h"), {Spec("t", DType::kU8, {3})}, {Bytes(bytes, 3)}, {{"model", "m"}})
          .ok());
  const auto file = SafetensorsFile::Open(Path("h"));
  const auto entry = EntryFromFile(*file, {});
  ASSERT_TRUE(entry.ok()) << entry.status();
  KeyOptions expected;  // FIPS 180-2, appendix B.1
  expected.hash_hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_EQ(entry->key.content_hash, ToKey(expected).content_hash);
}

TEST_F(SafetensorsTest, BadCostsHashesAndMissingModelsAreNamed) {
  const std::vector<uint8_t> value(3);
  const auto error = [&](const client::Metadata& metadata) {
    EXPECT_TRUE(
        WriteSafetensors(Path("b"), {Spec("t", DType::kU8, {3})}, {Bytes(value)}, metadata).ok());
    const auto file = SafetensorsFile::Open(Path("b"));
    return std::string(EntryFromFile(*file, {}).status().message());
  };
  EXPECT_THAT(error({}), HasSubstr("--model"));
  EXPECT_THAT(error({{"model", "m"}, {"image_sha256", "xyz"}}), HasSubstr("image_sha256"));
  EXPECT_THAT(error({{"model", "m"}, {"encode_ms", "fast"}}), HasSubstr("encode_ms"));
  EXPECT_THAT(error({{"model", "m"}, {"encode_ms", "-1"}}), HasSubstr("encode_ms"));
  EXPECT_THAT(error({{"model", "m"}, {"embcache.absent", "x"}}), HasSubstr("absent"));
}

}  // namespace
}  // namespace embcache::cli
