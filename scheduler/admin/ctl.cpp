// baton-ctl: one command (or a session of them) on the scheduler's admin socket; what is about the
// memory process goes to that, and what is about processes needs neither.
//   baton-ctl show kv json          baton-ctl --socket PATH help          echo 'show info' |
//   baton-ctl -
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "configs/config.h"
#include "ipc/admin_client.h"
#include "ipc/process.h"
#include "scheduler/admin/explain_ctl.h"
#include "scheduler/admin/memory_ctl.h"
#include "scheduler/admin/process_ctl.h"
#include "scheduler/admin/top.h"
#include "scheduler/admin/trace_ctl.h"

namespace {

constexpr const char* kExplainHelp =
    "explain ID [json]                                   where the time of an ended request went "
    "(ID: its\n"
    "                                                    X-Request-Id); no process need run\n";

constexpr const char* kTraceHelp =
    "trace [--seconds S] [-o FILE]                       steps, pulls, requests and deaths of the "
    "next S\n"
    "                                                    seconds [5] as FILE [trace.json], for "
    "Perfetto;\n"
    "                                                    Ctrl-C ends it early\n";

constexpr const char* kMemoryHelp =
    "show memory [json]                                  what memory processes keep, for whom\n"
    "memory drop pool:NAME|weights:NAME                  give back what nobody holds\n";

constexpr const char* kTopHelp =
    "top [--interval SECONDS]                            workers, pools, queue and requests, drawn "
    "again and\n"
    "                                                    again; q leaves. Where there is no "
    "terminal: once\n";

constexpr const char* kProcessHelp =
    "show processes [json]                               every process of this run directory\n"
    "reload keys                                         every front end reads frontend.api_keys "
    "again\n"
    "restart NAME|all [--rolling] [--within SECONDS]     replaced by the binary that lies on disk; "
    "with\n"
    "                                                    --rolling one after the other, each when "
    "the one\n"
    "                                                    before is up. Streams go on; only a front "
    "end's\n"
    "                                                    own are cut after frontend.drain_s, and "
    "nobody\n"
    "                                                    listens until it is back\n";

/// Sends one line, copies the answer to stdout. Returns the exit code.
int ask(int fd, const std::string& line) {
  const auto answer = baton::ask_admin(fd, line);
  if (!answer) {
    std::cerr << "baton-ctl: the scheduler left before it had answered\n";
    return 1;
  }
  std::cout << *answer << std::flush;
  return answer->rfind("error:", 0) == 0 ? 1 : 0;
}

/// Where commands go. The scheduler is connected to when one is for it.
struct Target {
  std::string admin_socket;
  std::string memory_socket;
  baton::ProcessCommands processes;
  baton::UniqueFd scheduler;
  bool json = false;
};

int carry_out(const std::string& line, Target& target) {
  std::istringstream in{line};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  if (const auto done = baton::memory_command(words, target.memory_socket)) return *done;
  if (const auto done = baton::process_command(words, target.processes)) return *done;
  if (const auto done = baton::explain_command(words, target.processes.run_dir, target.json))
    return *done;
  if (!target.scheduler) target.scheduler = baton::connect_admin(target.admin_socket);
  if (!target.scheduler) {
    std::cerr << "baton-ctl: " << target.admin_socket << ": " << std::strerror(errno)
              << " (is baton-scheduler running?)\n";
    return 1;
  }
  const int code = ask(target.scheduler.get(), line);
  if (words == std::vector<std::string>{"help"})
    std::cout << kTopHelp << kExplainHelp << kTraceHelp << kMemoryHelp << kProcessHelp;
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Commands on the scheduler's admin socket; 'baton-ctl help' lists them"};
  std::string config_file;
  Target target;
  std::vector<std::string> words;
  app.add_option("--config", config_file, "YAML file that names run_dir or scheduler.admin_socket");
  app.add_option("--socket", target.admin_socket,
                 "path of the admin socket (default: from the configuration)");
  app.add_option(
      "--memory-socket", target.memory_socket,
      "path of a memory process's socket; the others are found beside it (default: from the "
      "configuration; with --socket, memory.sock beside it)");
  app.add_option(
      "--run-dir", target.processes.run_dir,
      "folder of the processes' records (default: from the configuration; with --socket, "
      "the socket's folder)");
  app.add_flag("--rolling", target.processes.rolling, "restart: one process after the other");
  app.add_flag("--json", target.json, "explain: as JSON");
  double within = static_cast<double>(target.processes.within) / 1e9;
  app.add_option("--within", within, "restart: seconds that each process has to be up again [600]")
      ->check(CLI::Range(0.1, 86400.0));
  double interval = 1;
  app.add_option("--interval", interval, "top: seconds between two pictures [1]")
      ->check(CLI::Range(0.1, 3600.0));
  double seconds = 5;
  app.add_option("--seconds", seconds, "trace: how long [5]")->check(CLI::Range(0.1, 600.0));
  baton::TraceCommand trace;
  app.add_option("-o,--output", trace.output,
                 "trace: the file that is made; -: standard output [trace.json]");
  app.add_option("command", words, "the command; '-' reads commands from stdin, one a line")
      ->required();
  app.set_version_flag("--version", std::string("baton-ctl ") + baton::build_version());
  app.prefix_command(false);
  CLI11_PARSE(app, argc, argv);
  target.processes.within = static_cast<baton::TimeNs>(within * 1e9);

  if (target.admin_socket.empty()) {
    std::vector<const char*> args = {"baton-ctl"};
    if (!config_file.empty()) args.insert(args.end(), {"--config", config_file.c_str()});
    const baton::Loaded loaded =
        baton::load_config(baton::Program::tool, static_cast<int>(args.size()), args.data());
    if (!loaded.config) return loaded.exit_code;
    target.admin_socket = loaded.config->scheduler.admin_socket;
    if (target.memory_socket.empty()) target.memory_socket = loaded.config->memory_socket();
    if (target.processes.run_dir.empty()) target.processes.run_dir = loaded.config->run_dir;
  }
  const auto folder = std::filesystem::path(target.admin_socket).parent_path();
  if (target.memory_socket.empty()) target.memory_socket = (folder / "memory.sock").string();
  if (target.processes.run_dir.empty()) target.processes.run_dir = folder.string();
  target.processes.admin_socket = target.admin_socket;
  if (words.size() == 1 && words[0] == "-") {
    int worst = 0;
    for (std::string line; std::getline(std::cin, line);)
      worst = std::max(worst, carry_out(line, target));
    return worst;
  }
  if (words.size() == 1 && words[0] == "top") {
    return baton::run_top(target.admin_socket, static_cast<baton::TimeNs>(interval * 1e9));
  }
  if (words.size() == 1 && words[0] == "trace") {
    trace.run_dir = target.processes.run_dir;
    trace.length = static_cast<baton::TimeNs>(seconds * 1e9);
    return baton::run_trace(trace);
  }
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return carry_out(line, target);
}
