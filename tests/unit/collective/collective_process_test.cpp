// The same between processes, which are killed and frozen.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "workers/collective/collective.h"
#include "workers/collective/watchdog.h"

namespace baton {
namespace {

/// Ranks 1 .. n - 1 as forked processes; rank 0 is this one. What is left is killed.
class Group {
 public:
  Group(ExchangeMemory shared, const std::function<int(const ExchangeMemory&, int)>& body)
      : memory(std::move(shared)) {
    for (int rank = 1; rank < memory.ranks(); ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) ::_exit(body(memory, rank));
      pids.push_back(pid);
    }
  }
  ~Group() {
    for (const pid_t pid : pids) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    for (const pid_t pid : pids) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
    }
  }
  pid_t pid_of(int rank) const { return pids[static_cast<std::size_t>(rank) - 1]; }
  /// The exit status of a rank, -1 if a signal has ended it, nothing if it lives on.
  std::optional<int> status_of(int rank, TimeNs patience) {
    pid_t& pid = pids[static_cast<std::size_t>(rank) - 1];
    const TimeNs end = now_ns() + patience;
    for (;;) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) == pid) {
        pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      if (now_ns() >= end) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  ExchangeMemory memory;
  std::vector<pid_t> pids;
};

constexpr int kLost = 33;  // what a rank ends with that was let go

/// Takes rank 0's bytes until the group is over.
int exchange_bytes(const ExchangeMemory& memory, int rank) {
  CollectiveOptions options;
  options.patience = 20 * kMillisecond;
  Collective c(memory, rank, options);
  std::string bytes;
  try {
    for (;;) c.broadcast(bytes, 100);
  } catch (const RankLost& e) {
    return e.silent() ? 1 : kLost;
  }
}

/// Exchanges until the group is over.
int exchange_on(const ExchangeMemory& memory, int rank) {
  try {
    Collective c(memory, rank);
    std::vector<float> data(300, static_cast<float>(rank));
    for (;;) {
      c.all_reduce(data.data(), 300);
      for (float& x : data) x = static_cast<float>(rank);
    }
  } catch (const RankLost&) {
    return kLost;
  }
}

TEST(CollectiveProcesses, SumAndGather) {
  Group group(ExchangeMemory::create(3).value(), [](const ExchangeMemory& memory, int rank) {
    Collective c(memory, rank);
    for (std::uint64_t i = 0; i < 2000; ++i) c.all_gather(i * 3 + static_cast<std::uint64_t>(rank));
    return 0;
  });
  Collective c(group.memory, 0);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto all = c.all_gather(i * 3);
    for (std::uint64_t r = 0; r < 3; ++r) ASSERT_EQ(all[r], i * 3 + r);
  }
  EXPECT_EQ(group.status_of(1, 5 * kSecond), 0);
  EXPECT_EQ(group.status_of(2, 5 * kSecond), 0);
}

/// kill -9 in the middle of an exchange: the others are out within a second, over and over.
TEST(CollectiveProcesses, AKilledRankIsLeftAtOnce) {
  TimeNs longest = 0;
  for (int round = 0; round < 10; ++round) {
    Group group(ExchangeMemory::create(3).value(), exchange_on);
    Watchdog watchdog([&](int rank) { Collective::abort(group.memory, rank); });
    for (const int rank : {1, 2}) ASSERT_TRUE(watchdog.watch(rank, group.pid_of(rank)));
    TimeNs killed = 0;
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 + 7 * round));
      killed = now_ns();
      ::kill(group.pid_of(1 + round % 2), SIGKILL);
    });
    EXPECT_EQ(exchange_on(group.memory, 0), kLost);
    killer.join();
    longest = std::max(longest, now_ns() - killed);
    const int other = 2 - round % 2;
    EXPECT_EQ(group.status_of(other, kSecond), kLost);
    EXPECT_EQ(group.memory.head().aborted.load(), static_cast<std::uint32_t>(1 + round % 2) + 1);
  }
  EXPECT_LT(longest, kSecond);
}

/// A frozen rank has a pidfd that says nothing: patience ends the wait, and then the rank.
TEST(CollectiveProcesses, AFrozenRankIsLeftAndEnded) {
  Group group(ExchangeMemory::create(2).value(), exchange_on);
  std::atomic<int> ended{-1};
  Watchdog watchdog([&](int rank) { ended = rank; });
  ASSERT_TRUE(watchdog.watch(1, group.pid_of(1)));
  CollectiveOptions options;
  options.patience = 200 * kMillisecond;
  Collective c(group.memory, 0, options);
  std::vector<float> data(300);
  c.all_reduce(data.data(), 300);
  ASSERT_EQ(::kill(group.pid_of(1), SIGSTOP), 0);
  const TimeNs began = now_ns();
  int lost = -1;
  try {
    for (;;) c.all_reduce(data.data(), 300);
  } catch (const RankLost& e) {
    lost = e.rank();
    EXPECT_TRUE(e.silent());
  }
  EXPECT_EQ(lost, 1);
  EXPECT_LT(now_ns() - began, kSecond);
  watchdog.kill(lost);
  EXPECT_EQ(group.status_of(1, kSecond), -1);
  for (int i = 0; i < 500 && ended != 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(ended.load(), 1);
}

/// Exchanges once, then computes for so long, and exchanges again.
int compute_between(const ExchangeMemory& memory, int rank, TimeNs how_long) {
  try {
    Collective c(memory, rank);
    c.all_gather(1);
    for (const TimeNs end = now_ns() + how_long; now_ns() < end;) {
      c.progress().fetch_add(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    c.all_gather(2);
    return 0;
  } catch (const RankLost&) {
    return kLost;
  }
}

constexpr TimeNs kComputePatience = 400 * kMillisecond;

/// A long step is none that has stopped, as long as it is seen to get on.
TEST(CollectiveProcesses, ARankThatComputesIsWaitedFor) {
  Group group(ExchangeMemory::create(2).value(), [](const ExchangeMemory& memory, int rank) {
    return compute_between(memory, rank, 4 * kComputePatience);
  });
  Collective c(group.memory, 0, {kComputePatience});
  c.all_gather(1);
  const TimeNs began = now_ns();
  EXPECT_NO_THROW(c.all_gather(2));
  EXPECT_GE(now_ns() - began, 3 * kComputePatience);
  EXPECT_EQ(group.status_of(1, 5 * kSecond), 0);
}

/// The time runs from the last change that was seen, not from the beginning of the step.
TEST(CollectiveProcesses, OneThatFreezesWhileItComputesIsLeft) {
  Group group(ExchangeMemory::create(2).value(), [](const ExchangeMemory& memory, int rank) {
    return compute_between(memory, rank, 60 * kSecond);
  });
  Collective c(group.memory, 0, {kComputePatience});
  c.all_gather(1);
  std::atomic<TimeNs> stopped{0};
  std::thread freezer([&] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kComputePatience));
    stopped = now_ns();
    ::kill(group.pid_of(1), SIGSTOP);
  });
  try {
    c.all_gather(2);
    ADD_FAILURE() << "nobody else has come";
  } catch (const RankLost& e) {
    EXPECT_EQ(e.rank(), 1);
    EXPECT_TRUE(e.silent());
  }
  const TimeNs left = now_ns();
  freezer.join();
  EXPECT_GE(left, stopped);
  EXPECT_LT(left - stopped, kComputePatience + kSecond);
}

using PatienceOf = std::function<TimeNs(int rank, TimeNs late)>;

PatienceOf same_for_all(TimeNs patience) {
  return [patience](int, TimeNs) { return patience; };
}

/// Rank 0 looks, as it does while a step is on the devices, until `enough` says that it is enough.
std::optional<RankLost> looks_until(Collective& c, const PatienceOf& patience,
                                    const std::function<bool()>& enough) {
  try {
    while (!enough()) {
      c.look_for_late(patience);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const RankLost& lost) {
    return lost;
  }
  return std::nullopt;
}

/// Between two exchanges nobody waits for the others, and a rank that stands still is seen all the
/// same. One that has come to the next exchange has nothing to get on with; one that computes does.
TEST(CollectiveProcesses, OneThatFreezesBetweenExchangesIsSeen) {
  Group group(ExchangeMemory::create(2).value(), [](const ExchangeMemory& memory, int rank) {
    return compute_between(memory, rank, 60 * kSecond);
  });
  Collective c(group.memory, 0, {kComputePatience});
  c.all_gather(1);
  const TimeNs began = now_ns();
  const auto computed = [&] { return now_ns() - began > 3 * kComputePatience; };
  const PatienceOf patience = same_for_all(kComputePatience);
  EXPECT_FALSE(looks_until(c, patience, computed).has_value());
  // What happens while nobody looks does not count.
  std::this_thread::sleep_for(std::chrono::nanoseconds(3 * kComputePatience));
  EXPECT_NO_THROW(c.look_for_late(patience));
  ::kill(group.pid_of(1), SIGSTOP);
  const TimeNs stopped = now_ns();
  const auto lost = looks_until(c, patience, [&] { return now_ns() - stopped > 20 * kSecond; });
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->rank(), 1);
  EXPECT_TRUE(lost->silent());
  EXPECT_LT(now_ns() - stopped, kComputePatience + kSecond);
  EXPECT_THROW(c.look_for_late(same_for_all(kSecond)), RankLost);
}

TEST(CollectiveProcesses, OneThatWaitsForTheNextExchangeIsNotLate) {
  Group group(ExchangeMemory::create(2).value(), exchange_bytes);
  Collective c(group.memory, 0, {20 * kMillisecond});
  std::string bytes = "plan";
  c.broadcast(bytes, 100);
  const TimeNs began = now_ns();
  const auto enough = [&] { return now_ns() - began > 200 * kMillisecond; };
  EXPECT_FALSE(looks_until(c, same_for_all(20 * kMillisecond), enough).has_value());
  Collective::abort(group.memory, 0);
}

/// What a rank is given is asked for each; one that is given more is not named before it.
TEST(CollectiveProcesses, TheOneWhosePatienceIsOverIsNamed) {
  Group group(ExchangeMemory::create(3).value(), [](const ExchangeMemory& memory, int rank) {
    return compute_between(memory, rank, 60 * kSecond);
  });
  Collective c(group.memory, 0);
  c.all_gather(1);
  const auto patience = [](int rank, TimeNs) {
    return rank == 1 ? 60 * kSecond : kComputePatience;
  };
  EXPECT_NO_THROW(c.look_for_late(patience));
  for (const int rank : {1, 2}) ::kill(group.pid_of(rank), SIGSTOP);
  const TimeNs stopped = now_ns();
  const auto lost = looks_until(c, patience, [&] { return now_ns() - stopped > 20 * kSecond; });
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->rank(), 2);
  EXPECT_TRUE(lost->silent());
}

/// Rank 0 may be idle for hours: the others wait for its bytes without an end, but for its death.
TEST(CollectiveProcesses, IdleRanksWaitForRankZero) {
  Group group(ExchangeMemory::create(2).value(), exchange_bytes);
  Collective c(group.memory, 0);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    std::string bytes = "plan";
    c.broadcast(bytes, 100);
  }
  EXPECT_FALSE(group.status_of(1, 100 * kMillisecond).has_value());
  Collective::abort(group.memory, 0);
  EXPECT_EQ(group.status_of(1, kSecond), kLost);
}

TEST(Watchdog, WatchesNobodyWhoIsNotThere) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  Watchdog watchdog([](int) {});
  EXPECT_FALSE(watchdog.watch(1, pid));
}

}  // namespace
}  // namespace baton
