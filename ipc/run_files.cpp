#include "ipc/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "ipc/process.h"

namespace baton {
namespace {

constexpr std::size_t kMostBytes = 4096;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

std::string read_up_to(int fd) {
  std::string text(kMostBytes, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = ::read(fd, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    have += static_cast<std::size_t>(n);
  }
  text.resize(have);
  return text;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

int send_by_descriptor(int pidfd, int signal) {
#ifdef SYS_pidfd_send_signal
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
#else
  (void)pidfd, (void)signal;
  errno = ENOSYS;
  return -1;
#endif
}

}  // namespace

Status check_own_directory(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : invalid(path + ": " + std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return invalid(path + " is not a directory");
  if (info.st_uid == ::geteuid()) return {};
  return invalid(path + " belongs to user " + std::to_string(info.st_uid) + ", not to user " +
                 std::to_string(::geteuid()) + "; choose another run_dir");
}

Status replace_file(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  const auto failed = [&](const std::string& file) {
    return Status(ErrorCode::unavailable, "cannot write " + file + ": " + std::strerror(errno));
  };
  ::unlink(fresh.c_str());  // of a writer that was killed
  const UniqueFd fd(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || !write_all(fd.get(), text)) return failed(fresh);
  return ::rename(fresh.c_str(), path.c_str()) == 0 ? Status() : failed(path);
}

std::string read_run_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return directory_owner(directory_of(path)) == info.st_uid ? read_up_to(fd.get()) : std::string();
}

std::optional<std::uint32_t> process_user(std::int32_t pid) {
  if (pid <= 0) return {};
  // Not the owner of /proc/PID, which is root for a program that its user may not read.
  const std::string path = "/proc/" + std::to_string(pid) + "/status";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::string text = fd ? read_up_to(fd.get()) : std::string();
  const std::size_t at = text.find("\nUid:");
  unsigned real = 0, effective = 0;
  if (at == std::string::npos ||
      std::sscanf(text.c_str() + at, " Uid: %u %u", &real, &effective) != 2)
    return {};
  return effective;
}

std::optional<std::uint32_t> directory_owner(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return info.st_uid;
}

bool signal_process(std::int32_t pid, std::uint64_t start, std::uint32_t user, int signal) {
  const UniqueFd held(open_pidfd(pid));  // first: what is looked at below is what gets the signal
  if (!process_alive(pid, start) || process_user(pid) != user) return false;
  if (held && send_by_descriptor(held.get(), signal) == 0) return true;
  if (held && errno != ENOSYS) return false;
  return ::kill(pid, signal) == 0;
}

const std::string& boot_id() {
  static const std::string id = [] {
    const UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    std::string text = fd ? read_up_to(fd.get()) : std::string();
    text.erase(std::find(text.begin(), text.end(), '\n'), text.end());
    return text.empty() ? std::string("unknown") : text;
  }();
  return id;
}

}  // namespace baton
