// For tests on the fake driver: a device of the test's own, and other processes that use it.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_TEST_SUPPORT_H_
#define EMBCACHE_TESTS_FAKE_CUDA_TEST_SUPPORT_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {

// The fake's directory, for this process and all that it starts: made at the first call, which
// comes before the first use of the driver, and removed when the process ends.
inline const std::string& DeviceDirectory() {
  struct Directory {
    Directory() {
      const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
      std::string name = std::string(base) + "/embcache-fake-cuda.XXXXXX";
      if (mkdtemp(name.data()) == nullptr) abort();
      path = name;
      setenv("EMBCACHE_TEST_FAKE_CUDA_DIR", path.c_str(), 1);
    }
    ~Directory() {
      std::error_code ignored;
      if (getpid() == pid) std::filesystem::remove_all(path, ignored);
    }
    std::string path;
    const pid_t pid = getpid();
  };
  static Directory directory;
  return directory.path;
}

// What a command of tests/fake_cuda/peer.cc answered.
struct Answer {
  int code = -1;  // -1: the process has ended
  std::string value;
  uint64_t number() const { return strtoull(value.c_str(), nullptr, 10); }
};

// One process of tests/fake_cuda/peer.cc. Killed by the destructor.
class Peer {
 public:
  explicit Peer(const std::string& program) {
    DeviceDirectory();
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execl(program.c_str(), program.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    write_ = to[1];
    read_ = fdopen(from[0], "r");
  }
  ~Peer() {
    Kill();
    close(write_);
    fclose(read_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  template <typename... Words>
  Answer Run(const Words&... words) {
    std::ostringstream line;
    ((line << words << ' '), ...);
    const std::string text = line.str() + "\n";
    signal(SIGPIPE, SIG_IGN);
    Answer answer;
    if (write(write_, text.data(), text.size()) < 0) return answer;
    char* buffer = nullptr;
    size_t size = 0;
    const ssize_t length = getline(&buffer, &size, read_);
    if (length > 0) {
      std::istringstream words_of_answer(std::string(buffer, static_cast<size_t>(length)));
      words_of_answer >> answer.code >> std::ws;
      std::getline(words_of_answer, answer.value);
    }
    free(buffer);
    return answer;
  }

  pid_t pid() const { return pid_; }
  // Ends it as kill -9 does; the wait status.
  int Kill() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    return Wait();
  }
  // Until it has ended by itself.
  int Wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = -1;
    return status_;
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  int write_ = -1;
  FILE* read_ = nullptr;
};

}  // namespace fakecuda

#endif  // EMBCACHE_TESTS_FAKE_CUDA_TEST_SUPPORT_H_
