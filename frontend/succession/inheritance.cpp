#include "frontend/succession/inheritance.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "frontend/succession/twin.h"
#include "frontend/succession/twin_process.h"

namespace baton {
namespace {

// The legacy is in the kernel's memory: a twin that runs sends it in milliseconds.
constexpr TimeNs kPacketPatience = 10 * kSecond;
constexpr TimeNs kLookEvery = 100 * kMillisecond;

Status no_legacy(const std::string& what) {
  return Status(ErrorCode::unavailable, what + ": " + std::strerror(errno));
}

/// An empty descriptor: there is nobody.
Result<UniqueFd> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return invalid(path + ": too long for a socket");
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return no_legacy("no socket for " + path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return fd;
  if (errno == ENOENT || errno == ECONNREFUSED) return UniqueFd();
  return no_legacy("cannot connect to " + path);
}

/// Of the process that began to listen: the front end's, not its twin's.
ucred peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) peer = {0, ~0U, ~0U};
  return peer;
}

void continue_twin(const std::string& pid_path) {
  const UniqueFd fd(::open(pid_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::array<char, 64> text{};
  int pid = 0;
  unsigned long long start = 0;
  if (!fd || ::read(fd.get(), text.data(), text.size() - 1) <= 0 ||
      std::sscanf(text.data(), "%d %llu", &pid, &start) != 2) {
    return;
  }
  if (pid > 1 && process_stopped(pid) && pid_start_time(pid) == start) ::kill(pid, SIGCONT);
}

bool readable(int fd, TimeNs wait) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>((wait + kMillisecond - 1) / kMillisecond)) > 0;
}

struct Received {
  std::size_t bytes = 0;  // 0: the twin has gone
  std::vector<UniqueFd> fds;
  bool cut = false;
};

void take_descriptors(msghdr& message, Received& received) {
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      received.fds.emplace_back(fd);
    }
  }
  received.cut = (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0;
}

/// One packet into `to`, which it has to fill.
Result<Received> receive(int from, void* to, std::size_t size) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxBatch * sizeof(int))> control{};
  iovec part{to, size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Received received;
  if (n < 0) return errno == ECONNRESET ? Result<Received>(std::move(received)) : no_legacy("twin");
  take_descriptors(message, received);
  received.bytes = static_cast<std::size_t>(n);
  if (received.cut) return no_legacy("no room for so many descriptors (see ulimit -n)");
  if (n != 0 && received.bytes != size) return invalid("what the twin says is no legacy");
  return received;
}

bool listens(int fd) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

}  // namespace

/// One attempt at it, over one connection to a twin.
class LegacyReader {
 public:
  explicit LegacyReader(UniqueFd twin) { legacy_.twin_ = std::move(twin); }
  int fd() const { return legacy_.twin_.get(); }
  /// False: the twin had nothing to leave and has gone.
  Result<bool> read() {
    LegacyHead head;
    auto first = receive(fd(), &head, sizeof head);
    if (!first.ok()) return first.status();
    if (first.value().bytes == 0) return false;
    if (head.magic != LegacyHead::kMagic) return invalid("the twin is of another build");
    Status status = take_keepsakes(head.keepsakes, first.value().fds);
    if (status.ok()) status = read_sockets(head.sockets);
    if (!status.ok()) return status;
    return true;
  }
  Inheritance take() { return std::move(legacy_); }

 private:
  Status take_keepsakes(std::uint32_t which, std::vector<UniqueFd>& fds) {
    legacy_.keepsakes.resize(kKeepsakes);
    std::size_t next = 0;
    for (unsigned i = 0; i < kKeepsakes; ++i) {
      if ((which >> i & 1U) == 0) continue;
      if (next == fds.size()) return invalid("a keepsake of the twin is missing");
      legacy_.keepsakes[i] = std::move(fds[next++]);
    }
    return {};
  }

  Status read_sockets(std::uint32_t count) {
    for (std::uint32_t got = 0; got < count;) {
      LegacyBatch batch;
      if (!readable(fd(), kPacketPatience))
        return Status(ErrorCode::unavailable, "the twin stopped in the middle");
      auto packet = receive(fd(), &batch, sizeof batch);
      if (!packet.ok()) return packet.status();
      auto& fds = packet.value().fds;
      if (fds.empty() || fds.size() != batch.sockets || fds.size() > count - got)
        return Status(ErrorCode::unavailable, "sockets of the twin are missing");
      got += batch.sockets;
      for (UniqueFd& socket : fds)
        (listens(socket.get()) ? legacy_.listeners : legacy_.connections)
            .push_back(std::move(socket));
    }
    return {};
  }

  Inheritance legacy_;
};

Result<std::optional<Inheritance>> Inheritance::fetch(const std::string& run_dir,
                                                      const std::string& name, TimeNs patience) {
  const std::string path = twin_path(run_dir, name);
  const TimeNs end = now_ns() + patience;
  for (;;) {
    auto connected = connect_to(path);
    if (!connected.ok()) return connected.status();
    if (!connected.value()) return std::optional<Inheritance>();
    const ucred peer = peer_of(connected.value().get());
    if (peer.uid != ::geteuid()) return invalid(path + " belongs to another user");
    LegacyReader reader(std::move(connected).value());
    do {
      continue_twin(path + ".pid");
      if (!readable(reader.fd(), std::clamp<TimeNs>(end - now_ns(), 0, kLookEvery))) continue;
      auto read = reader.read();
      if (!read.ok()) return read.status();
      if (read.value()) return std::optional<Inheritance>(reader.take());
      break;  // it has gone: whoever the path leads to now
    } while (now_ns() < end);
    if (now_ns() >= end)
      return Status(ErrorCode::unavailable, "process " + std::to_string(peer.pid) +
                                                " lives on, or its twin (" + path + ") is stuck");
  }
}

void Inheritance::release() {
  if (twin_) [[maybe_unused]]
    const auto n = ::send(twin_.get(), &kReleased, 1, MSG_NOSIGNAL);
  twin_.reset();
}

}  // namespace baton
