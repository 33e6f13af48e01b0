// TCP with certificates that the test makes with openssl.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/rpc_fixture.h"

namespace embcache {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An authority with one certificate, in a directory of its own: ca.pem, cert.pem, key.pem.
class Authority {
 public:
  explicit Authority(const std::string& directory) : directory_(directory) {
    std::filesystem::create_directory(directory);
    const std::string key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    Run(absl::StrCat("req -x509 ", key, " -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    Run(absl::StrCat("req ", key, " -keyout key.pem -out cert.csr -subj /CN=localhost"));
    std::ofstream(directory + "/san") << "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
    Run("x509 -req -in cert.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san "
        "-out cert.pem");
  }

  std::string ca() const { return ReadFile(directory_ + "/ca.pem"); }
  std::string certificate() const { return ReadFile(directory_ + "/cert.pem"); }
  std::string key() const { return ReadFile(directory_ + "/key.pem"); }

 private:
  void Run(const std::string& command) const {
    EXPECT_EQ(
        std::system(absl::StrCat("cd ", directory_, " && openssl ", command, " 2>log").c_str()), 0)
        << command << "\n"
        << ReadFile(directory_ + "/log");
  }

  const std::string directory_;
};

class TcpTlsTest : public RpcServerTest {
 protected:
  ~TcpTlsTest() override {
    server_.reset();
    std::filesystem::remove_all(directory_ + "/tls");
  }

  std::string Path(const std::string& name) const { return directory_ + "/tls/" + name; }

  void StartTls(const std::string& client_ca = "") {
    RpcServerOptions options;
    options.tcp_address = "127.0.0.1:0";
    options.tls = {Path("current/cert.pem"), Path("current/key.pem"), client_ca};
    Start(std::move(options));
  }

  // Atomically, as certificate managers do.
  void MakeCurrent(const std::string& name) {
    ASSERT_EQ(symlink(name.c_str(), Path("next").c_str()), 0);
    ASSERT_EQ(rename(Path("next").c_str(), Path("current").c_str()), 0);
  }

  grpc::Status PingWith(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // The certificates' name, which a machine without /etc/hosts cannot look up.
    arguments.SetSslTargetNameOverride("localhost");
    const auto channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->tcp_port()),
                                                   credentials, arguments);
    grpc::ClientContext context;
    v1::PingResponse response;
    return v1::Cache::NewStub(channel)->Ping(&context, v1::PingRequest(), &response);
  }

  static std::shared_ptr<grpc::ChannelCredentials> Trusting(const Authority& server) {
    return grpc::SslCredentials({.pem_root_certs = server.ca()});
  }
  static std::shared_ptr<grpc::ChannelCredentials> Trusting(const Authority& server,
                                                            const Authority& own) {
    return grpc::SslCredentials({.pem_root_certs = server.ca(),
                                 .pem_private_key = own.key(),
                                 .pem_cert_chain = own.certificate()});
  }

  const bool made_ = std::filesystem::create_directory(directory_ + "/tls");
  const Authority first_{Path("first")};
  const Authority second_{Path("second")};
};

TEST_F(TcpTlsTest, WhoTrustsTheCertificateIsServedAndNobodyInTheClear) {
  MakeCurrent("first");
  StartTls();
  EXPECT_TRUE(PingWith(Trusting(first_)).ok());
  EXPECT_FALSE(PingWith(Trusting(second_)).ok());
  EXPECT_FALSE(PingWith(grpc::InsecureChannelCredentials()).ok());
  EXPECT_TRUE(PingWith(Trusting(first_)).ok());
}

TEST_F(TcpTlsTest, WithAnAuthorityForClientsOnlyTheirCertificatesAreServed) {
  MakeCurrent("first");
  StartTls(Path("second/ca.pem"));
  EXPECT_TRUE(PingWith(Trusting(first_, second_)).ok());
  EXPECT_FALSE(PingWith(Trusting(first_)).ok());
  EXPECT_FALSE(PingWith(Trusting(first_, first_)).ok());
}

TEST_F(TcpTlsTest, ANewCertificateIsTakenOverWithoutARestart) {
  MakeCurrent("first");
  StartTls();
  ASSERT_TRUE(PingWith(Trusting(first_)).ok());
  MakeCurrent("second");
  EXPECT_TRUE(PingWith(Trusting(second_)).ok());
  EXPECT_FALSE(PingWith(Trusting(first_)).ok());
}

TEST_F(TcpTlsTest, FilesThatAreNotWholeOrDoNotBelongTogetherChangeNothing) {
  std::filesystem::create_directory(Path("own"));
  const auto write = [this](const std::string& name, const std::string& content) {
    std::ofstream(Path("own/" + name), std::ios::trunc) << content;
  };
  write("cert.pem", first_.certificate());
  write("key.pem", first_.key());
  MakeCurrent("own");
  StartTls();
  const auto still_first = [this] {
    return PingWith(Trusting(first_)).ok() && !PingWith(Trusting(second_)).ok();
  };
  ASSERT_TRUE(still_first());
  for (const std::string& half : {std::string(), second_.certificate().substr(0, 200),
                                  second_.certificate(), std::string("no certificate\n")}) {
    write("cert.pem", half);
    EXPECT_TRUE(still_first()) << half;
  }
  for (const std::string& half : {std::string(), second_.key().substr(0, 100)}) {
    write("key.pem", half);
    EXPECT_TRUE(still_first()) << half;
  }
  std::filesystem::remove(Path("own/key.pem"));
  EXPECT_TRUE(still_first());
  write("cert.pem", second_.certificate());
  write("key.pem", second_.key());
  EXPECT_TRUE(PingWith(Trusting(second_)).ok());
  EXPECT_FALSE(PingWith(Trusting(first_)).ok());
}

TEST_F(TcpTlsTest, FilesThatCannotBeUsedAreNamedAtStart) {
  std::ofstream(Path("empty.pem")).close();
  const struct {
    TlsFiles files;
    const char* named;
  } cases[] = {
      {{Path("empty.pem"), Path("first/key.pem"), ""}, "empty.pem: no PEM certificate"},
      {{Path("first/cert.pem"), Path("empty.pem"), ""}, "empty.pem: no PEM private key"},
      {{Path("first/cert.pem"), Path("second/key.pem"), ""}, "second/key.pem: not the key of"},
      {{Path("first/cert.pem"), Path("first/key.pem"), Path("empty.pem")}, "empty.pem: no PEM"},
  };
  for (const auto& one : cases) {
    RpcServerOptions options;
    options.tcp_address = "127.0.0.1:0";
    options.tls = one.files;
    const absl::Status status =
        RpcServer::Start(std::move(options), service_.get(), admin_.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(status.message()).find(one.named), std::string::npos) << status;
  }
}

TEST_F(TcpTlsTest, AFileThatCannotBeReadIsNamedAtStart) {
  RpcServerOptions options;
  options.tcp_address = "127.0.0.1:0";
  options.tls = {Path("none.pem"), Path("first/key.pem"), ""};
  const absl::Status status =
      RpcServer::Start(std::move(options), service_.get(), admin_.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("none.pem"), std::string::npos);
}

TEST_F(TcpTlsTest, NothingButAnAddressOfThisMachineIsBound) {
  for (const char* address : {"192.0.2.1:0", "no-such-host.invalid:1"}) {
    RpcServerOptions options;
    options.tcp_address = address;
    EXPECT_EQ(RpcServer::Start(std::move(options), service_.get(), admin_.get()).status().code(),
              absl::StatusCode::kUnavailable)
        << address;
  }
}

}  // namespace
}  // namespace embcache
