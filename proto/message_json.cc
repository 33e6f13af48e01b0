#include "proto/message_json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace embcache {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string NumberJson(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.6g", value) : "null";
}

// `index` < 0: the field is not repeated.
std::string ValueJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* r = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(one ? r->GetInt32(message, field)
                              : r->GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(one ? r->GetInt64(message, field)
                              : r->GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(one ? r->GetUInt32(message, field)
                              : r->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(one ? r->GetUInt64(message, field)
                              : r->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberJson(one ? r->GetDouble(message, field)
                            : r->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberJson(one ? r->GetFloat(message, field)
                            : r->GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (one ? r->GetBool(message, field) : r->GetRepeatedBool(message, field, index))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return JsonString(
          (one ? r->GetEnum(message, field) : r->GetRepeatedEnum(message, field, index))->name());
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text =
          one ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
      return JsonString(field->type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(text)
                                                                     : text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(one ? r->GetMessage(message, field)
                               : r->GetRepeatedMessage(message, field, index));
  }
  return "null";
}

}  // namespace

size_t Utf8Length(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 && first < 0xF5   ? 4
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xC2 && first < 0xE0 ? 2
                                                        : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  // Over-long forms, surrogates, and what lies beyond U+10FFFF.
  if ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) >= 0xA0) ||
      (first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) >= 0x90)) {
    return 0;
  }
  return length;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", absl::string_view(&c, 1));
    } else if (length == 1 && static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<int>(c));
    } else {
      absl::StrAppend(&out, text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + "\"";
}

std::string MessageToJson(const Message& message) {
  std::string out = "{";
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    absl::StrAppend(&out, i == 0 ? "" : ",", JsonString(field->name()), ":");
    if (!field->is_repeated()) {
      absl::StrAppend(&out, ValueJson(message, field, -1));
      continue;
    }
    out += "[";
    const int size = message.GetReflection()->FieldSize(message, field);
    for (int k = 0; k < size; ++k) {
      absl::StrAppend(&out, k == 0 ? "" : ",", ValueJson(message, field, k));
    }
    out += "]";
  }
  return out + "}";
}

}  // namespace embcache
