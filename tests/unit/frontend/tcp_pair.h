// Loopback TCP for tests: listeners, clients, and replies whose every byte says where it stands.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "ipc/process.h"

namespace baton {

/// Times of tests are longer where everything is slower.
inline TimeNs patience(TimeNs time) {
  const char* factor = std::getenv("BATON_TEST_PATIENCE");
  return time * (factor == nullptr ? 1 : std::max(1, std::atoi(factor)));
}

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

inline UniqueFd listen_tcp() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(0);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), 1024) != 0) {
    return UniqueFd();
  }
  return fd;
}

inline std::uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

/// Does not block, once it is there.
inline UniqueFd connect_tcp(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return UniqueFd();
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  return fd;
}

/// Waits for it, at most a second; does not block then.
inline UniqueFd accept_tcp(int listener) {
  pollfd entry{listener, POLLIN, 0};
  ::poll(&entry, 1, static_cast<int>(patience(kSecond) / kMillisecond));
  return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

inline char reply_byte(std::uint64_t at) {
  at = (at + 0x9E3779B97F4A7C15U) * 0xBF58476D1CE4E5B9U;
  return static_cast<char>(at >> 56U);
}

inline std::string reply_bytes(std::uint64_t from, std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = reply_byte(from + i);
  return bytes;
}

/// As many of `count` as the kernel takes; returns how many.
inline std::size_t write_reply(int fd, std::uint64_t from, std::size_t count) {
  const std::string bytes = reply_bytes(from, count);
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

/// What a client has got.
struct Client {
  UniqueFd fd;
  std::uint64_t got = 0;
  bool wrong = false;  // a byte that is not the reply's
  bool ended = false;  // the server has closed
  bool broken = false;

  void read(std::size_t most = 1U << 20U) {
    std::string bytes(std::min<std::size_t>(most, 1U << 16U), '\0');
    while (most > 0 && !ended && !broken) {
      const ssize_t n = ::recv(fd.get(), bytes.data(), std::min(most, bytes.size()), MSG_DONTWAIT);
      ended = n == 0;
      broken = n < 0 && errno != EAGAIN;
      if (n <= 0) return;
      for (ssize_t i = 0; i < n; ++i)
        wrong |= bytes[static_cast<std::size_t>(i)] != reply_byte(got++);
      most -= static_cast<std::size_t>(n);
    }
  }
  /// Waits until there are `count`, or the end, or two seconds are over.
  void read_until(std::uint64_t count) {
    const TimeNs end = now_ns() + patience(2 * kSecond);
    while (got < count && !ended && !broken && now_ns() < end) {
      pollfd entry{fd.get(), POLLIN, 0};
      ::poll(&entry, 1, 20);
      read(count - got);
    }
  }
  void read_to_end() {
    const TimeNs end = now_ns() + patience(2 * kSecond);
    while (!ended && !broken && now_ns() < end) {
      pollfd entry{fd.get(), POLLIN, 0};
      ::poll(&entry, 1, 20);
      read();
    }
  }
};

}  // namespace baton
