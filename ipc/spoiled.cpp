#include "ipc/spoiled.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string_view>

#include "ipc/files.h"
#include "ipc/process.h"

namespace baton {

namespace {

std::string mark_path(const std::string& run_dir, const std::string& worker) {
  return run_dir + "/" + worker + ".spoiled";
}

/// Marks are lines of one file. It is begun anew when it is longer than this.
constexpr std::size_t kLongFile = 4096;

struct Mark {
  std::array<char, 4096> path;
  std::array<char, 48> line;
  std::size_t size;
};
// What the handler may read: an entry is filled before it is counted, and never changed.
std::array<Mark, 2> marks;
std::atomic<std::size_t> n_marks{0};

std::string line_of(std::int32_t pid, std::uint64_t start) {
  return std::to_string(pid) + " " + std::to_string(start) + "\n";
}

std::string line_of_holder(std::int32_t holder) {
  const std::int32_t pid = holder == 0 ? ::getpid() : holder;
  return line_of(pid, pid_start_time(pid));
}

/// Async-signal-safe. A line is one write at the end: lines of several processes do not mix.
void write_mark(const char* path, const char* line, std::size_t size) {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const auto n = ::write(fd, line, size);
  ::close(fd);
}

void on_fault(int signal) {
  for (std::size_t i = 0; i < n_marks.load(); ++i)
    write_mark(marks[i].path.data(), marks[i].line.data(), marks[i].size);
  ::raise(signal);  // SA_RESETHAND: now it kills
}

}  // namespace

void mark_pool_on_fault(const std::string& run_dir, const std::string& worker,
                        std::int32_t holder) {
  const std::string path = mark_path(run_dir, worker);
  const std::string line = line_of_holder(holder);
  const std::size_t at = n_marks.load();
  if (at == marks.size() || path.size() >= marks[at].path.size()) return;
  const auto text = read_regular_file(path, kLongFile);
  if (!text.ok()) ::unlink(path.c_str());  // too long
  Mark& mark = marks[at];
  mark.path.fill('\0');
  path.copy(mark.path.data(), path.size());
  mark.size = line.copy(mark.line.data(), mark.line.size());
  n_marks = at + 1;
  struct sigaction action {};
  action.sa_handler = on_fault;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
    ::sigaction(signal, &action, nullptr);
}

void mark_pool_spoiled(const std::string& run_dir, const std::string& worker, std::int32_t holder) {
  const std::string line = line_of_holder(holder);
  write_mark(mark_path(run_dir, worker).c_str(), line.data(), line.size());
}

bool has_spoiled_mark(const std::string& run_dir, const std::string& worker, std::int32_t pid,
                      std::uint64_t start) {
  const auto text = read_regular_file(mark_path(run_dir, worker), 16 * kLongFile);
  if (!text.ok() || !text.value()) return false;
  const std::string line = line_of(pid, start);
  for (std::size_t at = 0; (at = text.value()->find(line, at)) != std::string::npos; ++at) {
    if (at == 0 || (*text.value())[at - 1] == '\n') return true;
  }
  return false;
}

}  // namespace baton
