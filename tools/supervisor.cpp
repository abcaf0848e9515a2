// baton-supervisor: starts Baton's processes and keeps them alive. See supervise.h for the rules.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <stdexcept>

#include "baton_version.h"
#include "tools/supervise.h"

namespace {

// "NAME=COMMAND" -> a process that runs the command with sh.
baton::ProcessSpec parse_process(const std::string& text, bool front_end) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw std::runtime_error("'" + text + "' is not NAME=COMMAND");
  }
  const std::string name = text.substr(0, equals);
  if (name.find_first_of("/. ") != std::string::npos) {
    throw std::runtime_error("a process name may not hold '/', '.' or a space: '" + name + "'");
  }
  return {name, {"/bin/sh", "-c", "exec " + text.substr(equals + 1)}, front_end};
}

int run(int argc, char** argv) {
  CLI::App app{"Starts Baton's processes, restarts one that dies or freezes, stops them in order."};
  app.set_version_flag("--version", std::string("baton ") + BATON_VERSION + " (" BATON_COMMIT ")");
  baton::SuperviseOptions options;
  std::string run_dir;
  double frozen_after = options.frozen_after.count();
  double drain_bound = options.drain_bound.count();
  double stop_bound = options.stop_bound.count();
  std::vector<std::string> front_ends;
  std::vector<std::string> processes;
  app.add_option("--run-dir", run_dir, "folder of logs, pid files and heartbeats")->required();
  app.add_option("--front-end", front_ends, "NAME=COMMAND of a front end (stopped first)");
  app.add_option("--process", processes, "NAME=COMMAND of another process");
  app.add_option("--frozen-after", frozen_after,
                 "seconds after which a stopped or silent process is killed; 0: never")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--drain-bound", drain_bound, "seconds that front ends get to end their streams")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--stop-bound", stop_bound, "seconds after which a stop turns into SIGKILL")
      ->check(CLI::Range(0.1, 3600.0));
  CLI11_PARSE(app, argc, argv);

  options.run_dir = run_dir;
  options.frozen_after = baton::Seconds(frozen_after);
  options.drain_bound = baton::Seconds(drain_bound);
  options.stop_bound = baton::Seconds(stop_bound);
  std::vector<baton::ProcessSpec> specs;
  for (const auto& text : processes) specs.push_back(parse_process(text, false));
  for (const auto& text : front_ends) specs.push_back(parse_process(text, true));
  if (specs.empty()) throw std::runtime_error("no process named; see --help");
  return baton::supervise(std::move(specs), options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "baton-supervisor: %s\n", error.what());
    return 2;
  }
}
