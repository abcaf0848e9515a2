#include "frontend/core/helper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace baton {
namespace {

constexpr std::size_t kHeaderBytes = 4;

/// After fork: only async-signal-safe calls from here to exec.
[[noreturn]] void become(char* const* argv, char* const* environment, int input, int socket,
                         pid_t parent) {
  setpgid(0, 0);  // a Ctrl-C at the terminal is the front end's to act on
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) signal(sig, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Out of the way of the numbers that they get.
  const int high_input = fcntl(input, F_DUPFD, 16);
  const int high_socket = fcntl(socket, F_DUPFD, 16);
  dup2(high_input, 0);
  dup2(2, 1);
  dup2(high_socket, HelperProcess::kSocketFd);
  close_range(HelperProcess::kSocketFd + 1, ~0U, 0);  // no socket of a client, no port, goes along
  execvpe(argv[0], argv, environment);
  _exit(127);
}

/// The few variables that a helper needs: nothing of this process's own.
std::vector<std::string> child_environment() {
  std::vector<std::string> variables{"LC_ALL=C.UTF-8"};
  for (const char* name : {"PATH", "TZ", "LD_LIBRARY_PATH"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) variables.push_back(std::string(name) + "=" + value);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

std::string header_of(std::size_t size) {
  std::string header;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    header.push_back(static_cast<char>((size >> shift) & 0xFFU));
  }
  return header;
}

std::size_t length_of(std::string_view header) {
  std::size_t length = 0;
  for (unsigned i = 0; i < kHeaderBytes; ++i) {
    length |= std::size_t{static_cast<unsigned char>(header[i])} << (8 * i);
  }
  return length;
}

bool read_all(int socket, char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t n = recv(socket, bytes, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<HelperProcess>> HelperProcess::start(std::vector<std::string> arguments,
                                                            int input,
                                                            std::size_t max_reply_bytes) {
  int ends[2];
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(ErrorCode::unavailable, std::strerror(errno));
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  std::vector<std::string> variables = child_environment();
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> environment = pointers(variables);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    become(argv.data(), environment.data(), input < 0 ? nothing.get() : input, theirs.get(),
           parent);
  }
  if (pid < 0) return Status(ErrorCode::unavailable, std::strerror(errno));
  return std::unique_ptr<HelperProcess>(new HelperProcess(std::move(ours), pid, max_reply_bytes));
}

HelperProcess::~HelperProcess() {
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

TimeNs HelperProcess::cpu_time() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return time.tv_sec * kSecond + time.tv_nsec;
}

/// False: the other end is closed.
bool HelperProcess::send_some(std::string& out, std::size_t& sent) const {
  const ssize_t n =
      send(socket_.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) sent += static_cast<std::size_t>(n);
  return n >= 0 || errno == EAGAIN || errno == EINTR;
}

bool HelperProcess::receive_some(std::string& in) const {
  char bytes[65536];
  const ssize_t n = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n > 0) in.append(bytes, static_cast<std::size_t>(n));
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

HelperProcess::Exchange HelperProcess::exchange(std::string_view request, TimeNs wall, TimeNs cpu,
                                                std::string& reply,
                                                const std::function<bool()>& wanted) {
  constexpr TimeNs kLook = 50 * kMillisecond;
  bool asks = wanted != nullptr;
  const TimeNs began = now_ns();
  const TimeNs cpu_began = cpu_time();
  std::string out = header_of(request.size());
  out += request;
  std::string in;
  std::size_t sent = 0;
  for (;;) {
    if (in.size() >= kHeaderBytes) {
      const std::size_t length = length_of(in);
      if (length > max_reply_bytes_) return Exchange::closed;
      if (in.size() >= kHeaderBytes + length) {
        reply = in.substr(kHeaderBytes);
        return Exchange::done;
      }
    }
    const TimeNs passed = now_ns() - began;
    const TimeNs used = cpu_time() - cpu_began;
    if (passed >= wall || used >= cpu) return Exchange::timed_out;
    if (asks && !wanted()) {
      out += header_of(0);
      asks = false;
    }
    // It cannot use up its time sooner than the clock on the wall goes.
    TimeNs wait = std::min(wall - passed, std::max<TimeNs>(cpu - used, 1'000'000));
    if (asks) wait = std::min(wait, kLook);
    pollfd ready{socket_.get(), POLLIN, 0};
    if (sent < out.size()) ready.events |= POLLOUT;
    poll(&ready, 1, static_cast<int>(wait / 1'000'000) + 1);
    if ((ready.revents & POLLOUT) != 0 && !send_some(out, sent)) return Exchange::closed;
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !receive_some(in)) {
      return Exchange::closed;
    }
  }
}

bool read_frame(int socket, std::size_t max_bytes, std::string& frame) {
  char header[kHeaderBytes];
  if (!read_all(socket, header, sizeof header)) return false;
  const std::size_t length = length_of({header, sizeof header});
  if (length > max_bytes) return false;
  frame.resize(length);
  return read_all(socket, frame.data(), length);
}

bool write_frame(int socket, std::string_view frame) {
  std::string out = header_of(frame.size());
  out += frame;
  for (std::size_t sent = 0; sent < out.size();) {
    const ssize_t n = send(socket, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace baton
