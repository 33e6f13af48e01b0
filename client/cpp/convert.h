// Between the public structs and the messages of embcache.v1. Internal to the client.

#ifndef EMBCACHE_CLIENT_CPP_CONVERT_H_
#define EMBCACHE_CLIENT_CPP_CONVERT_H_

#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "embcache/v1/embcache.pb.h"

namespace embcache::client::internal {

void ToProto(const Key& key, embcache::v1::Key* out);
void ToProto(const Expectation& expectation, embcache::v1::Expectation* out);
void ToProto(const Key& key, const std::vector<TensorSpec>& tensors, const PutOptions& options,
             embcache::v1::PutItem* out);

embcache::v1::Place ToProto(Place place);

Key FromProto(const embcache::v1::Key& key);
Tier FromProto(embcache::v1::Tier tier);
TensorSpec FromProto(const embcache::v1::Tensor& tensor);
ListedEntry FromProto(const embcache::v1::ListedEntry& entry);
MissReason FromProto(embcache::v1::GetResult::MissReason reason);
absl::Status FromProto(const embcache::v1::ItemStatus& status);

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_CONVERT_H_
