#include "supervisor/supervise.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace baton {
namespace {

constexpr int kTickMs = 100;
constexpr Seconds kOwnGap{2.0};  // a longer pause of our own loop says nothing about the children

Seconds monotonic() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return Seconds(static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec));
}

// As every process's lines begin (log_pattern() in configs/config.h).
std::string log_head() {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  std::tm parts{};
  ::localtime_r(&t.tv_sec, &parts);
  char seconds[32], text[64];
  std::strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03ld info baton ", seconds, t.tv_nsec / 1'000'000);
  return text;
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
  for (int sig : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, sig);
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
        log_(options.run_dir, "baton", width_of(specs)),
        signals_(open_signals()) {
    for (auto& spec : specs) {
      children_.push_back(std::make_unique<ChildProcess>(spec, options.run_dir, width_of(specs),
                                                         options.frozen_after));
    }
  }
  ~Supervisor() { ::close(signals_); }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run() {
    Seconds last = monotonic();
    while (true) {
      const Seconds now = monotonic();
      if (now - last > kOwnGap) {
        for (auto& child : children_) child->forgive();
      }
      last = now;
      if (phase_ == Phase::kRunning) {
        start_due(now);
        kill_frozen(now);
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

  void say(const std::string& text) { log_.write(log_head() + text + "\n"); }

  void start_due(Seconds now) {
    for (auto& child : children_) {
      if (!child->running() && child->due() <= now) {
        child->start(now);
        if (child->running()) {
          say("started " + child->spec().name + ", pid " + std::to_string(child->pid()));
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
      }
    }
  }

  void wait_for_something() {
    std::vector<pollfd> fds{{signals_, POLLIN, 0}};
    for (auto& child : children_) {
      if (child->output_fd() >= 0) fds.push_back({child->output_fd(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), kTickMs);
    for (auto& child : children_) child->drain_output();
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      const int sig = static_cast<int>(info.ssi_signo);
      if (sig == SIGCHLD) continue;
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
        if (child->pid() == pid) child_ended(*child, status);
      }
    }
  }

  void child_ended(ChildProcess& child, int status) {
    const bool gives_up = phase_ == Phase::kRunning && child.hopeless(status);
    say(child.ended(status, monotonic(), phase_ == Phase::kRunning && !gives_up));
    if (!gives_up) return;
    gave_up_ = child.spec().name +
               " cannot run, and starting it again does not help: " + child.last_words();
    begin_stop();
  }

  int end() {
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
  LogSink log_;
  int signals_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  Phase phase_ = Phase::kRunning;
  StopStage stage_ = StopStage::kFrontEnds;
  Seconds stop_began_{};
  bool killed_ = false;
  std::string gave_up_;  // why, once it has
};

}  // namespace

int supervise(std::vector<ProcessSpec> specs, const SuperviseOptions& options) {
  std::filesystem::create_directories(options.run_dir);
  ::chmod(options.run_dir.c_str(), 0700);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // OpenMP's default of spinning makes two processes on two cores wait for each other.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  return Supervisor(std::move(specs), options).run();
}

}  // namespace baton
