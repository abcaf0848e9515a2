#include "supervisor/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace baton {
namespace {

constexpr std::size_t kLongestLine =
    4000;  // below PIPE_BUF with its prefix: one write, all or none
constexpr std::size_t kLargestLog = 16u << 20;

// The state letter in /proc/PID/stat. The name before it may hold spaces and brackets, so the
// letter is looked for after the last one.
char process_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bracket = text.rfind(')');
  return bracket != std::string::npos && bracket + 2 < text.size() ? text[bracket + 2] : '?';
}

std::optional<std::int64_t> modified_ns(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// After fork: only async-signal-safe calls from here to exec.
[[noreturn]] void become(char* const* argv, int output, pid_t parent) {
  ::setpgid(0, 0);  // a Ctrl-C at the terminal reaches the supervisor only, which stops in order
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  for (int sig : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) ::signal(sig, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  ::execvp(argv[0], argv);
  const char* why = std::strerror(errno);
  for (const char* text : {"cannot start ", static_cast<const char*>(argv[0]), ": ", why, "\n"}) {
    if (::write(2, text, std::strlen(text)) < 0) break;
  }
  ::_exit(127);
}

}  // namespace

LogSink::LogSink(const std::filesystem::path& run_dir, std::string name, std::size_t name_width)
    : path_(run_dir / "logs" / (name + ".log")), prefix_(std::move(name)) {
  prefix_.resize(std::max(name_width, prefix_.size()), ' ');
  prefix_ += " | ";
  open_file();
}

LogSink::~LogSink() {
  if (fd_ >= 0) ::close(fd_);
}

void LogSink::open_file() {
  std::filesystem::create_directories(path_.parent_path());
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct stat info {};
  written_ = fd_ >= 0 && ::fstat(fd_, &info) == 0 ? static_cast<std::size_t>(info.st_size) : 0;
}

void LogSink::write(std::string_view bytes) {
  partial_.append(bytes);
  std::size_t from = 0;
  for (std::size_t end; (end = partial_.find('\n', from)) != std::string::npos; from = end + 1) {
    line(std::string_view(partial_).substr(from, end - from));
  }
  partial_.erase(0, from);
  if (partial_.size() > kLongestLine) finish();
}

void LogSink::finish() {
  if (!partial_.empty()) line(partial_);
  partial_.clear();
}

void LogSink::line(std::string_view text) {
  while (text.size() > kLongestLine) {
    line(text.substr(0, kLongestLine));
    text.remove_prefix(kLongestLine);
  }
  if (!text.empty()) last_ = text;
  std::string whole(text);
  whole += '\n';
  if (fd_ >= 0 && written_ + whole.size() > kLargestLog) {
    ::close(fd_);
    std::error_code ignored;
    std::filesystem::rename(path_, path_.string() + ".1", ignored);
    open_file();
  }
  if (fd_ >= 0 && ::write(fd_, whole.data(), whole.size()) > 0) written_ += whole.size();
  echo(whole);
}

void LogSink::echo(std::string_view text) {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) {
    ++dropped_;
    return;
  }
  std::string whole = prefix_;
  if (dropped_ > 0) whole += "(" + std::to_string(dropped_) + " lines only in the log) ";
  whole += text;
  if (::write(STDOUT_FILENO, whole.data(), whole.size()) > 0) dropped_ = 0;
}

ChildProcess::ChildProcess(ProcessSpec spec, const std::filesystem::path& run_dir,
                           std::size_t name_width, Seconds frozen_after)
    : spec_(std::move(spec)),
      run_dir_(run_dir),
      log_(run_dir, spec_.name, name_width),
      watch_(frozen_after) {
  const auto path = run_dir_ / (spec_.name + ".supervised");
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const bool held = lock_ >= 0 && errno == EWOULDBLOCK;
    const std::string why = held ? "it is held by another supervisor" : std::strerror(errno);
    if (lock_ >= 0) ::close(lock_);
    throw std::runtime_error("cannot lock " + path.string() + ": " + why);
  }
  std::error_code ignored;
  std::filesystem::remove(mark("up"), ignored);
}

ChildProcess::~ChildProcess() {
  if (output_ >= 0) ::close(output_);
  if (lock_ >= 0) ::close(lock_);
}

void ChildProcess::start(Seconds now) {
  std::error_code ignored;
  std::filesystem::remove(run_dir_ / (spec_.name + ".alive"), ignored);
  std::filesystem::remove(mark("failed"), ignored);
  watch_.reset();
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    due_ = now + backoff_.next(Seconds::zero());
    log_.write(std::string("pipe: ") + std::strerror(errno) + "\n");
    return;
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  // A child must not stop because nobody reads its log (a supervisor under Ctrl-Z): lines are lost.
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  std::vector<char*> argv;
  for (auto& arg : spec_.argv) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(argv.data(), ends[1], parent);
  const int fork_error = errno;
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    due_ = now + backoff_.next(Seconds::zero());
    log_.write(std::string("fork: ") + std::strerror(fork_error) + "\n");
    return;
  }
  ::setpgid(pid, pid);  // in both processes, so that neither runs before it is done
  if (output_ >= 0) ::close(output_);
  output_ = ends[0];
  pid_ = pid;
  started_ = now;
  std::ofstream(run_dir_ / (spec_.name + ".pid")) << pid << "\n";
}

void ChildProcess::drain_output() {
  if (output_ < 0) return;
  char buffer[16384];
  // A bound, so that one process that only writes cannot keep the supervisor from the others.
  for (int i = 0; i < 16; ++i) {
    const ssize_t n = ::read(output_, buffer, sizeof buffer);
    if (n > 0) {
      log_.write({buffer, static_cast<std::size_t>(n)});
      continue;
    }
    if (n == 0) {  // every writer is gone
      ::close(output_);
      output_ = -1;
    }
    return;
  }
}

std::filesystem::path ChildProcess::mark(const char* suffix) const {
  return run_dir_ / (spec_.name + "." + suffix);
}

bool ChildProcess::hopeless(int status) {
  been_up_ = been_up_ || std::filesystem::exists(mark("up"));
  if (been_up_) return false;
  ++deaths_;
  const std::vector<int>& final = spec_.final_statuses;
  const bool never = WIFEXITED(status) &&
                     std::find(final.begin(), final.end(), WEXITSTATUS(status)) != final.end();
  return never || deaths_ == spec_.early_deaths;
}

std::string ChildProcess::last_words() const {
  std::string text(kLongestLine, '\0');
  std::ifstream file(mark("failed"), std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text.empty() ? log_.last_line() : text;
}

std::string ChildProcess::ended(int status, Seconds now, bool will_restart) {
  drain_output();
  log_.finish();
  const Seconds alive = now - started_;
  char text[256];
  int n = std::snprintf(text, sizeof text, "%s (pid %d) ", spec_.name.c_str(), int{pid_});
  auto rest = [&] { return sizeof text - static_cast<std::size_t>(n); };
  if (WIFSIGNALED(status)) {
    const int sig = WTERMSIG(status);
    n += std::snprintf(text + n, rest(), "was killed by signal %d (%s)", sig, ::strsignal(sig));
  } else {
    n += std::snprintf(text + n, rest(), "ended with status %d", WEXITSTATUS(status));
  }
  n += std::snprintf(text + n, rest(), " after %.1f s", alive.count());
  if (will_restart) {
    const Seconds pause = backoff_.next(alive);
    due_ = now + pause;
    std::snprintf(text + n, rest(), "; it starts again in %.1f s", pause.count());
  }
  pid_ = 0;
  std::error_code ignored;
  std::filesystem::remove(run_dir_ / (spec_.name + ".pid"), ignored);
  return text;
}

std::optional<std::string> ChildProcess::look(Seconds now) {
  return watch_.observe(
      {now, process_state(pid_), modified_ns(run_dir_ / (spec_.name + ".alive"))});
}

}  // namespace baton
