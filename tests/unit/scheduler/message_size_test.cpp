// Messages that grow with the load are split before they are larger than one may be. The cluster
// compares each encoded message with Settings::message_bytes.
#include "scheduler/state/message_size.h"

#include <gtest/gtest.h>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

constexpr std::size_t kSmall = 16'384;

Settings small_messages() {
  Settings settings;
  settings.message_bytes = kSmall;
  settings.prompt_chunk = 4096;
  settings.token_budget = 8192;
  return settings;
}

/// A worker whose pool a memory process keeps.
LinkId join(Cluster& c, Incarnation incarnation, std::uint32_t blocks = 20'000) {
  const LinkId link = c.register_worker("mixed0", Role::mixed, incarnation);
  Hello hello = Cluster::hello_of("mixed0", blocks, incarnation);
  hello.allocation = 77;
  hello.leased = true;
  c.from_worker(link, hello);
  return link;
}

TEST(MessageSize, SequencesThatGoOnInAKeptPoolComeInSeveralPlans) {
  Cluster c(small_messages(), /*prefix_cache=*/true);
  const LinkId old = join(c, 1);
  for (std::uint64_t i = 1; i <= 40; ++i) c.submit(i, 600, 100);
  for (std::uint64_t i = 1; i <= 40; ++i) {
    while (c.tokens_of(i) < 2) {
      c.turn();
      c.answer(old);
    }
  }
  c.turn();
  c.gone(old);
  EXPECT_TRUE(c.source(40).parked);
  const LinkId link = join(c, 2);
  c.run();
  for (std::uint64_t i = 1; i <= 40; ++i) {
    EXPECT_EQ(c.tokens_of(i), 100U);
    EXPECT_EQ(c.code(i), ErrorCode::ok);
  }
  std::size_t adds = 0;
  for (const StepPlan& plan : c.sent<StepPlan>(link)) adds += plan.add.size();
  EXPECT_EQ(adds, 40U);
  EXPECT_EQ(c.state.counters.resumed, 40U);
  EXPECT_EQ(c.state.counters.terms_ended, 1U);
}

TEST(MessageSize, PromptsThatGoOnInAKeptPoolToo) {
  Settings settings = small_messages();
  settings.prompt_chunk = 8;
  Cluster c(settings, /*prefix_cache=*/true);
  const LinkId old = join(c, 1);
  for (std::uint64_t i = 1; i <= 20; ++i) c.submit(i, 600, 4);
  for (int steps = 0; steps < 12; ++steps) {
    c.turn();
    c.answer(old);
  }
  c.gone(old);
  join(c, 2);
  c.run(100'000);
  for (std::uint64_t i = 1; i <= 20; ++i) EXPECT_EQ(c.tokens_of(i), 4U);
  EXPECT_EQ(c.state.counters.terms_ended, 1U);
}

TEST(MessageSize, OneStepTakesInNoMorePromptsThanItsMessageHolds) {
  Cluster c(small_messages());
  const LinkId link = c.ready_worker("mixed0", Role::mixed, 20'000);
  for (std::uint64_t i = 1; i <= 12; ++i) c.submit(i, 600, 4);
  c.turn();
  const std::vector<StepPlan> plans = c.sent<StepPlan>(link);
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_GE(plans[0].add.size(), 2U);
  EXPECT_LE(plans[0].add.size(), 4U);
  c.run();
  for (std::uint64_t i = 1; i <= 12; ++i) EXPECT_EQ(c.tokens_of(i), 4U);
}

TEST(MessageSize, ASequenceThatNoMessageHoldsIsRefusedByItsLength) {
  Cluster c(small_messages());
  const LinkId link = c.register_worker("mixed0", Role::mixed);
  Hello hello = Cluster::hello_of("mixed0", 100'000);
  hello.max_context = 100'000;
  c.from_worker(link, hello);
  const std::uint32_t most = c.worker("mixed0").store.context();
  EXPECT_LT(most, kSmall / 8);
  c.state.started = -kNever / 2;
  c.submit(1, most, 4);
  EXPECT_EQ(c.code(1), ErrorCode::too_long);
  c.submit(2, most - 1, 4);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::ok);
}

TEST(MessageSize, AMessageThatIsTooLargeAllTheSameEndsItsRequestAndBlamesNobody) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.submit(2, 8, 6);
  c.turn();
  c.event(MessageTooLarge{link, 70'000'000, c.find(2)->id});
  EXPECT_EQ(c.code(2), ErrorCode::too_long);
  EXPECT_EQ(c.worker("mixed0").peer.state, WorkerState::fenced);
  c.gone(link);
  EXPECT_EQ(c.deaths(1), 0U);
  c.ready_worker("mixed0", Role::mixed, 100, 2);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 6U);
}

TEST(MessageSize, TokensThatAreAskedForAgainComeInParts) {
  Cluster c(small_messages());
  c.ready_worker("mixed0", Role::mixed, 20'000);
  constexpr std::size_t kRequests = 30;
  for (std::uint64_t i = 1; i <= kRequests; ++i) c.submit(i, 4, 1000);
  c.run(100'000);
  std::map<std::uint64_t, std::size_t> had;  // whatever came before is lost
  for (std::uint64_t i = 1; i <= kRequests; ++i) had[i] = c.tokens_of(i);
  int rounds = 0;
  for (bool missing = true; missing; ++rounds) {
    ASSERT_LT(rounds, 20);
    missing = false;
    FrontendHeartbeat beat;
    beat.epoch = c.state.epoch;
    std::size_t before = 0;
    std::size_t after = 0;
    for (std::uint64_t i = 1; i <= kRequests; ++i) {
      before += c.tokens_of(i);
      const auto next = static_cast<std::uint32_t>(c.tokens_of(i) - had[i]);
      if (next == 1000) continue;
      missing = true;
      beat.counters.push_back(i);
      beat.attempts.push_back(1);
      beat.next.push_back(next);
    }
    c.from_frontend(c.frontend, beat);
    for (std::uint64_t i = 1; i <= kRequests; ++i) after += c.tokens_of(i);
    EXPECT_LE(after - before, (Outbox::kMostFull + 1) * kSmall / sizeof(Token));
  }
  EXPECT_GT(rounds, 2) << "30,000 tokens are not sent at once";
}

TEST(MessageSize, AWorkersReasonIsCutShort) {
  Cluster c(small_messages());
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  result.failed.push_back({result.sequences[0], std::string(100'000, 'x')});
  result.sequences.clear();
  result.tokens.clear();
  c.from_worker(link, result);
  EXPECT_EQ(c.code(1), ErrorCode::internal);
  EXPECT_EQ(c.terminal(1)->message.size(), kMaxReasonBytes);
}

TEST(MessageSize, VectorsOfOneStepFitItsResult) {
  Settings settings = small_messages();
  settings.message_bytes = 4 * sizeof(float) * SamplingParams::kMaxPooled;
  Cluster c(settings);
  const LinkId link = c.ready_worker("mixed0", Role::mixed, 1000);
  for (std::uint64_t i = 1; i <= 6; ++i) {
    Submit m = c.request(i, 4, 1);
    m.sampling.pooling = Pooling::last_hidden;
    m.sampling.stop_ids.clear();
    c.from_frontend(c.frontend, m);
  }
  c.turn();
  for (const StepPlan& plan : c.sent<StepPlan>(link)) EXPECT_EQ(plan.rows.size(), 2U);
}

TEST(MessageSize, IsNeverMoreThanWasReckoned) {
  AddSequence add;
  add.sequence = ~std::uint64_t{0};
  add.prompt.assign(1000, 7);
  add.generated.assign(70'000, 7);
  add.blocks.assign(5000, 3);
  add.before.push_back({1, std::vector<BlockId>(300, 2)});
  add.before.push_back({~std::uint64_t{0}, {}});
  add.sampling.seed = ~std::uint64_t{0};
  add.sampling.stop_ids.assign(200, 1);
  add.sampling.bias_tokens.assign(300, 1);
  add.sampling.bias_values.assign(300, 1);
  add.sampling.allowed_tokens.assign(400, 1);
  add.sampling.bad_words.assign(500, {1, 2, 3});
  add.sampling.grammar.assign(5000, 'g');
  StepPlan with;
  with.add.push_back(add);
  EXPECT_LE(encode(with).size() - encode(StepPlan{}).size(), bytes_of(add) + 4);
  with.add[0] = AddSequence{};
  EXPECT_LE(encode(with).size() - encode(StepPlan{}).size(), bytes_of(AddSequence{}));

  Events events;
  events.epoch = ~std::uint64_t{0};
  for (std::uint64_t i = 0; i < 100; ++i) {
    events.counters.push_back(i);
    events.attempts.push_back(1);
    events.first_index.push_back(0);
    events.counts.push_back(2);
    events.tokens.insert(events.tokens.end(), 2, 7);
    events.begun_counters.push_back(i);
    events.begun_cached.push_back(1);
    events.begun_at.push_back(1);
    events.progress_counters.push_back(i);
    events.progress_attempts.push_back(1);
    events.progress_done.push_back(1);
    events.progress_cached.push_back(1);
    events.progress_took.push_back(1);
    events.logprobs.push(static_cast<std::uint32_t>(i), -1, std::vector<Token>(20, 1),
                         std::vector<float>(20, -2));
    PromptLogprobs& part = events.prompt_logprobs.emplace_back();
    part.owner = i;
    for (std::uint32_t p = 1; p < 50; ++p) part.values.push(p, -1, {}, {});
    Terminal terminal;
    terminal.message.assign(kMaxReasonBytes, 'm');
    terminal.n.assign(64, 1);
    terminal.reason.assign(64, 1);
    terminal.scores.assign(64, 1);
    terminal.lifetime.assign(kLifetimeMoments, kNever);
    events.terminals.push_back(terminal);
  }
  EXPECT_LE(encode(events).size(), bytes_of(events));
}

}  // namespace
}  // namespace baton::test
