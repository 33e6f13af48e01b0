#include "server/status_page.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace embcache {

std::string StatusPagePolicy() {
  const auto source = [](const char* sha256) {
    return absl::StrCat("'sha256-", absl::Base64Escape(absl::HexStringToBytes(sha256)), "'");
  };
  return absl::StrCat("default-src 'none'; connect-src 'self'; script-src ",
                      source(kStatusPageScriptSha256), "; style-src ",
                      source(kStatusPageStyleSha256),
                      "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

}  // namespace embcache
