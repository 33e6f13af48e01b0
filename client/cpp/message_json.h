// Protobuf messages as JSON for people and scripts. Unlike Protobuf's own mapping, 64-bit numbers
// are numbers, zero values are printed, bytes are hexadecimal, and field names are those of the
// .proto.

#ifndef EMBCACHE_CLIENT_CPP_MESSAGE_JSON_H_
#define EMBCACHE_CLIENT_CPP_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/string_view.h"

namespace embcache::client::internal {

// `text` with quotes, as a JSON string. Bytes that are no UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text);
// One line.
std::string MessageToJson(const google::protobuf::Message& message);

}  // namespace embcache::client::internal

#endif  // EMBCACHE_CLIENT_CPP_MESSAGE_JSON_H_
