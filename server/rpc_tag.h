// What the completion queues of RpcServer hand back. Internal to it.

#ifndef EMBCACHE_SERVER_RPC_TAG_H_
#define EMBCACHE_SERVER_RPC_TAG_H_

namespace embcache {

class Tag {
 public:
  virtual ~Tag() = default;
  virtual void Proceed(bool ok) = 0;
};

}  // namespace embcache

#endif  // EMBCACHE_SERVER_RPC_TAG_H_
