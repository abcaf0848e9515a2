// Workers that die, hang, or only seem to; whom that is blamed on.
#include "scheduler/apply/blame.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

void die_with_request(Cluster& c, const std::string& name, Incarnation incarnation, LinkId& link) {
  c.gone(link);
  link = c.ready_worker(name, Role::mixed, 250, incarnation);
}

TEST(Death, InPrefillTheRequestRunsElsewhere) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 3);
  c.turn();
  c.gone(first);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.ready_worker("mixed1", Role::mixed);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 3U);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST(Death, InDecodeItPrefillsAgainWithItsTokens) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.answer(first, 41);
  c.answer(first, 42);
  c.gone(first);
  const LinkId second = c.ready_worker("mixed1", Role::mixed);
  c.turn();
  const std::vector<StepPlan> plans = c.sent<StepPlan>(second);
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans[0].add.at(0).generated, (std::vector<Token>{41, 42}));
  EXPECT_EQ(plans[0].rows.at(0).n_tokens, 10U);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 6U);
}

TEST(Death, WithNobodyLeftRequestsWait) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.gone(first);
  c.wait(30 * kSecond);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  c.ready_worker("mixed0", Role::mixed, 100, /*incarnation=*/2);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 6U);
}

TEST(Death, ThreeInARowEndTheRequest) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  for (Incarnation i = 2; i <= 3; ++i) {
    c.turn();
    die_with_request(c, "mixed0", i, link);
    EXPECT_EQ(c.terminal(1), nullptr);
  }
  c.turn();
  die_with_request(c, "mixed0", 4, link);
  EXPECT_EQ(c.code(1), ErrorCode::worker_crashes);
}

/// The worker dies in the decode step after `answers` answered ones, again and again; how many did
/// until the request ended, `most` at most.
std::uint32_t deaths_after(std::uint32_t answers, std::uint32_t most) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed, 250);
  c.submit(1, 8, 1000);
  std::uint32_t deaths = 0;
  while (c.terminal(1) == nullptr && deaths < most) {
    for (std::uint32_t i = 0; i < answers; ++i) {
      c.turn();
      c.answer(link);
    }
    c.turn();
    EXPECT_FALSE(c.worker("mixed0").compute.steps.empty());
    die_with_request(c, "mixed0", 2 + deaths++, link);
  }
  EXPECT_TRUE(deaths == most || c.code(1) == ErrorCode::worker_crashes);
  return deaths;
}

/// Their worker dies twice under both, then whenever the first has its turn.
TEST(Death, OfTwoSuspectsOneEndsOnlyAfterTwoThatItWasAloneWith) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.submit(2, 8, 6);
  Incarnation life = 2;
  for (; life <= 3; ++life) {
    c.turn();
    die_with_request(c, "mixed0", life, link);
  }
  std::uint32_t deaths_in_turn = 0;
  while (c.terminal(1) == nullptr && deaths_in_turn < 5) {
    c.turn();
    for (int steps = 0; steps < 20; ++steps) {
      const auto& running = c.worker("mixed0").compute.steps;
      ASSERT_FALSE(running.empty());
      if (c.runs(1, running.front())) break;
      c.answer(link);
      c.turn();
    }
    die_with_request(c, "mixed0", life++, link);
    ++deaths_in_turn;
    EXPECT_EQ(c.terminal(2), nullptr);
  }
  EXPECT_EQ(deaths_in_turn, 2U);
  EXPECT_EQ(c.code(1), ErrorCode::worker_crashes);
  c.run();
  EXPECT_EQ(c.tokens_of(2), 6U);
}

TEST(Death, ThePromptsTokenDoesNotClearDeathsInDecode) { EXPECT_EQ(deaths_after(1, 60), 3U); }
TEST(Death, ATokenDecodedInBetweenClearsThemButTheSumCounts) { EXPECT_EQ(deaths_after(2, 60), 6U); }
TEST(Death, ManyTokensInBetweenClearTheSum) {
  EXPECT_EQ(deaths_after(kTokensThatClear + 1, 9), 9U);
}

TEST(Death, OnlyWhatWasInAStepIsBlamed) {
  Settings settings;
  settings.max_running = 1;
  Cluster c(settings);
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.submit(2, 8, 6);
  c.turn();
  c.gone(link);
  EXPECT_EQ(c.deaths(1), 1U);
  EXPECT_EQ(c.deaths(2), 0U);
}

TEST(Death, ASuspectRunsAlone) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  for (Incarnation i = 2; i <= 3; ++i) {
    c.turn();
    die_with_request(c, "mixed0", i, link);
  }
  c.submit(2, 8, 6);
  c.submit(3, 8, 6);
  c.turn();
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_EQ(c.phase(2), Phase::waiting);
  EXPECT_EQ(c.phase(3), Phase::waiting);
  c.gone(link);
  EXPECT_EQ(c.code(1), ErrorCode::worker_crashes);
  EXPECT_EQ(c.deaths(2), 0U);
  c.ready_worker("mixed0", Role::mixed, 100, 9);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::ok);
}

/// Answers steps until request 2, a suspect with a prompt of 8 tokens, has its first token. No step
/// of its rows holds anybody else's; false if one does.
bool runs_alone_until_its_token(Cluster& c, LinkId link) {
  std::size_t own_steps = 0;
  for (int i = 0; i < 12 && c.tokens_of(2) == 0; ++i) {
    c.turn();
    for (const StepPlan& plan : c.sent<StepPlan>(link)) {
      const auto own = [&](const PromptRow& row) { return row.sequence == c.find(2)->source; };
      if (std::none_of(plan.rows.begin(), plan.rows.end(), own)) continue;
      ++own_steps;
      if (plan.rows.size() != 1 || plan.decode) return false;
    }
    c.to_workers.clear();
    c.answer(link);
  }
  return own_steps == 2;
}

TEST(Death, AWorkerThatRunsASuspectIsNotAskedToMapANewcomersPool) {
  Settings settings;
  settings.prefix_pull_tokens = 1;
  Cluster c(settings, /*prefix_cache=*/true);
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.make_suspect(1);
  c.turn();
  c.answer_probes = false;
  c.ready_worker("mixed1", Role::mixed);
  c.turn();
  EXPECT_TRUE(c.worker("mixed0").compute.runs_alone());
  EXPECT_EQ(c.probes.size(), 1U);  // the newcomer's
  for (const auto& [importer, pull] : c.probes) EXPECT_NE(importer, link);
  c.gone(link);  // so it was alone, and that ends it
  EXPECT_EQ(c.code(1), ErrorCode::worker_crashes);
}

TEST(Death, ASuspectRunsBetweenTwoStepsOfOthers) {
  Settings settings;
  settings.prompt_chunk = 4;
  Cluster c(settings);
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 400);
  c.run(2);
  c.submit(2, 8, 6);
  c.submit(3, 16, 6);
  c.make_suspect(2);
  EXPECT_TRUE(runs_alone_until_its_token(c, link));
  EXPECT_EQ(c.tokens_of(2), 1U);
  EXPECT_EQ(c.phase(1), Phase::decode);  // it kept its place, and nobody waited for its end
  EXPECT_LT(c.tokens_of(1), 10U);
  c.run();
  for (const std::uint64_t request : {1U, 2U, 3U}) EXPECT_EQ(c.code(request), ErrorCode::ok);
}

TEST(Death, OthersAreTakenInWhileASuspectRuns) {
  Settings settings;
  settings.prompt_chunk = 4;
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 80, 6);
  c.make_suspect(1);
  c.run(3);
  c.submit(2, 4, 4);
  c.run(14);
  EXPECT_EQ(c.tokens_of(1), 0U);
  EXPECT_EQ(c.code(2), ErrorCode::ok);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST(Death, ASuspectOnAPrefillWorkerThatDecodes) {
  Settings settings;
  settings.prompt_chunk = 4;
  Cluster c(settings);
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  c.submit(1, 4, 400);
  c.run(2);
  ASSERT_EQ(c.phase(1), Phase::decode);  // there was nobody else
  c.ready_worker("decode0", Role::decode);
  c.submit(2, 8, 6);
  c.make_suspect(2);
  EXPECT_TRUE(runs_alone_until_its_token(c, prefill));
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.code(2), ErrorCode::ok);
}

TEST(Death, OfASuspectsStepBlamesNobodyElse) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 400);
  c.run(2);
  c.submit(2, 8, 6);
  c.make_suspect(2);
  for (int i = 0; i < 12 && c.phase(2) != Phase::prefill; ++i) {
    c.answer(link);
    c.turn();
  }
  ASSERT_EQ(c.phase(2), Phase::prefill);
  c.gone(link);
  EXPECT_EQ(c.code(2), ErrorCode::worker_crashes);
  EXPECT_EQ(c.deaths(1), 0U);
  c.ready_worker("mixed0", Role::mixed, 100, 2);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST(Death, LeavingOnPurposeIsNobodysFault) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.from_worker(link, WorkerBye{1});
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.deaths(1), 0U);
}

// ---------------------------------------------------------------- deaths that are seen late

TEST(Death, AFailedSendBeforeItHidesNone) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  for (Incarnation i = 2; i <= 4; ++i) {
    EXPECT_EQ(c.deaths(1), i - 2);
    EXPECT_EQ(c.terminal(1), nullptr);
    c.turn();
    c.event(SendFailed{link});
    EXPECT_EQ(c.phase(1), Phase::waiting);
    link = c.ready_worker("mixed0", Role::mixed, 100, i);
  }
  EXPECT_EQ(c.code(1), ErrorCode::worker_crashes);
}

TEST(Death, SeenLateItEndsNobodyWhoHasNotRunAlone) {
  Cluster c;
  LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.submit(2, 8, 6);
  c.turn();
  c.event(SendFailed{first});
  const LinkId second = c.ready_worker("mixed1", Role::mixed);
  c.turn();
  c.event(SendFailed{second});
  first = c.ready_worker("mixed0", Role::mixed, 100, 2);
  EXPECT_EQ(c.deaths(2), 1U);
  c.turn();
  c.event(SendFailed{first});
  c.ready_worker("mixed1", Role::mixed, 100, 2);
  EXPECT_EQ(c.deaths(2), 2U);
  c.ready_worker("mixed0", Role::mixed, 100, 3);  // the third worker that died under both
  EXPECT_EQ(c.deaths(1), 2U);
  EXPECT_EQ(c.deaths(2), 2U);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.code(2), ErrorCode::ok);
}

TEST(Death, SeenWhileItRunsElsewhereItCounts) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.event(SendFailed{first});
  const LinkId second = c.ready_worker("mixed1", Role::mixed);
  c.turn();
  c.gone(first);
  EXPECT_EQ(c.deaths(1), 1U);
  c.gone(second);
  EXPECT_EQ(c.deaths(1), 2U);
}

TEST(Death, ATokenFromElsewhereClearsItThoughItIsSeenLate) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.event(SendFailed{first});
  const LinkId second = c.ready_worker("mixed1", Role::mixed);
  c.turn();
  c.answer(second);
  c.turn();
  c.answer(second);
  c.gone(first);
  c.event(SendFailed{second});
  EXPECT_EQ(c.deaths(1), 0U);
}

TEST(Death, WhoLivedOnAfterATermDidNotDieOfIt) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.event(SendFailed{link});
  Hello again = Cluster::hello_of("mixed0", 100);
  again.hello_id = 2;
  c.from_worker(link, again);
  c.gone(link);
  EXPECT_EQ(c.deaths(1), 0U);
}

// ---------------------------------------------------------------- pulls and grammars

/// One hand-off at a time to decode0, whose pulls the test answers late.
struct SlowPulls : Cluster {
  SlowPulls() {
    prefill = ready_worker("prefill0", Role::prefill, 250);
    decode = ready_worker("decode0", Role::decode, 250);
  }
  /// Seconds with heartbeats, steps and one pull answered every `each`; true if no term ended.
  bool pass(TimeNs how_long, TimeNs each) {
    TimeNs next = now + each;
    for (const TimeNs end = now + how_long; now < end;) {
      now += 100 * kMillisecond;
      heartbeat(prefill);
      heartbeat(decode);
      for (Frontend& f : state.frontends) f.heard = now;
      tick();
      turn();
      for (const LinkId link : {prefill, decode}) {
        while (!worker_of(link).compute.steps.empty()) answer(link);
      }
      if (now < next || pulls[decode].empty()) continue;
      next = now + each;
      const Pull pull = pulls[decode].front();
      pulls[decode].pop_front();
      from_worker(decode, PullDone{pull.term, pull.pull_id, 1});
    }
    return state.counters.terms_ended == 0;
  }
  Worker& worker_of(LinkId link) { return state.workers[state.worker_links.at(link)]; }
  LinkId prefill = kNoLink;
  LinkId decode = kNoLink;
};

TEST(SlowPulls, AQueueOfThemIsNotLost) {
  SlowPulls c;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    c.submit(i, 8, 4);
    ASSERT_TRUE(c.pass(250 * kMillisecond, 700 * kMillisecond)) << i << ": " << c.log.back();
  }
  EXPECT_TRUE(c.pass(40 * kSecond, 700 * kMillisecond)) << c.log.back();
  for (std::uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(c.code(i), ErrorCode::ok);
  EXPECT_EQ(c.state.counters.prefill_tokens, 40U * 8) << "nothing was computed twice";
}

TEST(SlowPulls, ThePlanBehindOneIsNotLost) {
  SlowPulls c;
  c.submit(1, 8, 4);
  EXPECT_TRUE(c.pass(6 * kSecond, 5 * kSecond)) << c.log.back();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST(SlowPulls, OneThatHangsIsJudgedThoughStepsGoOn) {
  SlowPulls c;
  c.submit(1, 4, 1000);
  ASSERT_TRUE(c.pass(kSecond, 0));
  ASSERT_EQ(c.phase(1), Phase::decode);
  c.submit(2, 8, 4);
  EXPECT_TRUE(c.pass(longest(Work::pull) - kSecond, 1000 * kSecond));
  EXPECT_FALSE(c.pass(3 * kSecond, 1000 * kSecond));
  const auto fenced = c.sent<Fenced>(c.decode);
  ASSERT_FALSE(fenced.empty());
  EXPECT_TRUE(fenced.front().hung) << "it would wait for its pull for ever";
  EXPECT_EQ(c.find(2)->deaths.of(Stage::pull), 1U);
  EXPECT_EQ(c.deaths(1), 0U) << "its steps went on";
}

TEST(Death, InAPullIsCountedAndTheLastTryPullsNothing) {
  Cluster c;
  c.ready_worker("prefill0", Role::prefill);
  LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 4);
  for (Incarnation i = 2; i <= 3; ++i) {
    for (int turns = 0; turns < 20 && c.pulls[decode].empty(); ++turns) {
      c.turn();
      for (Worker& w : c.state.workers) {
        if (!w.compute.steps.empty()) c.answer(w.peer.link);
      }
    }
    ASSERT_FALSE(c.pulls[decode].empty());
    c.gone(decode);
    EXPECT_EQ(c.find(1)->deaths.of(Stage::pull), i - 1);
    decode = c.ready_worker("decode0", Role::decode, 100, i);
  }
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok) << "it decodes where it was prefilled";
  EXPECT_TRUE(c.pulls[decode].empty());
}

TEST(Death, WhileAGrammarIsCompiledDoesNotEndWhoWasInAStep) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.make_suspect(1);
  c.turn();
  ASSERT_EQ(c.phase(1), Phase::prefill);
  Submit killer = c.request(2, 4, 4);
  killer.sampling.grammar_kind = GrammarKind::regex;
  killer.sampling.grammar = "a";
  c.from_frontend(c.frontend, killer);
  EXPECT_TRUE(c.sent<PrepareGrammar>(link).empty()) << "nothing begins beside a suspect's step";
  c.run(3);
  EXPECT_EQ(c.sent<PrepareGrammar>(link).size(), 1U);
}

TEST(Death, AGrammarThatKillsIsCompiledAloneAndEndsItsRequest) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 300);
  c.run(2);
  Submit killer = c.request(2, 4, 4);
  killer.sampling.grammar_kind = GrammarKind::regex;
  killer.sampling.grammar = "a";
  c.from_frontend(c.frontend, killer);
  for (Incarnation i = 2; i <= 10 && c.terminal(2) == nullptr; ++i) {
    for (int turns = 0; turns < 30 && c.worker("mixed0").peer.work.open(Work::compile) == 0;
         ++turns) {
      c.turn();
      if (!c.worker("mixed0").compute.steps.empty()) c.answer(link);
    }
    ASSERT_EQ(c.worker("mixed0").peer.work.open(Work::compile), 1U);
    c.gone(link);
    link = c.ready_worker("mixed0", Role::mixed, 100, i);
  }
  EXPECT_EQ(c.code(2), ErrorCode::worker_crashes);
  EXPECT_EQ(c.terminal(1), nullptr);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

/// A request that draws by the grammar "a".
void submit_with_grammar(Cluster& c, std::uint64_t counter) {
  Submit m = c.request(counter, 4, 4);
  m.sampling.grammar_kind = GrammarKind::regex;
  m.sampling.grammar = "a";
  c.from_frontend(c.frontend, m);
}

/// The worker dies whenever it compiles, until request `counter` has ended; how often it did.
std::uint32_t compile_deaths(Cluster& c, LinkId& link, Incarnation& life, std::uint64_t counter) {
  std::uint32_t deaths = 0;
  while (c.terminal(counter) == nullptr && deaths < 10) {
    for (int turns = 0; turns < 30 && c.worker("mixed0").peer.work.open(Work::compile) == 0;
         ++turns) {
      c.turn();
      if (!c.worker("mixed0").compute.steps.empty()) c.answer(link);
    }
    EXPECT_EQ(c.worker("mixed0").peer.work.open(Work::compile), 1U);
    c.gone(link);
    link = c.ready_worker("mixed0", Role::mixed, 100, ++life);
    ++deaths;
  }
  return deaths;
}

TEST(Death, AGrammarThatKillsEndsAllRequestsThatHaveIt) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 300);
  c.run(2);
  submit_with_grammar(c, 2);  // n: 2
  submit_with_grammar(c, 3);
  Incarnation life = 1;
  EXPECT_EQ(compile_deaths(c, link, life, 2), 3U);
  EXPECT_EQ(c.code(2), ErrorCode::worker_crashes);
  EXPECT_EQ(c.code(3), ErrorCode::worker_crashes);
  EXPECT_EQ(c.terminal(1), nullptr);

  // One who comes with it later is a suspect from the start: it costs one more worker, and nobody
  // works beside it.
  submit_with_grammar(c, 4);
  EXPECT_EQ(compile_deaths(c, link, life, 4), 1U);
  EXPECT_EQ(c.code(4), ErrorCode::worker_crashes);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

/// The row may have been it, which is no reason to end others that have the grammar.
TEST(Death, BesideARowOfItsOwnersAGrammarIsNotConvicted) {
  Settings settings;
  settings.max_deaths = 2;
  Cluster c(settings);
  submit_with_grammar(c, 1);
  submit_with_grammar(c, 2);
  const Request& first = *c.find(1);
  const Suspicions met = {{first.id, Stage::prefill, 0}, {first.id, Stage::compile, first.grammar}};
  blame(c.state, met, c.out);
  blame(c.state, met, c.out);
  c.tick();
  EXPECT_EQ(c.code(1), ErrorCode::worker_crashes);
  EXPECT_EQ(c.terminal(2), nullptr);
}

TEST(Death, AGrammarThatCompilesAfterAllIsNoSuspect) {
  Cluster c;
  LinkId link = c.ready_worker("mixed0", Role::mixed);
  submit_with_grammar(c, 1);
  submit_with_grammar(c, 2);
  for (Incarnation life = 2; life <= 3; ++life) {
    for (int turns = 0; turns < 30 && c.worker("mixed0").peer.work.open(Work::compile) == 0;
         ++turns)
      c.turn();
    c.gone(link);
    link = c.ready_worker("mixed0", Role::mixed, 100, life);
  }
  EXPECT_TRUE(is_suspect(c.state, *c.find(1), Stage::compile));
  EXPECT_TRUE(is_suspect(c.state, *c.find(2), Stage::compile));
  c.turn();
  const auto asked = c.sent<PrepareGrammar>(link);
  ASSERT_EQ(asked.size(), 1U);
  c.from_worker(link, GrammarState{asked[0].term, asked[0].key, true});
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.code(2), ErrorCode::ok);
  EXPECT_TRUE(c.state.grammar_deaths.empty());
}

TEST(Death, SeenLateOneOwnerOfAGrammarWhoHasLeftClearsNothing) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  submit_with_grammar(c, 1);
  submit_with_grammar(c, 2);
  ASSERT_EQ(c.worker("mixed0").peer.work.open(Work::compile), 1U);
  c.event(SendFailed{link});
  c.from_frontend(c.frontend, Cancel{{1, 2}});
  c.ready_worker("mixed0", Role::mixed, 100, 2);
  EXPECT_EQ(c.find(1)->deaths.of(Stage::compile), 1U);
  EXPECT_EQ(c.find(1)->deaths.alone, 1U) << "one grammar was being compiled";
}

TEST(Death, SeenLateWhoHasLeftSinceWasThereToo) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  Submit killer = c.request(2, 4, 4);
  killer.sampling.grammar_kind = GrammarKind::regex;
  killer.sampling.grammar = "a";
  c.from_frontend(c.frontend, killer);
  Submit other = c.request(1, 4, 4);
  other.sampling.grammar_kind = GrammarKind::regex;
  other.sampling.grammar = "b";
  c.from_frontend(c.frontend, other);
  ASSERT_EQ(c.worker("mixed0").peer.work.open(Work::compile), 2U);
  c.from_frontend(c.frontend, Cancel{{1, 2}});  // its client has left
  ASSERT_EQ(c.phase(2), Phase::ended);
  c.event(SendFailed{link});
  c.ready_worker("mixed0", Role::mixed, 100, 2);
  EXPECT_EQ(c.find(1)->deaths.of(Stage::compile), 1U);
  EXPECT_EQ(c.find(1)->deaths.alone, 0U) << "two grammars were being compiled";
}

TEST(Death, ASuspectInDecodeTakesItsTokensAlone) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 4, 200);
  c.run(2);
  c.submit(2, 4, 8);
  c.make_suspect(2, Stage::decode);
  c.run(12);
  const std::size_t before = c.tokens_of(1);
  c.run(6);
  EXPECT_GT(c.tokens_of(1), before) << "the others take turns with it";
  std::size_t singles = 0;
  for (const StepPlan& plan : c.sent<StepPlan>(link)) {
    if (plan.singles.empty()) continue;
    ++singles;
    EXPECT_FALSE(plan.decode);
    EXPECT_TRUE(plan.rows.empty());
  }
  EXPECT_GE(singles, 1U);
  c.run();
  EXPECT_EQ(c.code(2), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(2), 8U);
}

TEST(Death, ASuspectThatWaitsTakesTurnsWithOneThatDecodes) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  // By their sum: no token clears that at once.
  const std::uint32_t nearly = 2 * c.state.settings.max_deaths - 1;
  c.submit(1, 4, 200);
  c.find(1)->deaths.total = nearly;
  c.run(6);
  ASSERT_EQ(c.phase(1), Phase::decode);
  c.submit(2, 4, 200);
  c.find(2)->deaths.total = nearly;
  c.run(6);
  EXPECT_EQ(c.phase(2), Phase::decode) << "it does not wait for the end of the first";
  const std::size_t first = c.tokens_of(1);
  const std::size_t second = c.tokens_of(2);
  c.run(20);
  EXPECT_GE(c.tokens_of(1), first + 4);
  EXPECT_GE(c.tokens_of(2), second + 4);
}

/// A suspect by the sum of its deaths, which no token clears at once, that decodes.
void decode_suspect(Cluster& c, std::uint64_t request) {
  c.submit(request, 4, 200);
  c.find(request)->deaths.total = 2 * c.state.settings.max_deaths - 1;
  c.run(6);
  ASSERT_EQ(c.phase(request), Phase::decode);
}

TEST(Death, OthersAreAdmittedWhileASuspectDecodes) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed);
  decode_suspect(c, 1);
  c.submit(2, 4, 200);
  c.run(6);
  EXPECT_GT(c.tokens_of(2), 0U);
}

TEST(Death, OthersGetTheirGrammarsWhileASuspectDecodes) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  decode_suspect(c, 1);
  Submit other = c.request(2, 4, 200);
  other.sampling.grammar_kind = GrammarKind::regex;
  other.sampling.grammar = "a";
  c.turn();  // a suspect's step is under way: the grammar is not asked for as the request comes
  c.from_frontend(c.frontend, other);
  ASSERT_TRUE(c.sent<PrepareGrammar>(link).empty());
  c.run(8);
  EXPECT_FALSE(c.sent<PrepareGrammar>(link).empty());
}

TEST(Preemption, NobodyIsAdmittedIntoTheBlockThatASuspectGrowsInto) {
  Cluster c;
  c.ready_worker("mixed0", Role::mixed, /*blocks=*/4);
  decode_suspect(c, 1);
  c.submit(2, 4, 200);
  c.find(2)->deaths.total = 2 * c.state.settings.max_deaths - 1;
  for (int i = 0; i < 40 && c.tokens_of(1) < 9; ++i) c.run(1);
  EXPECT_GE(c.tokens_of(1), 9U) << "it gets on";
  EXPECT_LE(c.state.counters.preemptions, 4U);
}

TEST(Preemption, IsNotForbiddenByWhatAnotherWorkersPullReads) {
  Settings settings;
  Cluster c(settings);
  const LinkId mixed = c.ready_worker("mixed0", Role::mixed, 10);
  c.submit(1, 8, 30);
  c.submit(2, 8, 30);
  c.run(2);
  ASSERT_EQ(c.phase(1), Phase::decode);
  BlockPool& pool = c.worker("mixed0").store.pool;
  std::vector<BlockId> read;
  ASSERT_TRUE(pool.allocate(1, read));
  pool.pin_source(read[0]);  // a reader that hangs
  pool.release(read[0], 0, 0);
  EXPECT_EQ(pool.fenced_blocks(), 1U);
  for (int i = 0; i < 60 && c.terminal(1) == nullptr; ++i) {
    plan(c.state, c.now, c.out);
    if (c.worker("mixed0").compute.steps.empty()) break;
    StepResult result = c.result_of(c.worker("mixed0"));
    apply(c.state, FromWorker{mixed, std::move(result)}, c.now, c.out);
  }
  EXPECT_GE(c.state.counters.preemptions, 1U);
  EXPECT_GE(c.find(1)->generated.size(), 24U) << "one of the two goes on";
  pool.unpin_source(read[0]);
}

// ---------------------------------------------------------------- liveness is progress

TEST(Liveness, ASilentWorkerWithWorkLosesItsTerm) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.tick(2 * kSecond);
  EXPECT_EQ(c.phase(1), Phase::prefill);
  c.tick(2 * kSecond);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.worker("mixed0").peer.state, WorkerState::fenced);
  EXPECT_EQ(c.pool("mixed0").fenced, 100U);
  EXPECT_EQ(c.deaths(1), 1U);
  c.heartbeat(link);
}

TEST(Liveness, WhatAThawedWorkerSaysIsFencedOnceASecond) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  const StepResult late = c.result_of(c.worker("mixed0"));
  c.tick(4 * kSecond);
  c.from_worker(link, late);
  c.from_worker(link, late);
  ASSERT_EQ(c.sent<Fenced>(link).size(), 1U);
  EXPECT_EQ(c.sent<Fenced>(link)[0].term, late.term);
  EXPECT_EQ(c.tokens_of(1), 0U);
  c.now += 2 * kSecond;
  c.from_worker(link, late);
  EXPECT_EQ(c.sent<Fenced>(link).size(), 2U);
}

TEST(Liveness, AGapInTheSchedulersOwnLoopBlamesNobody) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.tick(60 * kSecond, /*gap=*/60 * kSecond);
  EXPECT_EQ(c.phase(1), Phase::prefill);
  EXPECT_FALSE(c.told<FrontendUnknown>(c.frontend).size());
  c.answer(link);
  EXPECT_EQ(c.tokens_of(1), 1U);
  c.tick(4 * kSecond);
  EXPECT_EQ(c.worker("mixed0").peer.state, WorkerState::fenced);
}

TEST(Liveness, ALostResultShowsInTheHeartbeat) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  WorkerHeartbeat beat;
  beat.term = c.worker("mixed0").peer.term;
  beat.incarnation = 1;
  beat.plans_received = 2;
  beat.steps_done = 1;  // whose result never came
  c.from_worker(link, beat);
  EXPECT_EQ(c.worker("mixed0").peer.state, WorkerState::fenced);
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.deaths(1), 0U);
  EXPECT_EQ(c.sent<Fenced>(link).size(), 1U);
}

TEST(Liveness, ALostPlanIsNobodysFault) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  for (int i = 0; i < 40; ++i) {
    c.now += 100 * kMillisecond;
    WorkerHeartbeat beat;
    beat.term = c.worker("mixed0").peer.term;
    beat.incarnation = 1;
    if (c.worker("mixed0").ready()) c.from_worker(link, beat);
    c.tick();
  }
  EXPECT_EQ(c.phase(1), Phase::waiting);
  EXPECT_EQ(c.deaths(1), 0U);
}

TEST(Liveness, ALostPullEndsTheTermOfItsTarget) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 6);
  c.turn();
  c.answer(prefill);
  c.turn();
  c.pulls[decode].clear();  // lost
  for (int i = 0; i < 50 && c.worker("decode0").ready(); ++i) {
    c.now += 100 * kMillisecond;
    c.heartbeat(prefill);
    WorkerHeartbeat beat;
    beat.term = c.worker("decode0").peer.term;
    beat.incarnation = 1;
    beat.pulls_received = 0;
    c.from_worker(decode, beat);
    c.tick();
  }
  EXPECT_EQ(c.worker("decode0").peer.state, WorkerState::fenced);
  EXPECT_EQ(c.phase(1), Phase::handoff);  // the source still has everything
  EXPECT_EQ(c.deaths(1), 0U);
}

TEST(Liveness, ALostPullDoneShowsInTheHeartbeat) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  const LinkId decode = c.ready_worker("decode0", Role::decode);
  c.submit(1, 8, 6);
  c.turn();
  c.answer(prefill);
  c.turn();
  WorkerHeartbeat beat;
  beat.term = c.worker("decode0").peer.term;
  beat.incarnation = 1;
  beat.pulls_received = beat.pulls_done = c.worker("decode0").peer.work.sent(Work::pull);
  c.from_worker(decode, beat);
  EXPECT_EQ(c.worker("decode0").peer.state, WorkerState::fenced);
  EXPECT_EQ(c.phase(1), Phase::handoff);
}

TEST(Liveness, AMessageThatCannotBeSentEndsTheTerm) {
  Cluster c;
  const LinkId link = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 6);
  c.turn();
  c.event(SendFailed{link});
  EXPECT_EQ(c.worker("mixed0").peer.state, WorkerState::fenced);
  EXPECT_EQ(c.deaths(1), 0U);
}

TEST(Liveness, AnIdleFrozenDecodeWorkerDoesNotHoldRequestsUp) {
  Cluster c;
  const LinkId prefill = c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode);
  for (int i = 0; i < 50; ++i) {  // decode0 says nothing and nobody sees its pid
    c.now += 100 * kMillisecond;
    c.heartbeat(prefill);
    c.tick();
  }
  c.submit(1, 8, 3);
  for (int i = 0; i < 20 && c.terminal(1) == nullptr; ++i) {
    c.heartbeat(prefill);
    c.turn();
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(prefill);
  }
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.tokens_of(1), 3U);
}

}  // namespace
}  // namespace baton::test
