#include "client/cli/context.h"

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/output.h"
#include "proto/size_text.h"

namespace embcache::cli {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 done; 1 a key is not in the cache; 2 wrong command line; 3 no daemon, or it is\n"
    "draining or does not answer; 4 the daemon refused, or a file could not be read or written.\n"
    "Messages go to stderr, results to stdout. COMMAND --help explains each command.";

CLI::Validator SecondsFrom(bool zero, const std::string& wanted) {
  return CLI::Validator(
      [zero, wanted](std::string& text) -> std::string {
        double seconds = 0;
        const bool number = absl::SimpleAtod(text, &seconds) && std::isfinite(seconds);
        if (number && (seconds > 0 || (zero && seconds == 0))) return "";
        return absl::StrCat(text, " is not a number of seconds ", wanted);
      },
      "");
}

// What CLI11 makes of a wrong command line, in one line that names the program. To a misspelt
// command it says only that a command is required.
void PrintUsageError(const CLI::App& app, const CLI::ParseError& error, std::ostream& err) {
  const std::vector<const CLI::App*> commands =
      app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  const std::vector<std::string> rest = app.remaining();
  const bool misspelt = commands.empty() && !rest.empty() && rest.front()[0] != '-';
  err << "embcachectl: "
      << (misspelt ? absl::StrCat("there is no command ", rest.front()) : error.what())
      << "\nTry embcachectl " << (commands.empty() ? "" : commands[0]->get_name() + " ")
      << "--help.\n";
}

// The help of a command ends with the options that every command has.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = CLI::Formatter::make_footer(app);
    const CLI::App* root = app;
    while (root->get_parent() != nullptr) root = root->get_parent();
    if (root == app) return footer;
    const std::vector<const CLI::Option*> common =
        root->get_options([root](const CLI::Option* option) {
          return option != root->get_help_ptr() && option != root->get_version_ptr();
        });
    const std::string group = make_group("Options of every command", false, common);
    return absl::StrCat(group.substr(group.find_first_not_of('\n')), "\n", footer);
  }
};

}  // namespace

CLI::Validator MoreThanZero() { return SecondsFrom(false, "above 0"); }
CLI::Validator ZeroOrMore() { return SecondsFrom(true, "of at least 0"); }

CLI::Validator SizeText() {
  const auto to_bytes = [](std::string& text) -> std::string {
    const absl::StatusOr<uint64_t> bytes = ParseSize(text);
    if (!bytes.ok()) return std::string(bytes.status().message());
    text = absl::StrCat(*bytes);
    return "";
  };
  return CLI::Validator(to_bytes, "");
}

std::string Context::SocketDir() const {
  return socket_dir.empty() ? client::DefaultSocketDir() : socket_dir;
}

absl::StatusOr<std::unique_ptr<client::Client>> Context::Connect(client::Role role) const {
  client::ClientOptions options;
  options.socket_dir = SocketDir();
  options.name = "embcachectl";
  options.role = role;
  options.rpc_timeout = absl::Seconds(timeout_s);
  options.reconnect = false;
  return client::Client::Connect(std::move(options));
}

std::shared_ptr<grpc::Channel> Context::Channel() const {
  return client::internal::OpenChannel(SocketDir());
}

void Context::Prepare(grpc::ClientContext* call) const {
  call->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(timeout_s)));
}

absl::Status Context::FromCall(const grpc::Status& status) const {
  const absl::Status plain = client::internal::FromGrpc(status);
  if (!absl::IsUnavailable(plain) || !absl::StartsWith(plain.message(), "failed to connect")) {
    return plain;
  }
  const std::string path = SocketDir() + "/embcached.sock";
  absl::string_view reason = plain.message();
  const size_t at = reason.rfind(path);
  if (at != absl::string_view::npos) reason.remove_prefix(at + path.size());
  return absl::UnavailableError(absl::StrCat("no daemon at ", path, reason));
}

int Context::Fail(const absl::Status& status) const {
  *err << "embcachectl: " << TerminalText(status.message()) << " ("
       << absl::StatusCodeToString(status.code()) << ")\n";
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    default:
      return kExitFailed;
  }
}

int Main(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  Context context;
  context.out = &out;
  context.err = &err;
  Action action;
  CLI::App app("embcachectl: works with a running embcached.", "embcachectl");
  app.formatter(std::make_shared<HelpFormatter>());  // the commands inherit it
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();  // global options may also follow the command
  app.set_version_flag("--version", "embcachectl " EMBCACHE_VERSION);
  app.add_option("--socket-dir", context.socket_dir,
                 "Directory of the daemon's sockets [default: $EMBCACHE_SOCKET_DIR, else "
                 "$XDG_RUNTIME_DIR/embcache, else /run/embcache]")
      ->type_name("DIR");
  app.add_flag("--json", context.json, "Print JSON, with stable field names");
  app.add_option("--timeout", context.timeout_s, "How long to wait for each answer")
      ->check(MoreThanZero())
      ->type_name("SECONDS")
      ->capture_default_str();
  AddDataCommands(app, context, &action);
  AddTransferCommands(app, context, &action);
  AddInspectCommands(app, context, &action);
  AddTopCommand(app, context, &action);
  AddAdminCommands(app, context, &action);
  AddSizeCommand(app, context, &action);
  AddEventsCommand(app, context, &action);
  AddBenchCommand(app, context, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error, out, err);
      return kExitOk;
    }
    PrintUsageError(app, error, err);
    return kExitUsage;
  }
  return action();
}

}  // namespace embcache::cli
