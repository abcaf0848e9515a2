// Plans that break the contract, one at a time, and books that stay right over long runs.
#include "workers/protocol/sequence_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
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
  OpenStep step;
  EXPECT_FALSE(table.begin_step(p, step).has_value());
  StepResult result;
  table.end_step(step, {}, result);
  return table;
}

StepOutput sampled(std::vector<Token> tokens) {
  StepOutput output;
  output.tokens = std::move(tokens);
  return output;
}

struct Violation {
  const char* says;
  std::function<void(StepPlan&)> make;
};

TEST(SequenceTable, EveryViolationIsNamed) {
  const std::vector<Violation> violations = {
      {"drop of unknown sequence 9", [](StepPlan& p) { p.drop = {9}; }},
      {"drop of unknown sequence 1",
       [](StepPlan& p) {
         p.drop = {1, 1};
       }},
      {"added twice", [](StepPlan& p) { p.add = {sequence(1, {1}, {5})}; }},
      {"without a token", [](StepPlan& p) { p.add = {sequence(3, {}, {5})}; }},
      {"block 100 of a pool of 100", [](StepPlan& p) { p.add = {sequence(3, {1}, {100})}; }},
      {"computed is 2 of 2",
       [](StepPlan& p) {
         p.add = {sequence(3, {1, 2}, {5})};
         p.add[0].computed = 2;
       }},
      {"cannot hold 5 tokens",
       [](StepPlan& p) {
         p.add = {sequence(3, {1, 2, 3, 4, 5, 6}, {5})};
         p.add[0].computed = 5;
       }},
      {"cannot decode with 2 tokens",
       [](StepPlan& p) {
         p.add = {sequence(3, {1, 2, 3}, {5})};
         p.add[0].computed = 1;
         p.add[0].decode = true;
       }},
      {"columns of grow", [](StepPlan& p) { p.grow_sequences = {1}; }},
      {"grow of unknown sequence 9",
       [](StepPlan& p) {
         p.grow_sequences = {9};
         p.grow_blocks = {1};
       }},
      {"grown by block 100",
       [](StepPlan& p) {
         p.grow_sequences = {1};
         p.grow_blocks = {100};
       }},
      {"copy of block 3 to 100",
       [](StepPlan& p) {
         p.ops = {{3, 100}};
       }},
      {"row of unknown sequence 9",
       [](StepPlan& p) {
         p.rows = {{9, 1}};
       }},
      {"row of unknown sequence 1",
       [](StepPlan& p) {
         p.drop = {1};
         p.rows = {{1, 1}};
       }},
      {"row of 0 tokens",
       [](StepPlan& p) {
         p.rows = {{1, 0}};
       }},
      {"row of 6 tokens",
       [](StepPlan& p) {
         p.rows = {{1, 6}};
       }},
      {"row of 4294967295 tokens",
       [](StepPlan& p) {
         p.rows = {{1, 0xFFFFFFFF}};
       }},
      {"which decodes",
       [](StepPlan& p) {
         p.rows = {{2, 1}};
       }},
      {"two rows in one step",
       [](StepPlan& p) {
         p.rows = {{1, 1}, {1, 1}};
       }},
      {"without a first token",
       [](StepPlan& p) {  // it joins, but its prompt is not computed
         p.rows = {{1, 0, LogitsWanted::none, true}};
       }},
      {"without a first token",
       [](StepPlan& p) {
         p.rows = {{1, 5, LogitsWanted::none, true}};
       }},
      {"before its last known one",
       [](StepPlan& p) {
         p.rows = {{1, 4, LogitsWanted::last, false}};
       }},
      {"position 4 is past its 1 blocks",
       [](StepPlan& p) {
         p.add = {sequence(3, {1, 2, 3, 4, 5}, {5})};
         p.rows = {{3, 5}};
       }},
  };
  for (const Violation& v : violations) {
    SequenceTable table = table_with_two();
    StepPlan p = plan(2);
    v.make(p);
    OpenStep step;
    const auto problem = table.begin_step(p, step);
    ASSERT_TRUE(problem.has_value()) << v.says;
    EXPECT_NE(problem->find(v.says), std::string::npos) << *problem << " / " << v.says;
    EXPECT_TRUE(step.refused.empty());
  }
}

TEST(SequenceTable, CopiesIntoTheHostPartComeFirst) {
  SequenceTable table;
  table.set_limits({.blocks = 100,
                    .tokens_per_block = 4,
                    .max_context = 64,
                    .vocab_size = 1000,
                    .host_blocks = 20});
  StepPlan p = plan(1);
  // Back in, host to host, within the device, out, out.
  p.ops = {{105, 3}, {105, 106}, {8, 9}, {3, 119}, {9, 100}};
  OpenStep step;
  ASSERT_FALSE(table.begin_step(p, step).has_value());
  std::vector<std::pair<BlockId, BlockId>> order;
  for (const CopyOp& op : step.run.copies) order.emplace_back(op.from, op.to);
  EXPECT_EQ(order, (std::vector<std::pair<BlockId, BlockId>>{
                       {3, 119}, {9, 100}, {105, 3}, {105, 106}, {8, 9}}));
  EXPECT_EQ(step.run.saves, 2U);
  p = plan(2);
  ASSERT_FALSE(table.begin_step(p, step).has_value());
  EXPECT_EQ(step.run.saves, 0U) << "forgotten with its step";

  p.ops = {{120, 3}};
  EXPECT_NE(
      table.begin_step(p, step).value_or("").find("copy of block 120 to 3 in a pool of 100 and 20"),
      std::string::npos);
  p = plan(3);
  p.add = {sequence(3, {1, 2}, {100})};
  EXPECT_TRUE(table.begin_step(p, step).has_value()) << "a sequence lives on the device";
}

TEST(SequenceTable, NoStepHasMoreTokensThanThereIsRoomFor) {
  SequenceTable table;
  table.set_limits({.blocks = 100,
                    .tokens_per_block = 4,
                    .max_context = 64,
                    .vocab_size = 1000,
                    .max_step_tokens = 5});
  StepPlan p = plan(1);
  p.add = {sequence(1, {1, 2, 3, 4}, {0}), sequence(2, {1, 2, 3}, {1})};
  p.rows = {{1, 4, LogitsWanted::last, true}, {2, 1, LogitsWanted::none, false}};
  OpenStep step;
  ASSERT_FALSE(table.begin_step(p, step).has_value());

  table.set_limits({.blocks = 100,
                    .tokens_per_block = 4,
                    .max_context = 64,
                    .vocab_size = 1000,
                    .max_step_tokens = 1});
  p = plan(2);
  p.grow_sequences = {1};
  p.grow_blocks = {2};
  p.decode = true;
  p.rows = {{2, 1, LogitsWanted::none, false}};
  EXPECT_EQ(table.begin_step(p, step).value_or(""), "a step of 2 tokens; there is room for 1");
}

TEST(SequenceTable, LogProbabilitiesAreNumberedForTheScheduler) {
  SequenceTable table = table_with_two();
  OpenStep step;
  StepPlan p = plan(2);
  p.decode = true;  // sequence 2
  p.rows = {{1, 3, LogitsWanted::all, false}};
  ASSERT_FALSE(table.begin_step(p, step).has_value());
  ASSERT_EQ(step.run.rows.size(), 2U);
  EXPECT_FALSE(step.run.rows[0].samples()) << "the prompt goes on";
  EXPECT_EQ(step.run.rows[0].next, 4);
  EXPECT_TRUE(step.run.rows[1].samples());
  StepOutput output;
  output.tokens = {kNoToken, 77};
  output.logprobs.push(1, -0.25F, std::vector<Token>{77}, std::vector<float>{-0.25F});
  for (std::uint32_t i = 0; i < 3; ++i) {
    output.prompt_logprobs.push(i, -1.0F - static_cast<float>(i), {}, {});
  }
  StepResult result;
  table.end_step(step, output, result);
  EXPECT_EQ(result.sequences, std::vector<SequenceId>{2});
  EXPECT_EQ(result.logprobs.items, std::vector<std::uint32_t>{0}) << "the first of result.tokens";
  EXPECT_EQ(result.logprobs.top_tokens, std::vector<Token>{77});
  ASSERT_EQ(result.prompt_logprobs.size(), 1U);
  EXPECT_EQ(result.prompt_logprobs[0].owner, 1U);
  EXPECT_EQ(result.prompt_logprobs[0].values.items, (std::vector<std::uint32_t>{1, 2, 3}));

  StepPlan last = plan(3);
  last.rows = {{1, 2, LogitsWanted::all, true}};
  ASSERT_FALSE(table.begin_step(last, step).has_value());
  EXPECT_TRUE(step.run.rows[0].samples());
  EXPECT_EQ(step.run.rows[0].next, kNoToken);
  output = {};
  output.tokens = {55};
  output.prompt_logprobs.push(0, -4.0F, {}, {});
  StepResult second;
  table.end_step(step, output, second);
  EXPECT_EQ(second.tokens, std::vector<Token>{55});
  ASSERT_EQ(second.prompt_logprobs.size(), 1U);
  EXPECT_EQ(second.prompt_logprobs[0].values.items, std::vector<std::uint32_t>{4});
}

TEST(SequenceTable, HistoryIsCopiedForThoseWhoNeedIt) {
  SequenceTable table;
  table.set_limits(kLimits);
  StepPlan p = plan(1);
  p.add = {sequence(1, {1, 2, 3}, {0}), sequence(2, {4, 5}, {1}), sequence(3, {6, 7, 8, 9}, {2})};
  p.add[0].sampling.presence_penalty = 1.0F;
  p.add[2].sampling.bad_words = {{1, 2}};
  p.add[2].generated = {9};
  p.add[2].blocks.push_back(3);
  p.rows = {{1, 3, LogitsWanted::last, true},
            {2, 2, LogitsWanted::last, true},
            {3, 5, LogitsWanted::last, true}};
  OpenStep step;
  ASSERT_FALSE(table.begin_step(p, step).has_value());
  const auto& rows = step.run.rows;
  EXPECT_EQ(std::vector<Token>(rows[0].history.begin(), rows[0].history.end()),
            (std::vector<Token>{1, 2, 3}));
  EXPECT_TRUE(rows[1].history.empty());
  EXPECT_EQ(std::vector<Token>(rows[2].history.begin(), rows[2].history.end()),
            (std::vector<Token>{6, 7, 8, 9, 9}));
  EXPECT_EQ(rows[2].n_prompt, 4U);
}

TEST(SequenceTable, OnlyTheEndOfAReasoningNeedsItsHistory) {
  for (const std::uint32_t generated : {0U, 1U, 2U, 3U}) {
    SequenceTable table;
    table.set_limits(kLimits);
    StepPlan p = plan(1);
    p.add = {sequence(1, {1, 2}, {0})};
    p.add[0].generated.assign(generated, 9);
    p.add[0].blocks.push_back(3);
    p.add[0].sampling.reasoning_budget = 2;
    p.add[0].sampling.reasoning_close = 5;
    p.rows = {{1, 2 + generated, LogitsWanted::last, true}};
    OpenStep step;
    ASSERT_FALSE(table.begin_step(p, step).has_value());
    EXPECT_EQ(step.run.rows[0].history.size(), generated == 2 ? 4U : 0U) << generated;
    EXPECT_EQ(step.run.holds_next_step(), generated == 1) << generated;
  }
}

TEST(SequenceTable, SamplerSettingsThatCannotRunFailTheRowAlone) {
  const std::vector<std::pair<const char*, std::function<void(SamplingParams&)>>> faults = {
      {"columns of logit_bias differ", [](SamplingParams& p) { p.bias_tokens = {1}; }},
      {"token 1000 is outside",
       [](SamplingParams& p) {
         p.allowed_tokens = {1, 1000};
       }},
      {"the end of the reasoning is outside", [](SamplingParams& p) { p.reasoning_close = 1000; }},
      {"a bad word has no tokens", [](SamplingParams& p) { p.bad_words = {{}}; }},
      {"ends outside the vocabulary",
       [](SamplingParams& p) {
         p.bad_words = {{1, -4}};
       }},
      {"min_p is not in", [](SamplingParams& p) { p.min_p = 1.5F; }},
      {"typical_p is not in", [](SamplingParams& p) { p.typical_p = 0; }},
      {"repetition_penalty is not", [](SamplingParams& p) { p.repetition_penalty = 0; }},
      {"a penalty is not", [](SamplingParams& p) { p.presence_penalty = std::nanf(""); }},
      {"a value of logit_bias is not",
       [](SamplingParams& p) {
         p.bias_tokens = {1};
         p.bias_values = {std::numeric_limits<float>::infinity()};
       }},
  };
  for (const auto& [says, make] : faults) {
    SequenceTable table = table_with_two();
    StepPlan p = plan(2);
    p.add = {sequence(3, {1, 2}, {5})};
    make(p.add[0].sampling);
    p.rows = {{3, 2, LogitsWanted::last, true}};
    OpenStep step;
    ASSERT_FALSE(table.begin_step(p, step).has_value());
    ASSERT_EQ(step.refused.size(), 1U);
    EXPECT_NE(step.refused[0].reason.find(says), std::string::npos) << step.refused[0].reason;
  }
}

TEST(SequenceTable, DecodingPastItsBlocksOrTheContext) {
  SequenceTable table = table_with_two();
  OpenStep step;
  StepId id = 2;
  const auto decode = [&](std::vector<BlockId> grow) {
    StepPlan p = plan(id++);
    p.decode = true;
    for (const BlockId b : grow) {
      p.grow_sequences.push_back(2);
      p.grow_blocks.push_back(b);
    }
    auto problem = table.begin_step(p, step);
    if (!problem) {
      StepResult result;
      table.end_step(step, sampled({7}), result);
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
  ASSERT_FALSE(table.begin_step(p, step).has_value());
  StepResult result;
  table.end_step(step, sampled({7}), result);
  StepPlan q = plan(101);
  q.decode = true;
  const auto past = table.begin_step(q, step);
  ASSERT_TRUE(past.has_value());
  EXPECT_NE(past->find("past the context of 64"), std::string::npos) << *past;
}

/// A sequence whose first token was sampled for a hand-off stays after all: a row without tokens.
TEST(SequenceTable, ARowWithoutTokensJoinsTheDecodeSet) {
  SequenceTable table = table_with_two();
  OpenStep step;
  StepPlan first = plan(2);
  first.rows = {{1, 5, LogitsWanted::last, false}};
  ASSERT_FALSE(table.begin_step(first, step).has_value());
  StepResult result;
  table.end_step(step, sampled({70}), result);
  EXPECT_EQ(table.decoding(), 1U);

  StepPlan join = plan(3);
  join.rows = {{1, 0, LogitsWanted::none, true}};
  join.decode = true;
  ASSERT_FALSE(table.begin_step(join, step).has_value());
  EXPECT_EQ(step.run.rows.size(), 1U);  // sequence 2 alone
  table.end_step(step, sampled({71}), result);
  EXPECT_EQ(table.decoding(), 2U);

  StepPlan decode = plan(4);
  decode.decode = true;
  decode.grow_sequences = {2};
  decode.grow_blocks = {9};
  ASSERT_FALSE(table.begin_step(decode, step).has_value());
  ASSERT_EQ(step.run.rows.size(), 2U);
  EXPECT_EQ(step.run.rows[1].tokens[0], 70);

  SequenceTable twice = table_with_two();
  ASSERT_FALSE(twice.begin_step(first, step).has_value());
  twice.end_step(step, sampled({70}), result);
  join.rows.push_back(join.rows[0]);
  EXPECT_TRUE(twice.begin_step(join, step).has_value());
}

/// The next step begins while this one runs: its row names the row whose token it waits for.
TEST(SequenceTable, TwoOpenSteps) {
  SequenceTable table = table_with_two();
  OpenStep first;
  OpenStep second;
  StepPlan p = plan(2);
  p.rows = {{1, 5, LogitsWanted::last, true}};
  p.decode = true;
  p.grow_sequences = {1, 2};
  p.grow_blocks = {8, 9};
  ASSERT_FALSE(table.begin_step(p, first).has_value());
  ASSERT_EQ(first.run.rows.size(), 2U);
  EXPECT_EQ(first.run.rows[1].from_row, -1);

  StepPlan q = plan(3);
  q.decode = true;
  ASSERT_FALSE(table.begin_step(q, second).has_value());
  ASSERT_EQ(second.run.rows.size(), 2U);
  for (const BatchRow& row : second.run.rows) {
    EXPECT_EQ(row.from_row, row.sequence == 1 ? 0 : 1);
    EXPECT_EQ(row.tokens[0], kNoToken);
    EXPECT_EQ(row.n_generated, row.sequence == 1 ? 1U : 2U);
    EXPECT_EQ(row.position, row.sequence == 1 ? 5 : 4);
  }
  // Growth of the table since then has not moved what the first step looks at.
  EXPECT_EQ(first.run.rows[0].tokens[4], 5);

  StepResult result;
  table.end_step(first, sampled({70, 71}), result);
  EXPECT_EQ(result.tokens, (std::vector<Token>{70, 71}));
  EXPECT_EQ(table.find(1)->tokens[5], 70);
  // Sequence 2 leaves while its row of the second step runs; its token is told all the same.
  StepPlan r = plan(4);
  r.drop = {2};
  r.decode = true;
  ASSERT_FALSE(table.begin_step(r, first).has_value());
  ASSERT_EQ(first.run.rows.size(), 1U);
  EXPECT_GE(first.run.rows[0].from_row, 0);
  StepResult second_result;
  table.end_step(second, sampled({80, 81}), second_result);
  EXPECT_EQ(second_result.tokens.size(), 2U);
  EXPECT_EQ(table.find(1)->tokens.size(), 8U);
  EXPECT_EQ(table.find(1)->tokens.back(), kNoToken);
}

/// A row that fails voids the row of the step that was begun behind it.
TEST(SequenceTable, AFailureVoidsTheOpenStepBehindIt) {
  SequenceTable table = table_with_two();
  OpenStep first;
  OpenStep second;
  StepPlan p = plan(2);
  p.decode = true;
  ASSERT_FALSE(table.begin_step(p, first).has_value());
  StepPlan q = plan(3);
  q.decode = true;
  q.grow_sequences = {2};
  q.grow_blocks = {9};
  ASSERT_FALSE(table.begin_step(q, second).has_value());
  StepResult result;
  StepOutput failed = sampled({kNoToken});
  failed.failed = {{.row = 0, .reason = "NaN", .grammar_missing = true}};
  table.end_step(first, failed, result);
  ASSERT_EQ(result.failed.size(), 1U);
  EXPECT_EQ(table.decoding(), 0U);
  StepResult void_result;
  table.end_step(second, sampled({5}), void_result);
  EXPECT_TRUE(void_result.tokens.empty());
  EXPECT_TRUE(void_result.failed.empty());
}

/// The token awaited was sampled by an older step than the last one: it is known, nobody awaits it.
TEST(SequenceTable, AJoinWithoutTokensKeepsTheTokenAwaited) {
  SequenceTable table = table_with_two();
  OpenStep first;
  OpenStep second;
  StepPlan p = plan(2);
  p.rows = {{1, 5, LogitsWanted::last, false}};
  ASSERT_FALSE(table.begin_step(p, first).has_value());
  StepPlan q = plan(3);
  q.rows = {{1, 0, LogitsWanted::none, true}};
  ASSERT_FALSE(table.begin_step(q, second).has_value());
  StepResult result;
  table.end_step(first, sampled({70}), result);
  table.end_step(second, {}, result);
  StepPlan r = plan(4);
  r.decode = true;
  r.drop = {2};
  r.grow_sequences = {1};
  r.grow_blocks = {8};
  ASSERT_FALSE(table.begin_step(r, first).has_value());
  ASSERT_EQ(first.run.rows.size(), 1U);
  EXPECT_EQ(first.run.rows[0].from_row, -1);
  EXPECT_EQ(first.run.rows[0].tokens[0], 70);
}

TEST(SequenceTable, ATokenOutsideTheVocabularyIsAFailure) {
  for (const Token bad : {kNoToken, Token{1000}, Token{-7}}) {
    SequenceTable table = table_with_two();
    StepPlan p = plan(2);
    p.decode = true;
    OpenStep step;
    ASSERT_FALSE(table.begin_step(p, step).has_value());
    StepResult result;
    table.end_step(step, sampled({bad}), result);
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
  OpenStep step;
  ASSERT_FALSE(table.begin_step(p, step).has_value());
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
  const auto draw = [&](std::uint32_t below) {
    return static_cast<std::uint32_t>(random() % below);
  };
  SequenceTable table;
  table.set_limits({100, 4, 4096, 1000});
  std::map<SequenceId, Model> model;
  SequenceId next = 1;
  OpenStep step;
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
      for (std::uint32_t n = 1 + draw(20); n > 0; --n)
        m.tokens.push_back(static_cast<Token>(draw(1000)));
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
    ASSERT_FALSE(table.begin_step(p, step).has_value());
    StepOutput output;
    std::map<SequenceId, Token> sampled;
    for (const BatchRow& row : step.run.rows) {
      ++rows_seen;
      Model& m = model.at(row.sequence);
      ASSERT_EQ(row.position, m.computed);
      ASSERT_LE(row.position + row.tokens.size(), m.blocks.size() * 4);
      ASSERT_TRUE(std::equal(row.tokens.begin(), row.tokens.end(), m.tokens.begin() + m.computed));
      ASSERT_EQ(row.blocks.size(), (m.computed + row.tokens.size() + 3) / 4);
      ASSERT_TRUE(std::equal(row.blocks.begin(), row.blocks.end(), m.blocks.begin()));
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

/// Pool 77 is mapped and has 8 blocks; 5 is the own one.
SequenceTable table_with_others() {
  SequenceTable table;
  TableLimits limits = kLimits;
  limits.allocation = 5;
  table.set_limits(limits);
  table.set_readable([](AllocationId pool) { return pool == 77 ? 8U : 0U; });
  return table;
}

TEST(SequenceTable, ATableMayBeginInOtherPools) {
  SequenceTable table = table_with_others();
  StepPlan p = plan(1);
  p.decode = true;
  AddSequence add = sequence(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {30});
  add.before = {{77, {7}}, {5, {99}}, {77, {0}}};
  add.generated = {13};
  add.computed = 12;
  add.decode = true;
  p.add = {add};
  OpenStep step;
  ASSERT_EQ(table.begin_step(p, step), std::nullopt);
  ASSERT_EQ(step.run.rows.size(), 1U);
  const BatchRow& row = step.run.rows[0];
  EXPECT_TRUE(step.run.reads_in_place);
  EXPECT_TRUE(std::ranges::equal(row.blocks, std::vector<BlockId>{7, 99, 0, 30}));
  ASSERT_EQ(row.before.size(), 3U);
  EXPECT_EQ(row.before[1].allocation, 5U);
  EXPECT_TRUE(table.reads(77));
  EXPECT_FALSE(table.reads(78));
  Tables tables;
  table.list(tables);
  EXPECT_EQ(tables.blocks, (std::vector<BlockId>{7, 99, 0, 30}));
  StepResult result;
  table.end_step(step, sampled({14}), result);
  StepPlan drop = plan(2);
  drop.drop = {1};
  ASSERT_EQ(table.begin_step(drop, step), std::nullopt);
  EXPECT_FALSE(step.run.reads_in_place);
  EXPECT_FALSE(table.reads(77));
}

TEST(SequenceTable, APoolThatIsNotMappedFailsTheRowAlone) {
  SequenceTable table = table_with_others();
  StepPlan p = plan(1);
  p.add = {sequence(1, {1, 2, 3, 4, 5}, {30}), sequence(2, {1, 2}, {31})};
  p.add[0].before = {{78, {7}}};
  p.add[0].computed = 4;
  p.rows = {{1, 1, LogitsWanted::last, false}, {2, 2, LogitsWanted::last, false}};
  OpenStep step;
  ASSERT_EQ(table.begin_step(p, step), std::nullopt);
  EXPECT_EQ(step.run.rows.size(), 1U);
  ASSERT_EQ(step.refused.size(), 1U);
  EXPECT_EQ(step.refused[0].sequence, 1U);
  EXPECT_TRUE(step.refused[0].unmapped);
}

TEST(SequenceTable, WhatIsOnlyReadIsComputedAndInItsPool) {
  const auto problem_of = [](std::vector<PoolBlocks> before, std::uint32_t computed) {
    SequenceTable table = table_with_others();
    StepPlan p = plan(1);
    p.add = {sequence(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {30})};
    p.add[0].before = std::move(before);
    p.add[0].computed = computed;
    OpenStep step;
    return table.begin_step(p, step).value_or("");
  };
  EXPECT_EQ(problem_of({{77, {7, 1}}}, 8), "");
  EXPECT_NE(problem_of({{77, {7, 1}}}, 7).find("not computed"), std::string::npos);
  EXPECT_NE(problem_of({{77, {8, 1}}}, 8).find("block 8 of a pool of 8"), std::string::npos);
  EXPECT_NE(problem_of({{5, {100, 1}}}, 8).find("block 100 of a pool of 100"), std::string::npos);
}

/// Chunks of a prompt in turns with another worker: its own, the other's, its own again.
TEST(SequenceTable, OthersComputeTokensInBetween) {
  SequenceTable table = table_with_others();
  StepPlan p = plan(1);
  p.add = {sequence(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {30})};
  p.rows = {{1, 4, LogitsWanted::none, false}};
  OpenStep step;
  ASSERT_EQ(table.begin_step(p, step), std::nullopt);
  StepResult result;
  table.end_step(step, {}, result);
  p = plan(2);
  p.elsewhere = {{1, {77, {7}}}};
  p.grow_sequences = {1};
  p.grow_blocks = {31};
  p.rows = {{1, 4, LogitsWanted::none, false}};
  p.waits = {{1, "page", 3, 8}};
  ASSERT_EQ(table.begin_step(p, step), std::nullopt);
  ASSERT_EQ(step.run.rows.size(), 1U);
  const BatchRow& row = step.run.rows[0];
  EXPECT_EQ(row.position, 8);
  EXPECT_TRUE(std::ranges::equal(row.blocks, std::vector<BlockId>{30, 7, 31}));
  ASSERT_EQ(row.before.size(), 2U);
  EXPECT_EQ(row.before[0].allocation, 5U);
  EXPECT_EQ(row.before[1].allocation, 77U);
  ASSERT_EQ(step.run.waits.size(), 1U);
  EXPECT_EQ(step.run.waits[0].step, 8U);
  StepOutput output;
  output.failed = {{0, "nobody came", true}};
  table.end_step(step, output, result);
  ASSERT_EQ(result.failed.size(), 1U);
  EXPECT_TRUE(result.failed[0].waited);
  EXPECT_FALSE(result.failed[0].grammar_missing);
  EXPECT_FALSE(result.failed[0].unmapped);
}

TEST(SequenceTable, TokensElsewhereFollowWhatIsFull) {
  const auto problem_of = [](std::uint32_t computed, std::vector<BlockId> blocks,
                             std::vector<StepWait> waits) {
    SequenceTable table = table_with_others();
    StepPlan p = plan(1);
    p.add = {sequence(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {30})};
    p.add[0].computed = computed;
    p.elsewhere = {{1, {77, std::move(blocks)}}};
    p.waits = std::move(waits);
    OpenStep step;
    return table.begin_step(p, step).value_or("");
  };
  EXPECT_EQ(problem_of(4, {7}, {}), "");
  EXPECT_NE(problem_of(3, {7}, {}).find("blocks of others behind"), std::string::npos);
  EXPECT_NE(problem_of(4, {7, 6}, {}), "") << "not a token is left";
  EXPECT_NE(problem_of(4, {8}, {}).find("block 8 of a pool of 8"), std::string::npos);
  EXPECT_NE(problem_of(4, {7}, {{1, "page", 3, 8}}).find("waits without a row"), std::string::npos);
}

TEST(SplitTables, LoseNothingAndSayWhenTheyEnd) {
  Tables all;
  all.term = 3;
  all.steps_done = 4;
  for (std::uint32_t i = 1; i <= 9; ++i) {
    all.sequences.push_back(i);
    all.counts.push_back(i % 4 * 3);
    for (std::uint32_t n = 0; n < i % 4 * 3; ++n) all.blocks.push_back(100 * i + n);
  }
  ASSERT_EQ(split_tables(all, 1000).size(), 1U);
  EXPECT_EQ(split_tables(all, 1000)[0].blocks, all.blocks);
  const std::vector<Tables> parts = split_tables(all, 8);
  ASSERT_GE(parts.size(), 5U);
  Tables whole;
  for (const Tables& part : parts) {
    EXPECT_EQ(part.more, &part != &parts.back());
    EXPECT_EQ(part.term, 3U);
    EXPECT_EQ(part.steps_done, 4U);
    EXPECT_TRUE(part.blocks.size() <= 8 || part.sequences.size() == 1);
    whole.sequences.insert(whole.sequences.end(), part.sequences.begin(), part.sequences.end());
    whole.counts.insert(whole.counts.end(), part.counts.begin(), part.counts.end());
    whole.blocks.insert(whole.blocks.end(), part.blocks.begin(), part.blocks.end());
  }
  EXPECT_EQ(whole.sequences, all.sequences);
  EXPECT_EQ(whole.counts, all.counts);
  EXPECT_EQ(whole.blocks, all.blocks);
  EXPECT_EQ(split_tables(Tables{}, 8).size(), 1U);
}

}  // namespace
}  // namespace baton::test
