// embcachectl against a real daemon, with the sample embeddings.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon_process.h"

namespace embcache::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kSamples[] = EMBCACHE_TEST_DATA "/embeddings";
constexpr char kModel[] = "rapidocr/PP-OCRv6_det_small.onnx@3.10.0";
constexpr char kCoffeeHash[] = "f767cab2be5e62225394bde3f2313b00bd044518046ccefe81b2148afef50c40";

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

class CliTest : public ::testing::Test {
 protected:
  explicit CliTest(std::vector<std::string> flags = {"--l3-dir={dir}/l3", "--l3-capacity=256MiB"})
      : daemon_(std::move(flags)) {}
  void SetUp() override {
    const absl::Status status = daemon_.Start();
    ASSERT_TRUE(status.ok()) << status;
  }

  Outcome Ctl(std::vector<std::string> arguments) const {
    arguments.push_back("--socket-dir=" + daemon_.socket_dir());
    std::vector<const char*> argv = {"embcachectl"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    const int exit_code = Main(static_cast<int>(argv.size()), argv.data(), out, err);
    return {exit_code, out.str(), err.str()};
  }
  // With --json; the command must succeed and print one object.
  json CtlJson(std::vector<std::string> arguments) const {
    arguments.push_back("--json");
    const Outcome outcome = Ctl(std::move(arguments));
    EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
    json parsed = json::parse(outcome.out, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << outcome.out;
    return parsed;
  }
  std::vector<std::string> Coffee(const std::string& command) const {
    return {command,
            "--model",
            kModel,
            "--hash",
            kCoffeeHash,
            "--variant",
            "height=384;width=608;filter=bicubic;channels=BGR;mean=0.5;std=0.5"};
  }

  testing_support::DaemonProcess daemon_;
};

TEST_F(CliTest, ExportGivesBackWhatImportStored) {
  EXPECT_EQ(CtlJson({"import", kSamples}).at("imported"), 7);
  const std::string out = daemon_.directory() + "/out";
  EXPECT_EQ(CtlJson({"export", "--out", out}).at("exported"), 7);

  using Contents = std::pair<client::Metadata, std::string>;
  const auto read_all = [](const std::string& directory) {
    std::multiset<Contents> all;
    for (const auto& item : fs::directory_iterator(directory)) {
      const auto file = SafetensorsFile::Open(item.path().string());
      EXPECT_TRUE(file.ok()) << file.status();
      const client::Bytes data = file->all_data();
      std::string names;
      for (const auto& tensor : file->tensors()) {
        names += tensor.name + std::string(client::DTypeName(tensor.dtype));
        for (int64_t dimension : tensor.shape) names += "," + std::to_string(dimension);
      }
      all.insert({file->metadata(), names + std::string(data.begin(), data.end())});
    }
    return all;
  };
  EXPECT_TRUE(read_all(out) == read_all(kSamples));
}

TEST_F(CliTest, PutGetContainsRemove) {
  EXPECT_EQ(Ctl({"put", std::string(kSamples) + "/coffee.safetensors"}).exit_code, kExitOk);
  const json got = CtlJson(Coffee("get"));
  EXPECT_EQ(got.at("hit"), true);
  EXPECT_EQ(got.at("tier"), "L1");
  EXPECT_EQ(got.at("encode_cost_us"), 47190);
  EXPECT_EQ(got.at("tensors")[0].at("shape"), json({228, 384}));
  EXPECT_EQ(got.at("metadata").at("image"), "coffee.png");
  EXPECT_EQ(got.at("sha256").get<std::string>().size(), 64u);
  EXPECT_THAT(Ctl(Coffee("get")).out, HasSubstr("hit in L1"));
  EXPECT_EQ(CtlJson(Coffee("contains")).at("present"), true);

  const std::string file = daemon_.directory() + "/got.safetensors";
  auto arguments = Coffee("get");
  arguments.insert(arguments.end(), {"--out", file});
  EXPECT_EQ(Ctl(arguments).exit_code, kExitOk);
  EXPECT_TRUE(SafetensorsFile::Open(file).ok());

  EXPECT_EQ(CtlJson(Coffee("rm")).at("removed"), true);
  for (const char* command : {"get", "contains", "rm"}) {
    EXPECT_EQ(Ctl(Coffee(command)).exit_code, kExitMiss) << command;
  }
}

TEST_F(CliTest, NamesOfOthersCannotSteerTheTerminal) {
  auto client = daemon_.Connect(client::Role::kWriter, "session\033[2J");
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<uint8_t> bytes(16, 1);
  client::TensorSpec tensor;
  tensor.name = "main";
  tensor.dtype = client::DType::kU8;
  tensor.shape = {16};
  ASSERT_TRUE(
      (*client)
          ->Put({"model\033[31m\r\n", std::string(32, 'x'), "\a"}, {tensor}, {client::Bytes(bytes)})
          .ok());
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"ls"}, {"sessions"}, {"stat", "--models"}, {"top", "--once"}}) {
    const Outcome outcome = Ctl(command);
    EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
    EXPECT_THAT(outcome.out, ::testing::HasSubstr("\\x1b[")) << command[0];
    for (const char c : outcome.out) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << command[0];
    }
  }
}

TEST_F(CliTest, TopShowsOnePictureWithoutATerminal) {
  EXPECT_EQ(CtlJson({"import", kSamples}).at("imported"), 7);
  const Outcome outcome = Ctl({"top"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("serving"));
  EXPECT_THAT(outcome.out, HasSubstr("7 entries"));
  EXPECT_THAT(outcome.out, HasSubstr(kModel));
  const json both = CtlJson({"top"});
  EXPECT_EQ(both.at("stats").at("saves"), 7);
  EXPECT_TRUE(both.at("sessions").at("sessions").is_array());
}

TEST_F(CliTest, ABadFileFailsAloneAndShowsInTheExitCode) {
  const std::string bad = daemon_.directory() + "/bad.safetensors";
  std::ofstream(bad) << "this is no tensor file";
  const Outcome outcome = Ctl({"import", bad, kSamples, "--json"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("bad.safetensors"));
  EXPECT_EQ(json::parse(outcome.out).at("imported"), 7);
  const Outcome put = Ctl({"put", bad});
  EXPECT_EQ(put.exit_code, kExitFailed);
  EXPECT_THAT(put.err, HasSubstr("bad.safetensors: not a safetensors file: "));
}

// What oMLX keeps of a vision encoder: DIR/HEX/SHA256.safetensors.
TEST_F(CliTest, AVisionCacheOfOMlxIsImportedByItsImageHashAndModelName) {
  const std::string hash(64, 'a');
  const std::string folder = daemon_.directory() + "/vision/aa";
  fs::create_directories(folder);
  client::TensorSpec tensor;
  tensor.name = "tensor_0";
  tensor.dtype = client::DType::kBF16;
  tensor.shape = {1, 4, 8};
  tensor.bytes = 64;
  const std::vector<uint8_t> bytes(64, 7);
  const absl::Status written = WriteSafetensors(
      folder + "/" + std::string(64, 'b') + ".safetensors", {tensor}, {client::Bytes(bytes)},
      {{"image_hash", hash}, {"model_name", "Qwen2.5-VL-7B"}, {"num_tensors", "1"}});
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(CtlJson({"import", daemon_.directory() + "/vision"}).at("imported"), 1);
  const json got = CtlJson({"get", "--model", "Qwen2.5-VL-7B", "--hash", hash});
  EXPECT_EQ(got.at("hit"), true);
  EXPECT_EQ(got.at("tensors")[0].at("shape"), json({1, 4, 8}));
  EXPECT_EQ(got.at("metadata").at("num_tensors"), "1");
  const std::string out = daemon_.directory() + "/out";
  EXPECT_EQ(CtlJson({"export", "--out", out}).at("exported"), 1);
  const auto file = SafetensorsFile::Open(fs::directory_iterator(out)->path().string());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("image_hash"), hash);
  EXPECT_EQ(file->metadata().at("model_name"), "Qwen2.5-VL-7B");
}

TEST_F(CliTest, L3IsVerifiedAndItsCountersAreShown) {
  EXPECT_EQ(CtlJson({"l3", "verify"}).at("records"), 0);
  ASSERT_EQ(CtlJson({"import", kSamples}).at("imported"), 7);
  ASSERT_EQ(Ctl({"flush"}).exit_code, kExitOk);
  const json checked = CtlJson({"l3", "verify"});
  EXPECT_EQ(checked.at("records"), 7);
  EXPECT_GT(checked.at("bytes"), 1'000'000);
  EXPECT_EQ(checked.at("damaged"), 0);
  EXPECT_EQ(checked.at("unreadable"), 0);
  const json stat = CtlJson({"l3", "stat"});
  EXPECT_EQ(stat.at("entries"), 7);
  EXPECT_EQ(stat.at("capacity_bytes"), 256 << 20);
  EXPECT_EQ(stat.at("writable"), true);
  EXPECT_EQ(stat.at("corruptions"), 0);
  EXPECT_THAT(Ctl({"l3", "stat"}).out, HasSubstr("entries 7\n"));
}

TEST_F(CliTest, L3VerifyFindsDamageAndRemovesIt) {
  ASSERT_EQ(CtlJson({"import", kSamples}).at("imported"), 7);
  ASSERT_EQ(Ctl({"flush"}).exit_code, kExitOk);
  fs::path table;
  for (const auto& entry : fs::directory_iterator(daemon_.directory() + "/l3/db")) {
    if (entry.path().extension() == ".sst") table = entry.path();
  }
  ASSERT_FALSE(table.empty());
  std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(100'000);
  file << "damage";
  file.close();
  const Outcome outcome = Ctl({"l3", "verify", "--json"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_EQ(json::parse(outcome.out).at("damaged"), 1) << outcome.out;
  EXPECT_EQ(CtlJson({"l3", "verify"}).at("records"), 6);
}

TEST_F(CliTest, ListsByModelAndPrefix) {
  ASSERT_EQ(Ctl({"import", kSamples}).exit_code, kExitOk);
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(Ctl({"ls", "--json"}).out), 7);
  EXPECT_EQ(lines(Ctl({"ls", "--json", "--model=none"}).out), 0);
  const json one = CtlJson({"ls", "--prefix=f767"});
  EXPECT_EQ(one.at("hash"), kCoffeeHash);
  EXPECT_EQ(one.at("tier"), "L1");
  EXPECT_EQ(lines(Ctl({"ls"}).out), 8);
}

TEST_F(CliTest, ACostThatTheListDoesNotKnowIsADash) {
  ASSERT_EQ(Ctl({"put", std::string(kSamples) + "/coffee.safetensors"}).exit_code, kExitOk);
  EXPECT_THAT(Ctl({"ls"}).out, HasSubstr("  47.2 ms\n"));
  ASSERT_EQ(Ctl({"flush"}).exit_code, kExitOk);
  daemon_.Signal(SIGTERM);
  ASSERT_EQ(daemon_.Wait(), 0);
  ASSERT_TRUE(daemon_.Start().ok());
  const std::string listed = Ctl({"ls"}).out;  // in L3 alone now
  EXPECT_THAT(listed, HasSubstr("L3"));
  EXPECT_THAT(listed, HasSubstr("  -\n"));
}

class CliIdleTest : public CliTest {
 protected:
  CliIdleTest() : CliTest({"--segment-bytes=16MiB", "--l1-idle-after=100ms"}) {}
};

TEST_F(CliIdleTest, StatSaysWhatL1HasGivenBackAndWhatItGrowsTo) {
  const auto given_back = [&] {
    return CtlJson({"stat"})["tiers"][0].value("given_back_bytes", uint64_t{0});
  };
  while (given_back() != 48 << 20 && !HasFailure()) std::this_thread::yield();
  EXPECT_THAT(Ctl({"stat"}).out,
              HasSubstr("L1 has given back 48.0 MiB for want of use; the next use takes it to "
                        "64.0 MiB\n"));
}

TEST_F(CliTest, StatHasTheCountersAsNumbers) {
  ASSERT_EQ(Ctl({"import", kSamples}).exit_code, kExitOk);
  ASSERT_EQ(Ctl(Coffee("get")).exit_code, kExitOk);
  const json stats = CtlJson({"stat", "--models", "--latencies"});
  EXPECT_EQ(stats.at("gets"), 1);
  EXPECT_EQ(stats.at("hits"), 1);
  EXPECT_EQ(stats.at("saves"), 7);
  EXPECT_EQ(stats.at("tiers")[0].at("entries"), 7);
  bool listed = false;
  for (const json& model : stats.at("models")) listed = listed || model.at("model") == kModel;
  EXPECT_TRUE(listed);
  EXPECT_FALSE(stats.at("latencies").empty());
  const Outcome text = Ctl({"stat", "--models", "--latencies", "--watch=0.01", "--count=2"});
  EXPECT_EQ(text.exit_code, kExitOk);
  EXPECT_THAT(text.out, HasSubstr("gets 1, hits 1 (100.0%)"));
}

TEST_F(CliTest, ClearAndEpochEmptyTheCache) {
  ASSERT_EQ(Ctl({"import", kSamples}).exit_code, kExitOk);
  const uint64_t first = CtlJson({"epoch", "--model", kModel}).at("model_epoch");
  EXPECT_EQ(Ctl(Coffee("get")).exit_code, kExitMiss);
  ASSERT_EQ(Ctl({"import", kSamples}).exit_code, kExitOk);
  EXPECT_EQ(Ctl({"clear", "--all"}).exit_code, kExitOk);
  EXPECT_EQ(Ctl(Coffee("get")).exit_code, kExitMiss);
  EXPECT_GT(CtlJson({"epoch", "--model", kModel}).at("model_epoch").get<uint64_t>(), first);
}

TEST_F(CliTest, AdministrationAnswers) {
  EXPECT_EQ(CtlJson({"flush"}).at("flushed"), true);
  EXPECT_EQ(CtlJson({"health"}).at("status"), "SERVING");
  EXPECT_EQ(CtlJson({"log-level", "debug"}).at("previous"), "info");
  EXPECT_EQ(CtlJson({"log-level", "info"}).at("previous"), "debug");
  EXPECT_FALSE(CtlJson({"version"}).at("daemon").get<std::string>().empty());
  auto client = daemon_.Connect(client::Role::kWriter, "somebody");
  ASSERT_TRUE(client.ok());
  const json sessions = CtlJson({"sessions"}).at("sessions");
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0].at("name"), "somebody");
  EXPECT_EQ(sessions[0].at("pid"), getpid());
  EXPECT_THAT(Ctl({"sessions"}).out, HasSubstr("somebody"));
}

TEST_F(CliTest, ADrainingDaemonIsReportedAndStillInspectable) {
  EXPECT_EQ(CtlJson({"drain"}).at("draining"), true);
  EXPECT_EQ(Ctl({"health"}).exit_code, kExitUnreachable);
  EXPECT_EQ(Ctl(Coffee("get")).exit_code, kExitUnreachable);
  EXPECT_EQ(CtlJson({"stat"}).at("draining"), true);
}

TEST_F(CliTest, BenchPrintsFiguresWithTheirBaselines) {
  const Outcome outcome = Ctl({"bench", "--seconds=0.1", "--callers=2", "--bytes=64KiB"});
  ASSERT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  std::istringstream lines(outcome.out);
  int figures = 0;
  for (std::string line; std::getline(lines, line); ++figures) {
    const json figure = json::parse(line);
    EXPECT_GT(figure.at("value").get<double>(), 0) << line;
    EXPECT_GT(figure.at("baseline").get<double>(), 0) << line;
    EXPECT_GT(figure.at("ratio").get<double>(), 0) << line;
  }
  EXPECT_EQ(figures, 5);
  EXPECT_EQ(Ctl({"ls", "--json"}).out, "");
}

TEST_F(CliTest, ResizeGivesMemoryBackAndTakesMore) {
  EXPECT_EQ(CtlJson({"resize", "--l1", "16MiB"}),
            json({{"previous_bytes", 64 << 20}, {"capacity_bytes", 16 << 20}}));
  const Outcome grown = Ctl({"resize", "--l1=32MiB"});
  EXPECT_EQ(grown.exit_code, kExitOk) << grown.err;
  EXPECT_THAT(grown.out, HasSubstr("capacity_bytes 33554432"));
  EXPECT_EQ(CtlJson({"stat"})["tiers"][0]["capacity_bytes"], 32 << 20);
  const Outcome none = Ctl({"resize", "--l1", "0"});
  EXPECT_EQ(none.exit_code, kExitFailed);
  EXPECT_THAT(none.err, HasSubstr("l2 has no memory either"));
  EXPECT_EQ(Ctl({"resize"}).exit_code, kExitUsage);
  EXPECT_EQ(Ctl({"resize", "--l1", "1GiB", "--l2", "1GiB"}).exit_code, kExitUsage);
  EXPECT_EQ(Ctl({"resize", "--l1", "many"}).exit_code, kExitUsage);
}

TEST_F(CliTest, ATierThatIsResizedAwayKeepsWhatItHasCounted) {
  EXPECT_EQ(CtlJson({"import", kSamples}).at("imported"), 7);
  EXPECT_EQ(Ctl(Coffee("get")).exit_code, kExitOk);
  EXPECT_EQ(Ctl({"resize", "--l2=16MiB"}).exit_code, kExitOk);
  EXPECT_EQ(Ctl({"resize", "--l1=0"}).exit_code, kExitOk);
  const json stats = CtlJson({"stat"});
  EXPECT_EQ(stats["tiers"][0]["tier"], "L1");
  EXPECT_EQ(stats["tiers"][0].value("capacity_bytes", 0), 0);
  uint64_t hits = 0;
  for (const json& tier : stats["tiers"]) hits += tier.value("hits", 0);
  EXPECT_EQ(hits, stats["hits"]);
  EXPECT_EQ(hits, 1);
}

}  // namespace
}  // namespace embcache::cli
