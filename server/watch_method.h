// The one streaming rpc, Watch, on a completion queue of RpcServer. Internal to it.

#ifndef EMBCACHE_SERVER_WATCH_METHOD_H_
#define EMBCACHE_SERVER_WATCH_METHOD_H_

#include <memory>

#include "embcache/v1/embcache.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/cache_service.h"
#include "server/call_gate.h"
#include "server/rpc_tag.h"

namespace embcache {

// All of them outlive the method.
std::unique_ptr<MethodBase> MakeWatchMethod(CallGate* gate, grpc::ServerCompletionQueue* queue,
                                            v1::Cache::AsyncService* async, CacheService* service);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_WATCH_METHOD_H_
