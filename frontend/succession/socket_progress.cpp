#include "frontend/succession/socket_progress.h"

// Not <netinet/tcp.h>: glibc's struct tcp_info ends before the counts of bytes.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

namespace baton {
namespace {

// As in the kernel's include/net/tcp_states.h.
enum State : std::uint8_t {
  kFinWait1 = 4,
  kFinWait2 = 5,
  kTimeWait = 6,
  kClose = 7,
  kCloseWait = 8,
  kLastAck = 9,
  kListen = 10,
  kClosing = 11,
};

// A reading takes a microsecond, and packets that move the counts come less often by far.
constexpr int kMaxReadings = 1000;

bool sent_fin(std::uint8_t state) {
  return state == kFinWait1 || state == kFinWait2 || state == kClosing || state == kLastAck ||
         state == kTimeWait;
}

bool received_fin(std::uint8_t state) {
  return state == kCloseWait || state == kClosing || state == kLastAck || state == kTimeWait;
}

Status no_progress(const char* what) {
  return Status(ErrorCode::unavailable, std::string(what) + ": " + std::strerror(errno));
}

Result<tcp_info> read_info(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
    return no_progress("no TCP socket");
  constexpr std::size_t kNeeded =
      offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received;
  if (size < kNeeded)
    return Status(ErrorCode::unavailable, "the kernel counts no bytes of TCP connections");
  return info;
}

bool same(const tcp_info& a, const tcp_info& b) {
  return a.tcpi_state == b.tcpi_state && a.tcpi_bytes_acked == b.tcpi_bytes_acked &&
         a.tcpi_bytes_received == b.tcpi_bytes_received;
}

SocketProgress progress_of(const tcp_info& info, int unsent, int unread) {
  SocketProgress progress;
  progress.fin_sent = sent_fin(info.tcpi_state);
  progress.fin_received = received_fin(info.tcpi_state);
  // A FIN takes a number of the sequence, as a byte does.
  progress.written =
      info.tcpi_bytes_acked + static_cast<std::uint64_t>(unsent) - (progress.fin_sent ? 1U : 0U);
  progress.consumed = info.tcpi_bytes_received - static_cast<std::uint64_t>(unread) -
                      (progress.fin_received ? 1U : 0U);
  return progress;
}

}  // namespace

Result<SocketProgress> socket_progress(int fd) {
  auto before = read_info(fd);
  for (int reading = 0; reading < kMaxReadings; ++reading) {
    if (!before.ok()) return before.status();
    const tcp_info info = before.value();
    if (info.tcpi_state == kListen) return invalid("the socket listens");
    if (info.tcpi_state == kClose) {
      SocketProgress progress;
      progress.gone = true;
      return progress;
    }
    int unsent = 0, unread = 0;
    if (::ioctl(fd, SIOCOUTQ, &unsent) != 0 || ::ioctl(fd, SIOCINQ, &unread) != 0)
      return no_progress("the socket's queues cannot be read");
    auto after = read_info(fd);
    if (after.ok() && same(info, after.value())) return progress_of(info, unsent, unread);
    before = std::move(after);  // packets came in between: the four belong to no one moment
  }
  return Status(ErrorCode::unavailable, "the connection does not hold still");
}

std::uint64_t socket_cookie(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

}  // namespace baton
