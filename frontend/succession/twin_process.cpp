// The twin's own code. It may be cloned from a process with threads, and any of them may have held
// any lock at that moment: so there are system calls here and static memory, and no malloc, stdio,
// exception or library that keeps state. It is compiled without sanitizers for the same reason.
#include "frontend/succession/twin_process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace baton {
namespace {

// How often a twin looks whether another has taken its place. Its successor waits for none of it.
constexpr long kLookMs = 500;

[[noreturn]] void leave() {
  for (;;) ::syscall(SYS_exit_group, 0);
}

long now_ms() {
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

/// False: nothing within `ms`. A negative `fd` is a pause.
bool ready(int fd, short events, long ms) {
  pollfd entry{fd, events, 0};
  timespec wait{ms / 1000, ms % 1000 * 1'000'000};
  return ::syscall(SYS_ppoll, &entry, 1, &wait, nullptr, std::size_t{8}) > 0;
}

void close_fd(int fd) { ::syscall(SYS_close, fd); }

int option(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::syscall(SYS_getsockopt, fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

bool is_tcp(int fd) {
  const int domain = option(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && option(fd, SO_TYPE) == SOCK_STREAM &&
         option(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

bool is_file_of(const TwinPage* page, const char* path) {
  struct stat info {};
  if (::syscall(SYS_newfstatat, AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) != 0)
    return errno != ENOENT && errno != ENOTDIR;  // unknown: nothing is given up for that
  // A bound socket keeps its inode: no other file gets the number while this process has it.
  return info.st_ino == page->inode && info.st_dev == page->device;
}

int keepsake(const TwinPage* page, unsigned index) {
  return __atomic_load_n(&page->keepsakes[index], __ATOMIC_ACQUIRE);
}

bool is_keepsake(const TwinPage* page, int fd) {
  for (unsigned i = 0; i < kKeepsakes; ++i) {
    if (keepsake(page, i) == fd) return true;
  }
  return false;
}

// This process's descriptors, as /proc tells them. One may be closed on the way: the place in the
// list is a descriptor's number.
struct Walk {
  int folder = -1;
  long filled = 0;
  long at = 0;
  alignas(8) char entries[4096] = {};
};
Walk walk;

struct Entry {  // of getdents64
  std::uint64_t inode;
  std::int64_t next;
  std::uint16_t bytes;
  std::uint8_t type;
  char name[1];
};

bool begin_walk() {
  walk.filled = walk.at = 0;
  walk.folder = static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return walk.folder >= 0;
}

/// The next one; -1: that was all, and the walk has ended.
int next_descriptor() {
  for (;;) {
    if (walk.at >= walk.filled) {
      walk.at = 0;
      walk.filled = ::syscall(SYS_getdents64, walk.folder, walk.entries, sizeof walk.entries);
      if (walk.filled <= 0) {
        close_fd(walk.folder);
        return -1;
      }
    }
    const auto* entry = reinterpret_cast<const Entry*>(walk.entries + walk.at);
    walk.at += entry->bytes;
    int fd = 0;
    const char* digit = entry->name;
    for (; *digit >= '0' && *digit <= '9'; ++digit) fd = fd * 10 + (*digit - '0');
    if (digit != entry->name && fd != walk.folder) return fd;  // neither "." nor ".."
  }
}

/// Pipes, locks and other processes' sockets end here: whoever is at their other ends must see that
/// the front end has.
void keep_only_legacy(const TwinPage* page) {
  close_fd(page->front_end);  // room for the folder below, if the table is full
  if (!begin_walk()) leave();
  for (int fd = next_descriptor(); fd >= 0; fd = next_descriptor()) {
    if (fd != page->listener && !is_keepsake(page, fd) && !is_tcp(fd)) close_fd(fd);
  }
}

unsigned count_sockets(const TwinPage* page) {
  if (!begin_walk()) return 0;
  unsigned count = 0;
  for (int fd = next_descriptor(); fd >= 0; fd = next_descriptor())
    count += is_tcp(fd) && !is_keepsake(page, fd) ? 1U : 0U;
  return count;
}

struct Packet {
  const void* bytes;
  std::size_t size;
  const int* fds;
  unsigned count;
};

long send_once(int peer, const Packet& packet) {
  alignas(cmsghdr) static char control[CMSG_SPACE(kMaxBatch * sizeof(int))];
  iovec part{const_cast<void*>(packet.bytes), packet.size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (packet.count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(packet.count * sizeof(int));
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(packet.count * sizeof(int));
    int* data = reinterpret_cast<int*>(CMSG_DATA(head));
    for (unsigned i = 0; i < packet.count; ++i) data[i] = packet.fds[i];
  }
  return ::syscall(SYS_sendmsg, peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// False: the peer is gone, or took nothing for as long as it may.
bool send_all(const TwinPage* page, int peer, const Packet& packet) {
  constexpr long kPauseMs = 5;
  const long end = now_ms() + page->says_nothing_ms;
  while (send_once(peer, packet) < 0) {
    // ETOOMANYREFS: more descriptors are under way than this user may have; the peer takes them.
    const bool full = errno == EAGAIN || errno == ENOBUFS;
    if (!full && errno != ETOOMANYREFS && errno != ENOMEM && errno != EINTR) return false;
    if (now_ms() >= end) return false;
    if (!full || !ready(peer, POLLOUT, kLookMs)) ready(-1, 0, kPauseMs);
  }
  return true;
}

bool send_head(const TwinPage* page, int peer, unsigned sockets) {
  LegacyHead head;
  head.sockets = sockets;
  int fds[kKeepsakes];
  unsigned count = 0;
  for (unsigned i = 0; i < kKeepsakes; ++i) {
    const int fd = keepsake(page, i);
    if (fd < 0 || ::syscall(SYS_fcntl, fd, F_GETFD) < 0) continue;
    head.keepsakes |= 1U << i;
    fds[count++] = fd;
  }
  return send_all(page, peer, {&head, sizeof head, fds, count});
}

bool send_batch(const TwinPage* page, int peer, const int* fds, unsigned count) {
  const LegacyBatch batch{count};
  return count == 0 || send_all(page, peer, {&batch, sizeof batch, fds, count});
}

bool send_legacy(const TwinPage* page, int peer) {
  static int fds[kMaxBatch];
  if (!send_head(page, peer, count_sockets(page)) || !begin_walk()) return false;
  unsigned count = 0;
  bool sent = true;
  for (int fd = next_descriptor(); fd >= 0;
       fd = next_descriptor()) {  // to its end: it has a folder
    if (!sent || !is_tcp(fd) || is_keepsake(page, fd)) continue;
    fds[count++] = fd;
    if (count < kMaxBatch) continue;
    sent = send_batch(page, peer, fds, count);
    count = 0;
  }
  return sent && send_batch(page, peer, fds, count);
}

/// False: the successor died, or says nothing.
bool wait_for_release(const TwinPage* page, int peer) {
  long end = now_ms() + page->says_nothing_ms;
  while (now_ms() < end) {
    if (!is_file_of(page, page->path)) leave();  // it has committed
    if (!ready(peer, POLLIN, kLookMs)) continue;
    char said = 0;
    const long n =
        ::syscall(SYS_recvfrom, peer, &said, std::size_t{1}, MSG_DONTWAIT, nullptr, nullptr);
    if (n == 1 && said == kReleased) return true;
    if (n == 1) end = now_ms() + page->says_nothing_ms;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  }
  return false;
}

bool is_own_user(int peer) {
  ucred who{};
  socklen_t size = sizeof who;
  return ::syscall(SYS_getsockopt, peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         who.uid == static_cast<uid_t>(::syscall(SYS_geteuid));
}

void serve_successors(const TwinPage* page) {
  long end = now_ms() + page->nobody_comes_ms;
  // Another file at the path: somebody has taken over, and whoever comes goes there.
  while (now_ms() < end && is_file_of(page, page->path)) {
    const long left = end - now_ms();
    if (!ready(page->listener, POLLIN, left < kLookMs ? left : kLookMs)) continue;
    const int peer = static_cast<int>(
        ::syscall(SYS_accept4, page->listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer < 0) {
      ready(-1, 0, 1);  // out of memory: not at full speed
      continue;
    }
    if (is_own_user(peer) && send_legacy(page, peer) && wait_for_release(page, peer)) return;
    close_fd(peer);
    end = now_ms() + page->nobody_comes_ms;
  }
}

[[noreturn]] void run_twin(TwinPage* page) {
  ::syscall(SYS_setsid);  // a supervisor kills groups, a terminal stops sessions
  ::syscall(SYS_prctl, PR_SET_NAME, page->title, 0, 0, 0);
  __atomic_store_n(&page->settled, 1U, __ATOMIC_RELEASE);
  constexpr long kLongMs = 3'600'000;
  while (!ready(page->front_end, POLLIN, kLongMs)) {
  }
  // In a table that somebody else uses nothing may be closed: a front end that lives is its parent.
  if (::syscall(SYS_getppid) == page->front_end_pid) leave();
  const auto state = static_cast<TwinState>(__atomic_load_n(&page->state, __ATOMIC_ACQUIRE));
  // A front end that had not committed: whoever it was to follow still has everything.
  if (is_file_of(page, page->waiting_path))
    ::syscall(SYS_unlinkat, AT_FDCWD, page->waiting_path, 0);
  if (state == TwinState::serving && is_file_of(page, page->path)) {
    keep_only_legacy(page);
    serve_successors(page);
  }
  leave();
}

}  // namespace

pid_t clone_twin(TwinPage* page) {
  const long pid = ::syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) run_twin(page);
  return static_cast<pid_t>(pid);
}

}  // namespace baton
