// A worker's role changes while it works.
#include "scheduler/apply/roles.h"

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

struct Turned : Cluster {
  Turned() {
    prefill = ready_worker("prefill0", Role::prefill);
    decode = ready_worker("decode0", Role::decode);
  }
  LinkId prefill;
  LinkId decode;
};

TEST(Roles, NewPromptsGoByTheNewRole) {
  Turned c;
  c.submit(1, 40, 5);
  c.turn();
  EXPECT_EQ(c.worker("prefill0").compute.sequences, 1U);
  c.event(SetRole{"prefill0", Role::decode});
  c.event(SetRole{"decode0", Role::prefill});
  c.submit(2, 40, 5);
  c.turn();
  ASSERT_NE(c.find(2), nullptr);
  EXPECT_EQ(c.state.workers[c.source(2).worker].name(), "decode0");
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.tokens_of(2), 5U);
  EXPECT_EQ(c.state.counters.handoffs, 1U) << "the second prompt alone was handed over";
}

TEST(Roles, WhatDecodesStaysToItsEnd) {
  Turned c;
  c.submit(1, 8, 40);
  for (int i = 0; i < 20 && c.tokens_of(1) < 5; ++i) {
    c.turn();
    for (const LinkId link : {c.prefill, c.decode}) {
      while (!c.pulls[link].empty()) c.done_pull(link);
      if (!c.state.workers[c.state.worker_links.at(link)].compute.steps.empty()) c.answer(link);
    }
  }
  ASSERT_EQ(c.state.workers[c.source(1).worker].name(), "decode0");
  c.event(SetRole{"decode0", Role::prefill});
  c.event(SetRole{"prefill0", Role::decode});
  c.run();
  EXPECT_EQ(c.tokens_of(1), 40U);
  EXPECT_EQ(c.state.counters.handoffs, 1U) << "it has not moved again";
  EXPECT_EQ(c.state.counters.requeued, 0U);
}

TEST(Roles, APromptThatWaitsToBeHandedOverStaysWhereItIs) {
  Turned c;
  c.event(SetDraining{"decode0", true});  // nobody takes it yet
  c.state.settings.no_decode = NoDecode::wait;
  c.submit(1, 8, 5);
  c.turn();
  c.answer(c.prefill);
  c.turn();
  ASSERT_EQ(c.phase(1), Phase::handoff);
  c.event(SetDraining{"decode0", false});
  c.event(SetRole{"prefill0", Role::mixed});
  c.run();
  EXPECT_EQ(c.tokens_of(1), 5U);
  EXPECT_EQ(c.state.counters.handoffs, 0U);
}

TEST(Roles, TheWorkerIsToldAndItsNextProcessToo) {
  Turned c;
  c.event(SetRole{"decode0", Role::decode});
  EXPECT_TRUE(c.sent<TakeRole>(c.decode).empty()) << "it has that role";
  c.event(SetRole{"decode0", Role::mixed});
  ASSERT_EQ(c.sent<TakeRole>(c.decode).size(), 1U);
  EXPECT_EQ(c.sent<TakeRole>(c.decode)[0].role, Role::mixed);
  c.gone(c.decode);
  const LinkId next = c.ready_worker("decode0", Role::decode, 100, 2);
  EXPECT_EQ(c.worker("decode0").role(), Role::mixed);
  ASSERT_EQ(c.sent<TakeRole>(next).size(), 1U);
  EXPECT_EQ(c.sent<TakeRole>(next)[0].incarnation, 2U);
}

TEST(Roles, TheWorkerIsToldToTakeItsFirstRoleAgain) {
  Turned c;
  c.event(SetRole{"decode0", Role::mixed});
  c.event(SetRole{"decode0", Role::decode});
  ASSERT_EQ(c.sent<TakeRole>(c.decode).size(), 2U);
  EXPECT_EQ(c.sent<TakeRole>(c.decode)[1].role, Role::decode)
      << "it would tell the next scheduler that it is mixed";
}

TEST(Roles, AProcessThatRegistersAgainWithAnotherRoleIsToldOnceMore) {
  Turned c;
  c.event(SetRole{"decode0", Role::mixed});
  const LinkId link = c.register_worker("decode0", Role::decode);  // lost with the old link
  ASSERT_EQ(c.sent<TakeRole>(link).size(), 1U);
  c.register_worker("decode0", Role::mixed);
  EXPECT_EQ(c.sent<TakeRole>(c.worker("decode0").peer.link).size(), 0U);
}

TEST(Roles, PairsThatHadNothingToHandOverAreAskedWhetherTheyReachEachOther) {
  Cluster c;
  c.answer_probes = false;
  c.ready_worker("decode0", Role::decode);
  c.ready_worker("decode1", Role::decode);
  EXPECT_TRUE(c.probes.empty());
  c.event(SetRole{"decode1", Role::prefill});
  ASSERT_EQ(c.probes.size(), 1U);
  EXPECT_EQ(c.probes[0].second.allocation, c.worker("decode1").store.allocation());
}

TEST(Roles, ASmallRoomForStepsIsNamed) {
  Settings settings;
  settings.token_budget.prefill = 2048;
  Cluster c(settings);
  const LinkId link = c.register_worker("decode0", Role::decode);
  Hello hello = Cluster::hello_of("decode0", 100);
  hello.max_step_tokens = 512;
  c.from_worker(link, hello);
  EXPECT_FALSE(c.logged("has room for"));
  c.event(SetRole{"decode0", Role::prefill});
  EXPECT_TRUE(c.logged("has room for 512 tokens in a step"));
}

}  // namespace
}  // namespace baton::test
