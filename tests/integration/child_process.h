// ChildProcess: a program started by a test, killed and reaped at the latest when the test ends.
//
// To act as another client, a test starts its own binary again with the filter of a DISABLED_ test
// (see RunThisTest); the two talk in lines over the child's stdin and stdout, of which only those
// that begin with '@' count.

#ifndef EMBCACHE_TESTS_INTEGRATION_CHILD_PROCESS_H_
#define EMBCACHE_TESTS_INTEGRATION_CHILD_PROCESS_H_

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace embcache::testing_support {

class ChildProcess {
 public:
  // `log` is where stderr, and without `talk` stdout too, are appended; empty: the test's own.
  ChildProcess(const std::vector<std::string>& command, const std::string& log, bool talk) {
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    if (talk && (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)) std::abort();
    const int log_fd =
        log.empty() ? -1 : open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {  // only what is safe in a fork of a threaded process
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (log_fd >= 0) dup2(log_fd, STDERR_FILENO);
      if (log_fd >= 0 && !talk) dup2(log_fd, STDOUT_FILENO);
      if (talk) dup2(in[0], STDIN_FILENO);
      if (talk) dup2(out[1], STDOUT_FILENO);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    for (int fd : {log_fd, in[0], out[1]}) {
      if (fd >= 0) close(fd);
    }
    stdin_ = in[1];
    stdout_ = out[0];
  }
  ~ChildProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    if (stdin_ >= 0) close(stdin_);
    if (stdout_ >= 0) close(stdout_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }

  // True when the child has ended by itself; it is then to be reaped with Wait.
  bool HasEnded() const {
    siginfo_t info = {};
    return waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }

  // The exit code, or minus the signal that ended the child.
  int Wait() {
    int status = 0;
    while (waitpid(std::exchange(pid_, -1), &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // The next line that begins with '@', without it; "" when the child ended or does not say any.
  std::string ReadLine(absl::Duration timeout = absl::Seconds(20)) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line[0] == '@') return line.substr(1);
        continue;
      }
      pollfd event = {stdout_, POLLIN, 0};
      const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
      if (left <= 0 || poll(&event, 1, static_cast<int>(left)) <= 0) return "";
      char chunk[4096];
      const ssize_t size = read(stdout_, chunk, sizeof(chunk));
      if (size <= 0) return "";
      buffer_.append(chunk, size);
    }
  }
  void WriteLine(const std::string& line) const {
    const std::string text = line + "\n";
    if (write(stdin_, text.data(), text.size()) < 0) std::perror("write to child");
  }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  int stdout_ = -1;
  std::string buffer_;
};

// Starts this test program again, to run the one test DISABLED_`name` of the suite `suite`.
inline std::unique_ptr<ChildProcess> RunThisTest(const std::string& suite,
                                                 const std::string& name) {
  return std::make_unique<ChildProcess>(
      std::vector<std::string>{"/proc/self/exe", "--gtest_also_run_disabled_tests",
                               absl::StrCat("--gtest_filter=", suite, ".DISABLED_", name)},
      "", true);
}

// For the child's side.
inline void Say(const std::string& line) { std::cout << "\n@" << line << std::endl; }
inline std::string Hear() {
  std::string line;
  std::getline(std::cin, line);
  return line;
}

}  // namespace embcache::testing_support

#endif  // EMBCACHE_TESTS_INTEGRATION_CHILD_PROCESS_H_
