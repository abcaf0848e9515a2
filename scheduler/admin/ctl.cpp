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
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "configs/config.h"
#include "ipc/admin_client.h"
#include "ipc/option_spelling.h"
#include "ipc/process.h"
#include "ipc/run_files.h"
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

/// Where commands go. A scheduler is connected to when one is for it.
struct Target {
  std::string memory_socket;
  baton::ProcessCommands processes;  // its schedulers are those that --model leaves
  std::map<std::string, baton::UniqueFd> links = {};  // by admin socket
  bool json = false;
};

/// Sends one line to a scheduler; nothing, and why on stderr, if there is no answer.
std::optional<std::string> ask(Target& target, const baton::ModelSocket& scheduler,
                               const std::string& line) {
  baton::UniqueFd& link = target.links[scheduler.admin_socket];
  if (!link) link = baton::connect_admin(scheduler.admin_socket);
  if (!link) {
    std::cerr << "baton-ctl: " << scheduler.admin_socket << ": " << std::strerror(errno)
              << " (is baton-scheduler running?)\n";
    return std::nullopt;
  }
  auto answer = baton::ask_admin(link.get(), line);
  if (!answer) std::cerr << "baton-ctl: the scheduler left before it had answered\n";
  return answer;
}

int ask_schedulers(Target& target, const std::vector<std::string>& words, const std::string& line) {
  const auto asked = baton::asked_models(words, target.processes.schedulers);
  if (!asked.ok()) {
    std::cerr << "baton-ctl: " << asked.status().message() << "\n";
    return 1;
  }
  if (asked.value().size() > 1) {
    std::string text;
    const bool json = words.back() == "json";
    const int code = baton::ask_models(
        asked.value(), json, [&](const baton::ModelSocket& one) { return ask(target, one, line); },
        text);
    std::cout << text << std::flush;
    return code;
  }
  const baton::ModelSocket& one = asked.value().front();
  const auto answer = ask(target, one, baton::with_full_name(words, one.model));
  if (!answer) return 1;
  std::cout << *answer << std::flush;
  return answer->rfind("error:", 0) == 0 ? 1 : 0;
}

int carry_out(const std::string& line, Target& target) {
  std::istringstream in{line};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  if (const auto done = baton::memory_command(words, target.memory_socket)) return *done;
  if (const auto done = baton::process_command(words, target.processes)) return *done;
  if (const auto done = baton::explain_command(words, target.processes.run_dir, target.json))
    return *done;
  const int code = ask_schedulers(target, words, line);
  if (words == std::vector<std::string>{"help"})
    std::cout << kTopHelp << kExplainHelp << kTraceHelp << kMemoryHelp << kProcessHelp;
  return code;
}

/// The records of a run directory name processes and sockets: those that another user made are not
/// believed. The administrator may name a service's directory; a signal then reaches processes of
/// its owner alone.
baton::Status check_run_dir(const std::string& run_dir, bool named) {
  baton::Status own = baton::check_own_directory(run_dir);
  std::error_code ignored;
  const auto type = std::filesystem::symlink_status(run_dir, ignored).type();
  const bool administered =
      named && ::geteuid() == 0 && type == std::filesystem::file_type::directory;
  return own.ok() || administered ? baton::Status() : baton::invalid("run_dir: " + own.message());
}

/// The schedulers that there are: the one of --socket, those of the configuration, or without one
/// those that the run directory has records of.
baton::Status find_schedulers(const std::string& socket, const std::string& config_file,
                              Target& target) {
  std::vector<baton::ModelSocket>& schedulers = target.processes.schedulers;
  std::string& run_dir = target.processes.run_dir;
  if (!socket.empty()) {
    schedulers = {{"", socket}};
  } else {
    std::vector<const char*> args = {"baton-ctl"};
    if (!config_file.empty()) args.insert(args.end(), {"--config", config_file.c_str()});
    if (!run_dir.empty()) args.insert(args.end(), {"--run_dir", run_dir.c_str()});
    const baton::Loaded loaded =
        baton::load_config(baton::Program::tool, static_cast<int>(args.size()), args.data());
    if (!loaded.config) return baton::invalid("");
    for (const baton::Config* model : loaded.config->served()) {
      schedulers.push_back({model->entry, model->scheduler.admin_socket});
    }
    const bool named = !run_dir.empty() || !config_file.empty();
    if (run_dir.empty()) run_dir = loaded.config->run_dir;
    if (baton::Status own = check_run_dir(run_dir, named); !own.ok()) return own;
    auto recorded = baton::recorded_schedulers(run_dir);
    if (config_file.empty() && !recorded.empty()) {
      schedulers = std::move(recorded);
      if (target.memory_socket.empty()) target.memory_socket = run_dir + "/memory.sock";
    } else if (target.memory_socket.empty()) {
      target.memory_socket = loaded.config->memory_socket();
    }
  }
  const auto folder = std::filesystem::path(schedulers.front().admin_socket).parent_path();
  if (target.memory_socket.empty()) target.memory_socket = (folder / "memory.sock").string();
  if (run_dir.empty()) run_dir = folder.string();
  auto chosen = baton::choose_models(schedulers, target.processes.model);
  if (!chosen.ok()) return chosen.status();
  schedulers = std::move(chosen).value();
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Commands on the scheduler's admin socket; 'baton-ctl help' lists them"};
  std::string config_file;
  std::string socket;
  Target target;
  std::vector<std::string> words;
  app.add_option("--config", config_file, "YAML file that names run_dir or scheduler.admin_socket");
  app.add_option("--model", target.processes.model,
                 "which of several models is meant: its name in the list `models` (default: all, "
                 "for commands that show)");
  app.add_option("--socket", socket, "path of the admin socket (default: from the configuration)");
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
  const baton::SpelledArguments spelled(argc, argv, '_', '-');
  CLI11_PARSE(app, spelled.argc(), spelled.argv());
  target.processes.within = static_cast<baton::TimeNs>(within * 1e9);

  if (const baton::Status found = find_schedulers(socket, config_file, target); !found.ok()) {
    if (found.message().empty()) return 2;  // the configuration is wrong, and has been told so
    std::cerr << "baton-ctl: " << found.message() << "\n";
    return 1;
  }
  if (words.size() == 1 && words[0] == "-") {
    int worst = 0;
    for (std::string line; std::getline(std::cin, line);)
      worst = std::max(worst, carry_out(line, target));
    return worst;
  }
  if (words.size() == 1 && words[0] == "top") {
    const auto shown = baton::asked_models(words, target.processes.schedulers);
    if (!shown.ok()) {
      std::cerr << "baton-ctl: " << shown.status().message() << "\n";
      return 1;
    }
    return baton::run_top(shown.value().front().admin_socket,
                          static_cast<baton::TimeNs>(interval * 1e9));
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
