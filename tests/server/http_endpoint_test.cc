#include "server/http_endpoint.h"

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/http_get.h"

namespace embcache {
namespace {

using testing::HasSubstr;
using namespace testing_support;

class HttpEndpointTest : public testing::Test {
 protected:
  HttpEndpointTest() {
    char name[] = "/tmp/http.XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~HttpEndpointTest() override {
    endpoint_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Start(absl::string_view address, int max_connections = 64,
             absl::Duration idle_timeout = absl::Seconds(10), const PeerRules& peers = {}) {
    endpoint_.reset();
    HttpOptions options;
    options.peers = peers;
    options.address = *ParseHttpAddress(address, dir_);
    options.max_connections = max_connections;
    options.first_timeout = absl::Seconds(1);
    options.idle_timeout = idle_timeout;
    auto endpoint = HttpEndpoint::Start(options, [](absl::string_view path) {
      if (path == "/there") return HttpResponse{.body = "here", .headers = {{"X-Test", "yes"}}};
      return HttpResponse{.status = 404, .body = absl::StrCat("no ", path)};
    });
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
  }
  std::string socket() const { return dir_ + "/http.sock"; }
  uint16_t port() const { return static_cast<uint16_t>(endpoint_->address().port); }

  std::string dir_;
  std::unique_ptr<HttpEndpoint> endpoint_;
};

TEST_F(HttpEndpointTest, AnswersOnAUnixSocketThatGoesWithIt) {
  Start("unix");
  struct stat found;
  ASSERT_EQ(lstat(socket().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0660u);
  const HttpAnswer answer = GetUnix(socket(), "/there?query=1");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "here");
  EXPECT_THAT(answer.head, HasSubstr("X-Test: yes"));
  EXPECT_THAT(answer.head, HasSubstr("Cache-Control: no-store"));
  EXPECT_EQ(GetUnix(socket(), "/missing").status, 404);
  endpoint_.reset();
  EXPECT_NE(lstat(socket().c_str(), &found), 0);
}

TEST_F(HttpEndpointTest, AnswersOnTcpWithThePortThatTheKernelChose) {
  Start("127.0.0.1:0");
  ASSERT_NE(port(), 0);
  EXPECT_EQ(Request(ConnectTcp(port()), "/there").body, "here");
}

TEST_F(HttpEndpointTest, TakesGetAndHeadOnly) {
  Start("unix");
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    EXPECT_EQ(Request(ConnectUnix(socket()), "/there", method).status, 405) << method;
  }
  const HttpAnswer head = Request(ConnectUnix(socket()), "/there", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST_F(HttpEndpointTest, OnLoopbackItAnswersToItsOwnNamesOnly) {
  Start("127.0.0.1:0");
  for (const std::string& host : {std::string("localhost"), absl::StrCat("localhost:", port()),
                                  absl::StrCat("127.0.0.1:", port())}) {
    EXPECT_EQ(Request(ConnectTcp(port()), "/there", "GET", host).status, 200) << host;
  }
  EXPECT_EQ(Request(ConnectTcp(port()), "/there", "GET", "evil.example").status, 403);
}

TEST_F(HttpEndpointTest, WhoMayNotConnectGetsNothingOnTheUnixSocket) {
  Start("unix", 64, absl::Seconds(10), PeerRules{.allowed_uids = {geteuid() + 1}});
  EXPECT_EQ(GetUnix(socket(), "/there").status, 403);
  Start("unix", 64, absl::Seconds(10), PeerRules{.allowed_uids = {geteuid()}});
  EXPECT_EQ(GetUnix(socket(), "/there").status, 200);
}

TEST_F(HttpEndpointTest, ConnectionsThatSayNothingDoNotKeepOthersOut) {
  Start("unix", 64);
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(ConnectUnix(socket()));
    SendAll(silent.back(), "GET /there HT");
  }
  EXPECT_EQ(GetUnix(socket(), "/there").status, 200);
  for (const int fd : silent) close(fd);
}

TEST_F(HttpEndpointTest, MoreConnectionsThanAllowedAreClosedAndRoomComesBack) {
  Start("unix", 2, absl::Hours(1));
  const int first = ConnectUnix(socket());
  const int second = ConnectUnix(socket());
  SendAll(first, "GET /there HTTP/1.1\r\n");
  SendAll(second, "GET /there HTTP/1.1\r\n");
  // Both end after a second of silence; the third waits for that or is refused until then.
  EXPECT_EQ(ReadAll(first).find("200 OK"), std::string::npos);
  EXPECT_EQ(ReadAll(second).find("200 OK"), std::string::npos);
  EXPECT_TRUE(IsClosed(first));
  EXPECT_TRUE(IsClosed(second));
  close(first);
  close(second);
  EXPECT_EQ(GetUnix(socket(), "/there").status, 200);
}

TEST_F(HttpEndpointTest, WhoHasAskedMayBeSilentForLonger) {
  Start("unix", 64, absl::Hours(1));
  const int asked = ConnectUnix(socket());
  SendAll(asked, "GET /there HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const int silent = ConnectUnix(socket());
  EXPECT_EQ(ReadAll(silent), "");
  EXPECT_TRUE(IsClosed(silent));  // and what connected before is not
  SendAll(asked, "GET /there HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string answers = ReadAll(asked);
  const size_t second = answers.find("200 OK", answers.find("200 OK") + 1);
  EXPECT_NE(second, std::string::npos) << answers;
  close(asked);
  close(silent);
}

TEST_F(HttpEndpointTest, ARequestThatIsTooLongIsRefused) {
  Start("unix");
  EXPECT_EQ(GetUnix(socket(), "/" + std::string(1 << 20, 'a')).body.find("no "), std::string::npos);
  EXPECT_EQ(GetUnix(socket(), "/there").status, 200);
}

TEST_F(HttpEndpointTest, EndsWhileConnectionsAreOpen) {
  Start("unix");
  const int fd = ConnectUnix(socket());
  SendAll(fd, "GET /there HTTP/1.1\r\n");
  endpoint_.reset();
  EXPECT_EQ(ReadAll(fd).find("200 OK"), std::string::npos);
  close(fd);
}

TEST_F(HttpEndpointTest, AnAddressInUseIsAnErrorThatNamesIt) {
  Start("127.0.0.1:0");
  HttpOptions options;
  options.address = endpoint_->address();
  const auto second =
      HttpEndpoint::Start(options, [](absl::string_view) { return HttpResponse(); });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", port())));
}

TEST(HttpAddressTest, ReadsAllForms) {
  EXPECT_EQ(ParseHttpAddress("off", "/run")->kind, HttpAddress::Kind::kOff);
  EXPECT_EQ(ParseHttpAddress("unix", "/run")->ToString(), "unix:/run/http.sock");
  EXPECT_EQ(ParseHttpAddress("unix:/a/b", "/run")->path, "/a/b");
  EXPECT_TRUE(ParseHttpAddress("localhost:80", "")->loopback());
  EXPECT_EQ(ParseHttpAddress("0.0.0.0:9464", "")->ToString(), "0.0.0.0:9464");
  EXPECT_EQ(ParseHttpAddress("[::1]:9464", "")->ToString(), "[::1]:9464");
  EXPECT_TRUE(ParseHttpAddress("[::1]:9464", "")->loopback());
  EXPECT_FALSE(ParseHttpAddress("0.0.0.0:9464", "")->loopback());
}

TEST(HttpAddressTest, RefusesWhatItCannotBind) {
  for (const char* text : {"", "on", "9464", ":9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000",
                           "::1:9464", "unix:relative", "unix:"}) {
    EXPECT_EQ(ParseHttpAddress(text, "/run").status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace embcache
