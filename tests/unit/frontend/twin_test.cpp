#include "frontend/succession/twin.h"

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>

#include "frontend/succession/inheritance.h"
#include "tests/unit/frontend/front_end_process.h"

namespace baton {
namespace {

class TwinTest : public FrontEnds {
 protected:
  Board::Connection* noted(int fd) {
    const std::uint64_t cookie = socket_cookie(fd);
    for (auto& connection : board_->connections) {
      if (connection.cookie == cookie) return &connection;
    }
    return nullptr;
  }
  static void limit_buffer(int fd, int which) {
    constexpr int kBytes = 64 * 1024;
    ::setsockopt(fd, SOL_SOCKET, which, &kBytes, sizeof kBytes);
  }
  /// In a front end: reads a part of a request, writes a part of a reply, and notes it.
  void do_anything(int fd, std::size_t i, std::mt19937& random) {
    ::usleep(1000);  // the request is there
    limit_buffer(fd, SO_SNDBUF);
    auto& note = board_->connections[i];
    note.cookie = socket_cookie(fd);
    std::string request(1 + random() % 2000, '\0');
    const ssize_t n = ::recv(fd, request.data(), request.size(), MSG_DONTWAIT);
    if (n > 0) note.consumed += static_cast<std::uint64_t>(n);
    std::size_t sent = 0;
    do {  // every third until nothing more goes in
      sent = write_reply(fd, note.written, 1 + random() % 100'000);
      note.written += sent;
    } while (i % 3 == 0 && sent > 0);
    if (i % 5 != 1) return;
    ::shutdown(fd, SHUT_WR);
    note.fin_sent = true;
  }
  void expect_counts_as_noted(int fd) {
    const auto progress = socket_progress(fd);
    const auto* note = noted(fd);
    ASSERT_TRUE(progress.ok() && note != nullptr);
    if (progress.value().gone) return;
    EXPECT_EQ(progress.value().written, note->written);
    EXPECT_EQ(progress.value().consumed, note->consumed);
    EXPECT_EQ(progress.value().fin_sent, note->fin_sent);
  }
};

constexpr std::uint64_t kTotal = 1'000'000;  // more than the buffers of both sides hold

// Whatever a dead front end had done, the kernel's counts are those of the front end.
TEST_F(TwinTest, WhatTheKernelCountsIsWhatTheDeadFrontEndDid) {
  constexpr int kClients = 24;
  const pid_t pid = spawn([&] {
    const UniqueFd listener = commit_and_listen(start_twin());
    board_->reach(Point::committed);
    std::mt19937 random(3);
    for (std::size_t i = 0; i < kClients; ++i)
      do_anything(accept_tcp(listener.get()).release(), i, random);
    board_->reach(Point::serving);
  });
  ASSERT_TRUE(board_->wait_for(Point::committed));
  std::vector<Client> clients = connect_many(kClients);
  for (std::size_t i = 0; i < clients.size(); ++i) {
    limit_buffer(clients[i].fd.get(), SO_RCVBUF);
    const std::string request(700 * (i % 4), 'q');
    ::send(clients[i].fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
    if (i % 4 == 3) ::shutdown(clients[i].fd.get(), SHUT_WR);
    clients[i].read(500 * i);
  }
  ASSERT_TRUE(board_->wait_for(Point::serving));
  kill_now(pid);

  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  ASSERT_EQ(legacy->connections.size(), clients.size());
  for (const UniqueFd& fd : legacy->connections) expect_counts_as_noted(fd.get());
  finish(clients, *legacy, kTotal);
  legacy->release();
  legacy->connections.clear();
  int whole = 0;
  for (Client& client : clients) {
    client.read_to_end();
    EXPECT_TRUE(client.ended);
    EXPECT_FALSE(client.wrong);
    whole += client.got == kTotal ? 1 : 0;
  }
  EXPECT_EQ(whole, kClients - (kClients + 3) / 5) << "all but those that were shut at once";
  EXPECT_TRUE(no_process_left());
}

TEST_F(TwinTest, AReplyGoesOnAtTheVeryByteWhereverItWasCut) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    const unsigned seed = static_cast<unsigned>(random());
    const pid_t pid = spawn([&] {
      const UniqueFd listener = commit_and_listen(start_twin());
      board_->reach(Point::committed);
      std::vector<std::pair<int, std::uint64_t>> open;
      for (int i = 0; i < 6; ++i) open.emplace_back(accept_tcp(listener.get()).release(), 0);
      board_->reach(Point::serving);
      std::mt19937 sizes(seed);
      for (;;) {
        for (auto& [fd, at] : open) at += write_reply(fd, at, 1 + sizes() % 3000);
      }
    });
    ASSERT_TRUE(board_->wait_for(Point::committed));
    std::vector<Client> clients = connect_many(6);
    ASSERT_TRUE(board_->wait_for(Point::serving));
    const TimeNs end = now_ns() + static_cast<TimeNs>(random() % 20) * kMillisecond;
    while (now_ns() < end) {
      for (std::size_t i = 1; i < clients.size(); ++i) clients[i].read(random() % 9000);
    }
    kill_now(pid);
    auto legacy = fetch();
    ASSERT_TRUE(legacy);
    EXPECT_EQ(legacy->connections.size(), 6U);
    constexpr std::uint64_t kBeyond = 40'000;
    std::uint64_t most = 0;
    for (const UniqueFd& fd : legacy->connections)
      most = std::max(most, socket_progress(fd.get()).value().written);
    finish(clients, *legacy, most + kBeyond);
    legacy->release();
    for (Client& client : clients) {
      client.read_to_end();
      EXPECT_EQ(client.got, most + kBeyond);
      EXPECT_FALSE(client.wrong);
    }
    EXPECT_TRUE(no_process_left());
  }
}

TEST_F(TwinTest, OneSuccessorAfterAnotherGoesOn) {
  Client first;
  for (int life = 1; life <= 5; ++life) {
    const pid_t pid = front_end();
    ASSERT_NE(pid, 0) << life;
    if (life == 1) first = connect();
    first.read_until(static_cast<std::uint64_t>(life) * 1000);
    EXPECT_EQ(first.got, static_cast<std::uint64_t>(life) * 1000);
    Client other = connect();
    other.read_until(1000);
    EXPECT_EQ(other.got, 1000U);
    kill_now(pid);
    EXPECT_FALSE(first.wrong || first.ended || first.broken || other.wrong);
  }
  EXPECT_TRUE(only_left(1)) << "the last one's twin alone";
}

TEST_F(TwinTest, AClosedConnectionIsReallyClosed) {
  spawn([&] {
    const UniqueFd listener = commit_and_listen(start_twin());
    board_->reach(Point::committed);
    accept_tcp(listener.get());
    board_->reach(Point::serving);
    ::pause();
  });
  ASSERT_TRUE(board_->wait_for(Point::committed));
  Client client = connect();
  client.read_to_end();
  EXPECT_TRUE(client.ended);
}

TEST_F(TwinTest, ConnectionsThatNobodyHadAcceptedWaitForTheSuccessor) {
  const pid_t pid = spawn([&] {
    commit_and_listen(start_twin()).release();
    board_->reach(Point::serving);
  });
  ASSERT_TRUE(board_->wait_for(Point::serving));
  std::vector<Client> clients = connect_many(4);
  kill_now(pid);
  clients.push_back(connect());  // between the two front ends
  ASSERT_TRUE(clients.back().fd);
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  ASSERT_EQ(legacy->listeners.size(), 1U);
  EXPECT_TRUE(legacy->connections.empty());
  for (std::size_t i = 0; i < clients.size(); ++i)
    legacy->connections.push_back(accept_tcp(legacy->listeners[0].get()));
  finish(clients, *legacy, 5000);
  for (Client& client : clients) {
    client.read_to_end();
    EXPECT_EQ(client.got, 5000U);
  }
  EXPECT_NE(::fcntl(legacy->listeners[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(TwinTest, PipesAndLocksEndWithTheFrontEndWhileItsTwinServes) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const UniqueFd in(pipe[0]);
  UniqueFd out(pipe[1]);
  const std::string lock = folder_ / "lock";
  const pid_t pid = spawn([&] {
    Twin& twin = start_twin();
    auto held = LockFile::acquire(lock);
    if (!held.ok()) fail("no lock");
    new LockFile(std::move(held).value());
    commit_and_listen(twin).release();
    board_->reach(Point::serving);
  });
  ASSERT_TRUE(board_->wait_for(Point::serving));
  out.reset();
  EXPECT_FALSE(LockFile::acquire(lock).ok());
  kill_now(pid);
  pollfd entry{in.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, static_cast<int>(patience(kSecond) / kMillisecond)), 1);
  char byte = 0;
  EXPECT_EQ(::read(in.get(), &byte, 1), 0) << "the pipe is not closed";
  EXPECT_TRUE(fetch());
  EXPECT_TRUE(LockFile::acquire(lock).ok());
}

TEST_F(TwinTest, KeepsakesComeByTheirNumberAsTheyWereLast) {
  const pid_t pid = spawn([&] {
    Twin& twin = start_twin();
    const auto memory = [](const char* text) {
      const int fd = ::memfd_create("test", MFD_CLOEXEC);
      if (::write(fd, text, 3) != 3) ::_exit(1);
      return fd;
    };
    const int old = memory("old");
    twin.set_keepsake(0, old);
    twin.set_keepsake(1, memory("one"));
    commit_and_listen(twin).release();
    twin.set_keepsake(3, memory("3rd"));
    twin.set_keepsake(0, memory("new"));
    twin.set_keepsake(1, -1);
    twin.set_keepsake(4, old);  // there is no such number
    ::close(old);
    board_->reach(Point::serving);
  });
  ASSERT_TRUE(board_->wait_for(Point::serving));
  kill_now(pid);
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  ASSERT_EQ(legacy->keepsakes.size(), 4U);
  char text[4] = {};
  EXPECT_EQ(::pread(legacy->keepsakes[0].get(), text, 3, 0), 3);
  EXPECT_STREQ(text, "new");
  EXPECT_EQ(::pread(legacy->keepsakes[3].get(), text, 3, 0), 3);
  EXPECT_STREQ(text, "3rd");
  EXPECT_FALSE(legacy->keepsakes[1] || legacy->keepsakes[2]);
  EXPECT_NE(::fcntl(legacy->keepsakes[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(TwinTest, ThreeHundredConnectionsComeInTwoPackets) {
  const pid_t pid = front_end();
  ASSERT_NE(pid, 0);
  std::vector<Client> clients = connect_many(300);
  for (Client& client : clients) client.read_until(1000);
  kill_now(pid);
  {
    // A successor that may hold too few takes none of them.
    rlimit limit{}, low{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    low = {400, limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const auto refused = Inheritance::fetch(folder_.path(), kName, patience(kSecond));
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("ulimit"), std::string::npos);
  }
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  EXPECT_EQ(legacy->connections.size(), 300U);
  finish(clients, *legacy, 2000);
  for (Client& client : clients) {
    client.read_to_end();
    EXPECT_EQ(client.got, 2000U);
  }
}

TEST_F(TwinTest, NobodyLeftAnything) {
  EXPECT_FALSE(fetch());
  TwinPatience none;
  EXPECT_FALSE(Twin::start("relative", kName, none).ok());
  EXPECT_FALSE(Twin::start(folder_.path(), std::string(120, 'n'), none).ok());
}

TEST_F(TwinTest, SignalsForGroupsAndTerminalsDoNotReachIt) {
  const pid_t pid = front_end();
  ASSERT_NE(pid, 0);
  const pid_t twin = board_->twin;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE, SIGTSTP})
    ::kill(twin, signal);
  EXPECT_EQ(::getsid(twin), twin);
  EXPECT_EQ(::getpgid(twin), twin);
  kill_now(pid);
  EXPECT_TRUE(fetch());
}

TEST_F(TwinTest, DismissedItLeavesNoProcessAndNoFile) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto twin = Twin::start(folder_.path(), kName, waits_);
    if (!twin.ok() || !twin.value().commit().ok()) ::_exit(1);
    twin.value().dismiss();
    if (twin.value().pid() != 0 || twin.value().fd() >= 0) ::_exit(2);
    twin.value().dismiss();
    {
      const auto prepared = Twin::start(folder_.path(), kName, waits_);
      if (!prepared.ok()) ::_exit(3);
    }  // its destructor does it, too
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(children().empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_FALSE(fetch());
}

}  // namespace
}  // namespace baton
