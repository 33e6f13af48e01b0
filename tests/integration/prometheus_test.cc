// The metrics page in front of the programs that read it: promtool and a real Prometheus.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/http_get.h"

namespace embcache::client {
namespace {

using testing_support::ChildProcess;
using testing_support::ConnectTcp;
using testing_support::HttpAnswer;
using testing_support::Request;

constexpr char kPromtool[] = "/usr/bin/promtool";
constexpr char kDeploy[] = EMBCACHE_TEST_DATA "/../../deploy";
constexpr char kPrometheus[] = "/usr/bin/prometheus";

bool Exists(const char* program) { return access(program, X_OK) == 0; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A port of 127.0.0.1 that nobody uses at this moment.
uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

class PrometheusTest : public ClientTest {
 protected:
  PrometheusTest()
      : ClientTest({"--http-address=127.0.0.1:0", "--l2-capacity=8MiB", "--l3-dir={dir}/l3",
                    "--l3-capacity=64MiB", "--shared-tier=unix:{dir}/nobody.sock",
                    "--shared-namespace=ns"}) {}

  // The log says which port the kernel chose.
  uint16_t port() const {
    const std::string log = daemon_.Log();
    const std::string before = "status page on 127.0.0.1:";
    const size_t at = log.find(before);
    EXPECT_NE(at, std::string::npos) << log;
    return static_cast<uint16_t>(std::atoi(log.c_str() + at + before.size()));
  }
  HttpAnswer Get(const std::string& path) const { return Request(ConnectTcp(port()), path); }

  // Three hits of four gets.
  void MakeTraffic() {
    ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
    for (int i = 0; i < 3; ++i) MustGet(*client_, MakeKey(1));
    auto miss = client_->Get(MakeKey(2));
    ASSERT_TRUE(miss.ok() && !miss->has_value());
    ASSERT_TRUE(client_
                    ->Put({"odd \"model\" \\ \n", std::string(32, 'x'), ""}, OneTensor(),
                          {Bytes(Filled(1))})
                    .ok());
  }

  // What promtool says if it finds fault.
  std::string Run(const std::string& arguments) const {
    const std::string said = daemon_.directory() + "/said";
    const int exit =
        std::system(absl::StrCat(kPromtool, " ", arguments, " > ", said, " 2>&1").c_str());
    return exit == 0 ? "" : absl::StrCat("exit ", exit, ": ", ReadFile(said));
  }
  std::string CheckPage() const {
    const std::string page = daemon_.directory() + "/page";
    std::ofstream(page) << Get("/metrics").body;
    return Run("check metrics < " + page);
  }
};

TEST_F(PrometheusTest, PromtoolFindsNothingWrong) {
  if (!Exists(kPromtool)) GTEST_SKIP() << "no " << kPromtool << ": deploy/setup test installs it";
  EXPECT_EQ(CheckPage(), "") << "of a daemon that did nothing";
  MakeTraffic();
  EXPECT_EQ(CheckPage(), "") << Get("/metrics").body;
}

TEST_F(PrometheusTest, ARealOneScrapesItAndKnowsTheHitRatio) {
  if (!Exists(kPrometheus)) {
    GTEST_SKIP() << "no " << kPrometheus << ": deploy/setup test installs it";
  }
  MakeTraffic();
  const std::string config = daemon_.directory() + "/prometheus.yml";
  std::ofstream(config) << "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
                        << "scrape_configs: [{job_name: embcache, static_configs: "
                        << "[{targets: ['127.0.0.1:" << port() << "']}]}]\n";
  const uint16_t query_port = FreePort();
  const std::string log = daemon_.directory() + "/prometheus.log";
  ChildProcess prometheus({kPrometheus, "--config.file=" + config,
                           absl::StrCat("--storage.tsdb.path=", daemon_.directory(), "/tsdb"),
                           absl::StrCat("--web.listen-address=127.0.0.1:", query_port)},
                          log, false);
  // sum(embcache_gets_total{result="hit"}) / sum(embcache_gets_total)
  const std::string query =
      "/api/v1/query?query=sum(embcache_gets_total%7Bresult%3D%22hit%22%7D)"
      "%2Fsum(embcache_gets_total)";
  json answer;
  const auto known = [&] {
    const HttpAnswer got = Request(ConnectTcp(query_port), query);
    if (got.status != 200) return false;
    answer = json::parse(
        got.body.substr(got.body.find('{'), got.body.rfind('}') + 1 - got.body.find('{')));
    return !answer["data"]["result"].empty();
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!known() && absl::Now() < deadline && !prometheus.HasEnded()) std::this_thread::yield();
  ASSERT_FALSE(answer.is_null()) << ReadFile(log);
  ASSERT_EQ(answer["data"]["result"].size(), 1u) << answer << ReadFile(log);
  EXPECT_EQ(answer["data"]["result"][0]["value"][1], "0.75") << answer;
}

TEST_F(PrometheusTest, EveryMetricIsInTheDocumentation) {
  const std::string page = Get("/metrics").body;
  const std::string text = ReadFile(std::string(kDeploy) + "/../docs/operations.md");
  static const std::regex type("# TYPE (\\S+) ");
  int metrics = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), type), end; it != end; ++it, ++metrics) {
    EXPECT_NE(text.find(absl::StrCat("`", (*it)[1].str(), "`")), std::string::npos)
        << (*it)[1].str();
  }
  EXPECT_GT(metrics, 40);
}

// Every metric named in `text` is on the page.
void ExpectKnown(const std::string& text, const std::string& page) {
  static const std::regex name("(embcache|process)_[a-z0-9_]+");
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
    EXPECT_TRUE(page.find("\n" + it->str() + "{") != std::string::npos ||
                page.find("\n" + it->str() + " ") != std::string::npos)
        << it->str();
  }
}

TEST_F(PrometheusTest, TheDashboardsQueriesAreValidAndAskForMetricsThatThereAre) {
  if (!Exists(kPromtool)) GTEST_SKIP() << "no " << kPromtool << ": deploy/setup test installs it";
  MakeTraffic();
  const std::string page = Get("/metrics").body;
  const json dashboard = json::parse(ReadFile(std::string(kDeploy) + "/grafana/embcache.json"));
  json rules = json::array();
  for (const json& panel : dashboard["panels"]) {
    for (const json& target : panel.value("targets", json::array())) {
      std::string query = target["expr"];
      ExpectKnown(query, page);
      query = std::regex_replace(query, std::regex("\\$__rate_interval"), "5m");
      rules.push_back({{"record", absl::StrCat("panel:", rules.size())}, {"expr", query}});
    }
  }
  EXPECT_GT(rules.size(), 30u);
  const std::string file = daemon_.directory() + "/rules.json";  // JSON is YAML
  std::ofstream(file) << json{{"groups", {{{"name", "dashboard"}, {"rules", rules}}}}};
  EXPECT_EQ(Run("check rules --lint=none " + file), "");
}

TEST_F(PrometheusTest, TheAlertsFireWhenTheyShouldOnMetricsThatThereAre) {
  if (!Exists(kPromtool)) GTEST_SKIP() << "no " << kPromtool << ": deploy/setup test installs it";
  MakeTraffic();
  const std::string folder = std::string(kDeploy) + "/prometheus";
  EXPECT_EQ(Run("check rules " + folder + "/alerts.yml"), "");
  EXPECT_EQ(Run("test rules " + folder + "/alerts_test.yml"), "");
  ExpectKnown(ReadFile(folder + "/alerts.yml"), Get("/metrics").body);
}

TEST_F(PrometheusTest, AllViewsAgree) {
  // Hits without a call are no operations of the daemon's.
  auto calling = daemon_.Connect(Role::kWriter, "test", /*fast_path=*/false);
  ASSERT_TRUE(calling.ok()) << calling.status();
  client_ = *std::move(calling);
  MakeTraffic();
  const json page = json::parse(Get("/stats.json").body);
  const json stats = json::parse(*client_->StatsJson());
  for (const char* name : {"gets", "hits", "misses", "saves", "saved_us", "epoch", "version"}) {
    EXPECT_EQ(page["stats"][name], stats[name]) << name;
  }
  EXPECT_EQ(page["stats"]["hits"], 3);
  EXPECT_EQ(page["sessions"][0]["name"], "test");
  const std::string metrics = Get("/metrics").body;
  EXPECT_NE(metrics.find("embcache_gets_total{model=\"model\",result=\"hit\"} 3\n"),
            std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("embcache_operation_bytes_count{operation=\"get\"} 3\n"),
            std::string::npos);
  EXPECT_NE(metrics.find("embcache_operation_bytes_sum{operation=\"put\"} 131072\n"),
            std::string::npos);
}

TEST_F(PrometheusTest, ReadyTurnsToUnavailableWhileDrainingAndHealthStays) {
  EXPECT_EQ(Get("/healthz").status, 200);
  EXPECT_EQ(Get("/readyz").status, 200);
  ASSERT_TRUE(PutFilled(*client_, MakeKey(1), 7).ok());
  const Lease lease = MustGet(*client_, MakeKey(1));  // keeps the daemon from ending
  daemon_.Signal(SIGTERM);
  EXPECT_TRUE(Becomes([&] { return Get("/readyz").status == 503; }));
  EXPECT_EQ(Get("/healthz").status, 200);
  EXPECT_TRUE(Becomes(
      [&] { return Get("/metrics").body.find("\nembcache_draining 1\n") != std::string::npos; }));
}

}  // namespace
}  // namespace embcache::client
