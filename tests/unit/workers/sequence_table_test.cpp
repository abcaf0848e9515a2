// Plans that break the contract, one at a time, and books that stay right over long runs.
#include "workers/sequence_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "tests/unit/workers/core_driver.h"

namespace baton::test {
namespace {

constexpr TableLimits kLimits{100, 4, 64, 1000};

/// Sequence 1: prompt of 5 in blocks {0, 1}, nothing computed. Sequence 2 decodes.
SequenceTable table_with_two() {
  SequenceTable table;
  table.set_limits(kLimits);
  StepPlan p = plan(1);
  AddSequence decoding = sequence(2, {1, 2, 3}, {2});
  decoding.generated = {4};
  decoding.computed = 3;
  decoding.decode = true;
  p.add = {sequence(1, {1, 2, 3, 4, 5}, {0, 1}), decoding};
  RunStep step;
  std::vector<RowFailure> refused;
  EXPECT_FALSE(table.begin_step(p, step, refused).has_value());
  StepResult result;
  table.end_step(step, {}, result);
  return table;
}

struct Violation {
  const char* says;
  std::function<void(StepPlan&)> make;
};

TEST(SequenceTable, EveryViolationIsNamed) {
  const std::vector<Violation> violations = {
      {"drop of unknown sequence 9", [](StepPlan& p) { p.drop = {9}; }},
      {"drop of unknown sequence 1", [](StepPlan& p) { p.drop = {1, 1}; }},
      {"added twice", [](StepPlan& p) { p.add = {sequence(1, {1}, {5})}; }},
      {"without a token", [](StepPlan& p) { p.add = {sequence(3, {}, {5})}; }},
      {"block 100 of a pool of 100", [](StepPlan& p) { p.add = {sequence(3, {1}, {100})}; }},
      {"computed is 2 of 2", [](StepPlan& p) {
         p.add = {sequence(3, {1, 2}, {5})};
         p.add[0].computed = 2;
       }},
      {"cannot hold 5 tokens", [](StepPlan& p) {
         p.add = {sequence(3, {1, 2, 3, 4, 5, 6}, {5})};
         p.add[0].computed = 5;
       }},
      {"cannot decode with 2 tokens", [](StepPlan& p) {
         p.add = {sequence(3, {1, 2, 3}, {5})};
         p.add[0].computed = 1;
         p.add[0].decode = true;
       }},
      {"columns of grow", [](StepPlan& p) { p.grow_sequences = {1}; }},
      {"grow of unknown sequence 9", [](StepPlan& p) {
         p.grow_sequences = {9};
         p.grow_blocks = {1};
       }},
      {"grown by block 100", [](StepPlan& p) {
         p.grow_sequences = {1};
         p.grow_blocks = {100};
       }},
      {"copy of block 3 to 100", [](StepPlan& p) { p.ops = {{3, 100}}; }},
      {"row of unknown sequence 9", [](StepPlan& p) { p.rows = {{9, 1}}; }},
      {"row of unknown sequence 1", [](StepPlan& p) {
         p.drop = {1};
         p.rows = {{1, 1}};
       }},
      {"row of 0 tokens", [](StepPlan& p) { p.rows = {{1, 0}}; }},
      {"row of 6 tokens", [](StepPlan& p) { p.rows = {{1, 6}}; }},
      {"row of 4294967295 tokens", [](StepPlan& p) { p.rows = {{1, 0xFFFFFFFF}}; }},
      {"which decodes", [](StepPlan& p) { p.rows = {{2, 1}}; }},
      {"two rows in one step", [](StepPlan& p) { p.rows = {{1, 1}, {1, 1}}; }},
      {"without a first token", [](StepPlan& p) {  // it joins, but its prompt is not computed
         p.rows = {{1, 0, LogitsWanted::none, true}};
       }},
      {"without a first token", [](StepPlan& p) {
         p.rows = {{1, 5, LogitsWanted::none, true}};
       }},
      {"before its last known one", [](StepPlan& p) {
         p.rows = {{1, 4, LogitsWanted::last, false}};
       }},
      {"logits of all", [](StepPlan& p) { p.rows = {{1, 4, LogitsWanted::all, false}}; }},
      {"position 4 is past its 1 blocks", [](StepPlan& p) {
         p.add = {sequence(3, {1, 2, 3, 4, 5}, {5})};
         p.rows = {{3, 5}};
       }},
  };
  for (const Violation& v : violations) {
    SequenceTable table = table_with_two();
    StepPlan p = plan(2);
    v.make(p);
    RunStep step;
    std::vector<RowFailure> refused;
    const auto problem = table.begin_step(p, step, refused);
    ASSERT_TRUE(problem.has_value()) << v.says;
    EXPECT_NE(problem->find(v.says), std::string::npos) << *problem << " / " << v.says;
    EXPECT_TRUE(refused.empty());
  }
}

TEST(SequenceTable, DecodingPastItsBlocksOrTheContext) {
  SequenceTable table = table_with_two();
  RunStep step;
  std::vector<RowFailure> refused;
  StepId id = 2;
  const auto decode = [&](std::vector<BlockId> grow) {
    StepPlan p = plan(id++);
    p.decode = true;
    for (const BlockId b : grow) {
      p.grow_sequences.push_back(2);
      p.grow_blocks.push_back(b);
    }
    auto problem = table.begin_step(p, step, refused);
    if (!problem) {
      StepResult result;
      table.end_step(step, {{7}, {}, 0}, result);
      EXPECT_EQ(result.tokens.size(), 1U);
    }
    return problem;
  };
  EXPECT_FALSE(decode({}).has_value());  // position 3, the last of its one block
  EXPECT_FALSE(decode({50}).has_value());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(decode({}).has_value());
  const auto full = decode({});
  ASSERT_TRUE(full.has_value());
  EXPECT_NE(full->find("past its 2 blocks"), std::string::npos) << *full;

  StepPlan p = plan(100);
  AddSequence longest = sequence(5, std::vector<Token>(63, 1), std::vector<BlockId>(17, 9));
  longest.generated = {4};
  longest.computed = 63;
  longest.decode = true;
  p.drop = {2};
  p.add = {longest};
  p.decode = true;
  ASSERT_FALSE(table.begin_step(p, step, refused).has_value());
  StepResult result;
  table.end_step(step, {{7}, {}, 0}, result);
  StepPlan q = plan(101);
  q.decode = true;
  const auto past = table.begin_step(q, step, refused);
  ASSERT_TRUE(past.has_value());
  EXPECT_NE(past->find("past the context of 64"), std::string::npos) << *past;
}

/// A sequence whose first token was sampled for a hand-off stays after all: a row without tokens.
TEST(SequenceTable, ARowWithoutTokensJoinsTheDecodeSet) {
  SequenceTable table = table_with_two();
  RunStep step;
  std::vector<RowFailure> refused;
  StepPlan first = plan(2);
  first.rows = {{1, 5, LogitsWanted::last, false}};
  ASSERT_FALSE(table.begin_step(first, step, refused).has_value());
  StepResult result;
  table.end_step(step, {{70}, {}, 0}, result);
  EXPECT_EQ(table.decoding(), 1U);

  StepPlan join = plan(3);
  join.rows = {{1, 0, LogitsWanted::none, true}};
  join.decode = true;
  ASSERT_FALSE(table.begin_step(join, step, refused).has_value());
  EXPECT_EQ(step.rows.size(), 1U);  // sequence 2 alone
  table.end_step(step, {{71}, {}, 0}, result);
  EXPECT_EQ(table.decoding(), 2U);

  StepPlan decode = plan(4);
  decode.decode = true;
  decode.grow_sequences = {2};
  decode.grow_blocks = {9};
  ASSERT_FALSE(table.begin_step(decode, step, refused).has_value());
  ASSERT_EQ(step.rows.size(), 2U);
  EXPECT_EQ(step.rows[1].tokens[0], 70);

  SequenceTable twice = table_with_two();
  ASSERT_FALSE(twice.begin_step(first, step, refused).has_value());
  twice.end_step(step, {{70}, {}, 0}, result);
  join.rows.push_back(join.rows[0]);
  EXPECT_TRUE(twice.begin_step(join, step, refused).has_value());
}

TEST(SequenceTable, ATokenOutsideTheVocabularyIsAFailure) {
  for (const Token bad : {kNoToken, Token{1000}, Token{-7}}) {
    SequenceTable table = table_with_two();
    StepPlan p = plan(2);
    p.decode = true;
    RunStep step;
    std::vector<RowFailure> refused;
    ASSERT_FALSE(table.begin_step(p, step, refused).has_value());
    StepResult result;
    table.end_step(step, {{bad}, {}, 0}, result);
    EXPECT_TRUE(result.tokens.empty());
    ASSERT_EQ(result.failed.size(), 1U);
    EXPECT_EQ(result.failed[0].sequence, 2U);
    EXPECT_EQ(table.decoding(), 0U);
  }
}

TEST(SequenceTable, StopIdsThatNoLogitHasAreLeftOut) {
  SequenceTable table;
  table.set_limits(kLimits);
  StepPlan p = plan(1);
  p.add = {sequence(1, {1}, {0})};
  p.add[0].sampling.stop_ids = {-1, 5, 1000, 999};
  RunStep step;
  std::vector<RowFailure> refused;
  ASSERT_FALSE(table.begin_step(p, step, refused).has_value());
  EXPECT_EQ(table.find(1)->sampling.stop_ids, (std::vector<Token>{5, 999}));
}

/// Random legal plans against a plain model of what must come out: every row starts where the
/// sequence's last one ended, with its tokens and its table.
TEST(SequenceTable, RandomPlansKeepTheBooks) {
  struct Model {
    std::vector<Token> tokens;
    std::vector<BlockId> blocks;
    std::uint32_t prompt = 0;
    std::uint32_t computed = 0;
    bool decodes = false;
  };
  std::mt19937 random(1);
  const auto draw = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
  SequenceTable table;
  table.set_limits({100, 4, 4096, 1000});
  std::map<SequenceId, Model> model;
  SequenceId next = 1;
  RunStep step;
  std::vector<RowFailure> refused;
  std::size_t rows_seen = 0;
  for (StepId id = 1; id <= 3000; ++id) {
    StepPlan p = plan(id);
    std::vector<SequenceId> joins;
    for (auto it = model.begin(); it != model.end();) {
      if (draw(20) == 0) {
        p.drop.push_back(it->first);
        it = model.erase(it);
      } else {
        ++it;
      }
    }
    if (model.size() < 20 && draw(2) == 0) {
      Model m;
      for (std::uint32_t n = 1 + draw(20); n > 0; --n) m.tokens.push_back(static_cast<Token>(draw(1000)));
      m.prompt = static_cast<std::uint32_t>(m.tokens.size());
      for (std::uint32_t b = 0; b * 4 < m.prompt; ++b) m.blocks.push_back(draw(100));
      p.add.push_back(sequence(next, m.tokens, m.blocks));
      model[next++] = m;
    }
    p.decode = draw(4) != 0;
    for (auto& [sid, m] : model) {
      if (m.decodes && p.decode && m.blocks.size() * 4 < m.computed + 1) {
        m.blocks.push_back(draw(100));
        p.grow_sequences.push_back(sid);
        p.grow_blocks.push_back(m.blocks.back());
      }
      if (m.decodes || draw(2) == 0) continue;
      const std::uint32_t left = static_cast<std::uint32_t>(m.tokens.size()) - m.computed;
      const std::uint32_t n = 1 + draw(left);
      p.rows.push_back({sid, n, n == left ? LogitsWanted::last : LogitsWanted::none, n == left});
      if (n == left) joins.push_back(sid);
    }
    ASSERT_FALSE(table.begin_step(p, step, refused).has_value());
    StepOutput output;
    std::map<SequenceId, Token> sampled;
    for (const BatchRow& row : step.rows) {
      ++rows_seen;
      Model& m = model.at(row.sequence);
      ASSERT_EQ(row.position, m.computed);
      ASSERT_LE(row.position + row.tokens.size(), m.blocks.size() * 4);
      ASSERT_TRUE(std::equal(row.tokens.begin(), row.tokens.end(), m.tokens.begin() + m.computed));
      ASSERT_TRUE(std::equal(row.blocks.begin(), row.blocks.end(), m.blocks.begin(), m.blocks.end()));
      ASSERT_EQ(row.n_generated, m.tokens.size() - m.prompt);
      ASSERT_EQ(row.decode, m.decodes);
      m.computed += static_cast<std::uint32_t>(row.tokens.size());
      output.tokens.push_back(kNoToken);
      if (row.logits == LogitsWanted::none) continue;
      output.tokens.back() = sampled[row.sequence] = static_cast<Token>(draw(1000));
      m.tokens.push_back(output.tokens.back());
    }
    StepResult result;
    table.end_step(step, output, result);
    ASSERT_EQ(result.sequences.size(), sampled.size());
    for (std::size_t i = 0; i < result.sequences.size(); ++i) {
      ASSERT_EQ(result.tokens[i], sampled.at(result.sequences[i]));
    }
    for (const SequenceId sid : joins) model.at(sid).decodes = true;
    ASSERT_EQ(table.size(), model.size());
  }
  EXPECT_GT(rows_seen, 10000U);
}

}  // namespace
}  // namespace baton::test
