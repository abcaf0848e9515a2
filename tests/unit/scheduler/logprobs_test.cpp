// Log probabilities on their way from a worker to a front end: beside their tokens, whole, and
// again when they are asked for again.
#include <gtest/gtest.h>

#include "scheduler/apply/requests.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

/// Takes part in a Cluster by its outbox: the cluster's own collect() keeps tokens alone.
struct Heard {
  std::vector<Token> tokens;
  Logprobs logprobs;
  std::vector<PromptLogprobs> prompt;
};

class LogprobsTest : public ::testing::Test {
 protected:
  LogprobsTest() : cluster_(settings()) { worker_ = cluster_.ready_worker("mixed0", Role::mixed); }

  static Settings settings() {
    Settings s;
    s.steps_in_flight = 1;
    return s;
  }

  void submit(std::uint32_t prompt, std::uint32_t max_tokens, std::int32_t logprobs,
              std::int32_t prompt_logprobs) {
    Submit m = cluster_.request(1, prompt, max_tokens);
    m.sampling.logprobs = logprobs;
    m.sampling.prompt_logprobs = prompt_logprobs;
    cluster_.from_frontend(cluster_.frontend, m);
  }

  /// The oldest step's result, with -0.5 * (index of the token + 1) for each token, and -position
  /// for each prompt token of a row with LogitsWanted::all.
  StepResult result() {
    const Worker& w = cluster_.worker("mixed0");
    StepResult m = cluster_.result_of(w);
    for (std::size_t i = 0; i < m.tokens.size(); ++i) {
      const std::vector<Token> tops = {kWord, 3};
      const std::vector<float> values = {-0.5F, -1.5F};
      m.logprobs.push(static_cast<std::uint32_t>(i), -0.5F * static_cast<float>(++sampled_), tops,
                      values);
    }
    for (const PromptRow& row : cluster_.last_plan(worker_).rows) {
      if (row.logits != LogitsWanted::all) continue;
      const Sequence& s = *cluster_.state.sequences.find(row.sequence);
      PromptLogprobs& part = m.prompt_logprobs.emplace_back();
      part.owner = row.sequence;
      for (std::uint32_t p = s.computed + 1; p <= s.computed + row.n_tokens; ++p) {
        if (p >= s.prefill_length) break;
        part.values.push(p, -static_cast<float>(p), {}, {});
      }
    }
    return m;
  }

  /// One event, and what it makes the front end hear.
  Heard after(Event event) {
    apply(cluster_.state, std::move(event), cluster_.now, cluster_.out);
    Heard heard;
    for (Events& events : cluster_.out.events) {
      heard.tokens = events.tokens;
      heard.logprobs = events.logprobs;
      heard.prompt = events.prompt_logprobs;
    }
    cluster_.tick();  // collects the outbox
    return heard;
  }
  Heard step() {
    cluster_.turn();
    return after(FromWorker{worker_, result()});
  }

  Cluster cluster_;
  LinkId worker_;
  int sampled_ = 0;
};

TEST_F(LogprobsTest, TravelBesideTheirTokens) {
  submit(4, 3, 2, -1);
  const Heard first = step();
  EXPECT_EQ(first.tokens, std::vector<Token>{kWord});
  EXPECT_EQ(first.logprobs.items, std::vector<std::uint32_t>{0});
  EXPECT_EQ(first.logprobs.logprobs, std::vector<float>{-0.5F});
  EXPECT_EQ(first.logprobs.top_tokens, (std::vector<Token>{kWord, 3}));
  EXPECT_TRUE(first.prompt.empty());
  EXPECT_EQ(step().logprobs.logprobs, std::vector<float>{-1.0F});
}

TEST_F(LogprobsTest, AreSentAgainWithTheTokens) {
  submit(4, 8, 2, 0);
  for (int i = 0; i < 4; ++i) step();
  FrontendHeartbeat beat;
  beat.epoch = cluster_.state.epoch;
  beat.counters = {1};
  beat.attempts = {1};
  beat.next = {2};
  Heard again = after(FromFrontend{cluster_.frontend, beat});
  EXPECT_EQ(again.tokens.size(), 2U);
  EXPECT_EQ(again.logprobs.items, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(again.logprobs.logprobs, (std::vector<float>{-1.5F, -2.0F}));
  EXPECT_EQ(again.logprobs.top_tokens.size(), 4U);
  EXPECT_TRUE(again.prompt.empty()) << "they left with the first token, which the client has";
  beat.next = {0};
  again = after(FromFrontend{cluster_.frontend, beat});
  EXPECT_EQ(again.tokens.size(), 4U);
  ASSERT_EQ(again.prompt.size(), 1U);
  EXPECT_EQ(again.prompt[0].values.items, (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST_F(LogprobsTest, OfAPromptComeInSmallChunksAndLeaveWhole) {
  submit(150, 2, -1, 0);
  cluster_.turn();
  EXPECT_EQ(cluster_.last_plan(worker_).rows.at(0).n_tokens, 64U);
  EXPECT_EQ(cluster_.last_plan(worker_).rows.at(0).logits, LogitsWanted::all);
  EXPECT_TRUE(after(FromWorker{worker_, result()}).prompt.empty());
  EXPECT_TRUE(step().prompt.empty());
  const Heard heard = step();
  ASSERT_EQ(heard.tokens.size(), 1U);
  ASSERT_EQ(heard.prompt.size(), 1U);
  EXPECT_EQ(heard.prompt[0].owner, 1U);
  ASSERT_EQ(heard.prompt[0].values.items.size(), 149U);
  for (std::uint32_t p = 1; p < 150; ++p) {
    EXPECT_EQ(heard.prompt[0].values.items[p - 1], p);
    EXPECT_EQ(heard.prompt[0].values.logprobs[p - 1], -static_cast<float>(p));
  }
}

TEST_F(LogprobsTest, OfAPromptComeInPartsWhereAMessageDoesNotHoldThem) {
  cluster_.state.settings.message_bytes = 2048;
  submit(150, 2, -1, 0);
  step();
  step();
  Heard heard = step();
  FrontendHeartbeat beat;
  beat.epoch = cluster_.state.epoch;
  beat.counters = {1};
  beat.attempts = {1};
  beat.next = {0};
  std::uint32_t entries = 0;
  int parts = 0;
  while (entries < 149) {
    ASSERT_LT(++parts, 10);
    ASSERT_EQ(heard.prompt.size(), 1U);
    const PromptLogprobs& part = heard.prompt[0];
    EXPECT_EQ(part.first, entries);
    EXPECT_LE(part.values.items.size(), 2048U / 4 / 12 + 1);
    for (const std::uint32_t item : part.values.items) EXPECT_EQ(item, ++entries);
    EXPECT_EQ(part.more, entries < 149);
    EXPECT_EQ(heard.tokens.size(), part.more ? 0U : 1U) << "the token waits for all of them";
    beat.prompt_entries = {entries};
    if (part.more) heard = after(FromFrontend{cluster_.frontend, beat});
  }
  EXPECT_EQ(parts, 4);
  beat.prompt_entries = {1, 2};
  EXPECT_TRUE(after(FromFrontend{cluster_.frontend, beat}).tokens.empty()) << "columns disagree";
}

TEST_F(LogprobsTest, OfAPromptBeginAnewOnAnotherWorker) {
  submit(150, 2, -1, 0);
  step();
  cluster_.gone(worker_);
  worker_ = cluster_.ready_worker("mixed0", Role::mixed, 100, 2);
  Heard heard;
  for (int i = 0; i < 3; ++i) heard = step();
  ASSERT_EQ(heard.prompt.size(), 1U);
  EXPECT_EQ(heard.prompt[0].values.items.size(), 149U) << "nothing twice";
}

TEST_F(LogprobsTest, OfAPromptOutliveAPreemption) {
  submit(20, 8, -1, 0);
  step();
  step();
  preempt(cluster_.state, *cluster_.find(1));
  cluster_.turn();
  for (int i = 0; i < 3; ++i) {
    cluster_.turn();
    if (!cluster_.worker("mixed0").compute.steps.empty()) after(FromWorker{worker_, result()});
  }
  FrontendHeartbeat beat;
  beat.epoch = cluster_.state.epoch;
  beat.counters = {1};
  beat.attempts = {1};
  beat.next = {0};
  const Heard again = after(FromFrontend{cluster_.frontend, beat});
  ASSERT_EQ(again.prompt.size(), 1U);
  EXPECT_EQ(again.prompt[0].values.items.size(), 19U);
}

TEST_F(LogprobsTest, OfSeveralPromptsShareTheLinesOfOneStep) {
  for (std::uint64_t id = 1; id <= 3; ++id) {
    Submit m = cluster_.request(id, 100, 2);
    m.sampling.prompt_logprobs = 0;
    cluster_.from_frontend(cluster_.frontend, m);
  }
  cluster_.submit(4, 100, 2);
  for (int i = 0; i < 20 && cluster_.terminal(4) == nullptr; ++i) {
    cluster_.turn();
    std::uint32_t lines = 0;
    for (const PromptRow& row : cluster_.last_plan(worker_).rows) {
      EXPECT_GT(row.n_tokens, 0U);
      lines += row.logits == LogitsWanted::all ? row.n_tokens : 0;
    }
    EXPECT_LE(lines, 64U);
    if (!cluster_.worker("mixed0").compute.steps.empty()) after(FromWorker{worker_, result()});
  }
  EXPECT_NE(cluster_.terminal(4), nullptr) << "a request without them does not wait for the others";
  cluster_.run();
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(cluster_.code(id), ErrorCode::ok);
}

TEST_F(LogprobsTest, BeyondTheBoundsAreRefused) {
  submit(4, 3, 21, -1);
  EXPECT_EQ(cluster_.code(1), ErrorCode::invalid_argument);
}

TEST_F(LogprobsTest, ColumnsThatDisagreeEndTheTerm) {
  submit(4, 3, 2, -1);
  cluster_.turn();
  StepResult bad = result();
  bad.logprobs.counts[0] = 7;
  cluster_.from_worker(worker_, bad);
  EXPECT_TRUE(cluster_.logged("unexpected step result"));
  EXPECT_FALSE(cluster_.worker("mixed0").ready());
}

}  // namespace
}  // namespace baton::test
