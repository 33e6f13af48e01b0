// The calling process as the driver sees it: initialisation, devices in the order that
// CUDA_VISIBLE_DEVICES gives, contexts, and what every call does first. Internal to the fake.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_PROCESS_H_
#define EMBCACHE_TESTS_FAKE_CUDA_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <vector>

#include "tests/fake_cuda/functions.h"
#include "tests/fake_cuda/shared_state.h"

// A primary context: one for each device, alive while retained.
struct CUctx_st {
  int device = 0;  // of the fake, not an ordinal
  int ordinal = 0;
  std::atomic<int> retained{0};
};

namespace fakecuda {

enum class Needs { kNothing, kInit, kContext };

// Counts the call; then whatever it has to answer at once instead of doing its work.
CUresult Begin(Function function, Needs needs);

// What an entry point starts with.
#define FAKECUDA_BEGIN(symbol, needs)                                                             \
  if (const CUresult early = ::fakecuda::Begin(::fakecuda::k_##symbol, ::fakecuda::Needs::needs); \
      early != CUDA_SUCCESS)                                                                      \
  return early

// nullptr before cuInit, or where there is no fake device.
Attachment* attachment();
// cuInit's work.
CUresult Initialise();
// The fake's number of the device with an ordinal; -1: none.
int DeviceOfOrdinal(int ordinal);
int VisibleDevices();
CUuuid UuidOfDevice(int device);

CUcontext PrimaryContext(int ordinal);
// The calling thread's stack of contexts; the last one is current.
std::vector<CUcontext>& ContextStack();
// nullptr: none.
CUcontext CurrentContext();

// The sticky error of the process, or CUDA_SUCCESS.
CUresult StickyError();
void SetStickyError(CUresult error);

// Set while a host function runs on the calling thread, from which the driver may not be called.
bool& InHostFunction();

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_PROCESS_H_
