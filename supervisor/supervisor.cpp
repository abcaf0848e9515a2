// baton-supervisor: starts Baton's processes and keeps them alive. See supervise.h for the rules.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "baton_version.h"
#include "configs/config.h"
#include "configs/gpu_memory.h"
#include "ipc/process.h"
#include "ipc/shm_region.h"
#include "supervisor/supervise.h"

namespace {

using baton::StopStage;

constexpr const char* kAbout =
    "Starts Baton's processes, restarts one that dies or freezes, stops them in order.\n"
    "The processes are those of a configuration (--config FILE; every other option of that file "
    "may\n"
    "follow and is handed on to all of them), or those named with --process and --front-end.";

constexpr int kRefused = 3;  // of a worker: the scheduler will never take it (docs/PROTOCOL.md)
constexpr int kNotStarted = 127;  // there is no such program
constexpr int kEarlyDeaths = 10;  // about 20 s: what is in the way may leave

struct Options {
  baton::SuperviseOptions supervise;
  std::string run_dir;
  std::vector<std::string> front_ends;
  std::vector<std::string> processes;
  std::vector<std::string> last;
  std::vector<std::string> only;
  std::vector<std::string> config_args;
  bool print_plan = false;
  std::string output = "auto";
};

void add_seconds(CLI::App& app, const std::string& name, baton::Seconds& value,
                 const std::string& help, double least) {
  app.add_option_function<double>(
         name, [&value](double seconds) { value = baton::Seconds(seconds); },
         help + " [" + std::to_string(static_cast<int>(value.count())) + "]")
      ->check(CLI::Range(least, 86400.0));
}

void describe(CLI::App& app, Options& options) {
  app.set_version_flag("--version", std::string("baton ") + BATON_VERSION + " (" BATON_COMMIT ")");
  app.allow_extras();
  app.add_option("--run-dir", options.run_dir, "folder of logs, pid files and heartbeats");
  app.add_option("--front-end,--front_end", options.front_ends,
                 "NAME=COMMAND of a front end (stopped first)")
      ->allow_extra_args(false);
  app.add_option("--process", options.processes, "NAME=COMMAND of another process")
      ->allow_extra_args(false);
  app.add_option("--last", options.last, "NAME=COMMAND of a process that is stopped last")
      ->allow_extra_args(false);
  app.add_option(
         "--only", options.only,
         "start only this process of the configuration; a worker's name means all its ranks")
      ->allow_extra_args(false);
  app.add_flag(
      "--print-plan,--print_plan", options.print_plan,
      "print what the configuration asks for as 'key value' lines, and end; start nothing");
  app.add_option("--output", options.output,
                 "what the terminal shows: lines (all logs), live (warnings, and one line of what "
                 "goes on), auto (live at a terminal)")
      ->check(CLI::IsMember({"auto", "lines", "live"}));
  add_seconds(app, "--frozen-after,--frozen_after", options.supervise.frozen_after,
              "seconds after which a stopped or silent process is killed; 0: never", 0.0);
  add_seconds(app, "--drain-bound,--drain_bound", options.supervise.drain_bound,
              "seconds that front ends get to end their streams", 0.0);
  add_seconds(app, "--stop-bound,--stop_bound", options.supervise.stop_bound,
              "seconds after which a stop turns into SIGKILL", 0.1);
}

// "NAME=COMMAND" -> a process that runs the command with sh.
baton::ProcessSpec parse_process(const std::string& text, StopStage stage) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw std::runtime_error("'" + text + "' is not NAME=COMMAND");
  }
  const std::string name = text.substr(0, equals);
  if (name.find_first_of("/. ") != std::string::npos) {
    throw std::runtime_error("a process name may not hold '/', '.' or a space: '" + name + "'");
  }
  return {name, {"/bin/sh", "-c", "exec " + text.substr(equals + 1)}, stage};
}

// Read once: when a build has replaced the file, the link tells another name.
const std::filesystem::path& own_path() {
  static const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe");
  return path;
}

// The binaries stand beside this one.
std::string binary(const std::string& name) { return own_path().parent_path() / name; }

// Of a worker of several ranks all processes, which end and start together; else the one named.
std::vector<std::string> names_of(const std::string& name, const baton::Config& config) {
  std::vector<std::string> names;
  for (const auto& worker : config.workers) {
    if (worker.name != name) continue;
    for (std::uint32_t rank = 0; rank < worker.ranks; ++rank)
      names.push_back(worker.process_name(rank));
  }
  return names.empty() ? std::vector<std::string>{name} : names;
}

// What tells a process which of several models it belongs to.
std::vector<std::string> for_model(const baton::Config& model) {
  if (model.entry.empty()) return {};
  return {"--for", model.entry};
}

// The memory processes and the schedulers first, so that the others find them at their first try.
std::vector<baton::ProcessSpec> processes_of(const baton::Config& config, const Options& options) {
  std::vector<baton::ProcessSpec> all;
  auto add = [&](const std::string& name, const std::string& program, StopStage stage,
                 const std::vector<std::string>& extra) {
    baton::ProcessSpec spec{name, {binary(program)}, stage};
    spec.kind = program.substr(program.find('-') + 1);
    spec.tells_up = true;
    spec.final_statuses = {baton::kExitUsage, kRefused, kNotStarted};
    spec.early_deaths = kEarlyDeaths;
    spec.argv.insert(spec.argv.end(), options.config_args.begin(), options.config_args.end());
    spec.argv.insert(spec.argv.end(), extra.begin(), extra.end());
    all.push_back(std::move(spec));
  };
  auto add_memory = [&](const std::string& name, const std::vector<std::string>& extra) {
    add(name, "baton-memory", StopStage::kScheduler, extra);
    // Without it everything is served as well: it ends no start.
    all.back().final_statuses.clear();
    all.back().early_deaths = 0;
  };
  if (std::any_of(config.workers.begin(), config.workers.end(),
                  [](const auto& w) { return w.device == "cpu"; })) {
    add_memory("memory", {});
  }
  for (const std::string& gpu : baton::gpus_with_memory(config.workers)) {
    add_memory(baton::gpu_memory_name(gpu), {"--gpu", gpu});
  }
  for (const baton::Config* model : config.served()) {
    add(model->scheduler_name(), "baton-scheduler", StopStage::kScheduler, for_model(*model));
    all.back().admin_socket = model->scheduler.admin_socket;
    all.back().model = model->entry;
  }
  for (const baton::Config* model : config.served()) {
    for (const auto& worker : model->workers) {
      std::vector<std::string> args = for_model(*model);
      args.insert(args.end(), {"--name", worker.name.substr(model->named("").size())});
      if (worker.ranks == 1) {
        add(worker.name, "baton-worker", StopStage::kWorkers, args);
        all.back().model = model->entry;
        continue;
      }
      args.insert(args.end(), {"--rank", ""});
      for (std::uint32_t rank = 0; rank < worker.ranks; ++rank) {
        args.back() = std::to_string(rank);
        add(worker.process_name(rank), "baton-worker", StopStage::kWorkers, args);
        all.back().model = model->entry;
        if (rank > 0) all.back().kind = "rank";  // of the worker that rank 0 is to the scheduler
      }
    }
  }
  add(config.frontend.name, "baton-frontend", StopStage::kFrontEnds, {});
  if (options.only.empty()) return all;

  std::vector<baton::ProcessSpec> chosen;
  for (const auto& name : options.only) {
    const std::vector<std::string> wanted = names_of(name, config);
    for (const std::string& process : wanted) {
      const auto found =
          std::find_if(all.begin(), all.end(), [&](auto& p) { return p.name == process; });
      if (found == all.end()) {
        std::string names;
        for (const auto& each : all) names += (names.empty() ? "" : ", ") + each.name;
        throw std::runtime_error("--only " + name + ": the configuration has " + names);
      }
      chosen.push_back(*found);
    }
  }
  return chosen;
}

void print_plan(const baton::Config& config) {
  std::printf("run_dir %s\n", config.run_dir.c_str());
  for (const baton::Config* model : config.served())
    std::printf("model %s\n", model->model.c_str());
  for (const baton::Config& model : config.models) {
    std::printf("serves %s\n", model.model_name.c_str());
  }
  std::printf("host %s\nport %d\n", config.frontend.host.c_str(), int{config.frontend.port});
  for (const baton::Config* model : config.served()) {
    std::printf("admin %s\n", model->scheduler.admin_socket.c_str());
  }
  for (const baton::WorkerConfig& worker : config.workers) {
    const std::string ranks =
        worker.ranks > 1 ? ", " + std::to_string(worker.ranks) + " ranks" : "";
    std::printf("worker %s (%s on %s%s)\n", worker.name.c_str(), to_string(worker.role),
                worker.device.c_str(), ranks.c_str());
  }
}

int run(int argc, char** argv) {
  CLI::App app{kAbout};
  Options options;
  describe(app, options);
  CLI11_PARSE(app, argc, argv);
  options.config_args = app.remaining();
  const bool names_it = std::any_of(options.config_args.begin(), options.config_args.end(),
                                    [](const auto& arg) { return arg.starts_with("--run_dir"); });
  if (!options.config_args.empty() && !options.run_dir.empty() && !names_it) {
    // It is the configuration's option, too: the processes are to work in the same directory.
    options.config_args.insert(options.config_args.end(), {"--run_dir", options.run_dir});
  }

  std::vector<baton::ProcessSpec> specs;
  if (!options.config_args.empty()) {
    std::vector<const char*> args{argv[0]};
    for (const auto& arg : options.config_args) args.push_back(arg.c_str());
    const auto loaded =
        baton::load_config(baton::Program::tool, static_cast<int>(args.size()), args.data());
    if (!loaded.config) return loaded.exit_code;
    if (!loaded.config->entry.empty()) {
      throw std::runtime_error("--for: a supervisor starts the processes of all models");
    }
    if (options.print_plan) {
      print_plan(*loaded.config);
      return 0;
    }
    specs = processes_of(*loaded.config, options);
    if (options.run_dir.empty()) options.run_dir = loaded.config->run_dir;
    options.supervise.log_format = baton::log_format_of(loaded.config->log_format);
    for (const baton::Config* model : loaded.config->served()) {
      options.supervise.schedulers.push_back({model->entry, model->scheduler.admin_socket});
      if (!model->entry.empty() && model->workers.empty()) {
        options.supervise.warnings.push_back("no workers are configured for the model " +
                                             model->entry);
      }
    }
    options.supervise.live =
        options.output == "live" || (options.output == "auto" && ::isatty(STDOUT_FILENO) == 1 &&
                                     loaded.config->log_format == "text");
  }
  auto add = [&](const std::vector<std::string>& texts, StopStage stage) {
    for (const auto& text : texts) specs.push_back(parse_process(text, stage));
  };
  add(options.last, StopStage::kScheduler);
  add(options.processes, StopStage::kWorkers);
  add(options.front_ends, StopStage::kFrontEnds);
  if (specs.empty()) throw std::runtime_error("no process named; see --help");
  if (options.run_dir.empty()) throw std::runtime_error("--run-dir is needed");
  if (options.print_plan) return 0;
  options.supervise.self = {own_path()};
  options.supervise.self.insert(options.supervise.self.end(), argv + 1, argv + argc);
  options.run_dir = std::filesystem::absolute(options.run_dir).lexically_normal();
  options.supervise.run_dir = options.run_dir;
  const bool keeps_pools =
      std::any_of(specs.begin(), specs.end(), [](const auto& p) { return p.kind == "memory"; });
  const int code = baton::supervise(std::move(specs), options.supervise);
  // A worker that did not end by itself has left its pool in shared memory, and so has a memory
  // process; where that is another supervisor's, it may be about to come back.
  baton::unlink_dead_regions(options.run_dir, keeps_pools);
  return code;
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
