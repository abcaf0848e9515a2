#include "ipc/shm_space.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/fnv1a.h"
#include "ipc/process.h"
#include "ipc/run_files.h"

namespace baton {
namespace {

constexpr const char* kSegmentFolder = "/dev/shm";
constexpr std::string_view kLockSuffix = ".lock";
constexpr int kLockTries = 2000;  // a sweep holds a free lock for milliseconds
constexpr useconds_t kLockPause_us = 1000;

std::string lock_path(const std::string& space) {
  return std::string(kSegmentFolder) + "/" + space + std::string(kLockSuffix);
}

std::string hash_text(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return std::string(digits.data(), end);
}

std::string user_prefix() { return "baton-" + std::to_string(::geteuid()) + "-"; }

/// "device:inode" of what a path leads to; the path itself if it leads nowhere.
std::string identity_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return path;
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

bool is_hash(std::string_view text) {
  return !text.empty() && text.size() <= 16 &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// "baton-<uid>-<hash>" at the beginning of a segment's name; empty if there is none.
std::string space_of(std::string_view segment) {
  const std::string prefix = user_prefix();
  if (!segment.starts_with(prefix)) return {};
  const std::size_t end = segment.find('-', prefix.size());
  if (end == std::string_view::npos || !is_hash(segment.substr(prefix.size(), end - prefix.size())))
    return {};
  return std::string(segment.substr(0, end));
}

/// Whether the path leads to the file that is open: a sweep may have removed it meanwhile.
bool still_named(int fd, const std::string& path) {
  struct stat open_file {
  }, named{};
  return ::fstat(fd, &open_file) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

bool is_own_file(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

bool has_segments(const std::string& space) {
  DIR* folder = ::opendir(kSegmentFolder);
  if (folder == nullptr) return true;  // not known
  const std::string prefix = space + "-";
  bool found = false;
  while (const dirent* entry = ::readdir(folder)) {
    found = found || std::string_view(entry->d_name).starts_with(prefix);
  }
  ::closedir(folder);
  return found;
}

Result<UniqueFd> lock_shared(const std::string& path) {
  const auto failed = [&](const char* why) {
    return Status(ErrorCode::unavailable, "shared memory: cannot lock " + path + ": " + why);
  };
  for (int tries = 0; tries < kLockTries; ++tries) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return failed(std::strerror(errno));
    if (!is_own_file(fd.get())) return failed("it belongs to another user; remove it");
    if (::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
      if (still_named(fd.get(), path)) return fd;
    } else if (errno != EWOULDBLOCK) {
      return failed(std::strerror(errno));
    } else {
      ::usleep(kLockPause_us);
    }
  }
  return failed("another process holds it");
}

/// Of this process; its destructor removes lock files that nothing needs any more.
class Held {
 public:
  ~Held() {
    if (::getpid() != pid_) return;  // a child's copy: the lock is its parent's
    for (const auto& [space, fd] : locks_) {
      if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && !has_segments(space)) {
        ::unlink(lock_path(space).c_str());
      }
    }
  }

  Status hold(const std::string& space) {
    const std::lock_guard guard(mutex_);
    if (locks_.contains(space)) return {};
    auto lock = lock_shared(lock_path(space));
    if (!lock.ok()) return lock.status();
    locks_.emplace(space, std::move(lock).value());
    return {};
  }

  std::string name(const std::string& run_dir) {
    const std::lock_guard guard(mutex_);
    const auto known = names_.find(run_dir);
    if (known != names_.end()) return known->second;
    const std::string what =
        boot_id() + " " + identity_of(run_dir) + " " + identity_of("/proc/self/ns/pid");
    return names_[run_dir] = user_prefix() + hash_text(fnv1a(what));
  }

 private:
  const pid_t pid_ = ::getpid();
  std::mutex mutex_;
  std::map<std::string, std::string> names_;  // by run directory; a process has one or two
  std::map<std::string, UniqueFd> locks_;     // by space
};

Held& held() {
  static Held all;
  return all;
}

std::vector<std::string> locked_spaces() {
  std::vector<std::string> spaces;
  DIR* folder = ::opendir(kSegmentFolder);
  if (folder == nullptr) return spaces;
  const std::string prefix = user_prefix();
  while (const dirent* entry = ::readdir(folder)) {
    std::string_view name = entry->d_name;
    if (!name.starts_with(prefix) || !name.ends_with(kLockSuffix)) continue;
    name.remove_suffix(kLockSuffix.size());
    if (is_hash(name.substr(prefix.size()))) spaces.emplace_back(name);
  }
  ::closedir(folder);
  return spaces;
}

}  // namespace

std::string shm_space(const std::string& run_dir) { return held().name(run_dir); }

Status hold_shm_space(const std::string& segment) {
  const std::string space = space_of(segment);
  return space.empty() ? Status() : held().hold(space);
}

void sweep_free_spaces(const std::function<bool(const std::string& space)>& sweep) {
  for (const std::string& space : locked_spaces()) {
    const std::string path = lock_path(space);
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd || !is_own_file(fd.get()) || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 ||
        !still_named(fd.get(), path)) {
      continue;
    }
    if (sweep(space)) ::unlink(path.c_str());
  }
}

}  // namespace baton
