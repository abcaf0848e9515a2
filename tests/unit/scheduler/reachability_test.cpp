// Pools that cannot be read: found out when workers meet, named, avoided, and asked about again.
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

constexpr const char* kSaid = "decode0 () and prefill0 () cannot reach each other: no peer access";

struct Meeting : Cluster {
  Meeting() {
    answer_probes = false;
    prefill = ready_worker("prefill0", Role::prefill);
    decode = ready_worker("decode0", Role::decode);
  }
  /// Answers the oldest probe.
  void answer_probe(bool readable) {
    ASSERT_FALSE(probes.empty());
    const auto [link, pull] = probes.front();
    probes.erase(probes.begin());
    if (readable) {
      from_worker(link, PullDone{pull.term, pull.pull_id, 1});
    } else {
      from_worker(link, PullFailed{pull.term, pull.pull_id, "no peer access", {}});
    }
  }
  LinkId prefill;
  LinkId decode;
};

TEST(Reachability, EveryPairIsAskedOnceWhicheverComesFirst) {
  Meeting c;
  ASSERT_EQ(c.probes.size(), 1U);
  EXPECT_EQ(c.probes[0].first, c.decode) << "the one that will read";
  EXPECT_EQ(c.probes[0].second.allocation, c.worker("prefill0").store.allocation());
  c.answer_probe(true);
  c.ready_worker("prefill1", Role::prefill);
  ASSERT_EQ(c.probes.size(), 1U);
  EXPECT_EQ(c.probes[0].second.allocation, c.worker("prefill1").store.allocation());
  c.answer_probe(true);
  c.ready_worker("decode1", Role::decode);
  EXPECT_EQ(c.probes.size(), 2U);
  c.ready_worker("mixed0", Role::mixed);
  EXPECT_EQ(c.probes.size(), 4U) << "a mixed worker decodes what prefill workers hand off";
}

TEST(Reachability, APairThatCannotIsNamedAndPromptsStayWhereTheyWerePrefilled) {
  Meeting c;
  c.answer_probe(false);
  EXPECT_TRUE(c.logged(kSaid));
  c.submit(1, 40, 5);
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.state.counters.handoffs, 0U);
  EXPECT_EQ(c.state.counters.pull_failures, 0U);
}

TEST(Reachability, ThenBothWorkersTakePrompts) {
  Meeting c;
  c.answer_probe(false);
  c.submit(1, 40, 5);
  c.submit(2, 40, 5);
  c.state.settings.token_budget = 40;
  c.state.settings.steps_in_flight = 1;
  c.turn();
  EXPECT_EQ(c.worker("prefill0").compute.sequences, 1U);
  EXPECT_EQ(c.worker("decode0").compute.sequences, 1U);
}

TEST(Reachability, AShortAnswerIsNotJoinedAgainOnceItsDropIsOut) {
  Meeting c;
  c.answer_probe(false);
  c.state.settings.steps_in_flight = 3;
  c.submit(1, 8, 2);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  for (const StepPlan& plan : c.sent<StepPlan>(c.prefill)) {
    for (const PromptRow& row : plan.rows) {
      EXPECT_EQ(std::count(plan.drop.begin(), plan.drop.end(), row.sequence), 0);
    }
  }
}

TEST(Reachability, AnotherDecodeWorkerIsUsedInstead) {
  Meeting c;
  c.answer_probe(false);
  const LinkId other = c.ready_worker("decode1", Role::decode);
  c.answer_probe(true);
  c.submit(1, 40, 5);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok);
  EXPECT_EQ(c.state.counters.handoffs, 1U);
  EXPECT_FALSE(c.sent<StepPlan>(other).empty());
}

TEST(Reachability, ItIsAskedAgainAndHandsOffOnceItCan) {
  Meeting c;
  c.answer_probe(false);
  c.wait(9 * kSecond);
  EXPECT_TRUE(c.probes.empty());
  c.wait(2 * kSecond);
  ASSERT_EQ(c.probes.size(), 1U);
  c.answer_probe(false);
  EXPECT_EQ(std::count_if(c.log.begin(), c.log.end(),
                          [](const std::string& line) { return line == kSaid; }),
            0);
  c.wait(11 * kSecond);
  c.answer_probe(true);
  EXPECT_TRUE(c.logged("reach each other again"));
  c.submit(1, 40, 5);
  c.run();
  EXPECT_EQ(c.state.counters.handoffs, 1U);
}

TEST(Reachability, AFailedPullMakesItAsk) {
  Meeting c;
  c.answer_probe(true);
  c.submit(1, 40, 50);
  for (int i = 0; i < 10 && c.pulls[c.decode].empty(); ++i) {
    c.turn();
    if (!c.worker("prefill0").compute.steps.empty()) c.answer(c.prefill);
  }
  c.fail_pull(c.decode);
  ASSERT_EQ(c.probes.size(), 1U);
  c.answer_probe(false);
  c.tick(kSecond);
  c.run();
  EXPECT_EQ(c.code(1), ErrorCode::ok) << "it went on where its blocks are";
  EXPECT_EQ(c.tokens_of(1), 50U);
  EXPECT_EQ(c.state.counters.handoffs, 0U);
  EXPECT_EQ(c.state.counters.requeued, 0U);
}

TEST(Reachability, AnotherLifeOfEitherIsAskedAnew) {
  Meeting c;
  c.answer_probe(false);
  const AllocationId old = c.worker("prefill0").store.allocation();
  c.gone(c.prefill);
  c.from_worker(c.decode, Closed{old});
  c.ready_worker("prefill0", Role::prefill, 100, 2);
  ASSERT_EQ(c.probes.size(), 1U) << "a new pool";
  c.answer_probe(false);
  c.gone(c.decode);
  c.ready_worker("decode0", Role::decode, 100, 2);
  ASSERT_EQ(c.probes.size(), 1U) << "a new reader";
  c.answer_probe(true);
  c.submit(1, 40, 5);
  c.run();
  EXPECT_EQ(c.state.counters.handoffs, 1U);
}

TEST(Reachability, APairStaysKnownWhileTheExporterIsOutOfTerm) {
  Meeting c;
  c.answer_probe(false);
  end_term(c.state, 0, kBlameLater, Places::leave, "test", c.out);
  c.tick();
  EXPECT_EQ(c.worker("decode0").peer.unreachable.size(), 1U);
  Hello hello = Cluster::hello_of("prefill0", 100);
  hello.hello_id = 2;
  c.from_worker(c.prefill, hello);
  c.submit(1, 40, 5);
  c.run();
  EXPECT_EQ(c.state.counters.pull_failures, 0U);
  EXPECT_EQ(c.code(1), ErrorCode::ok);
}

TEST(Reachability, AFullDecodeWorkerHoldsUpOnlyWhatItAloneCanTake) {
  Cluster c;
  c.answer_probes = false;
  const auto meet = [&](std::initializer_list<bool> readable) {
    for (const bool yes : readable) {
      const auto [link, pull] = c.probes.front();
      c.probes.erase(c.probes.begin());
      if (yes) {
        c.from_worker(link, PullDone{pull.term, pull.pull_id, 1});
      } else {
        c.from_worker(link, PullFailed{pull.term, pull.pull_id, "no peer access", {}});
      }
    }
  };
  c.ready_worker("prefill0", Role::prefill);
  c.ready_worker("decode0", Role::decode, 11);
  meet({true});
  c.ready_worker("prefill1", Role::prefill);
  meet({false});
  c.ready_worker("decode1", Role::decode);
  ASSERT_EQ(c.probes.size(), 2U);  // of prefill0's pool, then prefill1's
  meet({false, true});
  for (std::uint64_t id = 1; id <= 6; ++id) c.submit(id, 30, 8);
  c.run();
  for (std::uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(c.code(id), ErrorCode::ok) << id;
  EXPECT_EQ(c.state.counters.handoffs, 6U);
}

TEST(Reachability, AClosedThatAPullHasCrossedIsStale) {
  Meeting c;  // the probe is on its way
  const AllocationId pool = c.worker("prefill0").store.allocation();
  c.from_worker(c.decode, Closed{pool});
  EXPECT_EQ(c.worker("decode0").peer.imports.count(pool), 1U);
  c.gone(c.prefill);
  c.from_worker(c.decode, Closed{pool});
  const LinkId again = c.register_worker("prefill0", Role::prefill, 2);
  EXPECT_TRUE(c.sent<Registered>(again).empty()) << "its predecessor's pool may still be mapped";
  c.answer_probe(true);
  c.from_worker(c.decode, Closed{pool});
  EXPECT_EQ(c.sent<Registered>(again).size(), 1U);
}

TEST(Reachability, AnAnswerAfterTheExporterDiedIsNoHarm) {
  Meeting c;
  c.gone(c.prefill);
  c.answer_probe(false);
  EXPECT_FALSE(c.logged("cannot reach each other"));
  EXPECT_TRUE(c.worker("decode0").peer.unreachable.empty());
}

}  // namespace
}  // namespace baton::test
