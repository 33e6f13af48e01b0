// Comes first in everything that sees Protobuf and is compiled for ThreadSanitizer.
//
// There, the header of map fields gives them two members more. Debian's library is compiled without
// the sanitizer and knows nothing of them: every message with a map is laid out differently in the
// program and in the library, and the first that is destroyed with its arena crashes.

#ifndef EMBCACHE_TESTS_TSAN_PROTOBUF_H_
#define EMBCACHE_TESTS_TSAN_PROTOBUF_H_

// The standard library's headers first: they have a use for the macro.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")

#endif  // EMBCACHE_TESTS_TSAN_PROTOBUF_H_
