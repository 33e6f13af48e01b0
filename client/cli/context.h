// What every command of embcachectl shares: the global options, where output goes, exit codes, and
// the ways to reach the daemon.

#ifndef EMBCACHE_CLIENT_CLI_CONTEXT_H_
#define EMBCACHE_CLIENT_CLI_CONTEXT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/session.h"

namespace embcache::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitMiss = 1,         // the key, or one of the keys, is not there
  kExitUsage = 2,        // the command line
  kExitUnreachable = 3,  // no daemon, or one that is draining or does not answer
  kExitFailed = 4,       // the daemon refused, or a file could not be read or written
};

struct Context {
  std::string socket_dir;  // empty: the default
  bool json = false;
  double timeout_s = 10;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;

  std::string SocketDir() const;
  absl::StatusOr<std::unique_ptr<client::Client>> Connect(client::Role role) const;
  // For commands without a session, which also work while the daemon drains.
  std::shared_ptr<grpc::Channel> Channel() const;
  void Prepare(grpc::ClientContext* call) const;
  // gRPC's status, with a plain sentence when there is no daemon.
  absl::Status FromCall(const grpc::Status& status) const;

  // Prints "embcachectl: ..." and gives the exit code that fits.
  int Fail(const absl::Status& status) const;
};

// One call without a session.
template <typename Stub, typename Method, typename Request, typename Response>
absl::Status CallDaemon(const Context& context, Stub& stub, Method method, const Request& request,
                        Response* response) {
  grpc::ClientContext call;
  context.Prepare(&call);
  return context.FromCall((stub.*method)(&call, request, response));
}

// Checks of option values: a finite number of seconds, above 0 or at least 0.
CLI::Validator MoreThanZero();
CLI::Validator ZeroOrMore();

// For transform(): makes bytes of a size as the daemon's settings have them, "512MiB".
CLI::Validator SizeText();

// A command's work, run after the command line has been read as a whole.
using Action = std::function<int()>;

// Each adds its commands to `app`; `context` and `action` outlive the parsing and running.
void AddDataCommands(CLI::App& app, const Context& context, Action* action);
void AddTransferCommands(CLI::App& app, const Context& context, Action* action);
void AddInspectCommands(CLI::App& app, const Context& context, Action* action);
void AddTopCommand(CLI::App& app, const Context& context, Action* action);
void AddEventsCommand(CLI::App& app, const Context& context, Action* action);
void AddAdminCommands(CLI::App& app, const Context& context, Action* action);
void AddSizeCommand(CLI::App& app, const Context& context, Action* action);
void AddBenchCommand(CLI::App& app, const Context& context, Action* action);

// The whole program. Returns the exit code.
int Main(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace embcache::cli

#endif  // EMBCACHE_CLIENT_CLI_CONTEXT_H_
