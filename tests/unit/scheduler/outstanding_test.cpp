// What is late, what is lost, what hangs: one record at a time.
#include "scheduler/state/outstanding.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr TimeNs kTimeout = 3 * kSecond;
using Fault = Verdict::Fault;

TEST(Outstanding, OnlyTheMissingMessagesAgeCounts) {
  OutstandingWork work;
  for (int i = 0; i < 5; ++i) work.add(Work::pull, 1, 10 + i, 0);
  work.acknowledge(Work::pull, 5, kSecond);
  work.add(Work::pull, 1, 20, 10 * kSecond);  // the others are 10 s old, and arrived long ago
  EXPECT_EQ(work.judge(11 * kSecond, 11 * kSecond, kTimeout).fault, Fault::none);
  EXPECT_EQ(work.judge(13 * kSecond, 13 * kSecond, kTimeout).fault, Fault::none);
  const Verdict verdict = work.judge(14 * kSecond, 14 * kSecond, kTimeout);
  EXPECT_EQ(verdict.fault, Fault::lost);
  EXPECT_EQ(verdict.record.number, 6U);
}

/// The first of three was lost: the answers to the others do not hide that.
TEST(Outstanding, AnswersToLaterOnesDoNotHideALostOne) {
  OutstandingWork work;
  for (std::uint64_t i = 1; i <= 3; ++i) work.add(Work::pull, i, i, 0);
  work.answered(Work::pull, 2, kSecond);
  work.answered(Work::pull, 3, kSecond);
  work.acknowledge(Work::pull, 2, kSecond);
  EXPECT_EQ(work.judge(2 * kSecond, 2 * kSecond, kTimeout).fault, Fault::none);
  EXPECT_EQ(work.judge(4 * kSecond, 4 * kSecond, kTimeout).fault, Fault::lost);
  EXPECT_EQ(work.open(Work::pull), 1U);
}

TEST(Outstanding, StepsThatGoOnSayNothingAboutAPull) {
  OutstandingWork work;
  work.add(Work::pull, 7, 1, 0);
  work.acknowledge(Work::pull, 1, 0);
  const TimeNs limit = longest(Work::pull);
  for (std::uint64_t step = 1; step <= 100; ++step) {
    const TimeNs now = static_cast<TimeNs>(step) * limit / 100;
    work.add(Work::step, 0, step, now);
    work.acknowledge(Work::step, step, now);
    work.answered(Work::step, step, now);
    ASSERT_EQ(work.judge(now, now, kTimeout).fault, Fault::none);
  }
  const Verdict verdict = work.judge(limit + 1, limit + 1, kTimeout);
  EXPECT_EQ(verdict.fault, Fault::hung);
  EXPECT_EQ(verdict.record.request, 7U);
}

TEST(Outstanding, ALongQueueOfSlowPullsIsNotHung) {
  OutstandingWork work;
  for (std::uint64_t i = 1; i <= 29; ++i) work.add(Work::pull, i, i, 0);
  work.acknowledge(Work::pull, 29, 0);
  TimeNs now = 0;
  for (std::uint64_t i = 1; i <= 29; ++i) {
    now += longest(Work::pull) - 1;
    EXPECT_EQ(work.judge(now, now, kTimeout).fault, Fault::none);
    work.answered(Work::pull, i, now);
  }
  EXPECT_FALSE(work.any());
}

TEST(Outstanding, SilenceIsJudgedBeforeAnythingElse) {
  OutstandingWork work;
  work.add(Work::step, 0, 1, 0);
  EXPECT_EQ(work.judge(0, 2 * kSecond, kTimeout).fault, Fault::none)
      << "its heartbeat may be on the way";
  EXPECT_EQ(work.judge(0, 3 * kSecond + 1, kTimeout).fault, Fault::silent);
}

TEST(Outstanding, TimeInWhichNobodyListenedIsForgiven) {
  OutstandingWork work;
  work.add(Work::step, 0, 1, 0);
  work.add(Work::pull, 0, 1, 0);
  work.acknowledge(Work::pull, 1, 0);
  const TimeNs gap = 600 * kSecond;
  work.forgive(gap, gap + kSecond);
  EXPECT_EQ(work.judge(gap + kSecond, gap + kSecond, kTimeout).fault, Fault::none);
  EXPECT_EQ(work.judge(gap + 4 * kSecond, gap + 4 * kSecond, kTimeout).fault, Fault::lost);
}

TEST(Outstanding, ClosesOutliveATerm) {
  OutstandingWork work;
  work.add(Work::close, 0, 77, 0);
  work.add(Work::pull, 1, 1, 0);
  work.begin_term(100 * kSecond);
  EXPECT_TRUE(work.has(Work::close, 77));
  EXPECT_EQ(work.open(Work::pull), 0U);
  EXPECT_EQ(work.judge(101 * kSecond, 101 * kSecond, kTimeout).fault, Fault::none);
  EXPECT_EQ(work.add(Work::pull, 1, 2, 101 * kSecond), 1U);
  work.answered_key(Work::close, 77, 101 * kSecond);
  EXPECT_FALSE(work.has(Work::close, 77));
}

}  // namespace
}  // namespace baton
