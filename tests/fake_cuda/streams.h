// Streams and events: every stream is a queue and a thread that works it off, in order, each
// operation not before its delay has gone by. Internal to the fake.
//
// The default stream waits for all streams that are not CU_STREAM_NON_BLOCKING, and those for it.
// Once the process has a sticky error, operations are dropped instead of done.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_STREAMS_H_
#define EMBCACHE_TESTS_FAKE_CUDA_STREAMS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "tests/fake_cuda/process.h"

namespace fakecuda {

// The end of an operation on a stream.
struct Ticket {
  CUstream stream = nullptr;
  uint64_t sequence = 0;  // 0: of nothing
};

}  // namespace fakecuda

struct CUstream_st {
  struct Operation {
    std::vector<fakecuda::Ticket> after;
    std::chrono::steady_clock::time_point due;
    std::function<CUresult()> run;
  };
  int device = 0;
  bool blocking = true;
  bool ending = false;  // destroyed; ends when its queue is empty
  uint64_t queued = 0;  // sequence number of the last operation queued, and of the last one done
  uint64_t done = 0;
  std::deque<Operation> operations;
};

struct CUevent_st {
  fakecuda::Ticket recorded;
};

namespace fakecuda {

class Streams {
 public:
  static Streams& Get();

  CUstream Create(int device, bool blocking);
  CUresult Destroy(CUstream stream);

  // The rest takes the handles that the API does, with 0, 1 and 2 for default streams, and answers
  // INVALID_HANDLE for what is none.
  CUresult Queue(CUstream stream, std::function<CUresult()> run, Ticket* ticket = nullptr);
  CUresult Synchronize(CUstream stream);
  CUresult Query(CUstream stream);
  void Wait(Ticket ticket);
  // Until nothing is queued on any stream of a device.
  void WaitForDevice(int device);

  CUevent CreateEvent();
  CUresult DestroyEvent(CUevent event);
  CUresult Record(CUevent event, CUstream stream);
  CUresult WaitEvent(CUstream stream, CUevent event);
  // Waits, or answers NOT_READY.
  CUresult CheckEvent(CUevent event, bool wait);

 private:
  CUstream CreateLocked(int device, bool blocking);
  CUstream Resolve(CUstream handle);  // nullptr: no stream
  Ticket QueueLocked(CUstream stream, std::function<CUresult()> run);
  bool Done(const Ticket& ticket) const;
  bool MayBegin(const CUstream_st::Operation& operation) const;
  void Run(CUstream stream);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<CUstream> streams_;
  std::vector<CUstream> ended_;  // kept, so that no later stream is taken for one of them
  std::set<CUevent> events_;
  CUstream default_[kMaxDevices] = {};
};

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_STREAMS_H_
