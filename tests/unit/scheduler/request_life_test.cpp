// A request's ends: cancel, finish, deadline, resubmission, and the death of its front end.
#include <array>
#include <cstring>
#include <functional>
#include <string>

#include "scheduler/apply/requests.h"
#include "scheduler/state/grammar_key.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

/// Brings request 1 of a 1p1d cluster into each phase that names blocks, and checks that ending it
/// there leaves nothing behind.
struct InPhase {
  Phase phase;
  std::function<void(Cluster&, LinkId prefill, LinkId decode)> reach;
};

std::vector<InPhase> phases() {
  return {
      {Phase::waiting, [](Cluster&, LinkId, LinkId) {}},
      {Phase::prefill, [](Cluster& c, LinkId, LinkId) { c.turn(); }},
      {Phase::handoff,
       [](Cluster& c, LinkId prefill, LinkId) {
         c.turn();
         c.answer(prefill);
         c.turn();
       }},
      {Phase::decode,
       [](Cluster& c, LinkId prefill, LinkId decode) {
         c.turn();
         c.answer(prefill);
         c.turn();
         c.done_pull(decode);
         c.turn();
       }},
      {Phase::preempting,
       [](Cluster& c, LinkId prefill, LinkId decode) {
         c.turn();
         c.answer(prefill);
         c.turn();
         c.done_pull(decode);
         c.turn();
         preempt(c.state, *c.find(1));
       }},
  };
}

void in_every_phase(const std::function<void(Cluster&)>& end, ErrorCode code, FinishReason reason) {
  for (const InPhase& in : phases()) {
    Cluster c;
    const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
    const LinkId decode = c.ready_worker("decode0", Role::decode);
    c.submit(1, 8, 50);
    in.reach(c, prefill, decode);
    ASSERT_EQ(c.phase(1), in.phase) << to_string(in.phase);
    end(c);
    ASSERT_NE(c.terminal(1), nullptr) << to_string(in.phase);
    EXPECT_EQ(c.terminal(1)->code, code) << to_string(in.phase);
    EXPECT_EQ(c.terminal(1)->reason[0], static_cast<std::uint32_t>(reason));
    EXPECT_EQ(c.terminals.size(), 1U) << "one terminal a request";
    c.run();
    EXPECT_EQ(c.pool("prefill0").free, 100U) << to_string(in.phase);
    EXPECT_EQ(c.pool("decode0").free, 100U) << to_string(in.phase);
    EXPECT_EQ(c.state.sequences.size(), 0U) << to_string(in.phase);
    EXPECT_EQ(c.state.pulls.size(), 0U);
    c.from_frontend(c.frontend, Ack{{1, 1}});
    EXPECT_EQ(c.state.requests.size(), 0U);
  }
}

TEST(Ends, CancelInEveryPhase) {
  in_every_phase(
      [](Cluster& c) {
        c.from_frontend(c.frontend, Cancel{{1, 1}});
      },
      ErrorCode::cancelled, FinishReason::cancelled);
}

TEST(Ends, AnOperatorsCancelInEveryPhase) {
  in_every_phase(
      [](Cluster& c) {
        c.event(AdminCancel{{1, 1}});
      },
      ErrorCode::cancelled, FinishReason::cancelled);
}

TEST(Ends, FinishInEveryPhase) {
  in_every_phase(
      [](Cluster& c) {
        const auto n = static_cast<std::uint32_t>(c.tokens_of(1));
        c.from_frontend(c.frontend, Finish{{1, 1}, 1, n});
        EXPECT_EQ(c.terminal(1)->n[0], n);
      },
      ErrorCode::ok, FinishReason::stop);
}

TEST(Ends, TheDeadlineInEveryPhase) {
  in_every_phase(
      [](Cluster& c) {
        const TimeNs left = c.find(1)->deadline - c.now;
        c.tick(left, /*gap=*/left);
      },
      ErrorCode::deadline_exceeded, FinishReason::error);
}

TEST(Ends, AStopIdEndsAndCounts) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 50);
  c.turn();
  c.answer(link);
  c.answer(link, kStop);
  EXPECT_EQ(c.terminal(1)->reason[0], static_cast<std::uint32_t>(FinishReason::stop));
  EXPECT_EQ(c.terminal(1)->n[0], 2U);
}

TEST(Ends, AStopIdBeforeTheMinimumDoesNotEnd) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  Submit m = c.request(1, 4, 50);
  m.sampling.min_tokens = 2;
  c.from_frontend(c.frontend, m);
  c.turn();
  c.answer(link, kStop);
  EXPECT_EQ(c.terminal(1), nullptr);
}

TEST(Ends, WhatAVoidRowSamplesIsDropped) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 50);
  c.turn();
  StepResult second = c.result_of(c.worker("mixed0"));
  c.answer(link, kStop);
  second = c.result_of(c.worker("mixed0"), 77);
  c.from_worker(link, second);
  EXPECT_EQ(c.tokens[1], std::vector<Token>{kStop});
  EXPECT_TRUE(c.worker("mixed0").ready());
}

TEST(Ends, AFinishOfAnEarlierAttemptIsIgnored) {
  Cluster c;
  Submit second = c.request(1, 4, 8);
  second.attempt = 2;
  c.from_frontend(c.frontend, second);
  c.from_frontend(c.frontend, Finish{{1, 1}, 1, 0});
  EXPECT_EQ(c.phase(1), Phase::waiting);
}

/// The Submit of the second attempt was lost: nobody takes the tokens of the first one.
TEST(Ends, AFinishOfALaterAttemptLeavesNoOrphan) {
  Cluster c;
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 400);
  c.run(3);
  c.from_frontend(c.frontend, Finish{{1, 1}, 2, 1});
  EXPECT_EQ(c.find(1), nullptr);
  c.run(3);
  EXPECT_TRUE(c.worker("mixed0").compute.decode_set.empty());
  EXPECT_EQ(c.last_plan(mixed).drop.size(), 1U);
}

TEST(Ends, AHeartbeatOfALaterAttemptLeavesNoOrphan) {
  Cluster c;
  c.submit(1);
  FrontendHeartbeat beat;
  beat.epoch = c.state.epoch;
  beat.counters = {1};
  beat.attempts = {2};
  beat.next = {0};
  c.from_frontend(c.frontend, beat);
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_EQ(c.told<Gone>(c.frontend).size(), 1U);
}

TEST(Ends, ATerminalIsRepeatedUntilItIsAcknowledged) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 1);
  c.run();
  EXPECT_EQ(c.terminals.size(), 1U);
  for (int i = 0; i < 5; ++i) {
    c.wait(kSecond);
    c.from_frontend(c.frontend, FrontendHeartbeat{c.state.epoch, {}, {}, {}});
  }
  EXPECT_GE(c.terminals.size(), 3U);
  EXPECT_LE(c.terminals.size(), 6U);
  c.from_frontend(c.frontend, Ack{{1, 1}});
  const std::size_t before = c.terminals.size();
  c.wait(3 * kSecond);
  EXPECT_EQ(c.terminals.size(), before);
}

// ---------------------------------------------------------------- submitting again

TEST(Attempts, AHigherOneReplacesALowerOneIsIgnored) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.turn();
  Submit second = c.request(1, 8, 50);
  second.attempt = 2;
  second.generated = {kWord};
  c.from_frontend(c.frontend, second);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.find(1)->attempt, 2U);
  EXPECT_EQ(c.find(1)->generated.size(), 1U);
  EXPECT_EQ(c.pool("mixed0").owned, 0U);
  c.submit(1, 8, 50);  // attempt 1, late
  EXPECT_EQ(c.find(1)->attempt, 2U);
  c.from_frontend(c.frontend, second);  // the same again
  EXPECT_EQ(c.state.requests.size(), 1U);
}

TEST(Attempts, IdsThatAlreadyEndTheRequestAreAnsweredAtOnce) {
  for (const bool by_stop : {true, false}) {
    Cluster c;
    const LinkId link = c.ready_worker("mixed0", Role::mixed);
    Submit m = c.request(1, 8, by_stop ? 50 : 2);
    m.again = true;
    m.attempt = 2;
    m.generated = {kWord, by_stop ? kStop : kWord};
    c.from_frontend(c.frontend, m);
    ASSERT_NE(c.terminal(1), nullptr);
    EXPECT_EQ(c.terminal(1)->n[0], 2U);
    EXPECT_EQ(c.terminal(1)->reason[0],
              static_cast<std::uint32_t>(by_stop ? FinishReason::stop : FinishReason::length));
    c.turn();
    EXPECT_TRUE(c.sent<StepPlan>(link).empty());
    EXPECT_EQ(c.tokens_of(1), 0U);
  }
}

TEST(Attempts, GeneratedIdsAreNeverSentAgain) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  Submit m = c.request(1, 8, 4);
  m.generated = {kWord, kWord};
  c.from_frontend(c.frontend, m);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 2U);  // the third and the fourth
  EXPECT_EQ(c.terminal(1)->n[0], 4U);
}

TEST(Attempts, TheQueueKeepsTheOrderOfFirstArrival) {
  Cluster c;
  Submit young = c.request(7, 4, 4);
  Submit old = c.request(3, 4, 4);
  old.arrival = young.arrival - kSecond;
  old.again = true;
  c.from_frontend(c.frontend, young);
  c.from_frontend(c.frontend, old);
  EXPECT_EQ(c.state.waiting.begin()->second, c.find(3)->id);
}

// ---------------------------------------------------------------- front ends

TEST(Frontends, AHeartbeatIsAnsweredWithWhatIsMissing) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 3);
  c.run();
  c.tokens.clear();
  c.terminals.clear();
  FrontendHeartbeat beat;
  beat.epoch = c.state.epoch;
  beat.counters = {1, 9};
  beat.attempts = {1, 1};
  beat.next = {1, 0};
  c.from_frontend(c.frontend, beat);
  EXPECT_EQ(c.tokens_of(1), 2U);
  EXPECT_EQ(c.terminals.size(), 1U);
  ASSERT_EQ(c.told<Gone>(c.frontend).size(), 1U);
  EXPECT_EQ(c.told<Gone>(c.frontend)[0].counters, std::vector<std::uint64_t>{9});
}

TEST(Frontends, AnUnknownOneIsToldToSayHello) {
  Cluster c;
  c.from_frontend(99, Cancel{{1, 1}});
  EXPECT_EQ(c.told<FrontendUnknown>(99).size(), 1U);
}

TEST(Frontends, ADeathFreesEverythingOfItsOwnAndNothingElse) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  const LinkId other = c.join_frontend("frontend1", 2);
  for (std::uint64_t i = 1; i <= 4; ++i) c.submit(i, 8, 40);
  Submit theirs = c.request(1, 8, 4);
  theirs.request.frontend = 2;
  c.from_frontend(other, theirs);
  c.turn();
  c.answer(prefill);
  c.turn();
  c.gone(c.frontend);
  EXPECT_EQ(c.state.requests.size(), 1U);
  c.run();
  EXPECT_EQ(c.terminals.size(), 1U);
  EXPECT_EQ(c.terminals[0].n[0], 4U);
  EXPECT_EQ(c.pool("prefill0").free, 100U);
  EXPECT_EQ(c.pool("decode0").free, 100U);
}

TEST(Frontends, SilenceForTooLongIsDeath) {
  Cluster c;
  c.submit(1);
  c.tick(14 * kSecond);
  EXPECT_EQ(c.state.requests.size(), 1U);
  c.tick(2 * kSecond);
  EXPECT_EQ(c.state.requests.size(), 0U);
  c.from_frontend(c.frontend, FrontendHeartbeat{c.state.epoch, {}, {}, {}});
  EXPECT_EQ(c.told<FrontendUnknown>(c.frontend).size(), 1U);
}

TEST(Frontends, AWelcomeTellsWhatIsRunning) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed, 10);
  c.submit(1, 4, 2);
  c.from_frontend(c.frontend, FrontendHeartbeat{c.state.epoch, {}, {}, {}});
  const FrontendWelcome welcome = c.told<FrontendWelcome>(c.frontend).back();
  EXPECT_EQ(welcome.workers_ready, 1U);
  EXPECT_EQ(welcome.max_context, 40U);
  EXPECT_EQ(welcome.running, 1U);
  EXPECT_EQ(welcome.waiting, 1U);
}

TEST(Frontends, HearOfALargerContextAtOnce) {
  Cluster c;
  const std::size_t before = c.told<FrontendWelcome>(c.frontend).size();
  c.ready_worker("mixed0", Role::mixed, 10);
  ASSERT_EQ(c.told<FrontendWelcome>(c.frontend).size(), before + 1);
  EXPECT_EQ(c.told<FrontendWelcome>(c.frontend).back().max_context, 40U);
  c.ready_worker("mixed1", Role::mixed, 10);
  EXPECT_EQ(c.told<FrontendWelcome>(c.frontend).size(), before + 1) << "nothing has changed";
}

TEST(Frontends, AWelcomeTellsWhatThePoolsAreUsedFor) {
  Cluster c;
  c.state.settings.prefix_cache = true;
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed, 10);
  c.register_worker("prefill0", Role::prefill);  // it has not said hello: no pool
  c.submit(1, 4, 2);
  const TimeNs planned = c.now += kMillisecond;
  c.turn();
  const auto pools = [&] {
    c.from_frontend(c.frontend, FrontendHeartbeat{c.state.epoch, {}, {}, {}});
    const FrontendWelcome welcome = c.told<FrontendWelcome>(c.frontend).back();
    EXPECT_EQ(welcome.tokens_per_block, 4U);
    EXPECT_EQ(welcome.pools.size(), 1U);
    return welcome.pools.at(0);
  };
  EXPECT_EQ(pools().worker, "mixed0");
  EXPECT_EQ(pools().role, Role::mixed);
  EXPECT_EQ(pools().blocks, 10U);
  EXPECT_EQ(pools().owned, 2U) << "four tokens, and a block to grow into";
  c.now += kMillisecond;
  c.answer(mixed);
  EXPECT_EQ(c.begun[1], planned) << "told with the first token";
  c.run();
  EXPECT_EQ(pools().owned, 0U);
  EXPECT_EQ(pools().fenced, 0U);
  EXPECT_EQ(pools().cached, 1U);
}

struct Grammars : testing::Test {
  void ask(std::uint64_t counter, const std::string& grammar) {
    Submit m = c.request(counter, 4, 2);
    m.sampling.grammar_kind = GrammarKind::regex;
    m.sampling.grammar = grammar;
    c.from_frontend(c.frontend, m);
  }
  /// The worker's answer to the last grammar that it was told of.
  void compiled(LinkId link, bool ready = true) {
    const PrepareGrammar asked = c.sent<PrepareGrammar>(link).back();
    c.from_worker(link, GrammarState{asked.term, asked.key, ready});
  }
  Cluster c;
};

TEST_F(Grammars, EveryWorkerHearsOfOneOnceATerm) {
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  ask(1, "a");
  ask(2, "a");
  ask(3, "b");
  c.submit(4);
  for (const LinkId link : {prefill, decode}) {
    const auto told = c.sent<PrepareGrammar>(link);
    ASSERT_EQ(told.size(), 2U);
    EXPECT_EQ(told[0].grammar, "a");
    EXPECT_EQ(told[0].kind, GrammarKind::regex);
    EXPECT_EQ(told[1].grammar, "b");
    EXPECT_NE(told[0].key, told[1].key);
  }
  const LinkId again = c.ready_worker("decode0", Role::decode, 100, 2);
  ask(5, "a");
  EXPECT_EQ(c.sent<PrepareGrammar>(again).size(), 1U);
  EXPECT_EQ(c.sent<PrepareGrammar>(prefill).size(), 2U);
}

TEST_F(Grammars, NoStepWaitsForOneAndOthersGoOn) {
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  ask(1, "a");
  c.submit(2, 4, 2);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_EQ(c.phase(2), Phase::ended) << "it has no grammar";
  compiled(prefill);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::decode) << "handed over, and not yet with its worker";
  EXPECT_EQ(c.find(1)->generated.size(), 1U);
  EXPECT_TRUE(c.worker("decode0").compute.steps.empty());
  compiled(decode);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::ended);
  EXPECT_EQ(c.find(1)->generated.size(), 2U);
}

TEST_F(Grammars, ASuspectThatWaitsForOneHoldsNobodyUp) {
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  c.submit(2, 4, 400);
  c.run(2);
  ask(1, "a");
  c.make_suspect(1);
  const std::size_t before = c.tokens_of(2);
  c.run(10);
  EXPECT_EQ(c.phase(1), Phase::waiting)
      << "its grammar may still be compiled: it would not be alone";
  EXPECT_GE(c.tokens_of(2), before + 5);
  const std::size_t deaths = c.deaths(1);
  c.turn();
  c.gone(mixed);
  EXPECT_EQ(c.deaths(1), deaths) << "a step of others was in flight";
  const LinkId again = c.ready_worker("mixed0", Role::mixed, 100, 2);
  c.run(10);
  compiled(again);
  c.run(6);
  EXPECT_FALSE(c.find(1) != nullptr && c.find(1)->generated.empty());
  const auto plans = c.sent<StepPlan>(again);
  for (const StepPlan& plan : plans) {
    const bool computes = std::any_of(plan.rows.begin(), plan.rows.end(),
                                      [](const PromptRow& row) { return row.n_tokens != 0; });
    EXPECT_FALSE(plan.decode && computes);
  }
}

TEST_F(Grammars, OneThatIsForgottenIsAskedForAgain) {
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  ask(1, "a");
  compiled(mixed);
  compiled(mixed, /*ready=*/false);
  c.turn();
  EXPECT_TRUE(c.worker("mixed0").compute.steps.empty());
  EXPECT_EQ(c.sent<PrepareGrammar>(mixed).size(), 2U);
  compiled(mixed);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::ended);
}

/// Its plan crossed the worker's word that it forgot the grammar, or the word was lost.
TEST_F(Grammars, ARowWithoutItsGrammarIsDrawnLater) {
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  ask(1, "a");
  compiled(mixed);
  c.turn();
  StepResult result = c.result_of(c.worker("mixed0"));
  ASSERT_EQ(result.sequences.size(), 1U);
  result.sequences.clear();
  result.tokens.clear();
  result.failed.push_back({.sequence = c.find(1)->source, .reason = "", .grammar_missing = true});
  const auto sampling = [&] {
    const auto& steps = c.worker("mixed0").compute.steps;
    return std::count_if(steps.begin(), steps.end(),
                         [](const InFlightStep& step) { return step.samples != 0; });
  };
  const auto before = sampling();
  c.from_worker(mixed, result);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill) << "it has a place and waits";
  EXPECT_EQ(sampling(), before - 1) << "no step that was planned since draws";
  EXPECT_EQ(c.sent<PrepareGrammar>(mixed).size(), 2U);
  compiled(mixed);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 2U);
}

TEST_F(Grammars, ARowThatNeverHasItsGrammarEnds) {
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  ask(1, "a");
  int rounds = 0;
  for (; rounds < 100 && c.phase(1) != Phase::ended; ++rounds) {
    compiled(mixed);
    c.turn();
    StepResult result = c.result_of(c.worker("mixed0"));
    result.sequences.clear();
    result.tokens.clear();
    result.failed.push_back({c.find(1)->source, "gone", false, false, true});
    c.from_worker(mixed, result);
    c.turn();
  }
  EXPECT_LT(rounds, 20);
  EXPECT_EQ(c.code(1), ErrorCode::internal);
}

/// libstdc++'s hash of 16 bytes with another first half: the second half makes up for it.
std::string colliding(const std::string& text) {
  constexpr std::uint64_t kMul = 0xC6A4A7935BD1E995ULL;
  std::uint64_t inverse = kMul;  // Newton's iteration, modulo 2^64
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMul * inverse;
  const auto mix = [](std::uint64_t x) { return x ^ (x >> 47U); };  // its own inverse
  const auto block = [&](std::uint64_t x) { return mix(x * kMul) * kMul; };
  const auto unblock = [&](std::uint64_t x) { return mix(x * inverse) * inverse; };
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), text.data(), 16);
  const std::uint64_t seed = 0xC70F6907ULL ^ (16 * kMul);
  const std::uint64_t first = words[0] + 1;
  const std::uint64_t wanted = ((seed ^ block(words[0])) * kMul) ^ block(words[1]);
  const std::uint64_t second = unblock(wanted ^ ((seed ^ block(first)) * kMul));
  std::string other(16, ' ');
  std::memcpy(other.data(), &first, 8);
  std::memcpy(other.data() + 8, &second, 8);
  return other;
}

TEST(GrammarKey, TextsThatAClientMakesCollideHaveKeysOfTheirOwn) {
  SamplingParams one;
  EXPECT_EQ(grammar_key(one), 0U);
  one.grammar_kind = GrammarKind::regex;
  one.grammar = "abcdefghijklmnop";
  SamplingParams other = one;
  other.grammar = colliding(one.grammar);
  ASSERT_NE(one.grammar, other.grammar);
  ASSERT_EQ(std::hash<std::string>()(one.grammar), std::hash<std::string>()(other.grammar));
  EXPECT_NE(grammar_key(one), grammar_key(other));
  EXPECT_EQ(grammar_key(one), grammar_key(SamplingParams(one)));
  GrammarSecret secret{};
  secret.back() = 1;
  EXPECT_NE(grammar_key(one, secret), grammar_key(one)) << "nobody outside can compute it";
  other = one;
  other.grammar_kind = GrammarKind::json_schema;
  EXPECT_NE(grammar_key(one), grammar_key(other));
}

TEST_F(Grammars, ThoseThatWaitTakeFewPlaces) {
  constexpr std::uint64_t kMany = 1000;
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed, 4000);
  for (std::uint64_t i = 1; i <= kMany; ++i) ask(i, std::to_string(i));
  c.submit(kMany + 1, 4, 2);
  c.run();
  EXPECT_EQ(c.phase(kMany + 1), Phase::ended);
  EXPECT_LT(c.worker("mixed0").compute.sequences, 20U);
  c.wait(3 * kSecond);
  c.turn();
  const auto asked = c.sent<PrepareGrammar>(mixed);
  EXPECT_LT(asked.size(), kMany + 50) << "only those that have a place are asked for again";
  EXPECT_TRUE(asked.back().awaited);
  EXPECT_FALSE(asked.front().awaited);
  for (const PrepareGrammar& one : asked)
    c.from_worker(mixed, GrammarState{one.term, one.key, true});
  c.run(10'000);
  for (std::uint64_t i = 1; i <= kMany; ++i) EXPECT_EQ(c.phase(i), Phase::ended) << i;
}

TEST_F(Grammars, OneThatKillsItsCompilerEnds) {
  LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  ask(1, "a");
  for (Incarnation life = 2; life < 10 && c.phase(1) != Phase::ended; ++life) {
    c.turn();
    c.gone(mixed);
    mixed = c.ready_worker("mixed0", Role::mixed, 100, life);
  }
  EXPECT_EQ(c.phase(1), Phase::ended);
  EXPECT_EQ(c.find(1)->code, ErrorCode::worker_crashes);
}

TEST_F(Grammars, ALostAnswerIsAskedForAgain) {
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  ask(1, "a");
  c.turn();
  c.turn();
  EXPECT_EQ(c.sent<PrepareGrammar>(mixed).size(), 1U);
  c.wait(3 * kSecond / 2);
  c.turn();
  EXPECT_EQ(c.sent<PrepareGrammar>(mixed).size(), 2U);
  c.from_worker(mixed, GrammarState{c.worker("mixed0").peer.term - 1,
                                    c.sent<PrepareGrammar>(mixed).back().key, true});
  c.turn();
  EXPECT_TRUE(c.worker("mixed0").compute.steps.empty()) << "an answer of another term";
  compiled(mixed);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::ended);
}

TEST_F(Grammars, AWorkerThatDiesLeavesItToTheNextOne) {
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed);
  ask(1, "a");
  c.run();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  c.gone(mixed);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  const LinkId next = c.ready_worker("mixed1", Role::mixed);
  c.run();
  EXPECT_EQ(c.sent<PrepareGrammar>(next).size(), 1U);
  compiled(next);
  c.run();
  EXPECT_EQ(c.phase(1), Phase::ended);
}

}  // namespace
}  // namespace baton::test
