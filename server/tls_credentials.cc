#include "server/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "storage/small_files.h"

namespace embcache {
namespace {

constexpr size_t kMaxTlsFileBytes = size_t{1} << 20;

template <class Object, void (*free)(Object*)>
struct Freeing {
  void operator()(Object* object) const { free(object); }
};
using Certificate = std::unique_ptr<X509, Freeing<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freeing<EVP_PKEY, EVP_PKEY_free>>;
using Memory = std::unique_ptr<BIO, Freeing<BIO, BIO_free_all>>;

Memory View(const std::string& pem) {
  return Memory(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

Certificate FirstCertificate(const std::string& pem) {
  return Certificate(PEM_read_bio_X509(View(pem).get(), nullptr, nullptr, nullptr));
}

// Nobody could be asked for a password.
int NoPassword(char*, int, int, void*) { return -1; }

absl::Status Unusable(absl::string_view file, absl::string_view why) {
  ERR_clear_error();
  return absl::FailedPreconditionError(absl::StrCat("TLS: ", file, ": ", why));
}

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  absl::StatusOr<std::string> content = ReadFileBegin(path, kMaxTlsFileBytes);
  if (!content.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("TLS: cannot read ", path, ": ", content.status().message()));
  }
  return content;
}

// Differs when a file has been replaced or written to.
struct FileVersion {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  timespec modified = {};

  friend bool operator==(const FileVersion& a, const FileVersion& b) {
    return a.device == b.device && a.inode == b.inode && a.bytes == b.bytes &&
           a.modified.tv_sec == b.modified.tv_sec && a.modified.tv_nsec == b.modified.tv_nsec;
  }
};

FileVersion VersionOf(const std::string& path) {
  struct stat info;
  if (path.empty() || stat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino, info.st_size, info.st_mtim};
}

// gRPC demands roots also where clients are not asked for a certificate and these are not used.
grpc_ssl_server_certificate_config* MakeConfig(const TlsContent& content) {
  const grpc_ssl_pem_key_cert_pair pair = {content.key.c_str(), content.certificate.c_str()};
  const std::string& roots = content.client_ca.empty() ? content.certificate : content.client_ca;
  return grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
}

// gRPC's C++ side has no credentials that ask for their certificate; its C side has.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(TlsFiles files) : files_(std::move(files)) {
    grpc_ssl_server_credentials_options* const options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            files_.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                     : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
            &ReloadingCredentials::Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
  }
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  using Versions = std::array<FileVersion, 3>;

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Before each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ReloadingCredentials*>(self)->Reload(config);
  }

  grpc_ssl_certificate_config_reload_status Reload(grpc_ssl_server_certificate_config** config) {
    absl::MutexLock lock(&mu_);
    const Versions now = {VersionOf(files_.certificate), VersionOf(files_.key),
                          VersionOf(files_.client_ca)};
    if (in_use_ == now) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const absl::StatusOr<TlsContent> content = ReadTlsFiles(files_);
    if (!content.ok()) {
      if (std::exchange(refused_, now) != now) {
        spdlog::warn("{}; what was read before stays in use",
                     std::string(content.status().message()));
      }
      return in_use_.has_value() ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED
                                 : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    if (in_use_.has_value()) spdlog::info("TLS: {} was read anew", files_.certificate);
    in_use_ = now;
    *config = MakeConfig(*content);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles files_;
  grpc_server_credentials* credentials_;
  // Held while files are read: gRPC asks for one handshake at a time anyway.
  absl::Mutex mu_;
  std::optional<Versions> in_use_ ABSL_GUARDED_BY(mu_);
  std::optional<Versions> refused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<TlsContent> ReadTlsFiles(const TlsFiles& files) {
  absl::StatusOr<std::string> certificate = ReadPem(files.certificate);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key = ReadPem(files.key);
  if (!key.ok()) return key.status();
  const Certificate first = FirstCertificate(*certificate);
  if (first == nullptr) return Unusable(files.certificate, "no PEM certificate");
  const Key parsed(PEM_read_bio_PrivateKey(View(*key).get(), nullptr, &NoPassword, nullptr));
  if (parsed == nullptr) return Unusable(files.key, "no PEM private key, or one with a password");
  if (X509_check_private_key(first.get(), parsed.get()) != 1) {
    return Unusable(files.key, absl::StrCat("not the key of ", files.certificate));
  }
  TlsContent content = {*std::move(certificate), *std::move(key), ""};
  if (files.client_ca.empty()) return content;
  absl::StatusOr<std::string> client_ca = ReadPem(files.client_ca);
  if (!client_ca.ok()) return client_ca.status();
  if (FirstCertificate(*client_ca) == nullptr) {
    return Unusable(files.client_ca, "no PEM certificate");
  }
  content.client_ca = *std::move(client_ca);
  return content;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(const TlsFiles& files) {
  const absl::StatusOr<TlsContent> usable = ReadTlsFiles(files);
  if (!usable.ok()) return usable.status();
  return std::make_shared<ReloadingCredentials>(files);
}

}  // namespace embcache
