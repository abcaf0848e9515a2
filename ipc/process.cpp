#include "ipc/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string_view>

#include "baton_version.h"
#include "ipc/run_files.h"
#include "ipc/spoken_version.h"

namespace baton {
namespace {

TimeNs read_clock(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return TimeNs{t.tv_sec} * kSecond + t.tv_nsec;
}

Status system_error(const std::string& what, int error) {
  return Status(ErrorCode::unavailable, what + ": " + std::strerror(error));
}

/// Up to one buffer of a small file; empty on any error.
std::string read_small_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> buffer{};
  const ssize_t n = fd ? ::read(fd.get(), buffer.data(), buffer.size()) : 0;
  return std::string(buffer.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
}

struct ProcStat {
  char state = 0;
  std::uint64_t start = 0;
};

/// Fields 3 and 22 of /proc/PID/stat. The name in field 2 may hold spaces and brackets: count from
/// the last ')'.
ProcStat read_proc_stat(std::int32_t pid) {
  ProcStat stat;
  if (pid <= 0) {
    return stat;
  }
  const std::string text = read_small_file("/proc/" + std::to_string(pid) + "/stat");
  std::size_t at = text.rfind(')');
  if (at == std::string::npos || at + 2 >= text.size()) {
    return stat;
  }
  at += 2;
  stat.state = text[at];
  for (int field = 3; field < 22; ++field) {
    at = text.find(' ', at);
    if (at == std::string::npos) {
      return ProcStat{};
    }
    ++at;
  }
  std::from_chars(text.data() + at, text.data() + text.size(), stat.start);
  return stat;
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) {
    return {};
  }
  if (errno != ENOENT) {
    return system_error("cannot create " + path, errno);
  }
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos || slash == 0) {
    return system_error("cannot create " + path, ENOENT);
  }
  Status parent = make_directory(path.substr(0, slash));
  if (!parent.ok()) {
    return parent;
  }
  return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST
             ? Status()
             : system_error("cannot create " + path, errno);
}

sigset_t stop_signals(bool reloads) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGUSR1);
  if (reloads) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

const char* build_version() { return BATON_VERSION " (" BATON_COMMIT ")"; }

TimeNs now_ns() { return read_clock(CLOCK_MONOTONIC); }
TimeNs wall_ns() { return read_clock(CLOCK_REALTIME); }

namespace {

/// As many digits as the largest number has: each write covers the one before.
constexpr std::size_t kDigits = 20;
/// The file is locked for microseconds; a process that was stopped meanwhile is not waited for.
constexpr int kLockTries = 1000;
/// More than that no clock says in this century: the file is damaged.
constexpr Incarnation kMostKept = Incarnation{1} << 62U;

/// Locked until it is closed.
UniqueFd open_counter(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  for (int i = 0; fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK || i == kLockTries) return UniqueFd();
    ::usleep(1000);
  }
  return fd;
}

/// 0: there is none.
Incarnation read_counter(int fd) {
  std::array<char, kDigits> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  Incarnation value = 0;
  if (n != static_cast<ssize_t>(kDigits) ||
      std::from_chars(text.data(), text.data() + n, value).ec != std::errc() || value > kMostKept)
    return 0;
  return value;
}

void write_counter(int fd, Incarnation value) {
  std::array<char, kDigits + 2> text{};
  std::snprintf(text.data(), text.size(), "%020llu\n", static_cast<unsigned long long>(value));
  [[maybe_unused]] const auto n = ::pwrite(fd, text.data(), kDigits + 1, 0);
}

}  // namespace

Incarnation new_incarnation(const std::string& run_dir) {
  static std::mutex mutex;
  static Incarnation last = 0;
  const std::lock_guard lock(mutex);
  const UniqueFd counter = open_counter(run_dir + "/incarnation");
  if (counter) last = std::max(last, read_counter(counter.get()));
  last = std::max(static_cast<Incarnation>(wall_ns()), last + 1);
  if (counter) write_counter(counter.get(), last);
  return last;
}

std::uint64_t pid_start_time(std::int32_t pid) { return read_proc_stat(pid).start; }

bool process_alive(std::int32_t pid, std::uint64_t start) {
  const ProcStat stat = read_proc_stat(pid);
  return stat.start != 0 && stat.start == start && stat.state != 'Z' && stat.state != 'X';
}

bool process_stopped(std::int32_t pid) { return read_proc_stat(pid).state == 'T'; }

int open_pidfd(std::int32_t pid) {
#ifdef SYS_pidfd_open
  return pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
#else
  (void)pid;
  return -1;
#endif
}

namespace {

/// Unix time; 0: not known.
double started_at() {
  const double age = process_age(pid_start_time(static_cast<std::int32_t>(::getpid())));
  return age == 0 ? 0 : static_cast<double>(wall_ns()) * 1e-9 - age;
}

}  // namespace

double process_age(std::uint64_t start) {
  timespec up{};  // since boot, suspension included, as the start time is
  if (start == 0 || ::clock_gettime(CLOCK_BOOTTIME, &up) != 0) return 0;
  const double age = static_cast<double>(up.tv_sec) + static_cast<double>(up.tv_nsec) * 1e-9 -
                     static_cast<double>(start) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::max(0.0, age);
}

ProcessUsage process_usage() {
  ProcessUsage usage;
  unsigned long long pages = 0, resident = 0;
  const std::string statm = read_small_file("/proc/self/statm");
  if (std::sscanf(statm.c_str(), "%llu %llu", &pages, &resident) == 2) {
    usage.resident_bytes = resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  rusage times{};
  if (::getrusage(RUSAGE_SELF, &times) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    usage.cpu_seconds = seconds(times.ru_utime) + seconds(times.ru_stime);
  }
  // Read once: the clocks are not read at one moment, and who counts changes counts restarts.
  static const double started = started_at();
  usage.started = started;
  return usage;
}

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

Status ensure_private_directory(const std::string& path) {
  if (path.empty() || path.front() != '/') {
    return invalid("'" + path + "' is no absolute path");
  }
  std::string clean = path;
  while (clean.size() > 1 && clean.back() == '/') {
    clean.pop_back();
  }
  Status made = make_directory(clean);
  if (!made.ok()) {
    return made;
  }
  if (Status own = check_own_directory(clean); !own.ok()) return own;
  // By its descriptor: the path may come to name something else meanwhile.
  const UniqueFd fd(::open(clean.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return system_error("cannot look at " + clean, errno);
  if (info.st_uid != ::geteuid()) return invalid(clean + " belongs to another user");
  if ((info.st_mode & 0077U) != 0 && ::fchmod(fd.get(), 0700) != 0) {
    return system_error("cannot close " + clean + " to other users", errno);
  }
  return {};
}

Result<LockFile> LockFile::acquire(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  Status directory = ensure_private_directory(
      slash == std::string::npos ? std::string() : path.substr(0, std::max<std::size_t>(slash, 1)));
  if (!directory.ok()) {
    return directory;
  }
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    return system_error("cannot open " + path, errno);
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return system_error("cannot lock " + path, errno);
    }
    std::string holder = read_small_file(path);
    holder.erase(std::find(holder.begin(), holder.end(), '\n'), holder.end());
    return Status(ErrorCode::unavailable, path + " is held by process " +
                                              (holder.empty() ? "(unknown)" : holder) +
                                              ": stop it first, or choose another run_dir");
  }
  // The file stays when the holder dies: only the kernel's lock counts, the pid is for people.
  const std::string pid = std::to_string(::getpid()) + "\n";
  // On a full disk it stays away, which is no reason not to start.
  if (::ftruncate(fd.get(), 0) == 0) {
    [[maybe_unused]] const auto n = ::pwrite(fd.get(), pid.data(), pid.size(), 0);
  }
  return LockFile(std::move(fd), path);
}

AliveFile::AliveFile(const std::string& run_dir, const std::string& name) {
  status_ = ensure_private_directory(run_dir);
  if (!status_.ok()) {
    return;
  }
  const std::string path = run_dir + "/" + name + ".alive";
  fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (!fd_ || ::write(fd_.get(), pid.data(), pid.size()) != static_cast<ssize_t>(pid.size())) {
    status_ = system_error("cannot write " + path, errno);
  }
}

void AliveFile::touch(TimeNs now) {
  constexpr TimeNs kEvery = 500 * kMillisecond;
  if (!fd_ || (last_ != 0 && now - last_ < kEvery)) {
    return;
  }
  last_ = now;
  ::futimens(fd_.get(), nullptr);
}

void leave_reason(const std::string& run_dir, const std::string& name, const std::string& reason) {
  constexpr std::size_t kMost = 4000;
  // Best effort, as below: nothing depends on it but what is said.
  [[maybe_unused]] const Status left =
      replace_file(run_dir + "/" + name + ".failed", reason.substr(0, kMost));
}

void mark_up(const std::string& run_dir, const std::string& name) {
  [[maybe_unused]] const Status marked =
      replace_file(run_dir + "/" + name + ".up",
                   std::to_string(::getpid()) + " " + std::to_string(kSpokenVersion) + "\n");
}

Waker::Waker() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Waker::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof one);  // full: it is awake
}

void Waker::clear() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &count, sizeof count);
}

SignalFd::SignalFd(bool reloads) {
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = stop_signals(reloads);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int SignalFd::poll() {
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGUSR1) {
      handover_ = true;
    } else if (info.ssi_signo == SIGHUP) {
      reload_ = true;
    } else {
      ++seen_;
    }
  }
  return seen_;
}

void unblock_signals() {
  const sigset_t set = stop_signals(/*reloads=*/true);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace baton
