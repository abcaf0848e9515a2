#include "ipc/spoiled.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <string_view>

#include "ipc/files.h"

namespace baton {

namespace {

std::string mark_path(const std::string& run_dir, const std::string& worker) {
  return run_dir + "/" + worker + ".spoiled";
}

// What the handler may read: filled before it is installed, and never changed.
std::array<char, 4096> fault_path;
std::array<char, 16> own_pid;
std::size_t own_pid_size = 0;

/// Async-signal-safe.
void write_mark(const char* path, const char* text, std::size_t size) {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const auto n = ::write(fd, text, size);
  ::close(fd);
}

void on_fault(int signal) {
  write_mark(fault_path.data(), own_pid.data(), own_pid_size);
  ::raise(signal);  // SA_RESETHAND: now it kills
}

}  // namespace

void mark_pool_on_fault(const std::string& run_dir, const std::string& worker,
                        std::int32_t holder) {
  const std::string path = mark_path(run_dir, worker);
  if (path.size() >= fault_path.size()) return;
  path.copy(fault_path.data(), path.size());
  own_pid_size =
      static_cast<std::size_t>(std::to_chars(own_pid.data(), own_pid.data() + own_pid.size(),
                                             holder == 0 ? ::getpid() : holder)
                                   .ptr -
                               own_pid.data());
  struct sigaction action {};
  action.sa_handler = on_fault;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
    ::sigaction(signal, &action, nullptr);
}

void mark_pool_spoiled(const std::string& run_dir, const std::string& worker, std::int32_t holder) {
  const std::string pid = std::to_string(holder == 0 ? ::getpid() : holder);
  write_mark(mark_path(run_dir, worker).c_str(), pid.data(), pid.size());
}

bool take_spoiled_mark(const std::string& run_dir, const std::string& worker, std::int32_t pid) {
  const std::string path = mark_path(run_dir, worker);
  const auto text = read_regular_file(path, 64);
  if (!text.ok() || !text.value()) return false;
  ::unlink(path.c_str());
  return *text.value() == std::to_string(pid);
}

}  // namespace baton
