#include <sys/socket.h>

#include <thread>

#include "frontend/succession/inheritance.h"
#include "frontend/succession/twin.h"
#include "tests/unit/frontend/front_end_process.h"

// Who dies when: front ends, twins and successors.

namespace baton {
namespace {

using TwinDeaths = FrontEnds;

TEST_F(TwinDeaths, AKilledTwinIsReplacedAndTheNewOneHasAll) {
  const pid_t pid = spawn([&] {
    Twin& twin = start_twin();
    const UniqueFd listener = commit_and_listen(twin);
    board_->reach(Point::committed);
    go_on(accept_tcp(listener.get()).release());
    for (int i = 0; i < 5; ++i) {
      ::kill(twin.pid(), SIGKILL);
      pollfd entry{twin.fd(), POLLIN, 0};
      if (::poll(&entry, 1, 1000) != 1) fail("no end of the twin is seen");
      if (!twin.replace().ok()) fail("not replaced");
    }
    board_->twin = twin.pid();
    board_->reach(Point::serving);
  });
  ASSERT_TRUE(board_->wait_for(Point::committed));
  std::vector<Client> clients = connect_many(1);
  ASSERT_TRUE(board_->wait_for(Point::serving));
  EXPECT_EQ(std::stoi(folder_.read("frontend0.twin.pid")), board_->twin);
  kill_now(pid);
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  finish(clients, *legacy, 3000);
  legacy->release();
  clients[0].read_to_end();
  EXPECT_EQ(clients[0].got, 3000U);
  EXPECT_TRUE(no_process_left());
}

TEST_F(TwinDeaths, ATwinOfAProcessWhoseThreadsAllocateWorks) {
  const pid_t pid = spawn([&] {
    Twin& twin = start_twin();
    const UniqueFd listener = commit_and_listen(twin);
    board_->reach(Point::committed);
    go_on(accept_tcp(listener.get()).release());
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([] {
        for (std::size_t size = 1;; size = size * 7 % 100'003 + 1) {
          std::vector<std::string> texts(8, std::string(size, 'x'));
          if (texts.back().size() != size) std::abort();
        }
      });
    }
    for (int i = 0; i < 8; ++i) {
      if (!twin.replace().ok()) fail("not replaced");
      if (::getsid(twin.pid()) != twin.pid()) fail("it hangs");
    }
    board_->twin = twin.pid();
    board_->reach(Point::serving);
    ::pause();
  });
  ASSERT_TRUE(board_->wait_for(Point::committed));
  std::vector<Client> clients = connect_many(1);
  ASSERT_TRUE(board_->wait_for(Point::serving));
  kill_now(pid);
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  ASSERT_EQ(legacy->connections.size(), 1U);
  finish(clients, *legacy, 3000);
  legacy->release();
  clients[0].read_to_end();
  EXPECT_EQ(clients[0].got, 3000U);
  EXPECT_TRUE(no_process_left());
}

TEST_F(TwinDeaths, ATwinThatDiedBeforeTheCommitIsReplacedByIt) {
  const pid_t pid = spawn([&] {
    Twin& twin = start_twin();
    ::kill(twin.pid(), SIGKILL);
    pollfd entry{twin.fd(), POLLIN, 0};
    ::poll(&entry, 1, 1000);
    commit_and_listen(twin).release();
    board_->reach(Point::serving);
  });
  ASSERT_TRUE(board_->wait_for(Point::serving));
  kill_now(pid);
  EXPECT_TRUE(fetch());
}

TEST_F(TwinDeaths, AStoppedTwinIsContinuedAndOneThatStaysStoppedIsReplaced) {
  spawn([&] {
    Twin& twin = start_twin();
    commit_and_listen(twin).release();
    const std::int32_t first = twin.pid();
    const auto stop = [&] {
      ::kill(first, SIGSTOP);
      while (!process_stopped(first)) ::usleep(200);
    };
    stop();
    if (!twin.look_after().ok() || twin.pid() != first) fail("replaced at once");
    while (process_stopped(first)) ::usleep(200);
    if (!twin.look_after().ok() || twin.pid() != first) fail("replaced though it runs");
    stop();
    if (!twin.look_after().ok()) fail("error");
    stop();
    if (!twin.look_after().ok() || twin.pid() == first) fail("not replaced");
    ::kill(twin.pid(), SIGKILL);
    pollfd entry{twin.fd(), POLLIN, 0};
    ::poll(&entry, 1, 1000);
    const std::int32_t second = twin.pid();
    if (!twin.look_after().ok() || twin.pid() == second) fail("a dead one was not replaced");
    board_->reach(Point::serving);
  });
  EXPECT_TRUE(board_->wait_for(Point::serving));
}

TEST_F(TwinDeaths, ATwinThatIsStoppedWhenItsFrontEndDiesIsContinued) {
  const pid_t pid = front_end();
  ASSERT_NE(pid, 0);
  ::kill(board_->twin, SIGSTOP);
  kill_now(pid);
  EXPECT_TRUE(fetch());
}

TEST_F(TwinDeaths, ASuccessorThatDiesBeforeItCommitsLeavesAllToTheNext) {
  const pid_t first = front_end();
  ASSERT_NE(first, 0);
  std::vector<Client> clients = connect_many(3);
  for (Client& client : clients) client.read_until(1000);
  kill_now(first);
  for (const Point point : {Point::twin, Point::fetched, Point::fetched}) {
    const pid_t pid = front_end(point);
    ASSERT_NE(pid, 0);
    const pid_t twin = board_->twin;
    kill_now(pid);
    EXPECT_TRUE(ends(twin)) << "a preparing one's twin leaves at once";
    EXPECT_FALSE(is_file("frontend0.twin." + std::to_string(pid)));
  }
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  EXPECT_EQ(legacy->connections.size(), 3U);
  EXPECT_EQ(legacy->listeners.size(), 1U);
  finish(clients, *legacy, 2000);
  legacy->release();
  for (Client& client : clients) {
    client.read_to_end();
    EXPECT_EQ(client.got, 2000U);
  }
  EXPECT_TRUE(no_process_left());
}

TEST_F(TwinDeaths, ASuccessorThatDiesBetweenCommitAndReleaseIsInheritedItself) {
  const pid_t first = front_end();
  ASSERT_NE(first, 0);
  const pid_t first_twin = board_->twin;
  std::vector<Client> clients = connect_many(3);
  for (Client& client : clients) client.read_until(1000);
  kill_now(first);
  const pid_t second = front_end(Point::committed);
  ASSERT_NE(second, 0);
  const pid_t second_twin = board_->twin;
  kill_now(second);
  EXPECT_TRUE(ends(first_twin)) << "another one has its place";
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  EXPECT_EQ(legacy->connections.size(), 3U);
  EXPECT_EQ(legacy->listeners.size(), 1U);
  finish(clients, *legacy, 3000);
  legacy->release();
  EXPECT_TRUE(ends(second_twin));
  for (Client& client : clients) {
    client.read_to_end();
    EXPECT_EQ(client.got, 3000U);
    EXPECT_FALSE(client.wrong);
  }
}

TEST_F(TwinDeaths, AnOldTwinLeavesOnceItsSuccessorHasCommitted) {
  const pid_t first = front_end();
  ASSERT_NE(first, 0);
  const pid_t first_twin = board_->twin;
  kill_now(first);
  ASSERT_NE(front_end(Point::committed), 0);
  EXPECT_TRUE(ends(first_twin)) << "not released, but of no use any more";
}

TEST_F(TwinDeaths, ASuccessorThatSaysNothingIsLeftForTheNext) {
  waits_.says_nothing = 300 * kMillisecond;
  const pid_t first = front_end();
  ASSERT_NE(first, 0);
  Client client = connect();
  client.read_until(1000);
  kill_now(first);
  ASSERT_NE(front_end(Point::fetched), 0);  // lives, and does nothing
  auto legacy = fetch();
  ASSERT_TRUE(legacy);
  EXPECT_EQ(legacy->connections.size(), 1U);
}

TEST_F(TwinDeaths, WithoutASuccessorTheClientsAreLetGo) {
  waits_.nobody_comes = 250 * kMillisecond;
  const pid_t pid = front_end();
  ASSERT_NE(pid, 0);
  const pid_t twin = board_->twin;
  Client client = connect();
  client.read_until(1000);
  kill_now(pid);
  ::usleep(100'000);
  client.read();
  EXPECT_FALSE(client.ended || client.broken) << "too early";
  EXPECT_TRUE(ends(twin));
  client.read_to_end();
  EXPECT_TRUE(client.ended);
  EXPECT_FALSE(fetch()) << "the file is there, but nobody";
  ASSERT_NE(front_end(), 0) << "and it is in nobody's way";
}

TEST_F(TwinDeaths, APredecessorThatLivesOnIsAnErrorAndOneThatEndsIsWaitedFor) {
  const pid_t pid = front_end();
  ASSERT_NE(pid, 0);
  const TimeNs begin = now_ns();
  const auto refused = Inheritance::fetch(folder_.path(), kName, 150 * kMillisecond);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find(std::to_string(pid)), std::string::npos);
  EXPECT_GE(now_ns() - begin, 140 * kMillisecond);
  EXPECT_LT(now_ns() - begin, patience(kSecond));
  spawn([pid] {
    ::usleep(150'000);
    ::kill(pid, SIGKILL);
  });
  EXPECT_TRUE(fetch());
}

}  // namespace
}  // namespace baton
