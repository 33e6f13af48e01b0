// top: what the daemon does, live on a terminal.

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "client/cli/top.h"
#include "embcache/v1/admin.grpc.pb.h"
#include "embcache/v1/embcache.grpc.pb.h"
#include "proto/message_json.h"

namespace embcache::cli {
namespace {

struct TopArguments {
  double interval_s = 2;
  bool once = false;
};

class Sampler {
 public:
  explicit Sampler(const Context& context)
      : context_(context),
        cache_(v1::Cache::NewStub(context.Channel())),
        admin_(v1::Admin::NewStub(context.Channel())) {}

  absl::StatusOr<TopSample> Take() const {
    TopSample sample;
    sample.time = absl::Now();
    v1::StatsRequest request;
    request.set_per_model(true);
    absl::Status status =
        CallDaemon(context_, *cache_, &v1::Cache::Stub::Stats, request, &sample.stats);
    if (!status.ok()) return status;
    status = CallDaemon(context_, *admin_, &v1::Admin::Stub::Sessions, v1::SessionsRequest(),
                        &sample.sessions);
    if (!status.ok()) return status;
    return sample;
  }

 private:
  const Context& context_;
  const std::unique_ptr<v1::Cache::Stub> cache_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
};

// The signals that would end or resize us, as something to poll. Made before any thread is: one
// that does not block them would be ended by them.
class Signals {
 public:
  Signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Signals() {
    close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_; }
  // The one that came; 0: none.
  int Next() const {
    signalfd_siginfo signal;
    return read(fd_, &signal, sizeof(signal)) == sizeof(signal) ? static_cast<int>(signal.ssi_signo)
                                                                : 0;
  }

 private:
  int fd_ = -1;
  sigset_t before_;
};

// A terminal without echo, showing another screen, until the end.
class Screen {
 public:
  explicit Screen(const Signals* signals)
      : signals_(signals), interactive_(tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (interactive_) {
      termios quiet = before_;
      quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &quiet);
    }
    std::cout << "\033[?1049h\033[?25l";
  }
  ~Screen() {
    std::cout << "\033[?25h\033[?1049l" << std::flush;
    if (interactive_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static TopSize Size() {
    winsize size = {};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
    return {size.ws_col, size.ws_row};
  }

  void Show(const std::vector<TopLine>& lines) const {
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : "\r\n", lines[i].heading ? "\033[7m" : "", lines[i].text,
                      "\033[K", lines[i].heading ? "\033[0m" : "");
    }
    std::cout << text << "\033[J" << std::flush;
  }

  enum class Event { kTime, kResized, kQuit };
  Event Wait(absl::Duration timeout) const {
    pollfd events[] = {{signals_->fd(), POLLIN, 0}, {interactive_ ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(events, 2, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) {
      return Event::kTime;
    }
    if (events[0].revents != 0) {
      const int signal = signals_->Next();
      if (signal == 0) return Event::kTime;
      return signal == SIGWINCH ? Event::kResized : Event::kQuit;
    }
    char key = 0;
    const ssize_t size = read(STDIN_FILENO, &key, 1);
    return size <= 0 || key == 'q' || key == 'Q' ? Event::kQuit : Event::kTime;
  }

 private:
  const Signals* const signals_;
  termios before_ = {};
  const bool interactive_;
};

int RunOnce(const Context& context) {
  const absl::StatusOr<TopSample> sample = Sampler(context).Take();
  if (!sample.ok()) return context.Fail(sample.status());
  if (context.json) {
    *context.out << "{\"stats\":" << MessageToJson(sample->stats)
                 << ",\"sessions\":" << MessageToJson(sample->sessions) << "}\n";
    return kExitOk;
  }
  for (const TopLine& line : TopFrame(std::nullopt, *sample, {.columns = 1000})) {
    *context.out << line.text << '\n';
  }
  return kExitOk;
}

int RunLive(const Context& context, absl::Duration interval) {
  const Signals signals;
  const Sampler sampler(context);
  absl::StatusOr<TopSample> now = sampler.Take();
  if (!now.ok()) return context.Fail(now.status());
  const Screen screen(&signals);
  std::optional<TopSample> before;
  std::string trouble;
  TopSample shown = *std::move(now);
  while (true) {
    TopSize size = Screen::Size();
    if (size.lines > 1) --size.lines;
    std::vector<TopLine> lines = TopFrame(before, shown, size);
    lines.push_back({trouble.empty() ? absl::StrCat("every ", absl::FormatDuration(interval),
                                                    "; q quits; # pinned, = in use")
                                     : Shorten(TerminalText(trouble), size.columns)});
    screen.Show(lines);
    const Screen::Event event = screen.Wait(interval);
    if (event == Screen::Event::kQuit) return kExitOk;
    if (event == Screen::Event::kResized) continue;
    now = sampler.Take();
    trouble = now.ok() ? "" : absl::StrCat("no answer: ", now.status().message());
    if (now.ok()) before = std::exchange(shown, *std::move(now));
  }
}

}  // namespace

void AddTopCommand(CLI::App& app, const Context& context, Action* action) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* command = app.add_subcommand(
      "top",
      "Show what the daemon does, live: rates, tiers, models, sessions. Without a terminal, once, "
      "with averages since the daemon's start");
  command->add_option("--interval", arguments->interval_s, "Time between two pictures")
      ->check(MoreThanZero())
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_flag("--once", arguments->once, "Print one picture and end");
  command->callback([&context, action, arguments] {
    *action = [&context, arguments] {
      const bool live = !arguments->once && !context.json && context.out == &std::cout &&
                        isatty(STDOUT_FILENO) == 1;
      return live ? RunLive(context, absl::Seconds(arguments->interval_s)) : RunOnce(context);
    };
  });
}

}  // namespace embcache::cli
