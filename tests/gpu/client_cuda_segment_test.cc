// The client's part in device memory, without a daemon: another process exports.

#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/cpp/cuda_segment.h"
#include "tests/fake_cuda/device_test.h"

namespace embcache::client::internal {
namespace {

using fakecuda::Answer;
using fakecuda::kMiB;
using fakecuda::Peer;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;

class ClientCudaSegment : public fakecuda::DeviceTest {
 protected:
  // A segment as a daemon announces it, with 4 MiB of the exporter's memory that begin with `text`.
  embcache::v1::Segment Announced(uint32_t id, uint64_t generation, const std::string& text) {
    address_ = exporter_.Run("alloc", 4 * kMiB).value;
    EXPECT_EQ(exporter_.Run("write", address_, text).code, CUDA_SUCCESS);
    embcache::v1::Segment segment;
    segment.set_id(id);
    segment.set_generation(generation);
    segment.set_bytes(4 * kMiB);
    segment.set_device_uuid(CudaDriver::Get().value()->device_uuids()[0]);
    segment.set_cuda_ipc_handle(absl::HexStringToBytes(exporter_.Run("export", address_).value));
    return segment;
  }
  static uint64_t Calls() { return fakecuda_calls(getpid(), nullptr); }

  Peer exporter_{peer_program_};
  std::string address_;  // in the exporter
};

TEST_F(ClientCudaSegment, DevicesAreNamedAsNvidiaSmiDoes) {
  const auto driver = CudaDriver::Get();
  ASSERT_TRUE(driver.ok()) << driver.status();
  ASSERT_THAT((*driver)->device_uuids(), SizeIs(2));
  EXPECT_THAT((*driver)->device_uuids()[0],
              MatchesRegex("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"));
}

TEST_F(ClientCudaSegment, IsOpenedAtTheFirstAddressAndOnce) {
  const embcache::v1::Segment announced = Announced(1, 1, "embedding");
  const uint64_t before = Calls();
  const auto first = CudaSegment::Share("epoch", announced);
  const auto second = CudaSegment::Share("epoch", announced);
  EXPECT_EQ(Calls(), before) << "sharing makes no driver call";
  const auto address = first->Address();
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(Peek(*address, 9), "embedding");
  const uint64_t opened = Calls();
  EXPECT_EQ(*second->Address(), *address);
  EXPECT_EQ(*first->Address(), *address);
  EXPECT_EQ(Calls(), opened) << "every address after the first makes no driver call";
  EXPECT_EQ(fakecuda_calls(getpid(), "cuIpcOpenMemHandle"), 1u);
}

TEST_F(ClientCudaSegment, IsClosedWhenTheLastUserHasGone) {
  const embcache::v1::Segment announced = Announced(1, 1, "x");
  auto first = CudaSegment::Share("epoch", announced);
  auto second = CudaSegment::Share("epoch", announced);
  ASSERT_TRUE(first->Address().ok());
  first.reset();
  EXPECT_EQ(fakecuda_open_imports(getpid()), 1u);
  second.reset();
  EXPECT_EQ(fakecuda_open_imports(getpid()), 0u);
}

TEST_F(ClientCudaSegment, AnotherGenerationOrEpochIsAnotherSegment) {
  const embcache::v1::Segment old = Announced(1, 1, "old");
  const embcache::v1::Segment renewed = Announced(1, 2, "new");
  const auto first = CudaSegment::Share("epoch", old);
  const auto second = CudaSegment::Share("epoch", renewed);
  const auto third = CudaSegment::Share("later", old);
  EXPECT_EQ(Peek(*first->Address(), 3), "old");
  EXPECT_EQ(Peek(*second->Address(), 3), "new");
  EXPECT_NE(first, third);
}

TEST_F(ClientCudaSegment, ManyThreadsOpenItOnce) {
  const embcache::v1::Segment announced = Announced(1, 1, "x");
  const auto segment = CudaSegment::Share("epoch", announced);
  std::vector<uint64_t> addresses(8);
  std::vector<std::thread> threads;
  for (uint64_t& address : addresses) {
    threads.emplace_back([&] { address = segment->Address().value_or(0); });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint64_t address : addresses) EXPECT_EQ(address, *segment->Address());
  EXPECT_EQ(fakecuda_calls(getpid(), "cuIpcOpenMemHandle"), 1u);
}

TEST_F(ClientCudaSegment, TheExportingProcessIsToldWhyItCannotOpen) {
  embcache::v1::Segment own = Announced(1, 1, "x");
  own.set_cuda_ipc_handle(absl::HexStringToBytes(ExportHex(Alloc(4 * kMiB))));
  const auto address = CudaSegment::Share("epoch", own)->Address();
  EXPECT_TRUE(absl::IsFailedPrecondition(address.status())) << address.status();
  EXPECT_THAT(std::string(address.status().message()), HasSubstr("in a process of its own"));
}

TEST_F(ClientCudaSegment, WhatCannotBeOpenedIsSaidInTheDriversWords) {
  const embcache::v1::Segment announced = Announced(1, 1, "x");
  ASSERT_EQ(exporter_.Run("free", address_).code, CUDA_SUCCESS);
  const auto address = CudaSegment::Share("epoch", announced)->Address();
  EXPECT_EQ(address.status().message(),
            "cuIpcOpenMemHandle: CUDA_ERROR_MAP_FAILED (205): mapping of buffer object failed");
}

TEST_F(ClientCudaSegment, ADeviceThatThisProcessDoesNotSeeIsNamed) {
  embcache::v1::Segment announced = Announced(1, 1, "x");
  announced.set_device_uuid("GPU-00000000-0000-0000-0000-000000000000");
  const auto address = CudaSegment::Share("epoch", announced)->Address();
  EXPECT_TRUE(absl::IsNotFound(address.status())) << address.status();
  EXPECT_THAT(std::string(address.status().message()), HasSubstr(announced.device_uuid()));
}

}  // namespace
}  // namespace embcache::client::internal
