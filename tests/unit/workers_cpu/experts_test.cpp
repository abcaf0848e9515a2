// Which experts a row takes, how rows are grouped by expert, and that the groups' products are
// those of each row alone.
#include "workers/cpu/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/random_floats.h"
#include "workers/cpu/step_ops.h"

namespace baton::cpu {
namespace {

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

TEST(ExpertPlan, TakesTheLikeliestAndSumsInOrderOfTheExperts) {
  ExpertPlan plan;
  const std::vector<float> p = {0.1F,  0.2F,  0.4F,  0.3F,    // 2 and 3
                                0.6F,  0.1F,  0.1F,  0.2F,    // 0 and 3
                                0.25F, 0.25F, 0.25F, 0.25F};  // of equals the first: 0 and 1
  plan.make(p, {.experts = 4, .active = 2, .normalise = false});
  const std::vector<std::vector<int>> experts = {{2, 3}, {0, 3}, {0, 1}};
  for (int r = 0; r < 3; ++r) {
    const auto choices = plan.of_row(r);
    ASSERT_EQ(choices.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const int expert = experts[static_cast<std::size_t>(r)][i];
      EXPECT_EQ(choices[i].expert, expert);
      EXPECT_EQ(choices[i].weight, p[static_cast<std::size_t>(4 * r + expert)]);
    }
  }
  plan.make(p, {.experts = 4, .active = 2, .normalise = true});
  EXPECT_FLOAT_EQ(plan.of_row(0)[0].weight, 4.0F / 7);
  EXPECT_FLOAT_EQ(plan.of_row(0)[1].weight, 3.0F / 7);
  EXPECT_FLOAT_EQ(plan.of_row(1)[0].weight, 0.75F);
  EXPECT_EQ(plan.of_row(2)[0].weight, 0.5F);
  ASSERT_EQ(plan.groups().size(), 4U);
  EXPECT_EQ(plan.groups()[0].rows, 2);
  EXPECT_EQ(plan.groups()[3].rows, 2);
}

/// A bias chooses and does not weigh; groups that are not among the best are closed.
TEST(ExpertPlan, BiasesAndGroupsChoose) {
  ExpertPlan plan;
  const std::vector<float> p = {0.9F, 0.1F, 0.5F, 0.6F, 0.2F, 0.3F};
  const std::vector<float> bias = {0, 0, 0, 0, 0, 1};
  RouterRule rule{.experts = 6, .active = 2, .normalise = false, .scale = 2, .bias = bias.data()};
  plan.make(p, rule);  // 5 by its bias, 0
  EXPECT_EQ(plan.of_row(0)[0].expert, 0);
  EXPECT_EQ(plan.of_row(0)[1].expert, 5);
  EXPECT_FLOAT_EQ(plan.of_row(0)[0].weight, 1.8F);
  EXPECT_FLOAT_EQ(plan.of_row(0)[1].weight, 0.6F);
  rule.bias = nullptr;
  rule.groups = 3;
  rule.active_groups = 1;
  rule.normalise = true;
  rule.scale = 1;
  plan.make(p, rule);  // pairs: 1.0, 1.1, 0.5
  EXPECT_EQ(plan.of_row(0)[0].expert, 2);
  EXPECT_EQ(plan.of_row(0)[1].expert, 3);
  EXPECT_FLOAT_EQ(plan.of_row(0)[1].weight, 0.6F / 1.1F);
  rule.group_pairs = false;
  plan.make(p, rule);  // the best of each: 0.9, 0.6, 0.3
  EXPECT_EQ(plan.of_row(0)[0].expert, 0);
  EXPECT_EQ(plan.of_row(0)[1].expert, 1);
}

/// Every choice has a line of its own, inside of its expert's group, that copies its row.
TEST(ExpertPlan, GroupsCoverEveryChoiceOnce) {
  ExpertPlan plan;
  for (const int rows : {0, 1, 5, 200}) {
    const auto p = random_floats(static_cast<std::size_t>(rows) * 16, 3 + rows);
    plan.make(p, {.experts = 16, .active = 5, .normalise = true});
    ASSERT_EQ(plan.sources().size(), static_cast<std::size_t>(rows) * 5);
    std::vector<int> expert_of_line(plan.sources().size(), -1);
    int line = 0;
    int last = -1;
    for (const ExpertPlan::Group& group : plan.groups()) {
      EXPECT_GT(group.expert, last);
      EXPECT_EQ(group.first, line);
      EXPECT_GT(group.rows, 0);
      last = group.expert;
      for (int i = 0; i < group.rows; ++i) expert_of_line[static_cast<std::size_t>(line++)] = last;
    }
    ASSERT_EQ(static_cast<std::size_t>(line), expert_of_line.size());
    std::set<int> lines;
    for (int r = 0; r < rows; ++r) {
      for (const ExpertPlan::Choice& c : plan.of_row(r)) {
        EXPECT_TRUE(lines.insert(c.line).second);
        EXPECT_EQ(expert_of_line[static_cast<std::size_t>(c.line)], c.expert);
        EXPECT_EQ(plan.sources()[static_cast<std::size_t>(c.line)], r);
      }
    }
  }
}

/// A row that is not a number still takes its share of lines; its neighbour does not notice.
TEST(ExpertPlan, ANaNStaysInItsRow) {
  ExpertPlan plan;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  plan.make(std::vector<float>{nan, nan, nan, 0.2F, 0.5F, 0.3F},
            {.experts = 3, .active = 2, .normalise = true});
  EXPECT_NE(plan.of_row(0)[0].expert, plan.of_row(0)[1].expert);
  EXPECT_TRUE(std::isnan(plan.of_row(0)[0].weight));
  EXPECT_EQ(plan.of_row(1)[0].expert, 1);
  EXPECT_FLOAT_EQ(plan.of_row(1)[0].weight, 0.625F);
}

/// A step of experts against each row on its own, to the bit, and against plain loops.
TEST(StepOps, ExpertsOfARowDoNotDependOnItsNeighbours) {
  constexpr int kRows = 70, kIn = 40, kOut = 72, kExperts = 6, kActive = 3;
  std::vector<std::vector<float>> stored;
  std::vector<std::vector<std::byte>> memory;
  std::vector<PackedMatrix> experts;
  for (int e = 0; e < kExperts; ++e) {
    stored.push_back(random_floats(kOut * kIn, 20 + e));
    const MatrixSource source{reinterpret_cast<const std::byte*>(stored.back().data()),
                              ElementType::f32, kOut, kIn};
    memory.emplace_back(static_cast<std::size_t>(panels_for(kOut)) * kIn * kPanelColumns * 4);
    pack_stacked({&source, 1}, WeightType::f32, one_thread(), memory.back().data());
    experts.push_back({memory.back().data(), WeightType::f32, static_cast<int>(panels_for(kOut)),
                       kIn, kOut, false});
  }
  std::vector<float> x = random_floats(kRows * kIn, 1);
  std::vector<float> routed = random_floats(kRows * kExperts, 2);
  const auto run = [&](int threads, int first, int rows) {
    StepOps ops(threads, Isa::best, {1, 1, 16});
    std::vector<float> p(routed.begin() + first * kExperts,
                         routed.begin() + (first + rows) * kExperts);
    ops.softmax({p.data(), rows, kExperts});
    ExpertPlan plan;
    plan.make(p, {.experts = kExperts, .active = kActive, .normalise = true});
    std::vector<float> taken(static_cast<std::size_t>(rows) * kActive * kIn);
    std::vector<float> results(static_cast<std::size_t>(rows) * kActive * kOut);
    std::vector<float> y(static_cast<std::size_t>(rows) * kOut, 1.0F);
    const Rows gathered{taken.data(), rows * kActive, kIn};
    std::vector<LinearGroup> groups;
    for (const ExpertPlan::Group& g : plan.groups()) {
      groups.push_back({&experts[static_cast<std::size_t>(g.expert)], g.first, g.rows});
    }
    ops.gather({x.data() + first * kIn, rows, kIn}, plan.sources(), gathered);
    ops.linear_groups(gathered, groups, Epilogue::store, {results.data(), rows * kActive, kOut});
    ops.add_experts(plan, {results.data(), rows * kActive, kOut}, {y.data(), rows, kOut});
    return y;
  };
  const std::vector<float> all = run(1, 0, kRows);
  EXPECT_EQ(run(3, 0, kRows), all);
  for (int r = 0; r < kRows; ++r) {
    const std::vector<float> alone = run(1, r, 1);
    ASSERT_EQ(std::memcmp(alone.data(), all.data() + r * kOut, kOut * sizeof(float)), 0) << r;
  }
  // Row 0 in plain doubles.
  std::vector<std::pair<double, int>> p;
  double sum = 0;
  for (int e = 0; e < kExperts; ++e) p.emplace_back(std::exp(double{routed[e]}), e);
  std::sort(p.rbegin(), p.rend());
  for (int i = 0; i < kActive; ++i) sum += p[i].first;
  for (int o = 0; o < kOut; ++o) {
    double want = 1.0;
    for (int i = 0; i < kActive; ++i) {
      double dot = 0;
      for (int k = 0; k < kIn; ++k) dot += double{x[k]} * stored[p[i].second][o * kIn + k];
      want += p[i].first / sum * dot;
    }
    ASSERT_NEAR(all[o], want, 1e-4) << o;
  }
}

}  // namespace
}  // namespace baton::cpu
