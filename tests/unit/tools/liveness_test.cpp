#include "supervisor/liveness.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

Observation at(double now, char state = 'S', std::optional<std::int64_t> heartbeat = {}) {
  return {Seconds(now), state, heartbeat};
}

TEST(FreezeWatch, StoppedForTheLimitIsFrozen) {
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0, 'T')));
  EXPECT_FALSE(watch.observe(at(9.9, 'T')));
  EXPECT_EQ("stopped by a signal", watch.observe(at(10, 'T')));
}

TEST(FreezeWatch, AnInterruptionOfTheStopStartsAnew) {
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0, 'T')));
  EXPECT_FALSE(watch.observe(at(8, 'R')));
  EXPECT_FALSE(watch.observe(at(9, 'T')));
  EXPECT_FALSE(watch.observe(at(18.9, 'T')));
  EXPECT_TRUE(watch.observe(at(19, 'T')));
}

TEST(FreezeWatch, ADebuggerIsNoFreeze) {
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0, 't')));
  EXPECT_FALSE(watch.observe(at(100, 't')));
}

TEST(FreezeWatch, AHeartbeatThatStaysTheSameIsFrozen) {
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0, 'S', 1)));
  EXPECT_FALSE(watch.observe(at(5, 'S', 2)));
  EXPECT_FALSE(watch.observe(at(14.9, 'S', 2)));
  EXPECT_EQ("no heartbeat", watch.observe(at(15, 'S', 2)));
}

TEST(FreezeWatch, AHeartbeatThatGoesBackIsAlive) {  // the wall clock was set back
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0, 'S', 1000)));
  EXPECT_FALSE(watch.observe(at(9, 'S', 10)));
  EXPECT_FALSE(watch.observe(at(18, 'S', 11)));
}

TEST(FreezeWatch, WithoutAFileTheStateAloneCounts) {
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0)));
  EXPECT_FALSE(watch.observe(at(1000)));
}

TEST(FreezeWatch, AfterAResetTheTimeStartsAnew) {
  FreezeWatch watch(Seconds(10));
  EXPECT_FALSE(watch.observe(at(0, 'T', 1)));
  watch.reset();
  EXPECT_FALSE(watch.observe(at(60, 'T', 1)));
  EXPECT_TRUE(watch.observe(at(70, 'T', 1)));
}

TEST(FreezeWatch, ALimitOfZeroTurnsItOff) {
  FreezeWatch watch(Seconds(0));
  EXPECT_FALSE(watch.observe(at(0, 'T', 1)));
  EXPECT_FALSE(watch.observe(at(1e6, 'T', 1)));
}

TEST(Backoff, DoublesUpToFiveSeconds) {
  Backoff backoff;
  for (double expected : {0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0}) {
    EXPECT_DOUBLE_EQ(expected, backoff.next(Seconds(1)).count());
  }
}

TEST(Backoff, NoPauseAfterTenHealthySecondsAndThenFromTheBeginning) {
  Backoff backoff;
  for (int i = 0; i < 5; ++i) backoff.next(Seconds(1));
  EXPECT_DOUBLE_EQ(0, backoff.next(Seconds(10)).count());
  EXPECT_DOUBLE_EQ(0.1, backoff.next(Seconds(9.9)).count());
  EXPECT_DOUBLE_EQ(0.2, backoff.next(Seconds(9.9)).count());
  EXPECT_DOUBLE_EQ(0, backoff.next(Seconds(1000)).count());
}

}  // namespace
}  // namespace baton
