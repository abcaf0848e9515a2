#include "frontend/chat/template_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
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
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/chat/render_templates_script.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kHeaderBytes = 4;
constexpr int kScriptFd = 0;
constexpr int kSocketFd = 3;

/// The program's text as a file without a name: the child's standard input.
UniqueFd script_file() {
  UniqueFd file(memfd_create("render_templates.py", MFD_CLOEXEC));
  const std::string_view text = kRenderTemplatesScript;
  if (!file || write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      lseek(file.get(), 0, SEEK_SET) != 0) {
    return UniqueFd();
  }
  return file;
}

/// After fork: only async-signal-safe calls from here to exec.
[[noreturn]] void become(char* const* argv, char* const* environment, int script, int socket,
                         pid_t parent) {
  setpgid(0, 0);  // a Ctrl-C at the terminal is the front end's to act on
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) signal(sig, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Out of the way of the numbers that they get.
  const int high_script = fcntl(script, F_DUPFD, 16);
  const int high_socket = fcntl(socket, F_DUPFD, 16);
  dup2(high_script, kScriptFd);
  dup2(2, 1);
  dup2(high_socket, kSocketFd);
  close_range(kSocketFd + 1, ~0U, 0);  // no socket of a client, no port, goes along
  execvpe(argv[0], argv, environment);
  _exit(127);
}

/// The few variables that Python needs: nothing of this process's own.
std::vector<std::string> child_environment() {
  std::vector<std::string> variables{"LC_ALL=C.UTF-8"};
  for (const char* name : {"PATH", "TZ"}) {
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

std::string setup_frame(const TemplateSetup& setup) {
  Json frame = {{"path", setup.path},
                {"memory_bytes", setup.memory_bytes},
                {"output_characters", setup.output_characters},
                {"templates", setup.templates}};
  return frame.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string milliseconds(TimeNs time) { return std::to_string(time / 1'000'000) + " ms"; }

}  // namespace

std::vector<std::string> TemplateSetup::python_path() {
  std::vector<std::string> path;
  if (const char* deps = std::getenv("BATON_DEPS")) path.push_back(std::string(deps) + "/python");
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!ignored) path.push_back(program.parent_path().parent_path() / "python");
  path.push_back(kConfiguredPythonPath);
  return path;
}

Result<std::unique_ptr<TemplateProcess>> TemplateProcess::start(const TemplateSetup& setup) {
  int ends[2];
  const UniqueFd script = script_file();
  if (!script || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(ErrorCode::unavailable,
                  std::string("cannot start the renderer of chat templates: ") +
                      std::strerror(errno));
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  // -I -S: no variable, folder or package of this machine's Python has a say.
  std::vector<std::string> arguments{setup.python, "-I", "-S", "-", "baton-chat-templates"};
  std::vector<std::string> variables = child_environment();
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> environment = pointers(variables);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) become(argv.data(), environment.data(), script.get(), theirs.get(), parent);
  if (pid < 0) {
    return Status(ErrorCode::unavailable,
                  std::string("cannot start the renderer of chat templates: ") +
                      std::strerror(errno));
  }
  std::unique_ptr<TemplateProcess> made(new TemplateProcess(setup, std::move(ours), pid));
  theirs.reset();
  std::string reply;
  const Exchange exchanged =
      made->exchange(setup_frame(setup), setup.start_time, setup.start_time, reply);
  if (exchanged == Exchange::timed_out) {
    return Status(ErrorCode::unavailable, "the renderer of chat templates did not start within " +
                                              milliseconds(setup.start_time));
  }
  const Json answer = Json::parse(reply, nullptr, false);
  if (answer.is_object() && answer.contains("ready")) return made;
  if (answer.is_object() && answer.contains("error")) {
    return Status(ErrorCode::unavailable, answer["error"].get<std::string>());
  }
  return Status(ErrorCode::unavailable,
                "the renderer of chat templates ended while it started: is '" + setup.python +
                    "' installed?");
}

TemplateProcess::~TemplateProcess() {
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

TimeNs TemplateProcess::cpu_time() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return time.tv_sec * kSecond + time.tv_nsec;
}

/// False: the other end is closed.
bool TemplateProcess::send_some(std::string& out, std::size_t& sent) const {
  const ssize_t n =
      send(socket_.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) sent += static_cast<std::size_t>(n);
  return n >= 0 || errno == EAGAIN || errno == EINTR;
}

bool TemplateProcess::receive_some(std::string& in) const {
  char bytes[65536];
  const ssize_t n = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n > 0) in.append(bytes, static_cast<std::size_t>(n));
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

TemplateProcess::Exchange TemplateProcess::exchange(std::string_view request, TimeNs wall,
                                                    TimeNs cpu, std::string& reply) {
  const TimeNs began = now_ns();
  const TimeNs cpu_began = cpu_time();
  const auto size = static_cast<std::uint32_t>(request.size());
  std::string out;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>((size >> shift) & 0xFFU));
  }
  out += request;
  std::string in;
  std::size_t sent = 0;
  for (;;) {
    if (in.size() >= kHeaderBytes) {
      std::uint32_t length = 0;
      for (unsigned i = 0; i < kHeaderBytes; ++i) {
        length |= std::uint32_t{static_cast<unsigned char>(in[i])} << (8 * i);
      }
      if (length > 4 * setup_.output_characters + 65536) return Exchange::closed;
      if (in.size() >= kHeaderBytes + length) {
        reply = in.substr(kHeaderBytes);
        return Exchange::done;
      }
    }
    const TimeNs passed = now_ns() - began;
    const TimeNs used = cpu_time() - cpu_began;
    if (passed >= wall || used >= cpu) return Exchange::timed_out;
    // It cannot use up its time sooner than the clock on the wall goes.
    const TimeNs wait = std::min(wall - passed, std::max<TimeNs>(cpu - used, 1'000'000));
    pollfd ready{socket_.get(), POLLIN, 0};
    if (sent < out.size()) ready.events |= POLLOUT;
    poll(&ready, 1, static_cast<int>(wait / 1'000'000) + 1);
    if ((ready.revents & POLLOUT) != 0 && !send_some(out, sent)) return Exchange::closed;
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !receive_some(in)) {
      return Exchange::closed;
    }
  }
}

Result<std::string> TemplateProcess::render(std::string_view request) {
  std::string reply;
  const Exchange exchanged =
      exchange(request, 10 * setup_.render_time, setup_.render_time, reply);
  usable_ = false;
  if (exchanged == Exchange::timed_out) {
    return invalid("the chat template took longer than " + milliseconds(setup_.render_time) +
                   " for these messages and was stopped");
  }
  Json answer = Json::parse(reply, nullptr, false);
  if (exchanged == Exchange::closed || !answer.is_object()) {
    return Status(ErrorCode::unavailable, "the renderer of chat templates ended");
  }
  usable_ = !answer.value("last", false);
  if (const auto text = answer.find("text"); text != answer.end() && text->is_string()) {
    return std::move(text->get_ref<std::string&>());
  }
  const std::string why = answer.value("error", "no reason given");
  return invalid((answer.value("refused", false) ? "the chat template refuses these messages: "
                                                 : "the chat template failed on these messages: ") +
                 why);
}

}  // namespace baton
