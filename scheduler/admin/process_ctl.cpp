#include "scheduler/admin/process_ctl.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ipc/admin_client.h"
#include "ipc/process.h"
#include "ipc/process_record.h"
#include "ipc/run_files.h"
#include "ipc/spoken_version.h"
#include "scheduler/admin/process_list.h"
#include "scheduler/admin/restart_plan.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;
using Shown = ListedProcess;

constexpr TimeNs kLook = 50 * kMillisecond;
constexpr TimeNs kAnswer = 5 * kSecond;  // the scheduler's, to "show workers"

int complain(const std::string& why) {
  std::cerr << "baton-ctl: " << why << "\n";
  return 1;
}

Json ask_scheduler(const ModelSocket& scheduler, const std::string& line) {
  const UniqueFd link = connect_admin(scheduler.admin_socket);
  const auto answer = link ? ask_admin(link.get(), line, kAnswer) : std::nullopt;
  return Json::parse(answer.value_or(""), nullptr, /*allow_exceptions=*/false);
}

/// Whether the scheduler gives that very process work.
bool ready_at_scheduler(const ProcessCommands& options, const ProcessRecord& record) {
  const auto own = std::find_if(
      options.schedulers.begin(), options.schedulers.end(),
      [&](const ModelSocket& one) { return belongs_to_model(record.name, one.model); });
  if (own == options.schedulers.end()) return false;
  const Json workers = ask_scheduler(*own, "show workers json");
  if (!workers.is_array()) return false;
  return std::any_of(workers.begin(), workers.end(), [&](const Json& worker) {
    return worker.value("name", "") == RankName(record.name).worker &&
           worker.value("pid", 0) == record.life.pid && worker.value("state", "") == "ready";
  });
}

/// Whether every front end that runs has joined the schedulers, which know their number alone. One
/// that cannot run is waited for by nobody.
bool front_ends_joined(const ProcessCommands& options) {
  const auto records = read_process_records(options.run_dir);
  const auto up = std::count_if(records.begin(), records.end(), [&](const ProcessRecord& record) {
    return record.kind == "frontend" && is_up(options.run_dir, record);
  });
  const std::vector<ModelSocket> schedulers = restart_schedulers(options);  // there may be new ones
  return std::all_of(schedulers.begin(), schedulers.end(), [&](const ModelSocket& scheduler) {
    if (!refused_now(options.run_dir, scheduler.model + ".scheduler").empty()) return true;
    const Json info = ask_scheduler(scheduler, "show info json");
    return info.is_object() && info.value("frontends", 0) >= up;
  });
}

/// A record reaches processes of the folder's owner alone.
bool signal_recorded(const std::string& run_dir, const ProcessLife& life, int signal) {
  const auto owner = directory_owner(run_dir);
  return owner && signal_process(life.pid, life.start, *owner, signal);
}

/// Each front end reads its keys again, and says in its log what came of it.
int reload_keys(const ProcessCommands& options) {
  int asked = 0;
  for (const Shown& each : list_processes(options.run_dir)) {
    if (each.process.kind != "frontend" || each.state != "up") continue;
    if (!process_alive(each.life.pid, each.life.start)) continue;
    if (each.process.protocol != kSpokenVersion) {
      return complain(each.process.name +
                      " is of another version, which SIGHUP may end; restart it first");
    }
    if (!signal_recorded(options.run_dir, each.life, SIGHUP)) {
      return complain("cannot signal " + each.process.name);
    }
    std::printf("%s reads its API keys again; its log says what came of it\n",
                each.process.name.c_str());
    ++asked;
  }
  return asked > 0 ? 0 : complain("no front end is up in " + options.run_dir);
}

class Restart {
 public:
  explicit Restart(const ProcessCommands& options) : options_(options) {
    options_.schedulers = restart_schedulers(options);
  }

  int run(const std::string& what) {
    targets_ = list_processes(options_.run_dir);
    std::erase_if(targets_, [&](const Shown& each) {  // a twin is replaced with its front end
      return each.process.kind == "twin" || !belongs_to_model(each.process.name, options_.model);
    });
    all_ = what == "all";
    if (!all_) {
      // As --model says it, the name lacks the model's.
      const std::string group = group_of(what);
      const std::string of_model = options_.model + "." + what;
      const std::string group_of_model = group_of(of_model);
      std::erase_if(targets_, [&](const Shown& each) {
        const std::string& name = each.process.name;
        const std::string worker = RankName(name).worker;
        return name != what && worker != group && name != of_model && worker != group_of_model;
      });
    }
    if (targets_.empty()) {
      return complain("no process " + (what == "all" ? "" : what + " ") +
                      (options_.model.empty() ? "" : "of model " + options_.model + " ") +
                      "is known in " + options_.run_dir + " (show processes lists them)");
    }
    if (const std::string why = hindrance(); !why.empty()) return complain(why);
    std::vector<RunningProcess> order;
    for (const Shown& each : targets_) order.push_back(each.process);
    crosses_ = crosses_versions(order, kSpokenVersion);
    if (crosses_ && what != "all") {
      return complain("what runs speaks another protocol version than this build (" +
                      std::to_string(kSpokenVersion) +
                      "): one process of the two would refuse the other; restart all");
    }
    std::stable_sort(targets_.begin(), targets_.end(), [](const Shown& a, const Shown& b) {
      return restart_rank(a.process.kind) < restart_rank(b.process.kind);
    });
    if (crosses_) return across_versions();
    return options_.rolling ? one_by_one(targets_) : together(targets_);
  }

 private:
  /// Ranks end and start together: the name of one means its worker.
  std::string group_of(const std::string& what) const {
    const std::string worker = RankName(what).worker;
    const bool ranks = std::any_of(targets_.begin(), targets_.end(), [&](const Shown& each) {
      return each.process.kind == "rank" && RankName(each.process.name).worker == worker;
    });
    return ranks ? worker : what;
  }

  /// Why nothing is begun.
  std::string hindrance() const {
    for (const Shown& each : targets_) {
      const std::string& name = each.process.name;
      if (each.process.kind == "supervisor") {
        if (each.state == "gone") return "the supervisor does not run: ./baton serve starts one";
        continue;
      }
      const auto record = read_process_record(options_.run_dir, name);
      if (!record || !process_alive(record->supervisor.pid, record->supervisor.start)) {
        return name +
               " has no supervisor that would start it again (or it runs in another container)";
      }
    }
    return {};
  }

  /// A supervisor becomes the binary on disk; the others end, and are started again by it. A front
  /// end with a twin leaves its streams to its successor, unless that speaks another version.
  void ask(const Shown& target) const {
    if (!process_alive(target.life.pid, target.life.start)) return;  // it is being replaced already
    int signal = SIGTERM;
    if (target.process.kind == "supervisor") {
      signal = SIGUSR2;
    } else if (target.process.kind == "frontend" && !crosses_ &&
               read_twin(options_.run_dir, target.process.name)) {
      signal = SIGUSR1;
    }
    signal_recorded(options_.run_dir, target.life, signal);
  }

  bool replaced(const Shown& target) const {
    if (target.process.kind == "supervisor") {
      for (const ProcessRecord& record : read_process_records(options_.run_dir)) {
        if (same_life(record.supervisor, target.life)) {
          return record.supervisor.restarts > target.life.restarts;
        }
      }
      return false;
    }
    const auto record = read_process_record(options_.run_dir, target.process.name);
    if (!record || same_life(record->life, target.life) || !is_up(options_.run_dir, *record)) {
      return false;
    }
    if (record->kind == "frontend") return front_ends_joined(options_);
    return record->kind != "worker" || ready_at_scheduler(options_, *record);
  }

  bool wait_for(const std::function<bool()>& condition) const {
    const TimeNs end = now_ns() + options_.within;
    while (!condition()) {
      if (now_ns() >= end) return false;
      const timespec pause{0, kLook};
      ::nanosleep(&pause, nullptr);
    }
    return true;
  }

  /// Whether the supervisor, which lives, has ended it for good: the configuration has it no more.
  bool dismissed(const Shown& target) const {
    if (target.process.kind == "supervisor" || process_alive(target.life.pid, target.life.start) ||
        read_process_record(options_.run_dir, target.process.name)) {
      return false;
    }
    const auto records = read_process_records(options_.run_dir);
    return std::any_of(records.begin(), records.end(), [](const ProcessRecord& record) {
      return process_alive(record.supervisor.pid, record.supervisor.start);
    });
  }

  int wait_replaced(const Shown& target) const {
    const TimeNs began = now_ns();
    const std::string& name = target.process.name;
    if (passed_over(all_, !target.refused.empty())) {
      std::printf("%s is passed over, it did not run before: %s\n", name.c_str(),
                  target.refused.c_str());
      return 0;
    }
    // What ran and cannot any more says why; what could not run before may have been mended.
    const auto refused = [&] {
      return target.refused.empty() && !refused_now(options_.run_dir, name).empty();
    };
    const bool done = wait_for([&] { return replaced(target) || refused() || dismissed(target); });
    if (dismissed(target)) {
      std::printf("%s is ended: the configuration has it no more\n", name.c_str());
      return 0;
    }
    if (!done || !replaced(target)) {
      const auto record = read_process_record(options_.run_dir, name);
      const std::string why = record ? refused_now(options_.run_dir, *record) : "";
      if (!why.empty()) return complain(name + " cannot run: " + why);
      return complain(name + " is not up again after " + std::to_string(options_.within / kSecond) +
                      " s (" + (record ? process_state(options_.run_dir, *record) : "no record") +
                      "); its log: " + options_.run_dir + "/logs/" +
                      (target.process.kind == "supervisor" ? "baton" : name) + ".log");
    }
    std::printf("%s is replaced (%.1f s)\n", name.c_str(),
                static_cast<double>(now_ns() - began) / 1e9);
    std::fflush(stdout);
    return 0;
  }

  int one_by_one(const std::vector<Shown>& targets) const {
    for (const Shown& target : targets) {
      ask(target);
      if (const int code = wait_replaced(target); code != 0) return code;
    }
    return 0;
  }

  int together(const std::vector<Shown>& targets) const {
    for (const Shown& target : targets) ask(target);
    for (const Shown& target : targets) {
      if (const int code = wait_replaced(target); code != 0) return code;
    }
    return 0;
  }

  /// Streams end first, since no process of one version serves one of the other.
  int across_versions() const {
    std::printf(
        "what runs speaks another protocol version than this build (%u): front ends drain, "
        "then all is replaced at once\n",
        kSpokenVersion);
    std::fflush(stdout);
    std::vector<Shown> supervisors, others;
    for (const Shown& each : targets_) {
      (each.process.kind == "supervisor" ? supervisors : others).push_back(each);
    }
    if (const int code = one_by_one(supervisors); code != 0) return code;
    for (const Shown& each : others) {
      if (each.process.kind == "frontend") ask(each);
    }
    for (const Shown& each : others) {
      if (each.process.kind != "frontend") continue;
      const auto ended = [&] { return !process_alive(each.life.pid, each.life.start); };
      if (!wait_for(ended)) return complain(each.process.name + " does not end");
    }
    for (const Shown& each : others) {
      if (each.process.kind != "frontend") ask(each);
    }
    for (const Shown& each : others) {
      if (const int code = wait_replaced(each); code != 0) return code;
    }
    return 0;
  }

  ProcessCommands options_;
  std::vector<Shown> targets_;
  bool crosses_ = false;  // versions of the protocol
  bool all_ = false;      // of them are to be replaced, not one that was named
};

}  // namespace

std::vector<ModelSocket> recorded_schedulers(const std::string& run_dir) {
  std::vector<ModelSocket> found;
  for (const ProcessRecord& record : read_process_records(run_dir)) {
    if (record.kind != "scheduler") continue;
    const std::size_t dot = record.name.find('.');
    const std::string model = dot == std::string::npos ? "" : record.name.substr(0, dot);
    const std::string usual = run_dir + "/" + (model.empty() ? "" : model + ".") + "admin.sock";
    found.push_back({model, record.admin_socket.empty() ? usual : record.admin_socket});
  }
  return found;
}

std::vector<ModelSocket> restart_schedulers(const ProcessCommands& options) {
  std::vector<ModelSocket> found = recorded_schedulers(options.run_dir);
  if (found.empty() || found.front().model.empty()) return options.schedulers;
  std::erase_if(found, [&](const ModelSocket& one) {
    return !options.model.empty() && one.model != options.model;
  });
  return found;
}

bool belongs_to_model(const std::string& process, const std::string& model) {
  return model.empty() || process.starts_with(model + ".");
}

std::optional<int> process_command(const std::vector<std::string>& words,
                                   const ProcessCommands& options) {
  const std::size_t n = words.size();
  if (n >= 2 && words[0] == "show" && words[1] == "processes" &&
      (n == 2 || (n == 3 && words[2] == "json"))) {
    const std::vector<Shown> all = list_processes(options.run_dir);
    if (n == 3) {
      print_processes_json(all);
    } else if (all.empty()) {
      std::cout << "none\n";
    } else {
      print_processes(all);
    }
    return 0;
  }
  if (n > 0 && words[0] == "reload") {
    if (n != 2 || words[1] != "keys") return complain("usage: reload keys");
    return reload_keys(options);
  }
  if (n == 0 || words[0] != "restart") return std::nullopt;
  if (n != 2) return complain("restart NAME or restart all (show processes names them)");
  return Restart(options).run(words[1]);
}

}  // namespace baton
