#include "supervisor/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "ipc/log_line.h"
#include "ipc/run_files.h"
#include "ipc/trace_ring.h"
#include "supervisor/live_line.h"

namespace baton {
namespace {

constexpr int kTickMs = 100;
constexpr Seconds kLookBound{5.0};  // a new binary's look at its options
constexpr Seconds kOwnGap{2.0};  // a longer pause of our own loop says nothing about the children

Seconds monotonic() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return Seconds(static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec));
}

// 10 s as "10", 1.5 s as "1.5".
std::string number(Seconds seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds.count());
  return text;
}

int open_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int sig : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR2}) sigaddset(&set, sig);
  // A shell without job control starts background commands with SIGINT ignored, and an ignored
  // signal never reaches a signalfd.
  for (int sig : {SIGTERM, SIGINT, SIGHUP}) ::signal(sig, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) throw std::runtime_error(std::string("signalfd: ") + std::strerror(errno));
  return fd;
}

enum class Phase { kRunning, kStopping, kKilling };

class Supervisor {
 public:
  Supervisor(std::vector<ProcessSpec> specs, const SuperviseOptions& options)
      : options_(options),
        terminal_(options.live),
        output_{terminal_, options.log_format, width_of(specs)},
        log_(options.run_dir, "baton", output_, true),
        tracer_(options.run_dir, "supervisor"),
        signals_(open_signals()) {
    for (const AskedScheduler& scheduler : options.schedulers) {
      live_lines_.add(scheduler.model, scheduler.admin_socket);
    }
    for (auto& spec : specs) {
      children_.push_back(std::make_unique<ChildProcess>(spec, options.run_dir, output_,
                                                         options.frozen_after, monotonic()));
    }
  }
  ~Supervisor() {
    terminal_.clear();
    ::close(signals_);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run() {
    for (const std::string& warning : options_.warnings) say(warning, "warning");
    introduce();
    take_over();
    Seconds last = monotonic();
    while (true) {
      const Seconds now = monotonic();
      if (now - last > kOwnGap) {
        for (auto& child : children_) child->forgive();
      }
      last = now;
      tracer_.look(now_ns());
      if (phase_ == Phase::kRunning) {
        start_due(now);
        greet_recovered();
        kill_frozen(now);
        show_what_goes_on(now);
      } else if (advance_stop(now)) {
        return end();
      }
      wait_for_something();
      take_signals();
      reap();
    }
  }

 private:
  static std::size_t width_of(const std::vector<ProcessSpec>& specs) {
    std::size_t width = 5;
    for (const auto& spec : specs) width = std::max(width, spec.name.size());
    return width;
  }

  void say(const std::string& text, const char* level = "info") {
    log_.write(log_line(options_.log_format, wall_ns(), level, "baton", text) + "\n");
  }

  void trace(TraceKind kind, pid_t pid, const std::string& text) {
    tracer_.add({.kind = kind, .at = now_ns(), .args = {static_cast<std::uint64_t>(pid)}}, text);
  }

  // Tells every record who watches from now on.
  void introduce() {
    const pid_t pid = ::getpid();
    self_ = {pid, pid_start_time(pid), static_cast<double>(wall_ns()) / 1e9, 0};
    for (const auto& child : children_) {
      if (!child->found()) continue;
      const ProcessLife& before = child->found()->supervisor;
      self_.restarts = std::max(self_.restarts, before.restarts + 1);
      replaced_itself_ = replaced_itself_ || before.pid == pid;
    }
    adopt_unwanted();
    for (auto& child : children_) child->record(self_);
  }

  // What the supervisor before watched and this one has no use for (a worker that the configuration
  // has no more) is to end. Another supervisor that died in this folder left its processes to its
  // own successor.
  void adopt_unwanted() {
    const auto watched_before_us = [&](const ProcessRecord& record) {
      return std::any_of(children_.begin(), children_.end(), [&](const auto& child) {
        return child->found() && child->found()->supervisor.pid == record.supervisor.pid &&
               child->found()->supervisor.start == record.supervisor.start;
      });
    };
    std::vector<ProcessSpec> unwanted;
    for (const ProcessRecord& record : read_process_records(options_.run_dir)) {
      const bool ours = std::any_of(children_.begin(), children_.end(), [&](const auto& child) {
        return child->spec().name == record.name;
      });
      if (ours) continue;
      const ProcessLife& other = record.supervisor;
      if (!process_alive(record.life.pid, record.life.start)) {
        if (watched_before_us(record)) remove_process_record(options_.run_dir, record.name);
      } else if (watched_before_us(record)) {
        unwanted.push_back({record.name, {}, StopStage::kWorkers});
        unwanted.back().kind = record.kind;
      } else if (!process_alive(other.pid, other.start)) {
        say(record.name + ", pid " + std::to_string(record.life.pid) +
            ", runs without a supervisor and is none of this one's processes: it is left alone");
      }
    }
    for (ProcessSpec& spec : unwanted) {
      children_.push_back(std::make_unique<ChildProcess>(spec, options_.run_dir, output_,
                                                         options_.frozen_after, monotonic()));
    }
  }

  void take_over() {
    for (auto& child : children_) {
      if (!child->running()) continue;
      const std::string who =
          "adopted " + child->spec().name + ", pid " + std::to_string(child->pid());
      if (!child->outdated()) {
        say(who);
      } else if (replaced_itself_ && child->wanted()) {
        say(who +
            "; its next start is by another command");  // whoever upgrades restarts it in turn
      } else {
        say(who + (child->wanted() ? ", which another command started: it is replaced"
                                   : ", which is not asked for any more: it is ended"));
        child->ask_to_end(monotonic(), options_.stop_bound);
      }
    }
  }

  void start_due(Seconds now) {
    for (auto& child : children_) {
      if (!child->running() && child->wanted() && child->due() <= now) {
        child->start(now);
        if (child->running()) {
          say("started " + child->spec().name + ", pid " + std::to_string(child->pid()));
          trace(TraceKind::started, child->pid(), child->spec().name);
        }
      }
    }
  }

  void kill_frozen(Seconds now) {
    for (auto& child : children_) {
      if (!child->running()) continue;
      if (const auto why = child->look(now)) {
        say(child->spec().name + " is frozen (" + *why + " for " + number(options_.frozen_after) +
            " s): killing it");
        ::kill(-child->pid(), SIGKILL);
        child->forgive();  // say it once; the end arrives as SIGCHLD
      } else if (child->expired(now)) {
        say(child->spec().name + " did not end in time: killing it");
        ::kill(-child->pid(), SIGKILL);
        child->ask_to_end(now, options_.stop_bound);  // said once in this time
      }
    }
  }

  // From when everything is up: whoever started this has told its own progress until then.
  void show_what_goes_on(Seconds now) {
    if (!terminal_.live()) return;
    if (!all_up_) {
      all_up_ = std::all_of(children_.begin(), children_.end(), [&](const auto& child) {
        return !child->wanted() || !child->spec().tells_up || !child->refused().empty() ||
               std::filesystem::exists(options_.run_dir / (child->spec().name + ".up"));
      });
      return;
    }
    for (const AskedScheduler& scheduler : options_.schedulers) {
      live_lines_.note(scheduler.model, note_of(scheduler.model));
    }
    if (auto text = live_lines_.look(now.count())) terminal_.set_live_line(std::move(*text));
  }

  // What of one of several models cannot run.
  std::string note_of(const std::string& model) const {
    std::string note;
    if (model.empty()) return note;
    for (const auto& child : children_) {
      if (child->spec().model != model || child->refused().empty()) continue;
      note += (note.empty() ? "" : "; ") + child->spec().name + " cannot run: " + child->refused();
    }
    return note;
  }

  void greet_recovered() {
    for (auto& child : children_) {
      if (!child->recovered()) continue;
      say(child->spec().name + " of the model " + child->spec().model + " runs after all");
    }
  }

  /// Until the next look, or the next start.
  int patience_ms() const {
    Seconds wait{kTickMs / 1e3};
    if (phase_ != Phase::kRunning) return kTickMs;
    for (const auto& child : children_) {
      if (!child->running() && child->wanted()) wait = std::min(wait, child->due() - monotonic());
    }
    return std::max(0, static_cast<int>(std::ceil(wait.count() * 1e3)));
  }

  void wait_for_something() {
    std::vector<pollfd> fds{{signals_, POLLIN, 0}};
    for (auto& child : children_) {
      if (child->output_fd() >= 0) fds.push_back({child->output_fd(), POLLIN, 0});
      if (child->exit_fd() >= 0) fds.push_back({child->exit_fd(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), patience_ms());
    for (auto& child : children_) child->drain_output();
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      const int sig = static_cast<int>(info.ssi_signo);
      if (sig == SIGCHLD) continue;
      if (sig == SIGUSR2) {
        if (phase_ == Phase::kRunning) become_what_lies_on_disk();
        continue;
      }
      if (phase_ == Phase::kRunning) {
        say(std::string(::strsignal(sig)) + ": stopping");
        begin_stop();
      } else if (phase_ != Phase::kKilling) {
        say("a second signal: killing what is left");
        kill_all();
      }
    }
  }

  void reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      for (auto& child : children_) {
        if (child->running() && child->pid() == pid) child_ended(*child, status);
      }
    }
    for (auto& child : children_) {
      if (child->ended_unseen()) child_ended(*child, std::nullopt);
    }
  }

  // The binary on disk must take these options: otherwise the old one stays, with its children.
  bool new_binary_takes(std::vector<char*> argv) {
    std::string look = "--print-plan";
    argv.insert(argv.end() - 1, look.data());
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t pid = 0;
    const bool began =
        ::posix_spawn(&pid, options_.self[0].c_str(), &actions, nullptr, argv.data(), environ) == 0;
    ::posix_spawn_file_actions_destroy(&actions);
    if (!began) return false;
    int status = 0;
    const Seconds end = monotonic() + kLookBound;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (monotonic() >= end) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, &status, 0);
        return false;
      }
      ::usleep(10'000);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  // Same pid, same children: who waits for this process notices nothing. The children are adopted
  // by their records, and as they stay children, their statuses are told as before.
  void become_what_lies_on_disk() {
    if (options_.self.empty()) return;
    std::vector<char*> argv;
    for (std::string& arg : options_.self) argv.push_back(arg.data());
    argv.push_back(nullptr);
    if (!new_binary_takes(argv)) {
      say("asked to be replaced, but " + options_.self[0] +
          " does not run with these options: going on as before");
      return;
    }
    say("replaced by " + options_.self[0]);
    for (auto& child : children_) child->drain_output();
    terminal_.clear();
    ::execv(argv[0], argv.data());
    say(std::string("cannot be replaced: ") + std::strerror(errno));
  }

  void child_ended(ChildProcess& child, std::optional<int> status) {
    const bool restarts = phase_ == Phase::kRunning && child.wanted();
    const bool gives_up = restarts && ends_the_start(child, status);
    const pid_t pid = child.pid();
    const std::string how = child.ended(status, monotonic(), restarts && !gives_up);
    trace(TraceKind::ended, pid, how);
    // What ends because another one cannot run is no news beside the reason.
    const bool asked =
        !gave_up_.empty() && phase_ == Phase::kStopping &&
        (!status || status == 0 || (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGTERM));
    if (!asked) say(how);
    if (!gives_up) return;
    gave_up_ = child.spec().name +
               " cannot run, and starting it again does not help: " + child.last_words();
    begin_stop();
  }

  // One of several models that cannot run is no reason to end the others. Why it cannot is said
  // when it is new.
  bool ends_the_start(ChildProcess& child, std::optional<int> status) {
    const std::string& model = child.spec().model;
    if (model.empty()) return child.hopeless(status);
    const std::string before = child.refused();
    if (!child.cannot_run(status)) return false;
    if (no_model_can_run()) return true;
    if (child.refused() != before) {
      say("the model " + model + ": " + child.spec().name + " cannot run: " + child.refused() +
              " (it is tried again and again; the other models are served)",
          "warning");
    }
    return false;
  }

  // Nor ever could, since this program runs. Who starts a part of the processes alone knows
  // nothing of the others.
  bool no_model_can_run() const {
    const auto all = [&](const std::string& kind, const auto& what) {
      return std::all_of(children_.begin(), children_.end(), [&](const auto& child) {
        return child->spec().kind != kind || what(*child);
      });
    };
    return !all("frontend", [](const ChildProcess&) { return false; }) &&
           all("worker", [](const ChildProcess& worker) {
             return !worker.refused().empty() && !worker.been_up();
           });
  }

  int end() {
    for (auto& child : children_) {
      child->forget();
      // Of a front end that had to be killed: nobody comes for what it left.
      const auto twin = read_twin(options_.run_dir, child->spec().name);
      if (child->spec().kind == "frontend" && twin) {
        signal_process(twin->pid, twin->start, ::geteuid(), SIGKILL);
      }
    }
    if (gave_up_.empty()) return killed_ ? 1 : 0;
    say(gave_up_);  // the last line, so that nobody has to look for it
    return kGaveUp;
  }

  // Anything that runs and belongs to `last` or to a stage before it.
  bool any_running(StopStage last) const {
    for (const auto& child : children_) {
      if (child->running() && child->spec().stage <= last) return true;
    }
    return false;
  }

  void begin_stage(StopStage stage) {
    stage_ = stage;
    for (auto& child : children_) {
      if (child->running() && child->spec().stage == stage) ::kill(child->pid(), SIGTERM);
    }
  }

  void begin_stop() {
    terminal_.clear();
    stop_began_ = monotonic();
    phase_ = Phase::kStopping;
    begin_stage(StopStage::kFrontEnds);
  }

  // How long after the beginning of the stop the next stage begins, come what may.
  Seconds stage_bound() const {
    if (stage_ == StopStage::kFrontEnds) return options_.drain_bound;
    return (options_.drain_bound + options_.stop_bound) / 2;
  }

  void kill_all() {
    phase_ = Phase::kKilling;
    for (auto& child : children_) {
      if (!child->running()) continue;
      say(child->spec().name + " did not end in time: killing it");
      ::kill(-child->pid(), SIGKILL);
      killed_ = true;
    }
  }

  // One look at an ongoing stop; true when nothing is left.
  bool advance_stop(Seconds now) {
    if (!any_running(StopStage::kScheduler)) {
      say("stopped");
      return true;
    }
    const Seconds since = now - stop_began_;
    while (phase_ == Phase::kStopping && stage_ != StopStage::kScheduler &&
           (!any_running(stage_) || since >= stage_bound())) {
      begin_stage(static_cast<StopStage>(static_cast<int>(stage_) + 1));
    }
    if (phase_ != Phase::kKilling && since >= options_.stop_bound) kill_all();
    return false;
  }

  SuperviseOptions options_;
  Terminal terminal_;
  LogOutput output_;
  LogSink log_;
  LiveLines live_lines_;
  Tracer tracer_;
  bool all_up_ = false;  // has been
  int signals_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  Phase phase_ = Phase::kRunning;
  StopStage stage_ = StopStage::kFrontEnds;
  Seconds stop_began_{};
  ProcessLife self_;
  bool replaced_itself_ = false;  // by the binary on disk, under the same pid
  bool killed_ = false;
  std::string gave_up_;  // why, once it has
};

}  // namespace

int supervise(std::vector<ProcessSpec> specs, const SuperviseOptions& options) {
  // Before anything in it is opened or believed: its records name processes that get signals.
  for (const auto& folder : {options.run_dir, options.run_dir / "logs"}) {
    if (const Status own = ensure_private_directory(folder); !own.ok()) {
      throw std::runtime_error("run_dir: " + own.message());
    }
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // OpenMP's default of spinning makes two processes on two cores wait for each other.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  return Supervisor(std::move(specs), options).run();
}

}  // namespace baton
