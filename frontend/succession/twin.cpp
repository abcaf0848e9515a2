#include "frontend/succession/twin.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "frontend/succession/twin_process.h"
#include "ipc/process.h"
#include "ipc/sealed_memory.h"

namespace baton {
namespace {

constexpr int kBacklog = 16;
constexpr TimeNs kSettles = kSecond;  // it takes as long as the scheduler takes to run it

Status failed(const std::string& what) {
  return Status(ErrorCode::unavailable, what + ": " + std::strerror(errno));
}

Result<Mapped> shared_page() {
  void* at =
      ::mmap(nullptr, sizeof(TwinPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return failed("no memory for a twin");
  return Mapped(static_cast<std::byte*>(at), sizeof(TwinPage));
}

Result<UniqueFd> listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return invalid(path + ": too long for a socket");
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ::unlink(path.c_str());  // of an earlier process of this number
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return failed("cannot listen at " + path);
  }
  return fd;
}

template <std::size_t N>
void copy_text(const std::string& text, char (&to)[N]) {
  std::memset(to, 0, N);
  std::memcpy(to, text.data(), std::min(text.size(), N - 1));
}

Status write_whole(const std::string& path, const std::string& text) {
  const std::string partial = path + ".new";
  const UniqueFd fd(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(partial.c_str(), path.c_str()) != 0) {
    return failed("cannot write " + path);
  }
  return {};
}

/// No handler of this process may run in the twin, and the twin keeps the mask: it takes no signal.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

struct Twin::Parts {
  Mapped memory;
  UniqueFd listener;
  UniqueFd self;   // pidfd of this process, which the twin watches
  UniqueFd ended;  // pidfd of the twin
  pid_t pid = 0;
  bool committed = false;
  bool was_stopped = false;  // when look_after() looked last

  ~Parts() { dismiss(); }
  TwinPage& page() const { return *reinterpret_cast<TwinPage*>(memory.data()); }
  void set_state(TwinState state) const {
    std::atomic_ref(page().state).store(static_cast<std::uint32_t>(state));
  }
  std::string pid_path() const { return std::string(page().path) + ".pid"; }
  bool leads_here(const char* path) const {
    struct stat info {};
    return ::lstat(path, &info) == 0 && info.st_ino == page().inode && info.st_dev == page().device;
  }
  Status prepare(const std::string& run_dir, const std::string& name, const TwinPatience& patience);
  Status clone();
  void wait_until_settled() const;
  Status write_pid() const;
  bool has_ended();
  void kill();
  void dismiss();
};

Status Twin::Parts::prepare(const std::string& run_dir, const std::string& name,
                            const TwinPatience& patience) {
  Status folder = ensure_private_directory(run_dir);
  if (!folder.ok()) return folder;
  auto mapped = shared_page();
  if (!mapped.ok()) return mapped.status();
  const std::string path = twin_path(run_dir, name);
  const std::string waiting = path + "." + std::to_string(::getpid());
  auto listening = listen_at(waiting);
  if (!listening.ok()) return listening.status();
  listener = std::move(listening).value();
  struct stat info {};
  if (::lstat(waiting.c_str(), &info) != 0) return failed("cannot look at " + waiting);
  memory = std::move(mapped).value();
  TwinPage& told = page();
  std::fill(std::begin(told.keepsakes), std::end(told.keepsakes), -1);
  told.listener = listener.get();
  told.front_end_pid = static_cast<std::int32_t>(::getpid());
  told.device = info.st_dev;
  told.inode = info.st_ino;
  told.nobody_comes_ms = patience.nobody_comes / kMillisecond;
  told.says_nothing_ms = patience.says_nothing / kMillisecond;
  copy_text(path, told.path);
  copy_text(waiting, told.waiting_path);
  copy_text(name.substr(0, 10) + " twin", told.title);
  self = UniqueFd(open_pidfd(told.front_end_pid));
  told.front_end = self.get();
  return self ? Status() : failed("no pidfd");
}

/// Until then a signal to this process's group would end both. One that is stopped or killed at
/// once never settles; look_after() sees to it.
void Twin::Parts::wait_until_settled() const {
  const TimeNs end = now_ns() + kSettles;
  while (std::atomic_ref(page().settled).load() == 0 && now_ns() < end) ::usleep(50);
}

Status Twin::Parts::clone() {
  std::atomic_ref(page().settled).store(0);
  {
    const AllSignalsBlocked blocked;
    pid = clone_twin(&page());
  }
  if (pid < 0) {
    pid = 0;
    return failed("no process for a twin");
  }
  was_stopped = false;
  wait_until_settled();
  ended = UniqueFd(open_pidfd(static_cast<std::int32_t>(pid)));
  return ended ? Status() : failed("no pidfd of the twin");
}

Status Twin::Parts::write_pid() const {
  const auto number = static_cast<std::int32_t>(pid);
  return write_whole(pid_path(),
                     std::to_string(number) + " " + std::to_string(pid_start_time(number)) + "\n");
}

/// It is reaped then. ECHILD: it was, by someone who waits for any child, or by a SIGCHLD that is
/// ignored.
bool Twin::Parts::has_ended() {
  if (pid != 0 && ::waitpid(pid, nullptr, WNOHANG) != 0) pid = 0;
  return pid == 0;
}

void Twin::Parts::kill() {
  ended.reset();
  if (has_ended()) return;
  ::kill(pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid = 0;
}

void Twin::Parts::dismiss() {
  if (memory.data() == nullptr) return;
  set_state(TwinState::done);
  kill();
  if (leads_here(page().waiting_path)) ::unlink(page().waiting_path);
  if (leads_here(page().path)) {
    ::unlink(pid_path().c_str());
    ::unlink(page().path);
  }
  listener.reset();
  self.reset();
  memory = Mapped();
}

std::string twin_path(const std::string& run_dir, const std::string& name) {
  return run_dir + "/" + name + ".twin";
}

Twin::Twin(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Twin::~Twin() = default;
Twin::Twin(Twin&& other) noexcept = default;
Twin& Twin::operator=(Twin&& other) noexcept = default;

Result<Twin> Twin::start(const std::string& run_dir, const std::string& name,
                         const TwinPatience& patience) {
  auto parts = std::make_unique<Parts>();
  Status status = parts->prepare(run_dir, name, patience);
  if (status.ok()) status = parts->clone();
  if (!status.ok()) return status;
  return Twin(std::move(parts));
}

void Twin::set_keepsake(unsigned index, int fd) {
  if (index < kKeepsakes) std::atomic_ref(parts_->page().keepsakes[index]).store(fd);
}

Status Twin::commit() {
  if (parts_->committed) return {};
  // One that died while all was fetched would make the rename a promise that nobody keeps.
  if (parts_->has_ended()) {
    Status again = replace();
    if (!again.ok()) return again;
  }
  const TwinPage& page = parts_->page();
  // First the state: a twin that is found and leaves would lose all. One that serves and is not
  // found sees that the path does not lead to it.
  parts_->set_state(TwinState::serving);
  if (::rename(page.waiting_path, page.path) != 0) {
    Status status = failed(std::string("cannot rename ") + page.waiting_path);
    parts_->set_state(TwinState::preparing);
    return status;
  }
  parts_->committed = true;
  // Best effort: it helps against a twin that is stopped, and look_after() does too.
  [[maybe_unused]] const Status written = parts_->write_pid();
  return {};
}

int Twin::fd() const { return parts_ ? parts_->ended.get() : -1; }
std::int32_t Twin::pid() const { return parts_ ? static_cast<std::int32_t>(parts_->pid) : 0; }

Status Twin::replace() {
  parts_->kill();
  Status cloned = parts_->clone();
  if (!cloned.ok()) return cloned;
  if (parts_->committed) [[maybe_unused]]
    const Status written = parts_->write_pid();
  return {};
}

Status Twin::look_after() {
  if (parts_->has_ended()) return replace();
  if (!process_stopped(pid())) {
    parts_->was_stopped = false;
    return {};
  }
  if (parts_->was_stopped) return replace();
  parts_->was_stopped = true;
  ::kill(parts_->pid, SIGCONT);
  return {};
}

void Twin::dismiss() {
  if (parts_) parts_->dismiss();
}

}  // namespace baton
