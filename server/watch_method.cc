#include "server/watch_method.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/event_stream.h"

namespace embcache {
namespace {

// One call of Watch, from the wait for its request to its end. It is kept by itself while gRPC has
// something of it in hand. At most one message is on its way; the next is made when it has left, or
// when something happens (Wake), whichever thread that is.
class WatchCall final : public Watcher, public std::enable_shared_from_this<WatchCall> {
 public:
  using Async = v1::Cache::AsyncService;

  static void Arm(CallGate* gate, grpc::ServerCompletionQueue* queue, Async* async,
                  CacheService* service) {
    std::shared_ptr<WatchCall> call(new WatchCall(gate, queue, async, service));
    call->self_ = call;
    gate->CallMade();
    call->rpc_.AsyncNotifyWhenDone(&call->over_tag_);
    async->RequestWatch(&call->rpc_, &call->request_, &call->writer_, queue, queue,
                        &call->begun_tag_);
  }

  ~WatchCall() override { gate_->CallGone(); }

  void Wake() override { Pump(); }

  void End() override {
    {
      absl::MutexLock lock(&mu_);
      ending_ = true;
    }
    Pump();
  }

 private:
  struct MemberTag final : Tag {
    MemberTag(WatchCall* of, void (WatchCall::*handler)(bool)) : call(of), handle(handler) {}
    void Proceed(bool ok) override { (call->*handle)(ok); }
    WatchCall* const call;
    void (WatchCall::*const handle)(bool);
  };

  WatchCall(CallGate* gate, grpc::ServerCompletionQueue* queue, Async* async, CacheService* service)
      : gate_(gate), queue_(queue), async_(async), service_(service), writer_(&rpc_) {}

  // The call has begun, or (not ok) the server takes no more.
  void Begun(bool ok) {
    if (!ok) {
      Returned(1);
      return;
    }
    Arm(gate_, queue_, async_, service_);
    {
      absl::MutexLock lock(&mu_);
      ++in_hand_;  // the tag of its end comes from now on
      busy_ = true;
    }
    Returned(1);
    absl::StatusOr<std::unique_ptr<EventStream>> stream =
        service_->Watch(request_, weak_from_this());
    if (!stream.ok()) return Finish(stream.status());
    stream_ = *std::move(stream);
    Continue();
  }

  void Written(bool ok) {
    // Not ok: the caller is gone, and nothing more can be written; Over comes, too.
    if (ok) Continue();
    Returned(1);
  }

  void Finished(bool ok) { Returned(1); }

  // The call has ended, by us or by its caller.
  void Over(bool ok) {
    {
      absl::MutexLock lock(&mu_);
      over_ = true;
    }
    Returned(1);
  }

  void Pump() {
    {
      absl::MutexLock lock(&mu_);
      again_ = true;
      if (busy_ || over_) return;
      busy_ = true;
    }
    Continue();
  }

  // REQUIRES: this thread has made the call busy. Sends the next message, the end, or nothing.
  void Continue() {
    while (true) {
      bool ending = false;
      {
        absl::MutexLock lock(&mu_);
        if (over_) return;
        ending = ending_;
        again_ = false;
      }
      if (ending) return Finish(absl::UnavailableError("the daemon is stopping"));
      if (stream_->Next(&response_)) {
        if (!TakeInHand()) return;
        writer_.Write(response_, &written_tag_);
        return;
      }
      absl::MutexLock lock(&mu_);
      if (!again_) {
        busy_ = false;
        return;
      }
    }
  }

  // Stays busy: nothing follows.
  void Finish(const absl::Status& status) {
    if (!TakeInHand()) return;
    writer_.Finish(ToGrpcStatus(status), &finished_tag_);
  }

  bool TakeInHand() {
    absl::MutexLock lock(&mu_);
    if (over_) return false;
    ++in_hand_;
    return true;
  }

  void Returned(int tags) {
    std::shared_ptr<WatchCall> last;  // goes after the lock
    absl::MutexLock lock(&mu_);
    in_hand_ -= tags;
    if (in_hand_ == 0) last = std::move(self_);
  }

  CallGate* const gate_;
  grpc::ServerCompletionQueue* const queue_;
  Async* const async_;
  CacheService* const service_;
  grpc::ServerContext rpc_;
  grpc::ServerAsyncWriter<v1::WatchResponse> writer_;
  v1::WatchRequest request_;
  v1::WatchResponse response_;           // of whoever is busy
  std::unique_ptr<EventStream> stream_;  // likewise
  MemberTag begun_tag_{this, &WatchCall::Begun};
  MemberTag written_tag_{this, &WatchCall::Written};
  MemberTag finished_tag_{this, &WatchCall::Finished};
  MemberTag over_tag_{this, &WatchCall::Over};

  absl::Mutex mu_;
  std::shared_ptr<WatchCall> self_ ABSL_GUARDED_BY(mu_);
  int in_hand_ ABSL_GUARDED_BY(mu_) = 1;  // tags that gRPC will give back
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool again_ ABSL_GUARDED_BY(mu_) = false;  // woken while busy
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

class WatchMethod final : public MethodBase {
 public:
  WatchMethod(CallGate* gate, grpc::ServerCompletionQueue* queue, v1::Cache::AsyncService* async,
              CacheService* service)
      : gate_(gate), queue_(queue), async_(async), service_(service) {}

  void Arm() override { WatchCall::Arm(gate_, queue_, async_, service_); }

 private:
  CallGate* const gate_;
  grpc::ServerCompletionQueue* const queue_;
  v1::Cache::AsyncService* const async_;
  CacheService* const service_;
};

}  // namespace

std::unique_ptr<MethodBase> MakeWatchMethod(CallGate* gate, grpc::ServerCompletionQueue* queue,
                                            v1::Cache::AsyncService* async, CacheService* service) {
  return std::make_unique<WatchMethod>(gate, queue, async, service);
}

}  // namespace embcache
