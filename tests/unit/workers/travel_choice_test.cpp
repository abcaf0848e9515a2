// Which way keys on other GPUs are attended to, by what steps took.
#include "workers/execute/travel_choice.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr double kLinkUs = 20'000;  // at the least

/// How many of so many steps travel, where each way takes so long.
int travelled(TravelChoice& choice, int steps, double travels_us, double in_place_us) {
  int n = 0;
  for (int i = 0; i < steps; ++i) {
    const bool travels = choice.travels(true);
    n += travels ? 1 : 0;
    choice.told(travels, travels ? travels_us : in_place_us, kLinkUs);
  }
  return n;
}

TEST(TravelChoice, NothingIsTriedThatCannotBeQuicker) {
  TravelChoice choice;
  EXPECT_EQ(travelled(choice, 10'000, 9'000, 28'000), 10'000);
}

TEST(TravelChoice, TheOtherGpuIsBusyForAWhile) {
  TravelChoice choice;
  EXPECT_EQ(travelled(choice, 100, 9'000, 28'000), 100);
  const int busy = travelled(choice, 4'000, 64'000, 30'000);
  EXPECT_GT(busy, 10);  // the usual has to grow, and then it is tried again
  EXPECT_LT(busy, 120);
  travelled(choice, 1'100, 9'000, 28'000);  // the longest that nothing is tried
  EXPECT_EQ(travelled(choice, 1'000, 9'000, 28'000), 1'000);
}

TEST(TravelChoice, TriesGrowRareWhereTheyLose) {
  TravelChoice choice;
  const int steps = 20'000;
  EXPECT_GT(travelled(choice, steps, 25'000, 28'000), steps - 3 * 24);
}

TEST(TravelChoice, AStepOfBeforeTheDecisionDoesNotCount) {
  TravelChoice choice;
  for (int i = 0; i < 1'000; ++i) choice.told(false, 1, kLinkUs);
  EXPECT_TRUE(choice.travels(true));
}

TEST(TravelChoice, OneSlowTryDoesNotDecide) {
  TravelChoice choice;
  while (choice.travels(true)) choice.told(true, 64'000, kLinkUs);
  choice.told(false, 500'000, kLinkUs);  // a prompt came between
  choice.told(false, 30'000, kLinkUs);
  choice.told(false, 30'000, kLinkUs);
  EXPECT_FALSE(choice.travels(true));
}

TEST(TravelChoice, StepsThatAreNotToldOfGoTheUsualWay) {
  TravelChoice choice;
  while (choice.travels(true)) choice.told(true, 64'000, kLinkUs);
  for (int i = 0; i < 1'000; ++i) EXPECT_TRUE(choice.travels(false)) << "a prompt comes each time";
  for (int i = 0; i < 3; ++i) choice.told(false, 30'000, kLinkUs);
  EXPECT_FALSE(choice.travels(false));
}

}  // namespace
}  // namespace baton
