// What prompt steps take: fitted to measured steps, and what follows for a prompt over several
// workers.
#include "scheduler/state/prompt_cost.h"

#include <gtest/gtest.h>

#include <random>

#include "scheduler/plan/spread.h"

namespace baton::test {
namespace {

TEST(PromptCost, TheCoefficientsAreFoundAgain) {
  PromptCost cost;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(0.97, 1.03);
  for (int i = 0; i < 400; ++i) {
    const std::uint32_t tokens = 16 + random() % 256;
    const double pairs = attended_pairs(random() % 8000, tokens);
    cost.take((900 + 40.0 * tokens + 0.02 * pairs) * noise(random), tokens, pairs);
  }
  ASSERT_TRUE(cost.known());
  EXPECT_NEAR(cost.fit().token_us, 40, 4);
  EXPECT_NEAR(cost.fit().pair_us, 0.02, 0.002);
  const double whole = attended_pairs(4000, 256);
  EXPECT_NEAR(cost.of(256, whole), 900 + 40 * 256 + 0.02 * whole, 1500);
}

TEST(PromptCost, StepsOfOneSizeTellAtLeastWhatATokenTakes) {
  PromptCost cost;
  EXPECT_FALSE(cost.known());
  for (int i = 0; i < 20; ++i) cost.take(5000, 100, attended_pairs(0, 100));
  ASSERT_TRUE(cost.known());
  EXPECT_NEAR(cost.of(100, attended_pairs(0, 100)), 5000, 1);
}

TEST(PromptCost, NoPartTakesLessThanNothing) {
  PromptCost cost;
  for (std::uint32_t tokens = 10; tokens < 200; tokens += 10)
    cost.take(tokens * tokens, tokens, attended_pairs(0, tokens));  // A would be negative
  EXPECT_GE(cost.fit().step_us, 0);
  EXPECT_GE(cost.fit().token_us, 0);
  EXPECT_GE(cost.fit().pair_us, 0);
}

TEST(PromptCost, ItFollowsAChange) {
  PromptCost cost;
  for (int i = 0; i < 300; ++i) cost.take(1000, 100, attended_pairs(0, 100));
  for (int i = 0; i < 300; ++i) cost.take(3000, 100, attended_pairs(0, 100));
  EXPECT_NEAR(cost.of(100, attended_pairs(0, 100)), 3000, 60);
}

PromptCost token_cost(double us) {
  PromptCost cost;
  for (int i = 0; i < 20; ++i)
    cost.take(us * (50 + i), 50 + i, attended_pairs(0, static_cast<std::uint32_t>(50 + i)));
  return cost;
}

TEST(SpreadTime, TwoWorkersTakeHalfOfTheTimeAndALayer) {
  const PromptCost cost = token_cost(1000);
  const auto of = [&](WorkerIndex) -> const PromptCost& { return cost; };
  const auto alone = deal({{0, 1000}}, 0, 1024, 64, 16);
  const auto both = deal({{0, 1000}, {1, 1000}}, 0, 1024, 64, 16);
  const double one = spread_us(alone, 16, of);
  EXPECT_NEAR(one, 1024 * 1000, 20000);
  EXPECT_NEAR(spread_us(both, 16, of), one / 2 + 64 * 1000 / 16, 20000);
}

TEST(SpreadTime, ASlowWorkerHoldsUpTheOthers) {
  const PromptCost quick = token_cost(1000);
  const PromptCost slow = token_cost(5000);
  const auto of = [&](WorkerIndex i) -> const PromptCost& { return i == 0 ? quick : slow; };
  const double one = spread_us(deal({{0, 1000}}, 0, 1024, 64, 16), 16, of);
  EXPECT_GT(spread_us(deal({{0, 1000}, {1, 1000}}, 0, 1024, 64, 16), 16, of), 2 * one);
}

}  // namespace
}  // namespace baton::test
