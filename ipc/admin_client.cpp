#include "ipc/admin_client.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace baton {
namespace {

constexpr std::size_t kLongestAnswer = 64U << 20U;

bool send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

UniqueFd connect_admin(const std::string& path, int flags) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return {};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd) return {};
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int why = errno;
    fd.reset();
    errno = why;
  }
  return fd;
}

std::optional<std::string> ask_admin(int fd, const std::string& line, TimeNs patience) {
  timeval limit{};
  limit.tv_sec = patience / kSecond;
  limit.tv_usec = (patience % kSecond) / (kMillisecond / 1000);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (!send_all(fd, line + "\n")) return std::nullopt;
  std::string answer;
  char buffer[65536];
  while (answer != "\n" && (answer.size() < 2 || answer.substr(answer.size() - 2) != "\n\n")) {
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0 || answer.size() > kLongestAnswer) return std::nullopt;
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  answer.pop_back();
  return answer;
}

}  // namespace baton
