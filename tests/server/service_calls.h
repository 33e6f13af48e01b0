// Helpers for tests that call services without a transport, and requests they share.

#ifndef EMBCACHE_TESTS_SERVER_SERVICE_CALLS_H_
#define EMBCACHE_TESTS_SERVER_SERVICE_CALLS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "embcache/v1/embcache.pb.h"
#include "server/call_context.h"

namespace embcache {

template <class Response>
struct Answer {
  absl::Status status;
  Response response;
};

// Whose calls tests make where it does not matter.
inline CallContext AdminCall() { return CallContext{.caller = Caller::kAdmin}; }

// Calls a handler and waits for its answer.
template <class Service, class Request, class Response>
Answer<Response> CallHandler(Service* service,
                             void (Service::*handler)(const CallContext&, const Request&, Response*,
                                                      Done),
                             const Request& request, const CallContext& context = AdminCall()) {
  Answer<Response> answer;
  absl::Notification done;
  (service->*handler)(context, request, &answer.response, [&](absl::Status status) {
    answer.status = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  return answer;
}

inline v1::Key ProtoKey(const std::string& name, const std::string& model = "model") {
  v1::Key key;
  key.set_model(model);
  key.set_content_hash(name + std::string(32 - name.size(), '.'));
  return key;
}

// A value of `bytes` times `fill`, as one tensor of U8.
inline v1::PutItem ProtoItem(const std::string& name, size_t bytes = 512, char fill = 'x') {
  v1::PutItem item;
  *item.mutable_key() = ProtoKey(name);
  v1::Tensor* tensor = item.add_tensors();
  tensor->set_name("t");
  tensor->set_dtype(v1::U8);
  tensor->add_shape(static_cast<int64_t>(bytes));
  item.set_inline_(std::string(bytes, fill));
  return item;
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_SERVICE_CALLS_H_
