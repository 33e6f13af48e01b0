#include "server/cache_service.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service_fixture.h"

namespace embcache {
namespace {

using testing::StartsWith;

constexpr int32_t kInvalid = static_cast<int32_t>(absl::StatusCode::kInvalidArgument);
constexpr int32_t kNotFound = static_cast<int32_t>(absl::StatusCode::kNotFound);

using CacheServiceTest = ServiceFixture;

// --- Put and Get ---------------------------------------------------------------------------------

TEST_F(CacheServiceTest, PutThenGetGivesBackBytesTensorsAndMetadata) {
  v1::PutItem item = ProtoItem("a", 300, 'a');
  item.mutable_tensors(0)->set_name("first");
  v1::Tensor* absent = item.add_tensors();
  absent->set_name("gone");
  absent->set_absent(true);
  v1::Tensor* second = item.add_tensors();
  second->set_name("second");
  second->set_dtype(v1::F32);
  second->add_shape(2);
  second->add_shape(5);
  item.mutable_inline_()->append(40, 'b');
  (*item.mutable_metadata())["grid"] = std::string("\0\1", 2);
  item.set_encode_cost_us(77);
  const v1::PutResult put = Put(item);
  ASSERT_EQ(put.status().code(), 0) << put.status().message();

  const v1::GetResult hit = Get("a", {}, 4096);
  EXPECT_EQ(hit.verdict(), v1::GetResult::HIT);
  EXPECT_EQ(hit.source(), v1::L1);
  EXPECT_EQ(hit.generation(), put.generation());
  EXPECT_EQ(hit.lease(), 0u);
  EXPECT_FALSE(hit.has_location());
  ASSERT_EQ(hit.entry().tensors_size(), 3);
  EXPECT_TRUE(hit.entry().tensors(1).absent());
  EXPECT_EQ(hit.entry().tensors(2).offset(), 512u);
  EXPECT_EQ(hit.entry().tensors(2).bytes(), 40u);
  EXPECT_EQ(hit.entry().bytes(), 552u);
  EXPECT_EQ(hit.entry().metadata().at("grid"), std::string("\0\1", 2));
  EXPECT_EQ(hit.entry().encode_cost_us(), 77u);
  EXPECT_EQ(hit.entry().expires_unix_ms(), 0);
  EXPECT_EQ(hit.entry().created_unix_ms(), absl::ToUnixMillis(clock_.Now()));
  ASSERT_EQ(hit.inline_().size(), 552u);
  EXPECT_EQ(hit.inline_().substr(0, 300), std::string(300, 'a'));
  EXPECT_EQ(hit.inline_().substr(512), std::string(40, 'b'));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(CacheServiceTest, KeysInHexAndRawAreTheSameAndAnswersFillBoth) {
  Put(ProtoItem("a"));
  v1::GetRequest request;
  v1::Key* key = request.add_items()->mutable_key();
  key->set_model("model");
  key->set_content_hash_hex("61" + std::string(62, '2'));
  for (int i = 1; i < 32; ++i) key->mutable_content_hash_hex()->replace(2 * i, 2, "2E");
  const auto got = CallHandler(&service_, &CacheService::Get, request);
  ASSERT_EQ(got.response.results(0).verdict(), v1::GetResult::HIT);
  const v1::Key& answered = got.response.results(0).entry().key();
  EXPECT_EQ(answered.content_hash(), ProtoKey("a").content_hash());
  EXPECT_THAT(answered.content_hash_hex(), StartsWith("612e2e"));
  // A key from an answer can be sent back as it is.
  *request.mutable_items(0)->mutable_key() = answered;
  EXPECT_EQ(CallHandler(&service_, &CacheService::Get, request).response.results(0).verdict(),
            v1::GetResult::HIT);
}

TEST_F(CacheServiceTest, BatchGetKeepsTheOrderAndOneBadItemFailsAlone) {
  Put(ProtoItem("a"));
  Put(ProtoItem("c"));
  v1::GetRequest request;
  *request.add_items()->mutable_key() = ProtoKey("a");
  *request.add_items()->mutable_key() = ProtoKey("b");
  *request.add_items()->mutable_key() = ProtoKey("c");
  v1::Key* bad = request.add_items()->mutable_key();
  bad->set_model("model");
  bad->set_content_hash_hex("zz");
  const auto got = CallHandler(&service_, &CacheService::Get, request);
  ASSERT_TRUE(got.status.ok());
  ASSERT_EQ(got.response.results_size(), 4);
  EXPECT_EQ(got.response.results(0).verdict(), v1::GetResult::HIT);
  EXPECT_EQ(got.response.results(1).verdict(), v1::GetResult::MISS);
  EXPECT_EQ(got.response.results(1).reason(), v1::GetResult::ABSENT);
  EXPECT_EQ(got.response.results(2).verdict(), v1::GetResult::HIT);
  EXPECT_EQ(got.response.results(3).verdict(), v1::GetResult::ERROR);
  EXPECT_EQ(got.response.results(3).status().message(),
            "items[3].key.content_hash_hex: not hexadecimal");
}

TEST_F(CacheServiceTest, ABatchStopsInliningAtTheLimitOfAnAnswer) {
  v1::GetRequest request;
  for (const char* name : {"a", "b", "c"}) {
    Put(ProtoItem(name, 2000));
    *request.add_items()->mutable_key() = ProtoKey(name);
  }
  request.set_inline_limit(2000);
  const auto got = CallHandler(&service_, &CacheService::Get, request);
  EXPECT_EQ(got.response.results(0).inline_().size(), 2000u);
  EXPECT_EQ(got.response.results(1).inline_().size(), 2000u);
  EXPECT_EQ(got.response.results(2).inline_().size(), 0u);
  EXPECT_EQ(got.response.results(2).verdict(), v1::GetResult::HIT);
}

TEST_F(CacheServiceTest, AnUnmetExpectationIsAMissWithItsReason) {
  Put(ProtoItem("a"));
  v1::GetRequest request;
  *request.add_items()->mutable_key() = ProtoKey("a");
  request.mutable_items(0)->add_expect()->set_rows(511);
  auto got = CallHandler(&service_, &CacheService::Get, request);
  EXPECT_EQ(got.response.results(0).verdict(), v1::GetResult::MISS);
  EXPECT_EQ(got.response.results(0).reason(), v1::GetResult::MISMATCH);
  request.mutable_items(0)->mutable_expect(0)->set_rows(-1);
  got = CallHandler(&service_, &CacheService::Get, request);
  EXPECT_THAT(got.response.results(0).status().message(), StartsWith("items[0].expect[0].rows"));
}

TEST_F(CacheServiceTest, TimeToLiveIsAnsweredAndKept) {
  v1::PutItem item = ProtoItem("a");
  item.set_ttl_ms(5000);
  Put(item);
  EXPECT_EQ(Get("a").entry().expires_unix_ms(), absl::ToUnixMillis(clock_.Now()) + 5000);
  clock_.Advance(absl::Seconds(6));
  EXPECT_EQ(Get("a").reason(), v1::GetResult::EXPIRED);
}

// --- Sessions, leases, reservations --------------------------------------------------------------

TEST_F(CacheServiceTest, AHitInASessionCarriesALeaseThatPinsUntilReleased) {
  Put(ProtoItem("a"));
  const CallContext reader = OpenSession(/*writer=*/false);
  const v1::GetResult hit = Get("a", reader);
  EXPECT_NE(hit.lease(), 0u);
  EXPECT_EQ(hit.location().bytes(), 512u);
  EXPECT_EQ(hit.location().tier(), v1::L1);
  EXPECT_EQ(pinned_bytes(), 512u);
  EXPECT_EQ(ReleaseOne(reader, hit.lease()).released(), 1u);
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_EQ(ReleaseOne(reader, hit.lease()).unknown(), 1u);
}

TEST_F(CacheServiceTest, ForeignLeasesCannotBeReleased) {
  Put(ProtoItem("a"));
  const CallContext owner = OpenSession(false);
  const v1::GetResult hit = Get("a", owner);
  const v1::ReleaseResponse released = ReleaseOne(OpenSession(false), hit.lease());
  EXPECT_EQ(released.released(), 0u);
  EXPECT_EQ(released.unknown(), 1u);
  EXPECT_EQ(pinned_bytes(), 512u);
}

TEST_F(CacheServiceTest, AHitOverTheQuotaOfLeasesIsAnErrorAndPinsNothing) {
  Put(ProtoItem("a"));
  const CallContext reader = OpenSession(false);
  for (int i = 0; i < 8; ++i) EXPECT_NE(Get("a", reader).lease(), 0u);
  const v1::GetResult refused = Get("a", reader, 4096);
  EXPECT_EQ(refused.verdict(), v1::GetResult::ERROR);
  EXPECT_EQ(refused.status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(refused.has_entry());
  EXPECT_EQ(refused.inline_().size(), 0u);
}

TEST_F(CacheServiceTest, ReservedRangesAreInvisibleUntilCommittedAndCommitOnce) {
  const CallContext writer = OpenSession(true);
  const v1::ReserveResult reserved = ReserveItem(writer, "a");
  ASSERT_EQ(reserved.status().code(), 0) << reserved.status().message();
  EXPECT_EQ(reserved.tensors(0).bytes(), 512u);
  EXPECT_EQ(reserved.location().bytes(), 512u);
  EXPECT_EQ(Get("a").verdict(), v1::GetResult::MISS);
  const v1::CommitResult committed = CommitOne(writer, reserved.reservation(), true);
  EXPECT_EQ(committed.status().code(), 0);
  EXPECT_NE(committed.lease(), 0u);
  EXPECT_EQ(Get("a").generation(), committed.generation());
  EXPECT_EQ(CommitOne(writer, reserved.reservation()).status().code(), kNotFound);
  EXPECT_EQ(ReleaseOne(writer, committed.lease()).released(), 1u);
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(CacheServiceTest, ForeignReservationsCanNeitherBeCommittedNorAborted) {
  const CallContext writer = OpenSession(true);
  const CallContext other = OpenSession(true);
  const v1::ReserveResult reserved = ReserveItem(writer, "a");
  EXPECT_EQ(CommitOne(other, reserved.reservation()).status().code(), kNotFound);
  v1::AbortRequest abort;
  abort.add_reservations(reserved.reservation());
  EXPECT_EQ(CallHandler(&service_, &CacheService::Abort, abort, other).response.results(0).code(),
            kNotFound);
  EXPECT_EQ(CallHandler(&service_, &CacheService::Abort, abort, writer).response.results(0).code(),
            0);
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(CacheServiceTest, ReadersCannotReserveOrPut) {
  const CallContext reader = OpenSession(false);
  v1::ReserveRequest reserve;
  *reserve.add_items() = ProtoItem("a");
  EXPECT_EQ(CallHandler(&service_, &CacheService::Reserve, reserve, reader).status.code(),
            absl::StatusCode::kPermissionDenied);
  v1::PutRequest put;
  *put.add_items() = ProtoItem("a");
  EXPECT_EQ(CallHandler(&service_, &CacheService::Put, put, reader).status.code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(CacheServiceTest, UnknownAndMissingSessionsAreToldApart) {
  const CallContext unknown = {.session = Token{9}};
  v1::GetRequest get;
  EXPECT_EQ(CallHandler(&service_, &CacheService::Get, get, unknown).status.code(),
            absl::StatusCode::kNotFound);
  v1::PingRequest ping;
  EXPECT_EQ(CallHandler(&service_, &CacheService::Ping, ping, unknown).status.code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(CallHandler(&service_, &CacheService::Ping, ping).status.ok());
  v1::ReleaseRequest release;
  EXPECT_EQ(CallHandler(&service_, &CacheService::Release, release, unknown).status.code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(CallHandler(&service_, &CacheService::Release, release).status.code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(CacheServiceTest, AdoptedLeasesOutliveTheSharersRelease) {
  Put(ProtoItem("a"));
  const CallContext sharer = OpenSession(false);
  const CallContext adopter = OpenSession(false);
  const v1::GetResult hit = Get("a", sharer);
  v1::ShareRequest share;
  share.add_leases(hit.lease());
  const auto shared = CallHandler(&service_, &CacheService::Share, share, sharer);
  ASSERT_TRUE(shared.status.ok()) << shared.status;
  EXPECT_EQ(shared.response.expires_unix_ms(), absl::ToUnixMillis(clock_.Now()) + 30'000);
  ReleaseOne(sharer, hit.lease());
  v1::AdoptRequest adopt;
  adopt.set_token(shared.response.token());
  const auto adopted = CallHandler(&service_, &CacheService::Adopt, adopt, adopter);
  ASSERT_TRUE(adopted.status.ok()) << adopted.status;
  ASSERT_EQ(adopted.response.results_size(), 1);
  EXPECT_EQ(adopted.response.results(0).location().offset(), hit.location().offset());
  EXPECT_EQ(adopted.response.results(0).entry().tensors(0).name(), "t");
  EXPECT_EQ(ReleaseOne(adopter, adopted.response.results(0).lease()).released(), 1u);
  adopt.set_token("short");
  EXPECT_THAT(Message(CallHandler(&service_, &CacheService::Adopt, adopt, adopter).status),
              StartsWith("token: 5 bytes"));
}

TEST_F(CacheServiceTest, UndeliveredAnswersGiveBackWhatTheyGranted) {
  Put(ProtoItem("a"));
  const CallContext writer = OpenSession(true);
  v1::GetResponse got;
  *got.add_results() = Get("a", writer);
  v1::ReserveResponse reserved;
  *reserved.add_results() = ReserveItem(writer, "b");
  EXPECT_EQ(pinned_bytes(), 1024u);
  service_.Undelivered(writer, got);
  service_.Undelivered(writer, reserved);
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_EQ(registry_.GetStats().leases, 0u);
}

// --- Keys ----------------------------------------------------------------------------------------

TEST_F(CacheServiceTest, ContainsCountsNothingAndLeasesOnRequest) {
  Put(ProtoItem("a"));
  v1::ContainsRequest request;
  *request.add_keys() = ProtoKey("a");
  *request.add_keys() = ProtoKey("b");
  request.add_keys()->set_model("only");
  auto contains = CallHandler(&service_, &CacheService::Contains, request);
  EXPECT_TRUE(contains.response.results(0).present());
  EXPECT_EQ(contains.response.results(0).tier(), v1::L1);
  EXPECT_FALSE(contains.response.results(0).has_hit());
  EXPECT_FALSE(contains.response.results(1).present());
  EXPECT_THAT(contains.response.results(2).status().message(), StartsWith("keys[2].content_hash"));
  request.set_lease(true);
  EXPECT_EQ(CallHandler(&service_, &CacheService::Contains, request).status.code(),
            absl::StatusCode::kUnauthenticated);
  const CallContext reader = OpenSession(false);
  contains = CallHandler(&service_, &CacheService::Contains, request, reader);
  EXPECT_NE(contains.response.results(0).hit().lease(), 0u);
  EXPECT_EQ(Stats().gets(), 0u);
}

TEST_F(CacheServiceTest, DeleteSaysWhatExisted) {
  Put(ProtoItem("a"));
  v1::DeleteRequest request;
  *request.add_keys() = ProtoKey("b");
  *request.add_keys() = ProtoKey("a");
  const auto deleted = CallHandler(&service_, &CacheService::Delete, request);
  EXPECT_FALSE(deleted.response.results(0).existed());
  EXPECT_TRUE(deleted.response.results(1).existed());
  EXPECT_EQ(Get("a").verdict(), v1::GetResult::MISS);
}

TEST_F(CacheServiceTest, PopLeasesAndRemovesWithoutCounting) {
  Put(ProtoItem("a"));
  const CallContext writer = OpenSession(true);
  v1::PopRequest request;
  *request.mutable_key() = ProtoKey("a");
  const auto popped = CallHandler(&service_, &CacheService::Pop, request, writer);
  EXPECT_EQ(popped.response.result().verdict(), v1::GetResult::HIT);
  EXPECT_NE(popped.response.result().lease(), 0u);
  EXPECT_EQ(CallHandler(&service_, &CacheService::Pop, request, writer).response.result().verdict(),
            v1::GetResult::MISS);
  EXPECT_EQ(Stats().gets(), 0u);
}

TEST_F(CacheServiceTest, AnAdvancedEpochHidesEntriesAndRefusesOpenReservations) {
  Put(ProtoItem("a"));
  const CallContext writer = OpenSession(true);
  const v1::ReserveResult reserved = ReserveItem(writer, "b");
  v1::AdvanceEpochRequest request;
  request.set_model("model");
  const auto advanced = CallHandler(&service_, &CacheService::AdvanceEpoch, request);
  ASSERT_TRUE(advanced.status.ok()) << advanced.status;
  EXPECT_EQ(advanced.response.model_epoch(), 1u);
  EXPECT_EQ(Get("a").verdict(), v1::GetResult::MISS);
  EXPECT_EQ(CommitOne(writer, reserved.reservation()).status().code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(CacheServiceTest, ListGivesEveryKeyOncePageByPage) {
  for (const char* name : {"a", "b", "c"}) Put(ProtoItem(name));
  v1::ListRequest request;
  request.set_page_size(2);
  std::string seen;
  do {
    const auto page = CallHandler(&service_, &CacheService::List, request);
    ASSERT_TRUE(page.status.ok()) << page.status;
    for (const v1::ListedEntry& entry : page.response.entries()) {
      seen += entry.key().content_hash()[0];
      EXPECT_EQ(entry.bytes(), 512u);
    }
    request.set_page_token(page.response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, "abc");
  request.set_content_hash_hex_prefix("6");
  EXPECT_THAT(Message(CallHandler(&service_, &CacheService::List, request).status),
              StartsWith("content_hash_hex_prefix: odd"));
  request.set_content_hash_hex_prefix("62");
  EXPECT_EQ(CallHandler(&service_, &CacheService::List, request).response.entries_size(), 1);
  request.set_page_token("nonsense");
  EXPECT_THAT(Message(CallHandler(&service_, &CacheService::List, request).status),
              StartsWith("page_token"));
}

// --- Stats, segments, draining -------------------------------------------------------------------

TEST_F(CacheServiceTest, StatsAddUp) {
  Put(ProtoItem("a"));
  const CallContext reader = OpenSession(false);
  Get("a", reader);
  Get("a");
  Get("b");
  clock_.Advance(absl::Seconds(3));
  v1::StatsRequest request;
  request.set_per_model(true);
  request.set_latencies(true);
  const v1::StatsResponse stats = CallHandler(&service_, &CacheService::Stats, request).response;
  EXPECT_EQ(stats.version(), "1.2.3");
  EXPECT_EQ(stats.epoch().size(), 16u);
  EXPECT_EQ(stats.uptime_ms(), 3000u);
  EXPECT_EQ(stats.gets(), 3u);
  EXPECT_EQ(stats.hits(), 2u);
  EXPECT_EQ(stats.misses(), 1u);
  EXPECT_EQ(stats.saves(), 1u);
  ASSERT_EQ(stats.tiers_size(), 1);
  EXPECT_EQ(stats.tiers(0).tier(), v1::L1);
  EXPECT_EQ(stats.tiers(0).hits(), 2u);
  EXPECT_EQ(stats.tiers(0).pinned_bytes(), 512u);
  EXPECT_EQ(stats.sessions(), 1u);
  EXPECT_EQ(stats.leases(), 1u);
  uint64_t model_gets = 0;
  for (const v1::ModelStats& model : stats.models()) model_gets += model.gets();
  EXPECT_EQ(model_gets, 3u);
  uint64_t gets = 0;
  for (const v1::LatencyStats& latency : stats.latencies()) {
    if (latency.operation() == "get") gets = latency.count();
  }
  EXPECT_EQ(gets, 3u);
  EXPECT_FALSE(stats.l3().enabled());
}

TEST_F(CacheServiceTest, SegmentsAreThoseOfTheCache) {
  const auto segments = CallHandler(&service_, &CacheService::Segments, v1::SegmentsRequest());
  ASSERT_EQ(segments.response.segments_size(), 2);
  EXPECT_EQ(segments.response.segments(0).bytes(), uint64_t{1} << 19);
  EXPECT_EQ(segments.response.epoch().substr(0, 3), "\1\2\3");
}

TEST_F(CacheServiceTest, WhileDrainingOnlyWhatEndsThingsIsServed) {
  Put(ProtoItem("a"));
  const CallContext writer = OpenSession(true);
  const v1::GetResult hit = Get("a", writer);
  const v1::ReserveResult reserved = ReserveItem(writer, "b");
  service_.Drain();
  const auto code = [&](auto handler, const auto& request) {
    return CallHandler(&service_, handler, request, writer).status.code();
  };
  EXPECT_EQ(code(&CacheService::Get, v1::GetRequest()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(&CacheService::Put, v1::PutRequest()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(&CacheService::Reserve, v1::ReserveRequest()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(&CacheService::Adopt, v1::AdoptRequest()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(&CacheService::Pop, v1::PopRequest()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CommitOne(writer, reserved.reservation()).status().code(), 0);
  EXPECT_EQ(ReleaseOne(writer, hit.lease()).released(), 1u);
  EXPECT_TRUE(Stats().draining());
}

}  // namespace
}  // namespace embcache
