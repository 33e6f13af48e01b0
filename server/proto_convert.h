// Between the messages of embcache.v1 and the cache's own types. What comes from a client is
// checked here, against its limits and before anything is copied; errors are INVALID_ARGUMENT and
// name the field relative to the message ("content_hash_hex: not hexadecimal"), for InField to
// complete.

#ifndef EMBCACHE_SERVER_PROTO_CONVERT_H_
#define EMBCACHE_SERVER_PROTO_CONVERT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "embcache/v1/embcache.pb.h"
#include "storage/tiered_cache.h"

namespace embcache {

// Puts "field." before the message of an error.
absl::Status InField(absl::string_view field, const absl::Status& status);
absl::Status InField(absl::string_view list, int index, absl::string_view field,
                     const absl::Status& status);

absl::StatusOr<CacheKey> KeyFromProto(const v1::Key& key);
// The raw bytes of `hex`, upper or lower case. The error's message starts with "not " or "odd ".
absl::StatusOr<std::string> BytesFromHex(absl::string_view hex);
absl::StatusOr<std::vector<TensorExpectation>> ExpectationsFromProto(
    const google::protobuf::RepeatedPtrField<v1::Expectation>& expect);
// All of `item` but its inline bytes.
absl::StatusOr<ReserveRequest> ReserveRequestFromProto(const v1::PutItem& item);

void KeyToProto(const CacheKey& key, v1::Key* to);
void TensorsToProto(const TensorLayout& layout, google::protobuf::RepeatedPtrField<v1::Tensor>* to);
void EntryToProto(const EntryInfo& info, v1::Entry* to);
void LocationToProto(const Location& location, v1::Location* to);
v1::Tier TierToProto(TierId tier);
v1::GetResult::MissReason MissReasonToProto(MissReason reason);
void StatusToProto(const absl::Status& status, v1::ItemStatus* to);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_PROTO_CONVERT_H_
