// Users and groups of this machine, by name or number.

#ifndef EMBCACHE_SERVER_USER_NAMES_H_
#define EMBCACHE_SERVER_USER_NAMES_H_

#include <sys/types.h>

#include <optional>
#include <string>

namespace embcache {

// A number need not belong to anybody; nullopt: there is no such name.
std::optional<uid_t> FindUser(const std::string& name_or_number);
std::optional<gid_t> FindGroup(const std::string& name_or_number);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_USER_NAMES_H_
