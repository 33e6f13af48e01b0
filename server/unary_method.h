// UnaryMethod: one rpc of one request and one answer on a completion queue of RpcServer. Internal
// to it.

#ifndef EMBCACHE_SERVER_UNARY_METHOD_H_
#define EMBCACHE_SERVER_UNARY_METHOD_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "embcache/v1/embcache.pb.h"
#include "google/protobuf/arena.h"
#include "grpcpp/grpcpp.h"
#include "server/admin_service.h"
#include "server/call_gate.h"
#include "server/health_service.h"
#include "server/rpc_tag.h"

namespace embcache {

// How to ask gRPC for a call, and which handler answers it.
template <class Base, class Async, class Service, class Request, class Response>
class UnaryMethod final : public MethodBase {
 public:
  using Writer = grpc::ServerAsyncResponseWriter<Response>;
  using Ask = void (Base::*)(grpc::ServerContext*, Request*, Writer*, grpc::CompletionQueue*,
                             grpc::ServerCompletionQueue*, void*);
  using Handler = void (Service::*)(const CallContext&, const Request&, Response*, Done);

  UnaryMethod(CallGate* gate, grpc::ServerCompletionQueue* queue, Async* async, Ask ask,
              Service* service, Handler handler)
      : gate_(gate),
        queue_(queue),
        async_(async),
        ask_(ask),
        service_(service),
        handler_(handler) {}

  // Health must answer under any load: a supervisor would restart a daemon that is merely busy.
  static constexpr bool kBounded = !std::is_same_v<Service, HealthService>;
  // Only these can be large, and giving one back undoes all that its call did.
  static constexpr bool kRefusable = std::is_same_v<Response, v1::GetResponse>;

  void Arm() override { new Call(this); }

 private:
  static constexpr size_t kArenaBlockBytes = 1536;

  // Waits for a request, runs the handler, sends the answer, and deletes itself when that is done.
  class Call final : public Tag, private LongWait {
   public:
    explicit Call(UnaryMethod* method)
        : method_(method),
          writer_(&rpc_),
          arena_(block_, sizeof(block_)),
          request_(google::protobuf::Arena::CreateMessage<Request>(&arena_)),
          response_(google::protobuf::Arena::CreateMessage<Response>(&arena_)) {
      method_->gate_->CallMade();
      (method_->async_->*method_->ask_)(&rpc_, request_, &writer_, method_->queue_, method_->queue_,
                                        this);
    }

    void Proceed(bool ok) override {
      if (!answered_ && ok) {
        method_->Arm();
        return Run();
      }
      // Either the server is shutting down and this call never began, or the answer has left (ok),
      // or it could not, for the caller has gone away.
      undelivered_ = answered_ && !ok && answered_ok_;
      if (!waits_for_sender_ || sender_or_sent_.exchange(true)) End();
    }

   private:
    void End() {
      if (undelivered_) TakeBack();
      CallGate* const gate = method_->gate_;
      if (charged_ > 0) gate->answers.Refund(peer_, charged_);
      delete this;
      gate->CallGone();
    }

    void Run() {
      CallGate* const gate = method_->gate_;
      if (kBounded && !gate->Enter()) {
        return Send(absl::ResourceExhaustedError(
            absl::StrCat("too many calls at a time; the daemon handles ", gate->max_in_flight)));
      }
      absl::StatusOr<CallContext> context =
          MakeCallContext(rpc_, *gate, std::is_same_v<Service, AdminService>);
      absl::Status status = context.status();
      if (kBounded && status.ok() && gate->answers.crowded()) {
        status = gate->answers.Admit(rpc_.peer());
      }
      // gRPC's own check of sizes is not there in a minimal stack.
      const uint64_t bytes = status.ok() ? request_->ByteSizeLong() : 0;
      if (bytes > gate->max_message_bytes) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("request: ", bytes, " bytes; must be at most ", gate->max_message_bytes));
      }
      if (!status.ok()) {
        return Answer(status);
      }
      context_ = *context;
      if (kBounded) context_.long_wait = this;
      (method_->service_->*method_->handler_)(context_, *request_, response_,
                                              [this](absl::Status status) { Answer(status); });
    }

    void Answer(const absl::Status& status) {
      if (kBounded && !waits_long_.load(std::memory_order_relaxed)) method_->gate_->Leave();
      Send(status);
    }

    void Begin() override {
      if (!waits_long_.exchange(true, std::memory_order_relaxed)) method_->gate_->Leave();
    }

    // `this` may be gone when it returns.
    void Send(absl::Status status) {
      if (status.ok()) {
        status = Charge(response_->ByteSizeLong(), kRefusable);
        if (!status.ok()) TakeBack();
      }
      if (!status.ok()) Charge(0, /*may_refuse=*/false).IgnoreError();
      answered_ = true;
      answered_ok_ = status.ok();
      if (!status.ok()) return writer_.FinishWithError(ToGrpcStatus(status), this);
      const bool has_values = kRefusable && charged_ > 0;
      waits_for_sender_ = has_values;
      writer_.Finish(*response_, grpc::Status::OK, this);
      if (!has_values) return;
      // gRPC has made its own copy; these would stay for as long as the client does not read.
      FreeValues();
      if (sender_or_sent_.exchange(true)) End();
    }

    absl::Status Charge(uint64_t bytes, bool may_refuse) {
      CallGate* const gate = method_->gate_;
      if (bytes < kCountedAnswerBytes && !gate->piled_up()) return absl::OkStatus();
      peer_ = rpc_.peer();
      const uint64_t counted = std::max(bytes, kCallBytes);
      absl::Status charged = gate->answers.Charge(peer_, counted, may_refuse);
      if (charged.ok()) charged_ = counted;
      return charged;
    }

    void FreeValues() {
      if constexpr (kRefusable) {
        for (v1::GetResult& result : *response_->mutable_results()) {
          // The message lies in an arena: clearing the field would keep its memory.
          if (!result.inline_().empty()) std::string().swap(*result.mutable_inline_());
        }
      }
    }

    void TakeBack() {
      if constexpr (requires(Service & service) { service.Undelivered(context_, *response_); }) {
        method_->service_->Undelivered(context_, *response_);
      }
    }

    UnaryMethod* const method_;
    grpc::ServerContext rpc_;
    Writer writer_;
    // Most calls fit the block: their messages then cost no allocation but that of long strings.
    char block_[kArenaBlockBytes];
    google::protobuf::Arena arena_;
    Request* const request_;
    Response* const response_;
    CallContext context_;
    std::atomic<bool> waits_long_ = false;  // and so has left the gate
    uint64_t charged_ = 0;                  // of the answer, until it has left
    std::string peer_;  // who was charged; a call that has ended no longer knows
    bool answered_ = false;
    bool answered_ok_ = false;
    bool undelivered_ = false;
    // With values to free, whoever comes last of Send and of the event that the answer has left
    // ends the call.
    bool waits_for_sender_ = false;
    std::atomic<bool> sender_or_sent_ = false;
  };

  CallGate* const gate_;
  grpc::ServerCompletionQueue* const queue_;
  Async* const async_;
  const Ask ask_;
  Service* const service_;
  const Handler handler_;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_UNARY_METHOD_H_
