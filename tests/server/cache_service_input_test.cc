// What clients can get wrong: each mistake has its code, a message that names the field, and no
// effect.

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache_service.h"
#include "tests/server/service_fixture.h"

namespace embcache {
namespace {

using testing::StartsWith;

class CacheServiceInputTest : public ServiceFixture {
 protected:
  // That a put of `item` is refused, names `field` and changes nothing that is counted.
  void ExpectRefused(const v1::PutItem& item, const std::string& field) {
    const v1::StatsResponse before = Stats();
    const v1::PutResult result = Put(item);
    EXPECT_EQ(result.status().code(), kInvalid) << result.DebugString();
    EXPECT_THAT(result.status().message(), StartsWith("items[0]." + field));
    EXPECT_EQ(Stats().SerializeAsString(), before.SerializeAsString());
  }
};

TEST_F(CacheServiceInputTest, ImpossibleShapesAreRefused) {
  for (const int64_t dimension : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    v1::PutItem item = ProtoItem("a");
    item.mutable_tensors(0)->set_shape(0, dimension);
    ExpectRefused(item, "tensors[0].shape");
  }
  v1::PutItem overflowing = ProtoItem("a");
  for (int i = 0; i < 3; ++i) overflowing.mutable_tensors(0)->add_shape(INT64_MAX);
  ExpectRefused(overflowing, "tensors[0].shape");
  v1::PutItem deep = ProtoItem("a");
  for (int i = 0; i < 100'000; ++i) deep.mutable_tensors(0)->add_shape(1);
  ExpectRefused(deep, "tensors[0].shape: rank 100001");
}

TEST_F(CacheServiceInputTest, DisagreeingSizesAreRefused) {
  v1::PutItem bytes = ProtoItem("a");
  bytes.mutable_tensors(0)->set_bytes(511);
  ExpectRefused(bytes, "tensors[0].bytes");
  v1::PutItem shorter = ProtoItem("a");
  shorter.mutable_inline_()->pop_back();
  ExpectRefused(shorter, "inline: 511 bytes, but the tensors take 512");
  v1::PutItem longer = ProtoItem("a");
  longer.mutable_inline_()->push_back('x');
  ExpectRefused(longer, "inline: 513 bytes");
  ExpectRefused(ProtoItem("a", 5000), "inline: 5000 bytes; must be at most 4096");
}

TEST_F(CacheServiceInputTest, UnknownDtypesAreRefusedAlsoThoseThatWouldFitInAByte) {
  for (const int dtype : {0, 23, 258, -1}) {
    v1::PutItem item = ProtoItem("a");
    item.mutable_tensors(0)->set_dtype(static_cast<v1::DType>(dtype));
    ExpectRefused(item, "tensors[0].dtype");
  }
}

TEST_F(CacheServiceInputTest, TensorListsOutOfOrderAreRefused) {
  v1::PutItem twice = ProtoItem("a", 256);
  *twice.add_tensors() = twice.tensors(0);
  twice.mutable_inline_()->append(256, 'x');
  ExpectRefused(twice, "tensors[1].name");
  v1::PutItem none = ProtoItem("a");
  none.clear_tensors();
  ExpectRefused(none, "tensors");
  v1::PutItem many = ProtoItem("a");
  for (int i = 0; i < 2000; ++i) many.add_tensors();
  ExpectRefused(many, "tensors: 2001");
  v1::PutItem long_name = ProtoItem("a");
  long_name.mutable_tensors(0)->set_name(std::string(129, 'n'));
  ExpectRefused(long_name, "tensors[0].name");
}

TEST_F(CacheServiceInputTest, KeysBeyondTheirLimitsAreRefused) {
  v1::PutItem item = ProtoItem("a");
  item.mutable_key()->clear_model();
  ExpectRefused(item, "key.model: 0 bytes");
  item.mutable_key()->set_model(std::string(256, 'm'));
  ExpectRefused(item, "key.model: 256 bytes");
  item = ProtoItem("a");
  item.mutable_key()->set_content_hash("short");
  ExpectRefused(item, "key.content_hash: 5 bytes");
  item.mutable_key()->set_content_hash(std::string(65, 'h'));
  ExpectRefused(item, "key.content_hash: 65 bytes");
  item = ProtoItem("a");
  item.mutable_key()->set_variant(std::string(1025, 'v'));
  ExpectRefused(item, "key.variant: 1025 bytes");
  item = ProtoItem("a");
  item.mutable_key()->set_content_hash_hex(std::string(64, '0'));
  ExpectRefused(item, "key.content_hash_hex: differs");
  item.mutable_key()->set_content_hash_hex(std::string(1 << 20, '0'));
  ExpectRefused(item, "key.content_hash_hex: 1048576 digits");
}

TEST_F(CacheServiceInputTest, TenMegabytesOfMetadataAreRefused) {
  v1::PutItem item = ProtoItem("a");
  (*item.mutable_metadata())["m"] = std::string(10 << 20, 'm');
  ExpectRefused(item, "metadata: 10485761 bytes; must be at most 65536");
}

TEST_F(CacheServiceInputTest, BatchesOverTheLimitAreRefusedWhole) {
  v1::GetRequest get;
  v1::DeleteRequest remove;
  for (int i = 0; i < 100'000; ++i) {
    *get.add_items()->mutable_key() = ProtoKey("a");
    *remove.add_keys() = ProtoKey("a");
  }
  const v1::StatsResponse before = Stats();
  const absl::Status got = CallHandler(&service_, &CacheService::Get, get).status;
  EXPECT_EQ(got.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(got.message(), "items: 100000 given; must be at most 64");
  const absl::Status removed = CallHandler(&service_, &CacheService::Delete, remove).status;
  EXPECT_EQ(removed.message(), "keys: 100000 given; must be at most 64");
  EXPECT_EQ(Stats().SerializeAsString(), before.SerializeAsString());
}

TEST_F(CacheServiceInputTest, InlineLimitsAboveTheDaemonsAreRefused) {
  v1::GetRequest request;
  request.set_inline_limit(4097);
  EXPECT_EQ(CallHandler(&service_, &CacheService::Get, request).status.message(),
            "inline_limit: 4097; must be at most 4096");
}

TEST_F(CacheServiceInputTest, ReserveTakesNoInlineBytes) {
  v1::ReserveRequest request;
  *request.add_items() = ProtoItem("a");
  const auto reserved = CallHandler(&service_, &CacheService::Reserve, request, OpenSession(true));
  EXPECT_EQ(reserved.response.results(0).status().code(), kInvalid);
  EXPECT_THAT(reserved.response.results(0).status().message(), StartsWith("items[0].inline"));
}

TEST_F(CacheServiceInputTest, AnEmptyBatchIsAnsweredEmpty) {
  EXPECT_TRUE(CallHandler(&service_, &CacheService::Get, v1::GetRequest()).status.ok());
  EXPECT_TRUE(CallHandler(&service_, &CacheService::Put, v1::PutRequest()).status.ok());
}

}  // namespace
}  // namespace embcache
