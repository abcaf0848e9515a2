// How ranks find each other, with real processes: who is refused, whose death ends what, and that a
// new group waits for the end of the old one.
#include "workers/collective/rank_group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "scheduler/state/outstanding.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

constexpr int kLostStatus = 41;

/// The scheduler must hear of a lost rank before it takes the worker for one that hangs in a pull,
/// or in the close of a mapping: with room for the process to end in.
static_assert(kPullPatience + 5 * kSecond <= longest(Work::pull));
static_assert(kPullPatience + 5 * kSecond <= longest(Work::close));

RankGroupOptions options_for(const TempDir& folder, int rank, int ranks) {
  RankGroupOptions options;
  options.run_dir = folder / "run";
  options.worker = "w";
  options.rank = rank;
  options.ranks = ranks;
  options.patience = 5 * kSecond;
  options.old_ones = 3 * kSecond;
  return options;
}

/// A process that joins and then does `body`; it ends with a status of its own when rank 0 is lost.
pid_t start_rank(const RankGroupOptions& options, const std::function<void(RankGroup&)>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  std::atomic<RankGroup*> mine{nullptr};
  auto group = RankGroup::join(options, [&](int) {
    RankGroup* joined = mine;
    ::_exit(joined != nullptr && joined->leaving() ? 0 : kLostStatus);
  });
  if (!group.ok()) ::_exit(1);
  mine = group.value().get();
  body(*group.value());
  ::_exit(0);
}

void wait_forever(RankGroup& /*group*/) {
  for (;;) ::pause();
}

int status_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class RankGroups : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(ensure_private_directory(folder / "run").ok()); }
  TempDir folder;
};

TEST_F(RankGroups, GatherLoadAndMap) {
  std::vector<pid_t> pids;
  for (const int rank : {1, 2}) {
    pids.push_back(start_rank(options_for(folder, rank, 3), [](RankGroup& group) {
      group.tell(RankState::loaded);
      const auto pool = group.wait_for_pool(5 * kSecond);
      if (!pool || pool->handle != "baton-pool" || pool->blocks != 7 || pool->allocation != 11)
        ::_exit(3);
      group.tell(RankState::mapped);
      std::string bytes;
      group.collective().broadcast(bytes, 100);
      if (bytes != "step") ::_exit(4);
      group.collective().barrier();
    }));
  }
  auto group = RankGroup::lead(options_for(folder, 0, 3), [](int) {});
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_EQ(group.value()->pid_of(1), pids[0]);
  EXPECT_TRUE(group.value()->wait_for(RankState::loaded, 5 * kSecond).ok());
  group.value()->offer_pool({"baton-pool", 7, 11});
  EXPECT_TRUE(group.value()->wait_for(RankState::mapped, 5 * kSecond).ok());
  std::string step = "step";
  group.value()->collective().broadcast(step, 100);
  group.value()->collective().barrier();
  for (const pid_t pid : pids) EXPECT_EQ(status_of(pid), 0);
}

TEST_F(RankGroups, AFailureIsToldWithItsReason) {
  const pid_t pid = start_rank(options_for(folder, 1, 2), [](RankGroup& group) {
    group.fail("tensor x: is missing");
    wait_forever(group);
  });
  auto group = RankGroup::lead(options_for(folder, 0, 2), [](int) {});
  ASSERT_TRUE(group.ok());
  const Status status = group.value()->wait_for(RankState::loaded, 5 * kSecond);
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(status.message(), "rank 1: tensor x: is missing");
  group.value()->end_others();
  EXPECT_EQ(status_of(pid), -SIGKILL);
}

/// Whoever waits for another rank meanwhile says what the first one has failed for.
TEST_F(RankGroups, AFailureIsToldWhileAnotherRankIsAwaited) {
  const pid_t loads = start_rank(options_for(folder, 1, 3), wait_forever);
  const pid_t fails = start_rank(options_for(folder, 2, 3), [](RankGroup& group) {
    ::usleep(300'000);  // the other one has come by then
    group.fail("tensor x: is missing");
    ::_exit(2);
  });
  auto group = RankGroup::lead(options_for(folder, 0, 3), [](int) {});
  ASSERT_TRUE(group.ok()) << group.status().message();
  const Status status = group.value()->wait_for(RankState::loaded, 5 * kSecond);
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(status.message(), "rank 2: tensor x: is missing");
  group.value()->end_others();
  EXPECT_EQ(status_of(loads), -SIGKILL);
  EXPECT_EQ(status_of(fails), 2);
}

/// Likewise where it has failed before the others came: nobody need wait for them.
TEST_F(RankGroups, AFailureIsToldBeforeAllHaveCome) {
  const pid_t fails = start_rank(options_for(folder, 2, 3), [](RankGroup& group) {
    group.fail("tensor x: is missing");
    ::_exit(2);
  });
  const TimeNs began = now_ns();
  const auto group = RankGroup::lead(options_for(folder, 0, 3), [](int) {});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(group.status().message(), "rank 2: tensor x: is missing");
  EXPECT_LT(now_ns() - began, 3 * kSecond);
  EXPECT_EQ(status_of(fails), 2);
}

/// Rank 2 gives up waiting for rank 1 and ends, long before rank 0 would have: the one that is lost
/// is rank 1 all the same.
TEST_F(RankGroups, TheFirstThatIsLostIsNamed) {
  const pid_t frozen = start_rank(options_for(folder, 1, 3), [](RankGroup& group) {
    ::kill(::getpid(), SIGSTOP);
    wait_forever(group);
  });
  RankGroupOptions hasty = options_for(folder, 2, 3);
  hasty.collective.patience = 200 * kMillisecond;
  const pid_t leaves = start_rank(hasty, [](RankGroup& group) {
    try {
      group.collective().barrier();
    } catch (const RankLost&) {
      ::_exit(kLostStatus);
    }
  });
  std::atomic<int> named{-1};
  auto group = RankGroup::lead(options_for(folder, 0, 3), [&](int rank) { named = rank; });
  ASSERT_TRUE(group.ok()) << group.status().message();
  try {
    group.value()->collective().barrier();
    ADD_FAILURE() << "rank 1 has not come";
  } catch (const RankLost& lost) {
    EXPECT_EQ(lost.rank(), 1);
    EXPECT_STREQ(lost.what(), "rank 1 does not come");
  }
  EXPECT_EQ(status_of(leaves), kLostStatus);
  for (int i = 0; i < 1000 && named < 0; ++i) ::usleep(2000);
  EXPECT_EQ(named, 1);
  EXPECT_EQ(group.value()->words_of_loss(1), "rank 1 does not come");
  group.value()->end_others();
  EXPECT_EQ(status_of(frozen), -SIGKILL);
}

/// The thread of the pulls may be the only one that waits for it.
TEST_F(RankGroups, AFrozenRankIsFoundByAPull) {
  const pid_t frozen = start_rank(options_for(folder, 1, 2), [](RankGroup& group) {
    ::kill(::getpid(), SIGSTOP);
    wait_forever(group);
  });
  RankGroupOptions options = options_for(folder, 0, 2);
  options.pull_patience = 200 * kMillisecond;
  auto group = RankGroup::lead(options, [](int) {});
  ASSERT_TRUE(group.ok()) << group.status().message();
  const TimeNs began = now_ns();
  std::string asked = "map it";
  EXPECT_THROW(group.value()->pulls().broadcast(asked, 100), RankLost);
  EXPECT_GE(now_ns() - began, 200 * kMillisecond);
  EXPECT_LT(now_ns() - began, 3 * kSecond) << "the patience of steps has not begun";
  group.value()->end_others();
  EXPECT_EQ(status_of(frozen), -SIGKILL);
}

TEST_F(RankGroups, ADeathIsToldBeforeAnyExchangeThrows) {
  const pid_t pid = start_rank(options_for(folder, 1, 2), wait_forever);
  std::atomic<int> lost{-1};
  auto group = RankGroup::lead(options_for(folder, 0, 2), [&](int rank) { lost = rank; });
  ASSERT_TRUE(group.ok());
  ::kill(pid, SIGKILL);
  const TimeNs began = now_ns();
  EXPECT_THROW(group.value()->collective().barrier(), RankLost);
  EXPECT_EQ(lost.load(), 1);
  EXPECT_LT(now_ns() - began, kSecond);
  EXPECT_FALSE(group.value()->wait_for(RankState::mapped, kSecond).ok());
  EXPECT_EQ(status_of(pid), -SIGKILL);
}

/// The others end with rank 0: as a loss, or in order if it has said so.
TEST_F(RankGroups, RankZeroTakesTheOthersAlong) {
  for (const bool in_order : {false, true}) {
    const pid_t leader = ::fork();
    if (leader == 0) {
      auto group = RankGroup::lead(options_for(folder, 0, 2), [](int) {});
      if (!group.ok()) ::_exit(1);
      if (in_order) group.value()->leave();
      ::usleep(50'000);
      ::kill(::getpid(), SIGKILL);
    }
    const pid_t pid = start_rank(options_for(folder, 1, 2), wait_forever);
    EXPECT_EQ(status_of(pid), in_order ? 0 : kLostStatus);
    EXPECT_EQ(status_of(leader), -SIGKILL);
  }
}

/// A frozen rank may be in the middle of a write: no new group before it has ended.
TEST_F(RankGroups, ANewGroupWaitsForTheEndOfTheOldOne) {
  const pid_t leader = ::fork();
  if (leader == 0) {
    auto group = RankGroup::lead(options_for(folder, 0, 2), [](int) {});
    if (!group.ok()) ::_exit(1);
    while (!process_stopped(group.value()->pid_of(1))) ::usleep(1000);
    ::_exit(0);
  }
  const pid_t frozen = start_rank(options_for(folder, 1, 2), [](RankGroup& group) {
    ::kill(::getpid(), SIGSTOP);
    wait_forever(group);
  });
  int status = 0;
  ::waitpid(frozen, &status, WUNTRACED);
  ASSERT_TRUE(WIFSTOPPED(status));
  ASSERT_EQ(status_of(leader), 0);

  RankGroupOptions next = options_for(folder, 0, 2);
  next.old_ones = 300 * kMillisecond;
  const auto refused = RankGroup::lead(next, [](int) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "a rank of the last w has not ended");

  const pid_t fresh = start_rank(options_for(folder, 1, 2), wait_forever);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(frozen, SIGKILL);
  });
  const TimeNs began = now_ns();
  auto group = RankGroup::lead(options_for(folder, 0, 2), [](int) {});
  killer.join();
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_GE(now_ns() - began, 150 * kMillisecond);
  EXPECT_EQ(status_of(frozen), -SIGKILL);
  group.value()->end_others();
  EXPECT_EQ(status_of(fresh), -SIGKILL);
}

/// A second process of the same rank, or one of another size of group, gets no memory.
TEST_F(RankGroups, RefusesWhoDoesNotFit) {
  const pid_t pid = start_rank(options_for(folder, 1, 3), wait_forever);
  RankGroupOptions misled = options_for(folder, 1, 2);
  misled.patience = kSecond;
  const pid_t stranger = start_rank(misled, wait_forever);
  RankGroupOptions lonely = options_for(folder, 0, 3);
  lonely.patience = 500 * kMillisecond;
  const auto group = RankGroup::lead(lonely, [](int) {});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().message(), "rank 2 has not come");
  EXPECT_EQ(status_of(stranger), 1);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(status_of(pid), -SIGKILL);
}

}  // namespace
}  // namespace baton
