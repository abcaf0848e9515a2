#include "supervisor/child_process.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "ipc/run_files.h"

namespace baton {
namespace {

constexpr std::size_t kLongestLine =
    4000;  // below PIPE_BUF with its prefix: one write, all or none
constexpr std::size_t kLargestLog = 16u << 20;
constexpr Seconds kLockBound{2.0};
constexpr Seconds kLockLook{0.01};
constexpr int kNeverKnown = 125;  // seen by nobody: whoever would wait for it is dead

double wall_seconds() { return static_cast<double>(wall_ns()) / 1e9; }

// Whether waitpid would tell of its end.
bool is_child(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

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

// A child between fork and exec holds all locks of the supervisor that forked it. When that one has
// been killed or replaced meanwhile, the lock comes free as soon as the child is scheduled.
bool take_lock(int file) {
  for (Seconds waited{0}; ::flock(file, LOCK_EX | LOCK_NB) != 0; waited += kLockLook) {
    if (errno != EWOULDBLOCK || waited >= kLockBound) return false;
    ::usleep(static_cast<useconds_t>(kLockLook.count() * 1e6));
  }
  return true;
}

// After fork: only async-signal-safe calls from here to exec.
// Nothing ties its life to the supervisor's: it goes on serving, and the next supervisor adopts it.
// But not before the supervisor has written down that it is there (`known` gives one byte then):
// one that ran unknown would be met by a second of its name.
[[noreturn]] void become(char* const* argv, int output, int known) {
  char byte = 0;
  while (::read(known, &byte, 1) < 0 && errno == EINTR) continue;
  if (byte == 0) ::_exit(kNeverKnown);
  ::setpgid(0, 0);  // a Ctrl-C at the terminal reaches the supervisor only, which stops in order
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

LogSink::LogSink(const std::filesystem::path& run_dir, std::string name, const LogOutput& output,
                 bool all)
    : path_(run_dir / "logs" / (name + ".log")),
      name_(std::move(name)),
      output_(output),
      all_(all || !output.terminal.live()) {
  if (output_.format == LogFormat::text) {
    prefix_ = name_;
    prefix_.resize(std::max(output_.name_width, prefix_.size()), ' ');
    prefix_ += " | ";
  }
  open_file();
}

LogSink::~LogSink() {
  if (fd_ >= 0) ::close(fd_);
}

void LogSink::open_file() {
  written_ = 0;
  // Somebody may have removed the folder since the start.
  if (!ensure_private_directory(path_.parent_path()).ok()) return;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
               0600);
  struct stat info {};
  if (fd_ < 0) return;
  if (::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid()) {
    written_ = static_cast<std::size_t>(info.st_size);
    return;
  }
  ::close(fd_);
  fd_ = -1;
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
  if (output_.format == LogFormat::json && !text.starts_with('{')) {
    store(log_line(LogFormat::json, wall_ns(), "", name_, text));
  } else {
    store(text);
  }
}

void LogSink::store(std::string_view line) {
  std::string whole(line);
  whole += '\n';
  if (fd_ >= 0 && written_ + whole.size() > kLargestLog) {
    ::close(fd_);
    fd_ = -1;
    std::error_code ignored;
    std::filesystem::rename(path_, path_.string() + ".1", ignored);
    open_file();
  }
  if (fd_ >= 0 && ::write(fd_, whole.data(), whole.size()) > 0) written_ += whole.size();
  if (all_ || !is_quiet_line(line)) echo(whole);
}

void LogSink::echo(std::string_view text) {
  std::string whole = prefix_;
  if (dropped_ > 0) {
    const std::string note = "(" + std::to_string(dropped_) + " lines only in the log)";
    whole = output_.format == LogFormat::json
                ? log_line(LogFormat::json, wall_ns(), "warning", name_, note) + "\n"
                : prefix_ + note + " ";
  }
  whole += text;
  dropped_ = output_.terminal.write(whole) ? 0 : dropped_ + 1;
}

ChildProcess::ChildProcess(ProcessSpec spec, const std::filesystem::path& run_dir,
                           const LogOutput& output, Seconds frozen_after, Seconds now)
    : spec_(std::move(spec)),
      run_dir_(run_dir),
      log_(run_dir, spec_.name, output),
      watch_(frozen_after) {
  const auto path = run_dir_ / (spec_.name + ".supervised");
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0 || !take_lock(lock_)) {
    const bool held = lock_ >= 0 && errno == EWOULDBLOCK;
    const std::string why = held ? "it is held by another supervisor" : std::strerror(errno);
    if (lock_ >= 0) ::close(lock_);
    throw std::runtime_error("cannot lock " + path.string() + ": " + why);
  }
  found_ = read_process_record(run_dir_, spec_.name);
  if (found_) {
    life_ = found_->life;
    refused_ = found_->refused;
    ever_started_ = true;
  }
  if (found_ && process_alive(life_.pid, life_.start) && process_user(life_.pid) == ::geteuid()) {
    adopt(now);
  } else if (!found_) {  // of an earlier start
    std::error_code ignored;
    std::filesystem::remove(mark("up"), ignored);
  }
}

void ChildProcess::adopt(Seconds now) {
  pid_ = life_.pid;
  started_ = now - Seconds(process_age(life_.start));
  foreign_ = !is_child(pid_);
  write_pid();  // the one before may have died between its record and this
  outdated_ = found_->command != command_fingerprint(spec_.argv);
  exit_.reset(open_pidfd(pid_));
  output_ = ::open(mark("output").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  struct stat info {};
  if (output_ >= 0 && (::fstat(output_, &info) != 0 || !S_ISFIFO(info.st_mode))) {
    ::close(output_);
    output_ = -1;
  }
}

bool ChildProcess::ended_unseen() const {
  return running() && foreign_ && !process_alive(life_.pid, life_.start);
}

void ChildProcess::ask_to_end(Seconds now, Seconds limit) {
  end_by_ = now + limit;
  ::kill(pid_, SIGTERM);
}

void ChildProcess::record(const ProcessLife& supervisor) {
  supervisor_ = supervisor;
  write_record();
}

void ChildProcess::write_record() {
  // The command is that of the process that runs: an outdated one is still to be told from the
  // next.
  const std::uint64_t command = outdated() ? found_->command : command_fingerprint(spec_.argv);
  const Status written =
      write_process_record(run_dir_, {spec_.name, spec_.kind, life_, spec_.tells_up, command,
                                      supervisor_, spec_.admin_socket, refused_});
  if (!written.ok()) log_.write(written.message() + "\n");
}

ChildProcess::~ChildProcess() {
  if (output_ >= 0) ::close(output_);
  if (lock_ >= 0) ::close(lock_);
}

// The child has both ends of it, so that no write ever fails when the supervisor is gone; what does
// not fit then is lost, and what fits is read by the next supervisor.
bool ChildProcess::open_output(int& writing_end) {
  const auto path = mark("output");
  std::error_code ignored;
  std::filesystem::remove(path, ignored);  // what an earlier process left running writes elsewhere
  if (::mkfifo(path.c_str(), 0600) != 0) return false;
  // A child must not stop because nobody reads its log (a supervisor under Ctrl-Z): lines are lost.
  writing_end = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  const int reading = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (writing_end < 0 || reading < 0) {
    if (writing_end >= 0) ::close(writing_end);
    if (reading >= 0) ::close(reading);
    return false;
  }
  if (output_ >= 0) ::close(output_);
  output_ = reading;
  return true;
}

void ChildProcess::start(Seconds now) {
  std::error_code ignored;
  std::filesystem::remove(run_dir_ / (spec_.name + ".alive"), ignored);
  std::filesystem::remove(mark("failed"), ignored);
  watch_.reset();
  int writing_end = -1;
  if (!open_output(writing_end)) {
    due_ = now + backoff_.next(Seconds::zero());
    log_.write(mark("output").string() + ": " + std::strerror(errno) + "\n");
    return;
  }
  std::vector<char*> argv;
  for (auto& arg : spec_.argv) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int known[2] = {-1, -1};
  const pid_t pid = ::pipe2(known, O_CLOEXEC) == 0 ? ::fork() : -1;
  if (pid == 0) {
    ::close(known[1]);
    become(argv.data(), writing_end, known[0]);
  }
  const int fork_error = errno;
  const UniqueFd unread(known[0]);  // so that telling a child that has died is no SIGPIPE
  const UniqueFd tell(known[1]);
  ::close(writing_end);
  if (pid < 0) {
    due_ = now + backoff_.next(Seconds::zero());
    log_.write(std::string("fork: ") + std::strerror(fork_error) + "\n");
    return;
  }
  ::setpgid(pid, pid);  // in both processes, so that neither runs before it is done
  pid_ = pid;
  started_ = now;
  life_ = {pid, pid_start_time(pid), wall_seconds(), life_.restarts + (ever_started_ ? 1 : 0)};
  ever_started_ = true;
  foreign_ = outdated_ = false;
  exit_.reset();
  end_by_.reset();
  write_record();
  if (::write(tell.get(), "k", 1) != 1) log_.write("it was not told to begin\n");
  // Last, since people wait for this file: whom it names, the next supervisor already knows.
  write_pid();
}

void ChildProcess::write_pid() {
  const Status written = replace_file(mark("pid"), std::to_string(pid_) + "\n");
  if (!written.ok()) log_.write(written.message() + "\n");
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

bool ChildProcess::hopeless(std::optional<int> status) {
  been_up_ = been_up_ || std::filesystem::exists(mark("up"));
  return !been_up_ && died_before_up(status);
}

bool ChildProcess::died_before_up(std::optional<int> status) {
  ++deaths_;
  const bool often = spec_.early_deaths != 0 && deaths_ >= spec_.early_deaths;
  return often || (status && is_final(*status));
}

void ChildProcess::came_up() {
  been_up_ = true;
  deaths_ = 0;
  refused_.clear();
}

bool ChildProcess::is_final(int status) const {
  const std::vector<int>& final = spec_.final_statuses;
  return WIFEXITED(status) &&
         std::find(final.begin(), final.end(), WEXITSTATUS(status)) != final.end();
}

bool ChildProcess::up() const {
  pid_t pid = 0;
  const std::string text = read_run_file(mark("up"));
  std::from_chars(text.data(), text.data() + text.size(), pid);
  return pid != 0 && pid == pid_;
}

// By this life alone: what had run before cannot any more once somebody has taken its folder away.
bool ChildProcess::cannot_run(std::optional<int> status) {
  if (up()) {
    came_up();
    return false;
  }
  if (!died_before_up(status)) return false;
  drain_output();
  log_.finish();
  refused_ = reason_line(last_words());
  if (refused_.empty()) refused_ = "it ends again and again";
  return true;
}

bool ChildProcess::recovered() {
  if (refused_.empty() || !running() || !up()) return false;
  came_up();
  write_record();
  return true;
}

std::string ChildProcess::last_words() const {
  const std::string text = read_run_file(mark("failed")).substr(0, kLongestLine);
  return text.empty() ? log_.last_line() : text;
}

std::string ChildProcess::ended(std::optional<int> status, Seconds now, bool will_restart) {
  drain_output();
  log_.finish();
  const Seconds alive = now - started_;
  char text[320];
  int n = std::snprintf(text, sizeof text, "%s (pid %d) ", spec_.name.c_str(), int{pid_});
  auto rest = [&] { return sizeof text - static_cast<std::size_t>(n); };
  if (!status) {
    n += std::snprintf(text + n, rest(), "ended, its status is unknown since it was adopted,");
  } else if (WIFSIGNALED(*status)) {
    const int sig = WTERMSIG(*status);
    n += std::snprintf(text + n, rest(), "was killed by signal %d (%s)", sig, ::strsignal(sig));
  } else {
    n += std::snprintf(text + n, rest(), "ended with status %d", WEXITSTATUS(*status));
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
  life_ = {0, 0, wall_seconds(), life_.restarts};
  will_restart ? write_record() : forget();
  return text;
}

void ChildProcess::forget() {
  remove_process_record(run_dir_, spec_.name);
  std::error_code ignored;
  std::filesystem::remove(mark("output"), ignored);
}

std::optional<std::string> ChildProcess::look(Seconds now) {
  return watch_.observe(
      {now, process_state(pid_), modified_ns(run_dir_ / (spec_.name + ".alive"))});
}

}  // namespace baton
