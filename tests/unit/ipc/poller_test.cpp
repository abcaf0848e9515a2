#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "ipc/channel.h"
#include "ipc/process.h"
#include "ipc/spin.h"
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

// ------------------------------------------------------------------------------- looking again

struct AwakeFor {
  explicit AwakeFor(TimeNs after_work) { stay_awake_for(after_work); }
  ~AwakeFor() { stay_awake_for(0); }
};

TEST(Spin, LooksAgainWhileThereIsWork) {
  Spin spin;
  spin.heard();
  EXPECT_FALSE(spin.again()) << "off at the start";
  work_goes_on(now_ns());
  EXPECT_FALSE(spin.again()) << "still off";
  const AwakeFor on(20 * kMillisecond);
  EXPECT_FALSE(spin.again()) << "nothing came since";
  const auto looks_from = [&](TimeNs begin) {
    while (spin.again()) {
    }
    return now_ns() - begin;  // however late this thread gets its processor
  };
  TimeNs begin = now_ns();
  spin.heard();
  EXPECT_GE(looks_from(begin), kMillisecond / 2) << "until the main loop can have seen it";
  begin = now_ns();
  work_goes_on(begin);
  EXPECT_GE(looks_from(begin), 20 * kMillisecond);
  EXPECT_FALSE(spin.again());
}

/// How often this thread went to sleep while another one woke it three times, 2 ms apart.
long sleeps_of_three_waits() {
  Waker waker;
  Poller poller;
  poller.add_fd(waker.fd());
  const auto slept = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      waker.wake();
    }
  });
  const long before = slept();
  for (int woken = 0; woken < 3;) {
    EXPECT_EQ(poller.wait(kPatience), 1);
    std::uint64_t count = 0;
    if (::read(waker.fd(), &count, sizeof count) == sizeof count) woken += static_cast<int>(count);
  }
  const long sleeps = slept() - before;
  other.join();
  return sleeps;
}

/// Another process may hold a thread back for longer than the wakes are apart, or take a page away.
constexpr int kTriesOnABusyMachine = 20;

TEST(Poller, LooksAgainInsteadOfSleeping) {
  long sleeps = 0;
  for (int i = 0; i < kTriesOnABusyMachine && sleeps == 0; ++i) sleeps = sleeps_of_three_waits();
  EXPECT_GT(sleeps, 0);
  const AwakeFor on(kPatience);
  for (int i = 0; i < kTriesOnABusyMachine && sleeps > 0; ++i) {
    work_goes_on(now_ns());
    sleeps = sleeps_of_three_waits();
  }
  EXPECT_EQ(sleeps, 0);
}

TEST(Poller, LookingAgainEndsWithTheTimeOut) {
  const AwakeFor on(kPatience);
  work_goes_on(now_ns());
  Waker waker;
  Poller poller;
  const auto index = poller.add_fd(waker.fd());
  waker.wake();
  EXPECT_EQ(poller.wait(kPatience), 1);
  waker.clear();
  const TimeNs before = now_ns();
  EXPECT_EQ(poller.wait(2 * kMillisecond), 0);
  EXPECT_GE(now_ns() - before, 2 * kMillisecond);
  EXPECT_LT(now_ns() - before, kPatience / 2);
  EXPECT_FALSE(poller.ready(index));
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
