// Tables of models whose layers have groups: what a window has left behind, what grows, what is
// refused.
#include <gtest/gtest.h>

#include "tests/unit/workers/core_driver.h"
#include "workers/protocol/block_sums.h"
#include "workers/protocol/sequence_table.h"

namespace baton::test {
namespace {

/// Two groups, of which the second sees 6 tokens; blocks of 4.
SequenceTable grouped_table() {
  SequenceTable table;
  TableLimits limits{100, 4, 64, 1000};
  limits.groups.count = 2;
  limits.groups.windows = {0, 6};
  table.set_limits(limits);
  return table;
}

std::vector<Token> known(std::size_t count) { return std::vector<Token>(count, 5); }

/// `blocks` with `computed` of 13 tokens.
std::string problem_with(std::vector<BlockId> blocks, std::uint32_t computed) {
  SequenceTable table = grouped_table();
  StepPlan p = plan(1);
  p.add = {sequence(1, known(13), std::move(blocks))};
  p.add[0].computed = computed;
  OpenStep step;
  return table.begin_step(p, step).value_or("");
}

TEST(GroupedTables, WhatAWindowHasLeftBehindMayBeMissing) {
  // Token 12 sees 7 .. 12: column 0 of the second group is out of sight.
  EXPECT_EQ(problem_with({1, kNoBlock, 2, 12, 3, 13, 4, 14}, 12), "");
  EXPECT_EQ(problem_with({1, 11, 2, 12, 3, 13, 4, 14}, 12), "");
  EXPECT_EQ(problem_with({1, 11, 2, 12, 3, kNoBlock}, 8), "") << "what is still to come";
}

TEST(GroupedTables, WhatItLooksAtMayNot) {
  EXPECT_NE(
      problem_with({1, kNoBlock, 2, kNoBlock, 3, 13, 4, 14}, 12).find("no block for column 1"),
      std::string::npos);
  EXPECT_NE(problem_with({kNoBlock, 11, 2, 12, 3, 13}, 8).find("no block for column 0"),
            std::string::npos)
      << "the first group sees everything";
  EXPECT_NE(problem_with({1, 11, 2, kNoBlock, 3, 13, 4, 14}, 12).find("no block for column 1"),
            std::string::npos);
  EXPECT_NE(problem_with({1, kNoBlock, 2, 12}, 12).find("cannot hold 12 tokens"),
            std::string::npos);
  EXPECT_NE(problem_with({1, kNoBlock, 2}, 4).find("cut off"), std::string::npos);
  EXPECT_NE(problem_with({1, 100}, 0).find("block 100"), std::string::npos);
}

TEST(GroupedTables, EachGroupGrowsByItself) {
  SequenceTable table = grouped_table();
  StepPlan p = plan(1);
  p.add = {sequence(1, known(13), {1, 11, 2, kNoBlock, 3, kNoBlock, 4, kNoBlock})};
  p.rows = {{1, 4}};
  OpenStep step;
  ASSERT_FALSE(table.begin_step(p, step).has_value());
  EXPECT_EQ(std::vector<BlockId>(step.run.rows[0].blocks.begin(), step.run.rows[0].blocks.end()),
            (std::vector<BlockId>{1, 11}));
  StepResult result;
  table.end_step(step, {}, result);
  StepPlan q = plan(2);
  q.grow_sequences = {1, 1};
  q.grow_blocks = {12, 13};
  q.grow_groups = {1, 1};
  q.rows = {{1, 8}};
  ASSERT_FALSE(table.begin_step(q, step).has_value());
  const BatchRow& row = step.run.rows[0];
  EXPECT_EQ(std::vector<BlockId>(row.blocks.begin(), row.blocks.end()),
            (std::vector<BlockId>{1, 11, 2, 12, 3, 13}));
  EXPECT_EQ(written_blocks(step.run, 4, 2), (std::vector<BlockId>{2, 3, 12, 13}));
  table.end_step(step, {}, result);
  StepPlan r = plan(3);
  r.rows = {{1, 1, LogitsWanted::last}};
  EXPECT_NE(table.begin_step(r, step).value_or("").find("past its 3 blocks"), std::string::npos)
      << "the second group has none for it";
}

TEST(GroupedTables, GrowthIsForAGroupThatThereIs) {
  SequenceTable table = grouped_table();
  StepPlan p = plan(1);
  p.add = {sequence(1, known(3), {1, 11})};
  p.grow_sequences = {1};
  p.grow_blocks = {2};
  p.grow_groups = {2};
  OpenStep step;
  EXPECT_NE(table.begin_step(p, step).value_or("").find("group 2"), std::string::npos);
}

TEST(GroupedTables, AForkHasABlockOfEachGroup) {
  for (const std::size_t blocks : {1U, 2U}) {
    SequenceTable table = grouped_table();
    StepPlan p = plan(1);
    AddSequence beam = sequence(1, known(9), {1, kNoBlock, 2, 12, 3, 13});
    beam.sampling.num_beams = 2;
    beam.computed = 9;
    p.add = {beam};
    p.fork = {{2, 1, {50, 60}}};
    p.fork[0].blocks.resize(blocks);
    OpenStep step;
    const auto problem = table.begin_step(p, step);
    EXPECT_EQ(problem.has_value(), blocks == 1) << problem.value_or("");
    if (blocks == 1) continue;
    Tables tables;
    table.list(tables);
    EXPECT_EQ(tables.counts, (std::vector<std::uint32_t>{6, 6}));
    EXPECT_EQ(std::vector<BlockId>(tables.blocks.begin() + 6, tables.blocks.end()),
              (std::vector<BlockId>{1, 0, 2, 12, 50, 60}));
  }
}

}  // namespace
}  // namespace baton::test
