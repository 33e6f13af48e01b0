// TLS for the server's TCP port, from files that may be replaced while it runs.
//
// gRPC's own watcher of files ends the process when it finds an empty one, and serves a key that
// does not belong to its certificate. So the files are read here, at a handshake after they have
// changed, and what is not whole and consistent is not taken: the last good ones stay in use.

#ifndef EMBCACHE_SERVER_TLS_CREDENTIALS_H_
#define EMBCACHE_SERVER_TLS_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class ServerCredentials;
}

namespace embcache {

// PEM files.
struct TlsFiles {
  std::string certificate;  // the chain, its own first
  std::string key;
  std::string client_ca;  // clients must have a certificate of these; empty: they need none
};

struct TlsContent {
  std::string certificate;
  std::string key;
  std::string client_ca;
};

// FAILED_PRECONDITION, naming the file: it cannot be read, is no PEM, or the key is not the
// certificate's. Blocks on the disk.
absl::StatusOr<TlsContent> ReadTlsFiles(const TlsFiles& files);

// Of files that can be used now. Thread-safe.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(const TlsFiles& files);

}  // namespace embcache

#endif  // EMBCACHE_SERVER_TLS_CREDENTIALS_H_
