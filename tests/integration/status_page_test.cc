// The status page in a real browser. Without Chromium (Debian's package of that name) it is
// skipped.
//
// With EMBCACHE_SCREENSHOTS=DIR the pictures stay there; docs/status_page.png is one of them.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/http_get.h"

namespace embcache::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::ConnectTcp;
using testing_support::HttpAnswer;
using testing_support::Request;

constexpr char kChromium[] = "/usr/bin/chromium";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class StatusPageTest : public ClientTest {
 protected:
  StatusPageTest()
      : ClientTest({"--http-address=127.0.0.1:0", "--l2-capacity=64MiB", "--l3-dir={dir}/l3",
                    "--l3-capacity=64MiB"}) {}

  uint16_t port() const {
    const std::string log = daemon_.Log(), before = "status page on 127.0.0.1:";
    return static_cast<uint16_t>(std::atoi(log.c_str() + log.find(before) + before.size()));
  }

  // Runs Chromium on the page; `what` makes it print or write something.
  std::string Browse(const std::string& what) const {
    const std::string out = daemon_.directory() + "/dom",
                      log = daemon_.directory() + "/browser.log";
    const std::string command = absl::StrCat(
        "timeout 120 ", kChromium,
        " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage ",
        "--hide-scrollbars --enable-logging=stderr --virtual-time-budget=3000 --user-data-dir=",
        daemon_.directory(), "/profile ", what, " http://127.0.0.1:", port(), "/ >", out, " 2>",
        log);
    EXPECT_EQ(std::system(command.c_str()), 0) << ReadFile(log);
    // What the page's own policy forbids, or a script's error, is told on the console.
    EXPECT_THAT(ReadFile(log), Not(HasSubstr("CONSOLE")));
    return ReadFile(out);
  }

  void MakeTraffic() {
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(PutFilled(*client_, MakeKey(i), 1).ok());
    PutOptions options;
    options.encode_cost_us = 47'000;
    ASSERT_TRUE(client_
                    ->Put({"Qwen2.5-VL", std::string(32, 'x'), ""}, OneTensor(), {Bytes(Filled(1))},
                          options)
                    .ok());
    ASSERT_TRUE(
        PutFilled(*client_, {"<b onclick=alert(1)>&amp;", std::string(32, 'x'), ""}, 1).ok());
    for (int i = 0; i < 299; ++i) MustGet(*client_, {"Qwen2.5-VL", std::string(32, 'x'), ""});
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(client_->Get(MakeKey(1000 + i)).ok());
    held_.emplace(MustGet(*client_, MakeKey(7)));
  }

  std::optional<Lease> held_;
};

TEST_F(StatusPageTest, IsOneFileThatLoadsNothingFromElsewhere) {
  const HttpAnswer page = Request(ConnectTcp(port()), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.head, HasSubstr("Content-Security-Policy: default-src 'none'"));
  for (const char* reference : {"src=", "@import", "url(", "<link", "http://", "https://"}) {
    // The one address is the name of SVG.
    std::string body = page.body;
    const std::string svg = "http://www.w3.org/2000/svg";
    for (size_t at; (at = body.find(svg)) != std::string::npos;) body.erase(at, svg.size());
    EXPECT_EQ(body.find(reference), std::string::npos) << reference;
  }
}

TEST_F(StatusPageTest, ShowsTheFiguresInABrowser) {
  if (access(kChromium, X_OK) != 0) GTEST_SKIP() << "no " << kChromium << ": install chromium";
  MakeTraffic();
  const std::string dom = Browse("--dump-dom");
  EXPECT_THAT(dom, HasSubstr("data-loaded=\"true\""));
  EXPECT_THAT(dom, HasSubstr("Serving"));
  EXPECT_THAT(dom, HasSubstr("75.0\u202f% since start"));  // 300 of 400
  EXPECT_THAT(dom, HasSubstr("14.1\u202fs"));              // 300 times 47 ms
  EXPECT_THAT(dom, HasSubstr("64.0\u202fKiB pinned"));
  EXPECT_THAT(dom, HasSubstr("Qwen2.5-VL"));
  EXPECT_THAT(dom, HasSubstr("L3 · SSD"));
  EXPECT_THAT(dom, HasSubstr("None since start."));
  // A model's name is text, whatever it looks like.
  EXPECT_THAT(dom, HasSubstr("&lt;b onclick=alert(1)&gt;&amp;amp;"));
  EXPECT_THAT(dom, Not(HasSubstr("<b onclick")));
}

TEST_F(StatusPageTest, CanBePhotographedOnADeskAndOnAPhoneInTheDark) {
  if (access(kChromium, X_OK) != 0) GTEST_SKIP() << "no " << kChromium << ": install chromium";
  const char* const keep = std::getenv("EMBCACHE_SCREENSHOTS");
  if (keep == nullptr) GTEST_SKIP() << "set EMBCACHE_SCREENSHOTS to a folder";
  MakeTraffic();
  Browse(absl::StrCat("--window-size=1280,1500 --screenshot=", keep, "/status_page.png"));
  Browse(absl::StrCat("--window-size=500,1800 --force-dark-mode ",
                      "--blink-settings=preferredColorScheme=0 --screenshot=", keep,
                      "/status_page_phone.png"));
}

}  // namespace
}  // namespace embcache::client
