#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <memory>
#include <thread>

#include "ipc/channel.h"
#include "ipc/process.h"
#include "tests/fakes/fake_channel.h"

namespace baton {
namespace {

using testing::FakeClient;
using testing::FakeServer;
using testing::FakeWire;

constexpr TimeNs kPatience = 10 * kSecond;  // only a broken poller takes as long

TEST(Poller, TimesOutToTheMicrosecondAndNotEarly) {
  Poller poller;
  const UniqueFd event(::eventfd(0, EFD_NONBLOCK));
  const auto index = poller.add_fd(event.get());
  const TimeNs before = now_ns();
  EXPECT_EQ(poller.wait(300'000), 0);
  EXPECT_GE(now_ns() - before, 300'000);
  EXPECT_FALSE(poller.ready(index));
  EXPECT_EQ(poller.wait(0), 0);
  EXPECT_EQ(poller.wait(-5), 0) << "a deadline in the past only looks";
}

TEST(Poller, TellsDescriptorsAndChannelsApart) {
  auto wire = std::make_shared<FakeWire>();
  FakeServer server(wire);
  FakeClient client(wire, "c");
  const UniqueFd event(::eventfd(1, EFD_NONBLOCK));
  Poller poller;
  const auto s = poller.add(server);
  const auto c = poller.add(client);
  const auto e = poller.add_fd(event.get());
  EXPECT_EQ(poller.wait(kPatience), 1);
  EXPECT_TRUE(poller.ready(e));
  EXPECT_FALSE(poller.ready(s));
  ASSERT_EQ(client.send("x"), SendResult::ok);
  EXPECT_EQ(poller.wait(kPatience), 2);
  EXPECT_EQ(poller.revents(s), POLLIN);
  EXPECT_FALSE(poller.ready(c));
  poller.clear();
  EXPECT_EQ(poller.add(client), 0U);
  EXPECT_EQ(poller.wait(0), 0);
  EXPECT_FALSE(poller.ready(99));
}

TEST(Poller, AWakerFromAnotherThreadEndsTheWait) {
  Waker waker;
  Poller poller;
  const auto index = poller.add_fd(waker.fd());
  std::thread other([&] { waker.wake(); });
  EXPECT_EQ(poller.wait(Poller::kForever), 1);
  EXPECT_TRUE(poller.ready(index));
  other.join();
  waker.clear();
  EXPECT_EQ(poller.wait(0), 0);
}

// ------------------------------------------------------------------------------- the fake

TEST(FakeChannel, BehavesLikeTheRealOne) {
  auto wire = std::make_shared<FakeWire>();
  FakeClient client(wire, "c");
  std::string peer;
  std::string bytes;
  EXPECT_EQ(client.send("x"), SendResult::again) << "nobody listens";
  FakeServer server(wire);
  EXPECT_EQ(server.send("nobody", "x"), SendResult::unreachable);
  EXPECT_EQ(client.send("x"), SendResult::ok);
  EXPECT_TRUE(server.readable());
  ASSERT_TRUE(server.receive(peer, bytes));
  EXPECT_EQ(peer + bytes, "cx");
  EXPECT_FALSE(server.receive(peer, bytes));
  wire->queue_limit = 1;
  EXPECT_EQ(server.send("c", "1"), SendResult::ok);
  EXPECT_EQ(server.send("c", "2"), SendResult::again);
  ASSERT_TRUE(client.receive(bytes));
  EXPECT_EQ(bytes, "1");
  wire->peers["c"].connected = false;
  EXPECT_EQ(server.send("c", "3"), SendResult::unreachable);
  EXPECT_EQ(client.send("x"), SendResult::again);
  EXPECT_EQ(server.counters().bytes_sent, 1U);
  EXPECT_EQ(client.counters().bytes_received, 1U);
}

}  // namespace
}  // namespace baton
