// RedisProcess: Debian's redis-server for a test, with nothing on disk, in the directory of the
// test's daemon.

#ifndef EMBCACHE_TESTS_INTEGRATION_REDIS_PROCESS_H_
#define EMBCACHE_TESTS_INTEGRATION_REDIS_PROCESS_H_

#include <stdlib.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/child_process.h"

namespace embcache::testing_support {

class RedisProcess {
 public:
  // `port` 0: a unix socket only.
  explicit RedisProcess(const std::string& directory, int port = 0,
                        std::vector<std::string> options = {})
      : directory_(directory), port_(port), options_(std::move(options)) {}

  std::string socket() const { return absl::StrCat(directory_, "/redis-", port_, ".sock"); }
  std::string address() const {
    return port_ == 0 ? "unix:" + socket() : absl::StrCat("127.0.0.1:", port_);
  }

  // Returns once it answers; false: it has ended, for instance since its port is taken.
  bool Start() {
    std::vector<std::string> command = {"/usr/bin/redis-server",
                                        "--port",
                                        absl::StrCat(port_),
                                        "--unixsocket",
                                        socket(),
                                        "--save",
                                        "",
                                        "--appendonly",
                                        "no",
                                        "--dir",
                                        directory_,
                                        "--bind",
                                        "127.0.0.1"};
    command.insert(command.end(), options_.begin(), options_.end());
    process_ = std::make_unique<ChildProcess>(
        command, absl::StrCat(directory_, "/redis-", port_, ".log"), false);
    while (Ask("PING") != "PONG") {
      if (process_->HasEnded()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void Signal(int signal) const { process_->Signal(signal); }
  void Kill() { process_.reset(); }

  // What redis-cli says to a command.
  std::string Ask(const std::string& command) const {
    std::string answer;
    FILE* const out =
        popen(absl::StrCat("redis-cli -s ", socket(), " ", command, " 2>/dev/null").c_str(), "re");
    if (out == nullptr) return answer;
    char chunk[4096];
    for (size_t got = 0; (got = fread(chunk, 1, sizeof(chunk), out)) > 0;) {
      answer.append(chunk, got);
    }
    pclose(out);
    absl::StripAsciiWhitespace(&answer);
    return answer;
  }
  void AwaitAnswer(const std::string& command, const std::string& answer) const {
    while (Ask(command) != answer) std::this_thread::yield();
  }

 private:
  const std::string directory_;
  const int port_;
  const std::vector<std::string> options_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace embcache::testing_support

#endif  // EMBCACHE_TESTS_INTEGRATION_REDIS_PROCESS_H_
