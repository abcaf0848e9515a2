#include "scheduler/admin/restart_plan.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(RestartPlan, SupervisorsComeFirstAndFrontEndsLast) {
  EXPECT_LT(restart_rank("supervisor"), restart_rank("memory"));
  EXPECT_LT(restart_rank("memory"), restart_rank("scheduler"));
  EXPECT_LT(restart_rank("scheduler"), restart_rank("worker"));
  EXPECT_LT(restart_rank("worker"), restart_rank("frontend"));
  EXPECT_LT(restart_rank("process"), restart_rank("frontend"));
}

TEST(RestartPlan, OneOfAnotherVersionIsEnoughToWaitForTheStreams) {
  EXPECT_FALSE(crosses_versions({{"a", "worker", 7}, {"b", "scheduler", 7}}, 7));
  EXPECT_TRUE(crosses_versions({{"a", "worker", 7}, {"b", "scheduler", 7}}, 8));
  EXPECT_TRUE(crosses_versions({{"a", "worker", 8}, {"b", "scheduler", 7}}, 8));
}

TEST(RestartPlan, NobodyWaitsForWhatCannotRunButWhoNamesIt) {
  EXPECT_TRUE(passed_over(/*restart_of_all=*/true, /*cannot_run=*/true));
  EXPECT_FALSE(passed_over(true, false));
  EXPECT_FALSE(passed_over(false, true));
}

TEST(RestartPlan, WhatSaysNoVersionHindersNothing) {
  EXPECT_FALSE(crosses_versions({{"supervisor", "supervisor", 0}, {"a", "worker", 0}}, 8));
  EXPECT_FALSE(crosses_versions({}, 8));
}

}  // namespace
}  // namespace baton
