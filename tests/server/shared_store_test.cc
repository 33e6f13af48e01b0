// SharedStore: what is in Redis under which name, and that nothing that Redis holds or answers
// becomes an entry unless it is the one that was asked for.

#include "server/shared_store.h"

#include <sys/eventfd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/clock.h"
#include "tests/server/fake_redis.h"
#include "tests/server/shared_value_util.h"

namespace embcache {
namespace {

using Answer = FakeRedis::Answer;
using Command = FakeRedis::Command;

class SharedStoreTest : public testing::Test {
 protected:
  absl::Duration Later() const { return SystemClock()->MonotonicNow() + absl::Hours(1); }
  absl::StatusCode Read(SharedStore* store = nullptr) {
    return (store == nullptr ? store_ : *store).Read(key_, Later()).status().code();
  }
  absl::Status Write(const EntryInfo& info, char fill = 'x') {
    SharedValue value = MakeSharedValue(info);
    std::fill_n(value.payload(), info.payload_bytes(), fill);
    SealSharedValue(info, &value);
    return store_.Write(info, value, Later());
  }
  void Keep(const std::string& value) { redis_.Set(SharedName(key_), value); }
  bool IsThere() const { return redis_.data().count(SharedName(key_)) > 0; }

  const UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  FakeRedis redis_;
  SimulatedClock clock_;
  SharedStoreOptions options_ = {.redis = {.address = redis_.address()},
                                 .name_space = "ns",
                                 .ttl = absl::Hours(1),
                                 .max_value_bytes = 1 << 20};
  SharedStore store_{options_, stop_.get(), &clock_};
  const CacheKey key_ = SharedKey("a");
  const EntryInfo info_ = SharedInfo(key_);
};

TEST_F(SharedStoreTest, WhatOneWritesAnotherReads) {
  ASSERT_TRUE(Write(info_).ok());
  SharedStore other(options_, stop_.get(), &clock_);
  auto found = other.Read(key_, Later());
  ASSERT_TRUE(found.ok()) << found.status();
  const EntryInfo& info = *found->value.info;
  EXPECT_EQ(info.key, key_);
  EXPECT_EQ(info.layout.tensors, info_.layout.tensors);
  EXPECT_EQ(info.metadata, info_.metadata);
  EXPECT_EQ(info.encode_cost_us, info_.encode_cost_us);
  EXPECT_EQ(info.created, info_.created);
  std::string wanted(info_.payload_bytes(), '\0');  // and what lies between tensors is not told
  wanted.replace(0, 100, 100, 'x');
  wanted.replace(256, 24, 24, 'x');
  EXPECT_EQ(std::string(found->value.payload), wanted);
}

TEST_F(SharedStoreTest, AnotherNamespaceHasOtherEntries) {
  ASSERT_TRUE(Write(info_).ok());
  options_.name_space = "other";
  SharedStore other(options_, stop_.get(), &clock_);
  EXPECT_EQ(Read(&other), absl::StatusCode::kNotFound);
}

TEST_F(SharedStoreTest, AValueLivesForTheTtlOrItsEntrysRestIfThatIsShorter) {
  ASSERT_TRUE(Write(info_).ok());
  EntryInfo brief = info_;
  brief.expires = clock_.Now() + absl::Seconds(7);
  ASSERT_TRUE(Write(brief).ok());
  std::vector<std::string> px;
  for (const Command& command : redis_.commands()) {
    if (command[0] == "SET") px.push_back(command.at(3) + command.at(4));
  }
  EXPECT_THAT(px, testing::ElementsAre("PX3600000", "PX7000"));
  clock_.Advance(absl::Seconds(8));
  EXPECT_EQ(Read(), absl::StatusCode::kNotFound) << "whatever Redis' clock thinks";
  EXPECT_EQ(Write(brief).code(), absl::StatusCode::kNotFound);
}

TEST_F(SharedStoreTest, AnyDamagedByteIsFoundAndTheValueRemoved) {
  const std::string good = SharedValueOf(info_, 'x');
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    Keep(bad);
    ASSERT_EQ(Read(), absl::StatusCode::kDataLoss) << "byte " << i;
    ASSERT_FALSE(IsThere());
  }
}

TEST_F(SharedStoreTest, AnyMissingOrAddedByteIsFoundAndTheValueRemoved) {
  const std::string good = SharedValueOf(info_, 'x');
  for (size_t size = 1; size < good.size(); ++size) {
    Keep(good.substr(0, size));
    ASSERT_EQ(Read(), absl::StatusCode::kDataLoss) << size << " bytes";
    ASSERT_FALSE(IsThere());
  }
  Keep(good + "x");
  EXPECT_EQ(Read(), absl::StatusCode::kDataLoss);
}

TEST_F(SharedStoreTest, TheValueOfAnotherKeyIsNotTakenForThisOnes) {
  Keep(SharedValueOf(SharedInfo(SharedKey("b")), 'x'));
  EXPECT_EQ(Read(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(IsThere());
}

TEST_F(SharedStoreTest, AValueLargerThanThisNodeTakesIsNotFoundAndStays) {
  ASSERT_TRUE(Write(info_).ok());
  options_.max_value_bytes = SharedValueBytes(info_) - 1;
  SharedStore smaller(options_, stop_.get(), &clock_);
  EXPECT_EQ(Read(&smaller), absl::StatusCode::kNotFound);
  EXPECT_TRUE(IsThere());
  options_.max_value_bytes = SharedValueBytes(info_);
  SharedStore enough(options_, stop_.get(), &clock_);
  EXPECT_EQ(Read(&enough), absl::StatusCode::kOk);
}

TEST_F(SharedStoreTest, AServerThatClaimsAHugeLengthIsNotBelieved) {
  redis_.OnCommand([](const Command&) { return Answer{"$400000000000\r\n"}; });
  EXPECT_EQ(Read(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SharedStoreTest, AValueThatIsNoStringIsDamagedAndRemoved) {
  ASSERT_TRUE(Write(info_).ok());
  redis_.OnCommand([](const Command& command) -> std::optional<Answer> {
    if (command[0] != "GETRANGE") return std::nullopt;
    return Answer{"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"};
  });
  EXPECT_EQ(Read(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(IsThere());
}

TEST_F(SharedStoreTest, ARefusalIsToldApartFromAFailure) {
  redis_.OnCommand([](const Command&) { return Answer{"-OOM command not allowed\r\n"}; });
  EXPECT_EQ(Read(), absl::StatusCode::kAborted);
  EXPECT_EQ(Write(info_).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_.Remove(key_, Later()).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_.Close("model", Later()).code(), absl::StatusCode::kAborted);
  redis_.OnCommand([](const Command&) { return Answer{":1\r\n"}; });
  EXPECT_EQ(Read(), absl::StatusCode::kInternal) << "no answer to the question";
}

TEST_F(SharedStoreTest, AClosedModelIsNeitherReadNorLeftWritten) {
  ASSERT_TRUE(Write(info_).ok());
  ASSERT_TRUE(store_.Close("model", Later()).ok());
  EXPECT_EQ(redis_.data().count(ClosedName("model")), 1u);
  EXPECT_EQ(Read(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Write(info_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(IsThere());
  const EntryInfo other = SharedInfo(SharedKey("a", "other model"));
  EXPECT_TRUE(Write(other).ok());
  EXPECT_TRUE(store_.Read(other.key, Later()).ok());
}

TEST_F(SharedStoreTest, AModelClosedWhileItsValueIsReadIsClosed) {
  ASSERT_TRUE(Write(info_).ok());
  // The marker comes with the answer that has the value.
  redis_.OnCommand([&](const Command& command) -> std::optional<Answer> {
    if (command[0] == "GETRANGE") redis_.Set(ClosedName("model"), "1");
    return std::nullopt;
  });
  EXPECT_EQ(Read(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SharedStoreTest, ARemovedValueIsGone) {
  ASSERT_TRUE(Write(info_).ok());
  ASSERT_TRUE(store_.Remove(key_, Later()).ok());
  EXPECT_FALSE(IsThere());
  EXPECT_EQ(Read(), absl::StatusCode::kNotFound);
}

TEST(SharedNamespaceTest, HasNoCharacterThatMeansAnythingInAName) {
  EXPECT_TRUE(CheckSharedNamespace("qwen2.5-vl_7b.r3").ok());
  EXPECT_FALSE(CheckSharedNamespace("a:b").ok());
  EXPECT_FALSE(CheckSharedNamespace("{a}").ok());
  EXPECT_FALSE(CheckSharedNamespace(std::string(65, 'a')).ok());
}

}  // namespace
}  // namespace embcache
