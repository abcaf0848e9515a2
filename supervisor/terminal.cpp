#include "supervisor/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace baton {
namespace {

// To the first column, and away with what stands there.
constexpr const char* kClearLine = "\r\x1b[K";

std::size_t columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool put(std::string_view text) {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) return false;
  return ::write(STDOUT_FILENO, text.data(), text.size()) > 0;
}

}  // namespace

std::string_view cut_to_columns(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0;
  for (std::size_t seen = 0; bytes < text.size(); ++bytes) {
    const bool begins = (static_cast<unsigned char>(text[bytes]) & 0xC0) != 0x80;
    if (begins && seen++ == columns) break;
  }
  return text.substr(0, bytes);
}

// One column is left free: a full row would make some terminals begin the next one.
std::string Terminal::drawn() const { return std::string(cut_to_columns(text_, columns() - 1)); }

bool Terminal::write(std::string_view lines) {
  if (text_.empty()) return put(lines);
  return put(kClearLine + std::string(lines) + drawn());
}

void Terminal::set_live_line(std::string text) {
  if (!live_ || text == text_) return;
  text_ = std::move(text);
  put(kClearLine + drawn());
}

void Terminal::clear() { set_live_line({}); }

}  // namespace baton
