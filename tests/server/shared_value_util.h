// Entries as the shared tier keeps them, for its tests.

#ifndef EMBCACHE_TESTS_SERVER_SHARED_VALUE_UTIL_H_
#define EMBCACHE_TESTS_SERVER_SHARED_VALUE_UTIL_H_

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/shared_value.h"
#include "storage/entry.h"
#include "tests/server/service_calls.h"

namespace embcache {

// The key of service_calls.h's ProtoKey.
inline CacheKey SharedKey(const std::string& name, const std::string& model = "model") {
  return *CacheKey::Create(model, ProtoKey(name).content_hash(), "");
}

// Two tensors with a gap between them, and metadata.
inline EntryInfo SharedInfo(const CacheKey& key) {
  return EntryInfo{
      .key = key,
      .layout = *LayOutTensors({TensorSpec{.name = "t", .dtype = DType::kU8, .shape = {100}},
                                TensorSpec{.name = "none", .absent = true},
                                TensorSpec{.name = "u", .dtype = DType::kF32, .shape = {2, 3}}}),
      .metadata = {{"grid", "1,2,3"}},
      .encode_cost_us = 1234,
      .created = absl::FromUnixSeconds(1'700'000'000)};
}

// The value of `info` with every byte of its tensors `fill`.
inline std::string SharedValueOf(const EntryInfo& info, char fill) {
  SharedValue value = MakeSharedValue(info);
  std::memset(value.payload(), fill, info.payload_bytes());
  SealSharedValue(info, &value);
  return std::string(value.view());
}

inline std::string SharedName(const CacheKey& key, const std::string& name_space = "ns") {
  return absl::StrCat("embcache:1:", name_space, ":e:", key.encoded());
}
inline std::string ClosedName(const std::string& model, const std::string& name_space = "ns") {
  return absl::StrCat("embcache:1:", name_space, ":closed:", model);
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_SERVER_SHARED_VALUE_UTIL_H_
