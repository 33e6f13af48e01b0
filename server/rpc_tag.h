// What RpcServer arms its completion queues with, and what they hand back. Internal to it.

#ifndef EMBCACHE_SERVER_RPC_TAG_H_
#define EMBCACHE_SERVER_RPC_TAG_H_

namespace embcache {

class Tag {
 public:
  virtual ~Tag() = default;
  virtual void Proceed(bool ok) = 0;
};

// One rpc on one queue. Outlives its calls.
class MethodBase {
 public:
  virtual ~MethodBase() = default;
  // Asks gRPC for one more call.
  virtual void Arm() = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_RPC_TAG_H_
