// DaemonProcess: a real embcached for a test, in a fresh directory of its own that goes with it.

#ifndef EMBCACHE_TESTS_INTEGRATION_DAEMON_PROCESS_H_
#define EMBCACHE_TESTS_INTEGRATION_DAEMON_PROCESS_H_

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "tests/integration/child_process.h"

namespace embcache::testing_support {

class DaemonProcess {
 public:
  // `flags` follow --socket-dir, --device=host and --l1-capacity=64MiB. In them "{dir}" stands for
  // the test's directory. There is no L3 unless they have --l3-dir: the default one is the user's.
  // `wrapper` is a command that runs the daemon's.
  explicit DaemonProcess(std::vector<std::string> flags = {},
                         const std::vector<std::string>& wrapper = {}) {
    // Short: a socket's path has 107 bytes.
    std::string name = "/tmp/embcached.XXXXXX";
    directory_ = mkdtemp(name.data());
    std::filesystem::create_directory(socket_dir());
    command_ = wrapper;
    for (const std::string& word :
         {std::string(EMBCACHE_BIN "/embcached"), absl::StrCat("--socket-dir=", socket_dir()),
          std::string("--device=host"), std::string("--l1-capacity=64MiB")}) {
      command_.push_back(word);
    }
    bool disk = false;
    for (std::string& flag : flags) {
      disk = disk || flag.rfind("--l3-dir", 0) == 0;
      const size_t at = flag.find("{dir}");
      if (at != std::string::npos) flag.replace(at, 5, directory_);
      command_.push_back(std::move(flag));
    }
    if (!disk) command_.push_back("--l3-write=off");
  }
  ~DaemonProcess() {
    process_.reset();
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
  }

  std::string directory() const { return directory_; }
  std::string socket_dir() const { return absl::StrCat(directory_, "/run"); }
  const std::vector<std::string>& command() const { return command_; }
  pid_t pid() const { return process_->pid(); }

  // Returns once a client can connect. The error has the daemon's log.
  absl::Status Start(absl::Duration timeout = absl::Seconds(30)) {
    process_ = std::make_unique<ChildProcess>(command_, log_path(), false);
    const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch(watch, socket_dir().c_str(), IN_CREATE | IN_ATTRIB | IN_MOVED_TO);
    const absl::Time deadline = absl::Now() + timeout;
    absl::Status status = TryConnect();
    while (!status.ok() && absl::Now() < deadline && !process_->HasEnded()) {
      // Sockets that appear wake us. A bound socket that does not listen yet gives no event.
      pollfd event = {watch, POLLIN, 0};
      poll(&event, 1, 20);
      char ignored[4096];
      while (read(watch, ignored, sizeof(ignored)) > 0) {
      }
      status = TryConnect();
    }
    close(watch);
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("embcached did not start: ", status.message(), "\n", Log()));
  }

  // Sends a signal; Wait gives the exit code, or minus the signal that ended it.
  void Signal(int signal) const { process_->Signal(signal); }
  int Wait() { return process_->Wait(); }
  int Kill() {
    Signal(SIGKILL);
    return Wait();
  }

  std::string Log() const {
    std::ifstream file(log_path());
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  absl::StatusOr<std::unique_ptr<client::Client>> Connect(client::Role role = client::Role::kWriter,
                                                          const std::string& name = "test") const {
    client::ClientOptions options;
    options.socket_dir = socket_dir();
    options.name = name;
    options.role = role;
    return client::Client::Connect(options);
  }

 private:
  std::string log_path() const { return absl::StrCat(directory_, "/log"); }
  absl::Status TryConnect() const { return Connect(client::Role::kReader).status(); }

  std::string directory_;
  std::vector<std::string> command_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace embcache::testing_support

#endif  // EMBCACHE_TESTS_INTEGRATION_DAEMON_PROCESS_H_
