#include "scheduler/admin/top.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string_view>

#include "ipc/admin_client.h"
#include "ipc/process.h"
#include "scheduler/admin/top_view.h"

namespace baton {
namespace {

constexpr TimeNs kPatience = 2 * kSecond;
/// Between the two looks that rates take, where there is only one picture.
constexpr TimeNs kApart = kSecond / 4;

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// The terminal while it is ours: another screen, no cursor, keys one by one. Given back as it was.
class Screen {
 public:
  Screen() {
    if (tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios ours = before_;
    ours.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ours.c_cc[VMIN] = 0;
    ours.c_cc[VTIME] = 0;
    ours.c_cc[VSUSP] = _POSIX_VDISABLE;
    changed_ = tcsetattr(STDIN_FILENO, TCSANOW, &ours) == 0;
    write_all("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    write_all("\x1b[0m\x1b[?25h\x1b[?1049l");
    if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static TopSize size() {
    winsize window{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return {};
    return {window.ws_col, window.ws_row};
  }

  /// Each line is written over what stood there, so nothing flickers.
  static void show(const std::vector<std::string>& lines) {
    std::string text = "\x1b[H";
    for (std::size_t i = 0; i < lines.size(); ++i) {
      text += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
    }
    write_all(text + "\x1b[J");
  }

 private:
  termios before_{};
  bool changed_ = false;
};

bool speaks_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text(value);
    std::transform(text.begin(), text.end(), text.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

/// The scheduler, asked again and again; connected anew when it has left.
class Source {
 public:
  explicit Source(std::string path) : path_(std::move(path)) {}

  std::optional<nlohmann::json> look() {
    if (!fd_) fd_ = connect_admin(path_);
    if (!fd_) {
      why_ = path_ + ": " + std::strerror(errno) + " (is baton-scheduler running?)";
      return std::nullopt;
    }
    const auto answer = ask_admin(fd_.get(), "show live json", kPatience);
    auto live = nlohmann::json::parse(answer.value_or(""), nullptr, /*allow_exceptions=*/false);
    if (live.is_object()) return live;
    fd_.reset();
    why_ = !answer ? "the scheduler does not answer"
                   : "the scheduler is of a build without 'show live'";
    return std::nullopt;
  }
  const std::string& why() const { return why_; }

 private:
  std::string path_;
  UniqueFd fd_;
  std::string why_;
};

int print_once(Source& source, bool utf8) {
  TopView view({.colour = false, .utf8 = utf8});
  for (int look = 0; look < 2; ++look) {
    if (look > 0) usleep(static_cast<useconds_t>(kApart / 1000));
    auto live = source.look();
    if (!live) {
      std::cerr << "baton-ctl: " << source.why() << "\n";
      return 1;
    }
    view.take(std::move(*live));
  }
  for (const std::string& line : view.draw({.columns = 120, .rows = 0})) std::cout << line << "\n";
  return 0;
}

/// The signals that end it or change its size, as a descriptor.
UniqueFd catch_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Until `until`, a key or a signal. False: it is to end.
bool pause_until(TimeNs until, int signals) {
  pollfd both[2] = {{STDIN_FILENO, POLLIN, 0}, {signals, POLLIN, 0}};
  const TimeNs left = std::max<TimeNs>(0, until - now_ns());
  ::poll(both, 2, static_cast<int>(left / kMillisecond) + 1);
  signalfd_siginfo caught{};
  while (::read(signals, &caught, sizeof caught) == static_cast<ssize_t>(sizeof caught)) {
    if (caught.ssi_signo != SIGWINCH) return false;
  }
  if ((both[0].revents & (POLLHUP | POLLERR)) != 0) return false;  // the terminal has gone
  if ((both[0].revents & POLLIN) == 0) return true;
  char keys[64];
  const ssize_t n = ::read(STDIN_FILENO, keys, sizeof keys);
  return n > 0 && std::string_view(keys, static_cast<std::size_t>(n)).find_first_of("qQ") ==
                      std::string_view::npos;
}

}  // namespace

int run_top(const std::string& admin_socket, TimeNs interval) {
  Source source(admin_socket);
  const bool utf8 = speaks_utf8();
  if (isatty(STDOUT_FILENO) == 0 || isatty(STDIN_FILENO) == 0) return print_once(source, utf8);
  const UniqueFd signals = catch_signals();
  const Screen screen;
  const char* no_colour = std::getenv("NO_COLOR");
  TopView view({.colour = no_colour == nullptr || *no_colour == '\0', .utf8 = utf8});
  TimeNs next = 0;
  bool away = true;
  do {
    if (now_ns() >= next) {
      auto live = source.look();
      away = !live;
      if (live) view.take(std::move(*live));
      next = now_ns() + interval;
    }
    std::vector<std::string> lines = view.draw(Screen::size());
    if (away) lines = {"Baton: " + source.why(), "", "waiting for it; q leaves"};
    Screen::show(lines);
  } while (pause_until(next, signals.get()));
  return 0;
}

}  // namespace baton
