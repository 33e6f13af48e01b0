// Protobuf messages as JSON for people and scripts. Unlike Protobuf's own mapping, 64-bit numbers
// are numbers, zero values are printed, bytes are hexadecimal, and field names are those of the
// .proto.

#ifndef EMBCACHE_PROTO_MESSAGE_JSON_H_
#define EMBCACHE_PROTO_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/string_view.h"

namespace embcache {

// Bytes of the UTF-8 character at the start of `text`, which is not empty; 0: there is none.
size_t Utf8Length(absl::string_view text);
bool IsUtf8(absl::string_view text);
// `text` with quotes, as a JSON string. Bytes that are no UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text);
// One line.
std::string MessageToJson(const google::protobuf::Message& message);

}  // namespace embcache

#endif  // EMBCACHE_PROTO_MESSAGE_JSON_H_
