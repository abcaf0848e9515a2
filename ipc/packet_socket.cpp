#include "ipc/packet_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace baton {

namespace {

constexpr int kBacklog = 64;

Status failed(const std::string& what, const std::string& path) {
  return Status(ErrorCode::unavailable, what + " " + path + ": " + std::strerror(errno));
}

/// False: the path is too long for a socket.
bool fill_address(const std::string& path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  return true;
}

/// Room for the descriptors of one message.
struct ControlBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

/// One packet, and the descriptor that came along with it. More than one cannot: there is no room,
/// and the kernel closes them.
ssize_t receive(int fd, std::string& bytes, UniqueFd& along) {
  iovec part{bytes.data(), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  const cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
    int got = -1;
    std::memcpy(&got, CMSG_DATA(head), sizeof got);
    along = UniqueFd(got);
  }
  return n;
}

}  // namespace

Result<UniqueFd> listen_packets(const LockFile& /*held*/, const std::string& path) {
  sockaddr_un address{};
  if (!fill_address(path, address)) return invalid(path + ": too long for a socket");
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("no socket for", path);
  ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return failed("cannot listen at", path);
  }
  return fd;
}

std::optional<PacketPeer> accept_packets(int listening) {
  UniqueFd fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return std::nullopt;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) peer.pid = 0;
  return PacketPeer{std::move(fd), peer.pid};
}

Result<UniqueFd> connect_packets(const std::string& path) {
  sockaddr_un address{};
  if (!fill_address(path, address)) return invalid(path + ": too long for a socket");
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("no socket for", path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return failed("cannot connect to", path);
  return fd;
}

bool send_packet(int fd, std::string_view bytes, int carried) {
  if (bytes.size() > kMaxPacketBytes) return false;
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
  if (carried >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof carried);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof carried);
    std::memcpy(CMSG_DATA(head), &carried, sizeof carried);
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

Received receive_packet(int fd, TimeNs patience, std::string& bytes, UniqueFd* carried) {
  const TimeNs end = now_ns() + patience;
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const TimeNs left = std::max<TimeNs>(end - now_ns(), 0);
    const int ready = ::poll(&entry, 1, static_cast<int>((left + kMillisecond - 1) / kMillisecond));
    if (ready < 0 && errno != EINTR) return Received::closed;
    if (ready == 0) return Received::nothing;
    if (ready < 0) continue;
    bytes.resize(kMaxPacketBytes);
    UniqueFd along;
    const ssize_t n = receive(fd, bytes, along);
    if (n > 0) {
      bytes.resize(static_cast<std::size_t>(n));
      if (carried != nullptr) *carried = std::move(along);
      return Received::packet;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return Received::closed;
  }
}

}  // namespace baton
