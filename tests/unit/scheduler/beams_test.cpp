// Beam search among the other requests: blocks, steps, and what undoes it.
#include <gtest/gtest.h>

#include "scheduler/apply/requests.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

class BeamsTest : public ::testing::Test {
 protected:
  explicit BeamsTest(const Settings& settings = {}) : cluster(settings) {}

  void submit(std::uint64_t counter, std::uint32_t prompt, std::uint32_t max_tokens,
              std::uint32_t beams, std::uint32_t told = 1) {
    Submit m = cluster.request(counter, prompt, max_tokens);
    m.sampling.num_beams = beams;
    m.sampling.num_return_sequences = told;
    cluster.from_frontend(cluster.frontend, m);
  }

  /// Answers the oldest step; a row's candidates are tokens 20, 21, ... with -1, -2, ...: the best
  /// beam has the best `width` continuations, so all beams of a step are forks of it.
  void answer(LinkId link, std::uint32_t width) {
    const Worker& w = cluster.state.workers[cluster.state.worker_links.at(link)];
    StepResult m = cluster.result_of(w);
    std::erase_if(m.sequences, [&](SequenceId id) {
      const Sequence* s = cluster.state.sequences.find(id);
      const Request* r = s == nullptr ? nullptr : cluster.state.requests.find(s->request);
      if (r == nullptr || !r->beams) return false;
      m.beam_sequences.push_back(id);
      return true;
    });
    m.tokens.assign(m.sequences.size(), kWord);
    for (const SequenceId id : w.compute.steps.front().beams) m.beam_sequences.push_back(id);
    for (std::uint32_t i = 0; i < m.beam_sequences.size(); ++i) {
      std::vector<Token> tokens;
      std::vector<float> values;
      for (std::uint32_t k = 0; k < width; ++k) {
        tokens.push_back(static_cast<Token>(20 + k));
        values.push_back(-0.01F * static_cast<float>(k + 1) - 10.0F * static_cast<float>(i));
      }
      m.candidates.push(i, values.front(), tokens, values);
    }
    cluster.from_worker(link, m);
  }

  Cluster cluster;
};

TEST_F(BeamsTest, ForksShareFullBlocksAndCopyThePartlyFilledOne) {
  const LinkId link = cluster.ready_worker("mixed0", Role::mixed);
  submit(1, 11, 6, 4, 2);  // two full blocks of 4, one of 3 tokens
  cluster.turn();
  answer(link, 4);
  cluster.turn();
  StepPlan plan = cluster.last_plan(link);
  ASSERT_EQ(plan.beams.size(), 4U);
  ASSERT_EQ(plan.fork.size(), 3U);
  ASSERT_EQ(plan.ops.size(), 3U);
  const Sequence& source = cluster.source(1);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.ops[i].from, source.tail().blocks[2]);
    EXPECT_EQ(plan.ops[i].to, plan.fork[i].blocks[0]);
    const Sequence& fork = *cluster.state.sequences.find(plan.fork[i].sequence);
    EXPECT_EQ(fork.tail().blocks[0], source.tail().blocks[0]);
    EXPECT_EQ(fork.tail().blocks[1], source.tail().blocks[1]);
    EXPECT_NE(fork.tail().blocks[2], source.tail().blocks[2]);
  }
  EXPECT_EQ(cluster.pool("mixed0").owned, 6U);  // 2 shared, 4 of their own
  EXPECT_EQ(cluster.worker("mixed0").compute.sequences, 4U);

  // The best beam alone goes on: the others' blocks return when no step names them any more.
  answer(link, 4);
  EXPECT_EQ(cluster.pool("mixed0").owned, 3U);
  cluster.turn();
  plan = cluster.last_plan(link);
  EXPECT_EQ(plan.drop.size(), 3U);
  EXPECT_EQ(plan.fork.size(), 3U);
  EXPECT_TRUE(plan.ops.empty()) << "12 tokens fill three blocks: nothing to copy";
  while (cluster.terminal(1) == nullptr) {
    answer(link, 4);
    cluster.turn();
  }
  EXPECT_EQ(cluster.code(1), ErrorCode::ok);
  EXPECT_EQ(cluster.terminal(1)->n, (std::vector<std::uint32_t>{6, 6}));
  EXPECT_EQ(cluster.terminal(1)->scores.size(), 2U);
  EXPECT_EQ(cluster.tokens_of(1), 12U);
  while (!cluster.worker("mixed0").compute.steps.empty()) answer(link, 4);
  EXPECT_EQ(cluster.pool("mixed0").free, 100U);
}

TEST_F(BeamsTest, OthersKeepTwoStepsInFlight) {
  const LinkId link = cluster.ready_worker("mixed0", Role::mixed);
  cluster.submit(1, 4, 50);
  submit(2, 4, 6, 2);
  cluster.turn();
  answer(link, 2);
  cluster.turn();
  const Worker& w = cluster.worker("mixed0");
  ASSERT_EQ(w.compute.steps.size(), 2U);
  EXPECT_EQ(w.compute.steps[0].beams.size() + w.compute.steps[1].beams.size(), 2U);
  EXPECT_EQ(w.compute.steps[1].decode.size(), 1U);
  answer(link, 2);
  answer(link, 2);
  cluster.turn();
  EXPECT_EQ(w.compute.steps[0].beams.size(), 2U);
}

TEST_F(BeamsTest, ASuspectsStepsAndThoseOfOthersTakeTurns) {
  const LinkId link = cluster.ready_worker("mixed0", Role::mixed);
  cluster.submit(1, 4, 50);
  cluster.turn();
  answer(link, 2);
  submit(2, 4, 8, 2);
  cluster.make_suspect(2, Stage::decode);
  cluster.find(2)->beams->furthest = 5;  // it got there before
  cluster.turn();
  const Worker& w = cluster.worker("mixed0");
  int own = 0;
  while (cluster.deaths(2) > 0) {
    ASSERT_FALSE(w.compute.steps.empty());
    for (const InFlightStep& step : w.compute.steps) {
      if (step.beams.empty() && step.rows.empty()) continue;
      EXPECT_EQ(w.compute.steps.size(), 1U);
      EXPECT_TRUE(step.decode.empty());
      ++own;
    }
    answer(link, 2);
    cluster.turn();
  }
  EXPECT_EQ(own, 6);  // the prompt's, and one for each token of the beams
  EXPECT_GE(cluster.tokens_of(1), 6U);
}

TEST_F(BeamsTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  cluster.ready_worker("mixed0", Role::mixed, 10);
  submit(1, 8, 20, 4);
  EXPECT_EQ(cluster.code(1), ErrorCode::too_long);
  EXPECT_EQ(cluster.terminal(1)->message,
            "4 beams of up to 20 tokens after a prompt of 8 need up to 22 blocks of 4 tokens; the "
            "KV pool of mixed0 has 10");
  submit(2, 8, 8, 4);  // 2 + 4 * 2
  cluster.turn();
  EXPECT_EQ(cluster.phase(2), Phase::prefill);
}

TEST_F(BeamsTest, NoSearchIsPrefilledThatItsFirstForksWouldPreempt) {
  const LinkId link = cluster.ready_worker("prefill0", Role::prefill, 3);  // nobody decodes
  cluster.submit(1, 2, 8);
  cluster.turn();
  submit(2, 2, 2, 3);
  for (int i = 0; i < 4; ++i) {
    cluster.answer(link);
    cluster.turn();
    EXPECT_EQ(cluster.phase(2), Phase::waiting);
  }
}

TEST_F(BeamsTest, PreemptionAndDeathBeginAgainFromThePrompt) {
  const LinkId link = cluster.ready_worker("mixed0", Role::mixed);
  submit(1, 10, 6, 3);
  cluster.turn();
  answer(link, 3);
  cluster.turn();
  ASSERT_EQ(cluster.worker("mixed0").compute.beams.size(), 1U);
  preempt(cluster.state, *cluster.find(1));
  EXPECT_EQ(cluster.phase(1), Phase::waiting);
  EXPECT_TRUE(audit_state(cluster.state).empty());
  answer(link, 3);  // void: nobody wants it
  EXPECT_EQ(cluster.phase(1), Phase::waiting);
  cluster.turn();
  EXPECT_EQ(cluster.last_plan(link).drop.size(), 3U);
  EXPECT_EQ(cluster.source(1).scheduled, 10U);
  answer(link, 3);
  cluster.turn();
  cluster.gone(link);
  EXPECT_EQ(cluster.phase(1), Phase::waiting);
  EXPECT_EQ(cluster.deaths(1), 1U);
  EXPECT_EQ(cluster.tokens_of(1), 0U);
}

class FewRowsTest : public BeamsTest {
 protected:
  static Settings few() {
    Settings s;
    s.max_running = 4;
    return s;
  }
  FewRowsTest() : BeamsTest(few()) {}
};

TEST_F(FewRowsTest, EveryBeamCounts) {
  const LinkId link = cluster.ready_worker("mixed0", Role::mixed);
  submit(1, 4, 6, 5);
  EXPECT_EQ(cluster.code(1), ErrorCode::invalid_argument);
  submit(2, 4, 6, 3);
  submit(3, 4, 6, 2);
  cluster.turn();
  EXPECT_EQ(cluster.phase(2), Phase::prefill);
  EXPECT_EQ(cluster.phase(3), Phase::waiting);
  cluster.submit(4, 4, 6);
  while (cluster.terminal(2) == nullptr) {
    answer(link, 3);
    cluster.turn();
    EXPECT_LE(cluster.worker("mixed0").compute.sequences, 4U);
  }
  EXPECT_EQ(cluster.phase(3), Phase::prefill);
}

TEST_F(BeamsTest, AtTheVeryFrontSearchesDoNotPreemptEachOtherInTurn) {
  cluster.state.settings.preempted = Preempted::front;
  cluster.ready_worker("mixed0", Role::mixed);
  submit(1, 10, 6, 3);
  submit(2, 10, 6, 3);
  cluster.submit(3, 10, 6);
  cluster.submit(4, 10, 6);
  cluster.turn();
  for (std::uint64_t i = 1; i <= 4; ++i) preempt(cluster.state, *cluster.find(i));
  const auto place = [&](std::uint64_t i) { return cluster.find(i)->place; };
  EXPECT_LT(place(4), place(3));  // the last one evicted first: each has got on by a token
  EXPECT_LT(place(3), place(1));
  EXPECT_LT(place(1), place(2));
  EXPECT_LT(place(2), 0);
}

TEST_F(BeamsTest, MoreOfThemThanAStepHasRoomForTakeTurns) {
  cluster.state.settings.steps_in_flight = 1;
  const LinkId prefill = cluster.register_worker("prefill0", Role::prefill);
  Hello hello = cluster.hello_of("prefill0", 100);
  hello.max_step_tokens = 5;
  cluster.from_worker(prefill, hello);
  const LinkId decode = cluster.ready_worker("decode0", Role::decode, 14);
  for (std::uint64_t i = 1; i <= 4; ++i) submit(i, 4, 6, 3);
  for (int i = 0; i < 10; ++i) {
    cluster.turn();
    if (!cluster.worker("prefill0").compute.steps.empty()) answer(prefill, 3);
  }
  cluster.gone(decode);  // all of them are to decode where their prompts ran
  const Compute& compute = cluster.worker("prefill0").compute;
  for (int i = 0; i < 100 && cluster.terminals.size() < 4; ++i) {
    cluster.turn();
    if (compute.steps.empty()) continue;
    const StepPlan plan = cluster.last_plan(prefill);
    std::size_t tokens = plan.beams.size() + compute.steps.front().decode.size();
    for (const PromptRow& row : plan.rows) tokens += row.n_tokens;
    EXPECT_LE(tokens, 5U);
    answer(prefill, 3);
    if (i == 8) {
      for (std::uint64_t r = 1; r <= 3; ++r)
        EXPECT_GE(cluster.find(r)->beams->search->length(), 2U) << r;
    }
  }
  EXPECT_EQ(cluster.terminals.size(), 4U);
}

TEST_F(BeamsTest, WiderOnesThanAStepHasRoomForAreRefused) {
  const LinkId link = cluster.register_worker("mixed0", Role::mixed);
  Hello hello = cluster.hello_of("mixed0", 100);
  hello.max_step_tokens = 3;
  cluster.from_worker(link, hello);
  submit(1, 8, 8, 4);
  EXPECT_EQ(cluster.code(1), ErrorCode::too_long);
  EXPECT_EQ(cluster.terminal(1)->message,
            "4 beams are more than the 3 tokens that a step of mixed0 has room for");
  submit(2, 8, 8, 3);
  cluster.turn();
  EXPECT_EQ(cluster.phase(2), Phase::prefill);
}

TEST_F(BeamsTest, WiderOnesThanTheirPromptsWorkerDoNotStandThereWhenTheDecoderDies) {
  const LinkId prefill = cluster.register_worker("prefill0", Role::prefill);
  Hello hello = cluster.hello_of("prefill0", 100);
  hello.max_step_tokens = 3;
  cluster.from_worker(prefill, hello);
  const LinkId decode = cluster.ready_worker("decode0", Role::decode);
  submit(1, 3, 6, 4);
  cluster.turn();
  ASSERT_EQ(cluster.phase(1), Phase::prefill);
  cluster.gone(decode);
  answer(prefill, 4);
  cluster.turn();
  ASSERT_NE(cluster.terminal(1), nullptr);
  EXPECT_EQ(cluster.code(1), ErrorCode::kv_exhausted);
  EXPECT_EQ(cluster.terminal(1)->message,
            "4 beams are more than the 3 tokens that a step of prefill0 has room for");
}

TEST_F(BeamsTest, AHandOffComesBeforeTheForks) {
  const LinkId prefill = cluster.ready_worker("prefill0", Role::prefill);
  const LinkId decode = cluster.ready_worker("decode0", Role::decode);
  submit(1, 10, 6, 3);
  cluster.turn();
  answer(prefill, 3);
  cluster.turn();
  EXPECT_EQ(cluster.phase(1), Phase::handoff);
  cluster.done_pull(decode);
  cluster.turn();
  const StepPlan plan = cluster.last_plan(decode);
  ASSERT_EQ(plan.add.size(), 1U);
  EXPECT_FALSE(plan.add[0].decode);
  EXPECT_EQ(plan.add[0].computed, 10U);
  EXPECT_EQ(plan.fork.size(), 2U);
  EXPECT_EQ(plan.beams.size(), 3U);
  while (cluster.terminal(1) == nullptr) {
    answer(decode, 3);
    cluster.turn();
  }
  EXPECT_EQ(cluster.tokens_of(1), 6U);
}

}  // namespace
}  // namespace baton::test
