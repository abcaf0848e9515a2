#include "ipc/channel.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "ipc/process.h"
#include "ipc/spin.h"
#include "ipc/zmq_channel.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

constexpr TimeNs kPatience = 10 * kSecond;  // only a broken channel takes as long

struct Server {
  LockFile lock;
  std::unique_ptr<ServerChannel> channel;

  static Server on(const TempDir& dir, const ChannelOptions& options = {}) {
    auto lock = LockFile::acquire(dir / "scheduler.lock");
    if (!lock.ok()) {
      throw std::runtime_error(lock.status().message());
    }
    auto channel = bind_server(lock.value(), dir / "workers.sock", options);
    if (!channel.ok()) {
      throw std::runtime_error(channel.status().message());
    }
    return {std::move(lock).value(), std::move(channel).value()};
  }
};

std::unique_ptr<ClientChannel> client_of(const TempDir& dir, const std::string& id,
                                         const ChannelOptions& options = {}) {
  auto channel = connect_client(dir / "workers.sock", id, options);
  if (!channel.ok()) {
    throw std::runtime_error(channel.status().message());
  }
  return std::move(channel).value();
}

/// Sends until there is a connection.
bool send_soon(ClientChannel& channel, std::string_view bytes) {
  for (const TimeNs end = now_ns() + kPatience; now_ns() < end; ::usleep(1000)) {
    if (channel.send(bytes) == SendResult::ok) {
      return true;
    }
  }
  return false;
}

bool receive_soon(ServerChannel& channel, std::string& peer, std::string& bytes) {
  Poller poller;
  poller.add(channel);
  return poller.wait(kPatience) == 1 && channel.receive(peer, bytes);
}

bool receive_soon(ClientChannel& channel, std::string& bytes) {
  Poller poller;
  poller.add(channel);
  return poller.wait(kPatience) == 1 && channel.receive(bytes);
}

/// Sends hellos until one is answered. On a busy machine several are under way by then, and so are
/// their answers: a last word each way, which comes after them, leaves both directions empty.
bool meet(Server& server, ClientChannel& client, std::string& peer) {
  std::string bytes;
  bool answered = false;
  for (const TimeNs end = now_ns() + kPatience; !answered && now_ns() < end; ::usleep(5000)) {
    client.send("hello");
    while (server.channel->receive(peer, bytes)) {
      server.channel->send(peer, "welcome");
    }
    answered = client.receive(bytes);
  }
  if (!answered || client.send("last") != SendResult::ok) {
    return false;
  }
  do {
    if (!receive_soon(*server.channel, peer, bytes)) {
      return false;
    }
  } while (bytes != "last");
  if (server.channel->send(peer, "last") != SendResult::ok) {
    return false;
  }
  do {
    if (!receive_soon(client, bytes)) {
      return false;
    }
  } while (bytes != "last");
  return true;
}

TEST(ZmqChannel, MessagesArriveInOrderAndAreCounted) {
  const TempDir dir;
  Server server = Server::on(dir);
  auto client = client_of(dir, "prefill0#1#1");
  ASSERT_TRUE(send_soon(*client, "first"));
  std::string peer;
  std::string bytes;
  ASSERT_TRUE(receive_soon(*server.channel, peer, bytes));
  EXPECT_EQ(peer, "prefill0#1#1");
  EXPECT_EQ(bytes, "first");
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(server.channel->send(peer, std::to_string(i)), SendResult::ok);
  }
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(receive_soon(*client, bytes));
    ASSERT_EQ(bytes, std::to_string(i));
  }
  EXPECT_FALSE(client->receive(bytes));
  EXPECT_FALSE(server.channel->receive(peer, bytes));
  EXPECT_EQ(client->counters().messages_sent, 1U);
  EXPECT_EQ(client->counters().bytes_sent, 5U);
  EXPECT_EQ(client->counters().messages_received, 1000U);
  EXPECT_EQ(client->counters().bytes_received, 2890U);
  EXPECT_EQ(server.channel->counters().messages_received, 1U);
  EXPECT_EQ(server.channel->counters().bytes_received, 5U);
  EXPECT_EQ(server.channel->counters().messages_sent, 1000U);
  EXPECT_EQ(server.channel->counters().bytes_sent, 2890U);
}

TEST(ZmqChannel, EmptyAndLargeMessages) {
  const TempDir dir;
  Server server = Server::on(dir);
  auto client = client_of(dir, "c");
  std::string peer;
  std::string bytes;
  ASSERT_TRUE(meet(server, *client, peer));
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{8} << 20U}) {
    const std::string big(size, '\xA5');
    ASSERT_TRUE(send_soon(*client, big));
    ASSERT_TRUE(receive_soon(*server.channel, peer, bytes));
    EXPECT_TRUE(bytes == big) << bytes.size() << " bytes instead of " << size;
  }
}

TEST(ZmqChannel, UnknownAndDepartedPeersAreUnreachable) {
  const TempDir dir;
  Server server = Server::on(dir);
  EXPECT_EQ(server.channel->send("nobody", "x"), SendResult::unreachable);
  EXPECT_EQ(server.channel->counters().messages_sent, 0U);
  std::string peer;
  {
    auto client = client_of(dir, "c");
    ASSERT_TRUE(meet(server, *client, peer));
  }
  SendResult result = SendResult::ok;
  for (const TimeNs end = now_ns() + kPatience; result == SendResult::ok && now_ns() < end;) {
    ::usleep(1000);
    result = server.channel->send(peer, "x");
  }
  EXPECT_EQ(result, SendResult::unreachable);
}

TEST(ZmqChannel, AFullQueueSaysAgainAndLosesNothing) {
  const TempDir dir;
  Server server = Server::on(dir, {.send_queue = 10, .receive_queue = 10});
  auto client = client_of(dir, "c", {.send_queue = 10, .receive_queue = 10});
  std::string peer;
  ASSERT_TRUE(meet(server, *client, peer));
  const std::string filler(64 << 10, 'x');  // the socket's own buffers fill early
  int sent = 0;
  SendResult result = SendResult::ok;
  const TimeNs end = now_ns() + kPatience;
  // `again` may pass while the I/O thread still moves messages: full is when it stays.
  for (int full = 0; full < 50 && now_ns() < end;) {
    result = server.channel->send(peer, std::to_string(sent) + " " + filler);
    if (result == SendResult::ok) {
      ++sent;
      full = 0;
    } else {
      ++full;
      ::usleep(1000);
    }
  }
  EXPECT_EQ(result, SendResult::again);
  EXPECT_GE(sent, 5);  // a queue gives its places back by the half
  EXPECT_LT(sent, 200);
  std::string bytes;
  for (int i = 0; i < sent; ++i) {
    ASSERT_TRUE(receive_soon(*client, bytes));
    ASSERT_EQ(bytes.substr(0, bytes.find(' ')), std::to_string(i));
  }
  EXPECT_EQ(server.channel->send(peer, "room again"), SendResult::ok);
  ASSERT_TRUE(receive_soon(*client, bytes));
  EXPECT_EQ(bytes, "room again");
}

TEST(ZmqChannel, AClientWithoutAServerSaysAgain) {
  const TempDir dir;
  auto client = client_of(dir, "c");
  std::string bytes;
  EXPECT_EQ(client->send("x"), SendResult::again);
  EXPECT_FALSE(client->receive(bytes));
  EXPECT_EQ(client->counters().messages_sent, 0U);
}

TEST(ZmqChannel, OversizeIsRefusedByTheSenderAndCostsAnIgnorantOneTheLink) {
  const TempDir dir;
  Server server = Server::on(dir, {.max_message_bytes = 1000});
  auto polite = client_of(dir, "polite", {.max_message_bytes = 1000});
  std::string peer;
  std::string bytes;
  ASSERT_TRUE(meet(server, *polite, peer));
  EXPECT_EQ(polite->send(std::string(1001, 'x')), SendResult::too_large);
  EXPECT_EQ(server.channel->send(peer, std::string(1001, 'x')), SendResult::too_large);
  ASSERT_EQ(polite->send(std::string(1000, 'x')), SendResult::ok);
  ASSERT_TRUE(receive_soon(*server.channel, peer, bytes));
  EXPECT_EQ(bytes.size(), 1000U);

  auto ignorant = client_of(dir, "ignorant", {.max_message_bytes = 1 << 20});
  ASSERT_TRUE(meet(server, *ignorant, peer));
  ASSERT_EQ(ignorant->send(std::string(100'000, 'x')), SendResult::ok);
  ASSERT_TRUE(send_soon(*polite, "still here")) << "others are not disturbed";
  while (receive_soon(*server.channel, peer, bytes)) {
    ASSERT_LE(bytes.size(), 1000U) << "the large one never arrives";
    if (bytes == "still here") {
      break;
    }
  }
  EXPECT_EQ(bytes, "still here");
  ASSERT_TRUE(meet(server, *ignorant, peer)) << "it reconnects under the same id";
}

TEST(ZmqChannel, ClientsComeBackToARestartedServer) {
  const TempDir dir;
  auto a = client_of(dir, "a#1#1");
  auto b = client_of(dir, "b#1#1");
  for (int life = 0; life < 3; ++life) {
    Server server = Server::on(dir);
    std::string peer;
    ASSERT_TRUE(meet(server, *a, peer)) << life;
    ASSERT_EQ(peer, "a#1#1");
    ASSERT_TRUE(meet(server, *b, peer)) << life;
    ASSERT_EQ(peer, "b#1#1");
  }
}

TEST(ZmqChannel, ARestartedClientUnderANewIdIsHeardAtOnce) {
  const TempDir dir;
  Server server = Server::on(dir);
  for (int life = 0; life < 20; ++life) {
    auto client = client_of(dir, make_routing_id("decode0", 7));
    std::string peer;
    ASSERT_TRUE(meet(server, *client, peer)) << life;
  }
}

TEST(ZmqChannel, AKilledServerIsReplacedAndAFrozenOneLosesNothing) {
  const TempDir dir;
  const auto spawn = [&]() -> pid_t {
    const pid_t pid = ::fork();
    if (pid == 0) {  // echoes until it is killed
      auto lock = LockFile::acquire(dir / "scheduler.lock");
      auto channel = bind_server(lock.value(), dir / "workers.sock");
      Poller poller;
      poller.add(*channel.value());
      std::string peer;
      std::string bytes;
      for (;;) {
        poller.wait(kSecond);
        while (channel.value()->receive(peer, bytes)) {
          channel.value()->send(peer, bytes + " from " + std::to_string(::getpid()));
        }
      }
    }
    return pid;
  };
  const auto answered_by = [&](ClientChannel& client, pid_t pid) {
    const std::string wanted = "ping from " + std::to_string(pid);
    std::string bytes;
    for (const TimeNs end = now_ns() + kPatience; now_ns() < end; ::usleep(5000)) {
      client.send("ping");
      while (client.receive(bytes)) {
        if (bytes == wanted) {
          return true;
        }
      }
    }
    return false;
  };
  const pid_t first = spawn();
  std::unique_ptr<ClientChannel> client;  // after the fork: libzmq's threads do not survive one
  client = client_of(dir, "c");
  EXPECT_TRUE(answered_by(*client, first));
  client.reset();
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  const pid_t second = spawn();
  client = client_of(dir, "d");
  EXPECT_TRUE(answered_by(*client, second)) << "the socket file of the dead is no obstacle";
  // A frozen one loses nothing that was sent to it, and answers under the same connection.
  ::kill(second, SIGSTOP);
  int sent = 0;
  for (; sent < 300; ++sent) {
    ASSERT_EQ(client->send("frozen " + std::to_string(sent)), SendResult::ok);
  }
  std::string bytes;
  ::usleep(300'000);
  while (client->receive(bytes)) {
    EXPECT_EQ(bytes.substr(0, 4), "ping") << "nobody can have answered yet";
  }
  ::kill(second, SIGCONT);
  for (int next = 0; next < sent;) {
    ASSERT_TRUE(receive_soon(*client, bytes)) << next;
    if (bytes.substr(0, 6) == "frozen") {
      EXPECT_EQ(bytes, "frozen " + std::to_string(next) + " from " + std::to_string(second));
      ++next;
    }
  }
  ::kill(second, SIGKILL);
  ::waitpid(second, nullptr, 0);
}

/// Processor time of libzmq's I/O threads in this process.
TimeNs io_threads_ran() {
  TimeNs sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (!name.starts_with("ZMQbg/IO")) continue;
    const pid_t id = std::stoi(task.path().filename());
    const auto clock =
        static_cast<clockid_t>(~static_cast<unsigned>(id) << 3U | 6U);  // clock_gettime(2)
    timespec time{};
    EXPECT_EQ(::clock_gettime(clock, &time), 0);
    sum += time.tv_sec * kSecond + time.tv_nsec;
  }
  return sum;
}

TEST(ZmqChannel, IoThreadsLookAgainOnlyIfTheyShall) {
  const TempDir dir;
  Server server = Server::on(dir);
  auto client = client_of(dir, "c");
  std::string peer;
  std::string bytes;
  ASSERT_TRUE(meet(server, *client, peer));
  const auto ran_after_a_message = [&] {
    const TimeNs before = io_threads_ran();
    EXPECT_EQ(client->send("x"), SendResult::ok);
    EXPECT_TRUE(receive_soon(*server.channel, peer, bytes));
    ::usleep(300'000);
    return io_threads_ran() - before;
  };
  EXPECT_LT(ran_after_a_message(), 5 * kMillisecond);
  // They give way to whatever else can run, so on a busy machine this takes a while.
  stay_awake_for(200 * kMillisecond);
  TimeNs spun = 0;
  for (const TimeNs until = now_ns() + kPatience; spun < 20 * kMillisecond && now_ns() < until;) {
    work_goes_on(now_ns());
    spun += ran_after_a_message();
  }
  stay_awake_for(0);
  EXPECT_GT(spun, 20 * kMillisecond)
      << "does epoll_wait of zmq_channel.cpp stand before the C library's?";
  ran_after_a_message();
  EXPECT_LT(ran_after_a_message(), 5 * kMillisecond);
}

TEST(ZmqChannel, IoThreadsThatStayAwakeConnectAgain) {
  const TempDir dir;
  stay_awake_for(3 * kPatience);
  work_goes_on(now_ns());
  auto client = client_of(dir, "c");
  std::string peer;
  for (int life = 0; life < 3; ++life) {
    Server server = Server::on(dir);
    EXPECT_TRUE(meet(server, *client, peer)) << life;
  }
  stay_awake_for(0);
}

TEST(ZmqChannel, TwoThreadsHopByHop) {
  const TempDir dir;
  std::atomic<bool> stop{false};
  std::thread echo([&] {
    Server server = Server::on(dir);
    Poller poller;
    poller.add(*server.channel);
    std::string peer;
    std::string bytes;
    while (!stop) {
      poller.wait(50 * kMillisecond);
      while (server.channel->receive(peer, bytes)) {
        server.channel->send(peer, bytes);
      }
    }
  });
  {
    auto client = client_of(dir, "c");
    std::string bytes;
    ASSERT_TRUE(send_soon(*client, "0"));
    for (int i = 0; i < 2000; ++i) {  // no edge may be missed: each hop waits for the one before
      ASSERT_TRUE(receive_soon(*client, bytes)) << i;
      ASSERT_EQ(bytes, std::to_string(i));
      ASSERT_EQ(client->send(std::to_string(i + 1)), SendResult::ok);
    }
  }
  stop = true;
  echo.join();
}

TEST(ZmqChannel, BindErrorsAreClear) {
  const TempDir dir;
  auto lock = LockFile::acquire(dir / "scheduler.lock");
  ASSERT_TRUE(lock.ok());
  const auto error = [&](const std::string& path) {
    auto channel = bind_server(lock.value(), path);
    return channel.ok() ? "bound" : channel.status().message();
  };
  const std::string longest = dir.path() + "/" + std::string(107 - dir.path().size() - 1, 's');
  EXPECT_EQ(error(longest), "bound");
  EXPECT_EQ(error(longest + "s"),
            "socket path '" + longest +
                "s' has 108 bytes; a unix socket takes at most 107: choose a shorter run_dir");
  EXPECT_EQ(error("workers.sock"), "socket path 'workers.sock' is not absolute");
  EXPECT_EQ(error("/tmp/workers.sock"), "socket /tmp/workers.sock is not in the directory that " +
                                            (dir / "scheduler.lock") + " locks");
  EXPECT_EQ(connect_client(longest + "s", "c").status().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(connect_client(longest, "").status().message(),
            "a routing id has 1 to 255 bytes, the first not zero");
}

TEST(ZmqChannel, TheSocketIsPrivate) {
  const TempDir dir;
  Server server = Server::on(dir);
  struct stat info {};
  ASSERT_EQ(::stat((dir / "workers.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST(ZmqChannel, RoutingIdsAreNeverUsedTwice) {
  EXPECT_NE(make_routing_id("a", 1), make_routing_id("a", 1));
  EXPECT_EQ(make_routing_id("a", 12).substr(0, 5), "a#12#");
}

}  // namespace
}  // namespace baton
