// Pin tables as part of sessions: quotas, and what becomes of pins when a session ends.

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/session_registry.h"
#include "tests/server/cache_fixture.h"

namespace embcache {
namespace {

class FastSessionTest : public CacheFixture {
 protected:
  FastSessionTest() { limits_.quarantine = absl::Milliseconds(100); }
  ~FastSessionTest() override {
    registry_.reset();
    EXPECT_EQ(pinned_bytes(), 0u) << "a pin outlived the registry";
    cache_->CheckInvariants();
  }

  void Open() {
    registry_ = std::make_unique<SessionRegistry>(limits_, cache_.get(), &clock_);
    session_ = *registry_->Open({.name = "test", .pid = 42, .uid = 1000});
    const auto table = registry_->OpenFastTable(session_);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = reinterpret_cast<embcache_fast_table*>((*table)->memory().host_data());
  }

  // As the client does it. Publications are numbered from 1, in the order of the commits.
  void PinOne(uint64_t publication) {
    table_->lanes_used = 1;
    table_->lanes[0].pins_used = 1;
    __atomic_store_n(&table_->lanes[0].pins[0], publication, __ATOMIC_SEQ_CST);
  }

  SessionLimits limits_;
  std::unique_ptr<SessionRegistry> registry_;
  Token session_;
  embcache_fast_table* table_ = nullptr;
};

TEST_F(FastSessionTest, PinsAreCountedAsLeases) {
  Open();
  Pin("a").Reset();
  PinOne(1);
  EXPECT_GE(pinned_bytes(), kPayloadBytes);
  EXPECT_EQ(registry_->GetStats().leases, 1u);
  const SessionSnapshot shown = registry_->Sessions()[0];
  EXPECT_EQ(shown.leases, 1u);
  EXPECT_EQ(shown.pinned_bytes, kPayloadBytes);
}

TEST_F(FastSessionTest, PinsCountAgainstTheQuotaOfLeases) {
  limits_.max_leases = 1;
  Open();
  Pin("a").Reset();
  PinOne(1);
  EXPECT_TRUE(absl::IsResourceExhausted(registry_->AddLease(session_, Pin("b")).status()));
  PinOne(0);
  EXPECT_TRUE(registry_->AddLease(session_, Pin("b")).ok());
}

TEST_F(FastSessionTest, PinsCountAgainstTheQuotaOfBytes) {
  limits_.max_pinned_bytes = kPayloadBytes + 1;
  Open();
  Pin("a").Reset();
  PinOne(1);
  EXPECT_TRUE(absl::IsResourceExhausted(registry_->AddLease(session_, Pin("b")).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(registry_->BeginReservation(session_, kPayloadBytes)));
}

TEST_F(FastSessionTest, AfterTheProcessPinsStayForTheQuarantine) {
  Open();
  Pin("a").Reset();
  PinOne(1);
  registry_->ProcessGone(session_);
  EXPECT_TRUE(registry_->Exists(session_));
  EXPECT_GE(pinned_bytes(), kPayloadBytes);
  EXPECT_EQ(registry_->GetStats().quarantined_bytes, kPayloadBytes);
  clock_.Advance(limits_.quarantine);
  registry_->Tick();
  EXPECT_FALSE(registry_->Exists(session_));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(FastSessionTest, AfterTheProcessASessionWithoutPinsEndsAtOnce) {
  Open();
  registry_->ProcessGone(session_);
  EXPECT_FALSE(registry_->Exists(session_));
}

TEST_F(FastSessionTest, AProcessWithoutConnectionMayGoOnPinning) {
  Open();
  Pin("a").Reset();
  registry_->ConnectionLost(session_);
  registry_->Tick();
  ASSERT_TRUE(registry_->Exists(session_));
  PinOne(1);
  EXPECT_GE(pinned_bytes(), kPayloadBytes);
  registry_->Acknowledge(session_, 1000);
  EXPECT_FALSE(registry_->Exists(session_));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(FastSessionTest, AGoodbyeEndsAllPinsAtOnce) {
  Open();
  Pin("a").Reset();
  PinOne(1);
  registry_->Close(session_);
  EXPECT_EQ(pinned_bytes(), 0u);
}

}  // namespace
}  // namespace embcache
