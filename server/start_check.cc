#include "server/start_check.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/tls_credentials.h"
#include "server/user_names.h"

namespace embcache {

absl::StatusOr<SocketAccess> MakeSocketAccess(const Config& config) {
  SocketAccess access;
  access.mode = config.socket_mode;
  if (!config.socket_owner.empty()) {
    access.owner = FindUser(config.socket_owner);
    if (!access.owner.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--socket-owner: no user \"", config.socket_owner, "\""));
    }
  }
  if (!config.socket_group.empty()) {
    access.group = FindGroup(config.socket_group);
    if (!access.group.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--socket-group: no group \"", config.socket_group, "\""));
    }
  }
  return access;
}

std::vector<std::string> StartFaults(const Config& config) {
  std::vector<std::string> faults;
  if (const auto access = MakeSocketAccess(config); !access.ok()) {
    faults.emplace_back(access.status().message());
  }
  bool readable = !config.tls_cert.empty();
  for (const auto& [flag, file] :
       {std::make_pair("--tls-cert", config.tls_cert), std::make_pair("--tls-key", config.tls_key),
        std::make_pair("--tls-client-ca", config.tls_client_ca)}) {
    if (!file.empty() && ::access(file.c_str(), R_OK) != 0) {
      readable = false;
      faults.push_back(absl::StrCat(flag, ": cannot read ", file, ": ", std::strerror(errno)));
    }
  }
  if (readable) {
    const auto tls = ReadTlsFiles({config.tls_cert, config.tls_key, config.tls_client_ca});
    if (!tls.ok()) faults.emplace_back(tls.status().message());
  }
  return faults;
}

}  // namespace embcache
