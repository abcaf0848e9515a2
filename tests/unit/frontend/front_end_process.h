// Real processes for tests of the twin: front ends that are forked and killed, and what they tell
// the test through memory that they share with it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "frontend/succession/inheritance.h"
#include "frontend/succession/socket_progress.h"
#include "frontend/succession/twin.h"
#include "ipc/process.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/frontend/tcp_pair.h"

namespace baton {

/// Where a front end stands; it stops at the point that the test asked for and waits to be killed.
enum class Point : int { none, failed, twin, fetched, committed, released, serving, done };

struct Board {
  std::atomic<int> point{0};
  std::atomic<int> port{0};
  std::atomic<int> twin{0};
  std::atomic<int> number{0};  // what else a test wants to know
  struct Connection {
    std::atomic<std::uint64_t> cookie{0};
    std::atomic<std::uint64_t> written{0};
    std::atomic<std::uint64_t> consumed{0};
    std::atomic<bool> fin_sent{false};
  };
  std::array<Connection, 64> connections;

  void reach(Point where) { point.store(static_cast<int>(where)); }
  bool wait_for(Point where) const {
    const TimeNs end = now_ns() + patience(3 * kSecond);
    while (now_ns() < end) {
      const int now = point.load();
      if (now == static_cast<int>(where)) return true;
      if (now == static_cast<int>(Point::failed)) return false;
      ::usleep(200);
    }
    return false;
  }
};

class FrontEnds : public ::testing::Test {
 protected:
  static constexpr const char* kName = "frontend0";

  FrontEnds() {
    // Twins whose front end dies come here: their ends can be seen, and none is left behind.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    void* at =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (at) Board;
  }
  ~FrontEnds() override {
    const TimeNs end = now_ns() + kSecond;
    for (auto left = children(); !left.empty() && now_ns() < end; left = children()) {
      for (const pid_t pid : left) ::kill(pid, SIGKILL);
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
    }
    ::munmap(board_, sizeof(Board));
  }

  /// This process's children, adopted ones too.
  static std::vector<pid_t> children() {
    std::ifstream file("/proc/self/task/" + std::to_string(::getpid()) + "/children");
    return {std::istream_iterator<pid_t>(file), std::istream_iterator<pid_t>()};
  }
  bool no_process_left() const {
    const TimeNs end = now_ns() + patience(2 * kSecond);
    while (now_ns() < end) {
      if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return true;
      ::usleep(500);
    }
    return false;
  }
  /// Reaps what ends, until no more than `most` are left.
  static bool only_left(std::size_t most) {
    const TimeNs end = now_ns() + patience(2 * kSecond);
    while (now_ns() < end) {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      if (children().size() <= most) return true;
      ::usleep(500);
    }
    return false;
  }
  /// That child, own or adopted, ends within `most`, and is reaped.
  static bool ends(pid_t pid, TimeNs most = 2 * kSecond) {
    const TimeNs end = now_ns() + patience(most);
    while (now_ns() < end) {
      if (::waitpid(pid, nullptr, WNOHANG) == pid) return true;
      ::usleep(500);
    }
    return false;
  }
  static void kill_now(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  bool is_file(const std::string& name) const {
    return ::access((folder_ / name).c_str(), F_OK) == 0;
  }

  /// Runs `body` in a process of its own, which then waits to be killed.
  template <typename Body>
  pid_t spawn(Body body) {
    board_->point = 0;
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    close_clients();
    body();
    for (;;) ::pause();
  }
  /// The test's own sockets are no front end's: its twin would keep the clients' ends, too.
  static void close_clients() {
    for (int fd = 3; fd < 1024; ++fd) {
      int protocol = 0;
      socklen_t size = sizeof protocol;
      if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
          protocol == IPPROTO_TCP) {
        ::close(fd);
      }
    }
  }
  [[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "front end: %s\n", why.c_str());
    board_->reach(Point::failed);
    for (;;) ::pause();
  }

  /// In a front end's process: its twin, which must not be destroyed at the end of a function.
  Twin& start_twin() {
    auto twin = Twin::start(folder_.path(), kName, waits_);
    if (!twin.ok()) fail(twin.status().message());
    board_->twin = twin.value().pid();
    return *new Twin(std::move(twin).value());
  }
  Inheritance inherit() {
    auto got = Inheritance::fetch(folder_.path(), kName, patience(2 * kSecond));
    if (!got.ok()) fail(got.status().message());
    return got.value() ? std::move(*got.value()) : Inheritance();
  }
  /// As a front end does: takes what there is, writes 1,000 bytes more to each connection, then
  /// serves, until a client has said "q". Stops at `last`.
  void run_front_end(Point last) {
    Twin& twin = start_twin();
    stop_at(Point::twin, last);
    Inheritance legacy = inherit();
    stop_at(Point::fetched, last);
    if (legacy.listeners.empty()) legacy.listeners.push_back(listen_tcp());
    for (const UniqueFd& fd : legacy.connections) go_on(fd.get());
    board_->port = port_of(legacy.listeners[0].get());
    const Status committed = twin.commit();
    if (!committed.ok()) fail(committed.message());
    stop_at(Point::committed, last);
    legacy.release();
    stop_at(Point::released, last);
    board_->reach(Point::serving);
    for (;;) {
      pollfd entry{legacy.listeners[0].get(), POLLIN, 0};
      if (::poll(&entry, 1, 1000) <= 0) continue;
      legacy.connections.push_back(accept_tcp(entry.fd));
      go_on(legacy.connections.back().get());
    }
  }
  static void go_on(int fd) {
    const auto progress = socket_progress(fd);
    if (progress.ok() && !progress.value().gone) write_reply(fd, progress.value().written, 1000);
  }
  void stop_at(Point here, Point last) {
    if (here != last) return;
    board_->reach(here);
    for (;;) ::pause();
  }
  /// Starts one that gets as far as `last`; 0: it did not.
  pid_t front_end(Point last = Point::serving) {
    const pid_t pid = spawn([&] { run_front_end(last); });
    return board_->wait_for(last) ? pid : 0;
  }
  /// This process as the successor, without a twin of its own.
  std::optional<Inheritance> fetch(TimeNs wait = 2 * kSecond) {
    auto got = Inheritance::fetch(folder_.path(), kName, patience(wait));
    EXPECT_TRUE(got.ok()) << got.status().message();
    return got.ok() ? std::move(got).value() : std::nullopt;
  }
  Client connect() { return Client{connect_tcp(static_cast<std::uint16_t>(board_->port.load()))}; }

  /// All that a client is to get, from where the dead front end stopped.
  void finish(std::vector<Client>& clients, Inheritance& legacy, std::uint64_t total) {
    for (UniqueFd& fd : legacy.connections) {
      const auto progress = socket_progress(fd.get());
      ASSERT_TRUE(progress.ok()) << progress.status().message();
      if (progress.value().gone || progress.value().fin_sent) continue;
      std::uint64_t at = progress.value().written;
      while (at < total) {
        const std::size_t n = write_reply(fd.get(), at, total - at);
        at += n;
        if (n == 0) {
          for (Client& client : clients) client.read();
        }
      }
      // Unread bytes of the client's would make a reset of the end.
      std::string rest(1U << 16U, '\0');
      while (::recv(fd.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) {
      }
      ::shutdown(fd.get(), SHUT_WR);
    }
  }
  std::vector<Client> connect_many(int count) {
    std::vector<Client> clients;
    for (int i = 0; i < count; ++i) clients.push_back(connect());
    return clients;
  }
  /// A front end that listens and has committed, for tests that go on in their own way.
  UniqueFd commit_and_listen(Twin& twin) {
    UniqueFd listener = listen_tcp();
    board_->port = port_of(listener.get());
    const Status committed = twin.commit();
    if (!committed.ok()) fail(committed.message());
    return listener;
  }

  TempDir folder_;
  TwinPatience waits_{patience(5 * kSecond), patience(5 * kSecond)};
  Board* board_ = nullptr;
};

}  // namespace baton
