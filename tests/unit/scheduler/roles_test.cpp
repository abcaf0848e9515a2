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

/// Of a process that was told a role.
Register registration(const std::string& name, Role home, Role role, bool held,
                      Incarnation incarnation = 1) {
  Register m;
  m.build = "test";
  m.name = name;
  m.home = home;
  m.role = role;
  m.held = held;
  m.incarnation = incarnation;
  return m;
}

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
  c.event(SetRole{"decode0", Role::mixed});
  c.event(SetRole{"decode0", Role::mixed});
  ASSERT_EQ(c.sent<TakeRole>(c.decode).size(), 1U) << "it has been told";
  EXPECT_EQ(c.sent<TakeRole>(c.decode)[0].role, Role::mixed);
  EXPECT_TRUE(c.sent<TakeRole>(c.decode)[0].held);
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
  const LinkId told = c.next_link++;
  c.from_worker(told, registration("decode0", Role::decode, Role::mixed, /*held=*/true));
  EXPECT_EQ(c.sent<TakeRole>(told).size(), 0U);
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

/// An operator gave decode0 the role prefill when its second process had come; the first one had
/// been told another role before, and registers first.
TEST(Roles, OfTwoProcessesTheYoungerOneBringsTheLaterRole) {
  Cluster next;
  next.from_worker(50, registration("decode0", Role::decode, Role::mixed, /*held=*/true, 1));
  EXPECT_EQ(next.worker("decode0").role(), Role::mixed);
  next.from_worker(51, registration("decode0", Role::decode, Role::prefill, /*held=*/true, 2));
  EXPECT_EQ(next.worker("decode0").role(), Role::prefill);
  EXPECT_TRUE(next.worker("decode0").held);
  EXPECT_TRUE(next.sent<TakeRole>(51).empty());
  // What this scheduler is told is later.
  next.event(SetRole{"decode0", Role::decode});
  next.from_worker(52, registration("decode0", Role::decode, Role::mixed, /*held=*/true, 3));
  EXPECT_EQ(next.worker("decode0").role(), Role::decode);
  next.event(SetRole{"decode0", {}});
  next.from_worker(53, registration("decode0", Role::decode, Role::mixed, /*held=*/true, 4));
  EXPECT_FALSE(next.worker("decode0").held);
}

TEST(Roles, WhatAnOperatorSaidOutlivesTheScheduler) {
  Settings settings;
  settings.roles = Roles::automatic;
  Cluster next(settings);  // has not heard of either
  next.from_worker(50, registration("decode0", Role::decode, Role::mixed, /*held=*/true));
  next.from_worker(51, registration("decode1", Role::decode, Role::prefill, /*held=*/false));
  EXPECT_TRUE(next.worker("decode0").held);
  EXPECT_EQ(next.worker("decode0").home(), Role::decode);
  EXPECT_FALSE(next.worker("decode1").held);
  EXPECT_TRUE(next.to_workers.size() >= 2 && next.sent<TakeRole>(50).empty());
  // Their next processes know nothing of it.
  const LinkId link = next.register_worker("decode0", Role::decode, 2);
  ASSERT_EQ(next.sent<TakeRole>(link).size(), 1U);
  EXPECT_EQ(next.sent<TakeRole>(link)[0].role, Role::mixed);
  EXPECT_TRUE(next.sent<TakeRole>(link)[0].held);
}

TEST(Roles, ALentWorkerGoesHomeToASchedulerThatDoesNotLend) {
  Cluster next;
  next.from_worker(50, registration("decode0", Role::decode, Role::mixed, /*held=*/false));
  next.from_worker(51, registration("decode1", Role::decode, Role::mixed, /*held=*/true));
  EXPECT_EQ(next.worker("decode0").role(), Role::decode);
  EXPECT_EQ(next.worker("decode1").role(), Role::mixed);
  ASSERT_EQ(next.sent<TakeRole>(50).size(), 1U);
  EXPECT_TRUE(next.sent<TakeRole>(51).empty());
}

Settings automatic() {
  Settings settings;
  settings.roles = Roles::automatic;
  settings.role_queue = kSecond / 10;
  settings.role_dwell = kSecond;
  settings.max_running = 4;
  return settings;
}

/// Four sequences fill each of two decode workers, and prompts are few.
struct Filled : Cluster {
  Filled() : Cluster(automatic()) {
    ready_worker("prefill0", Role::prefill);
    ready_worker("prefill1", Role::prefill);
    ready_worker("decode0", Role::decode);
    ready_worker("decode1", Role::decode);
  }
  void fill() {
    for (std::uint64_t i = 1; i <= 9; ++i) submit(i, 4, 300);
    for (int i = 0; i < 40; ++i) run(1);
  }
};

TEST(AutoRoles, FullDecodeWorkersAreHelpedAndTheHelperGoesHome) {
  Filled c;
  c.fill();
  c.wait(3 * kSecond);
  // Which one hangs on where prompts wait to be handed over.
  EXPECT_TRUE(c.logged(": was prefill, is decode from now on: "));
  EXPECT_EQ(c.state.counters.role_changes, 1U);
  c.run(20'000);
  c.wait(5 * kSecond);
  EXPECT_EQ(c.worker("prefill0").role(), Role::prefill);
  EXPECT_EQ(c.worker("prefill1").role(), Role::prefill);
  EXPECT_EQ(c.state.counters.role_changes, 2U);
  for (std::uint64_t i = 1; i <= 9; ++i) EXPECT_EQ(c.tokens_of(i), 300U);
}

TEST(AutoRoles, AnOperatorsRoleIsLeftAlone) {
  Filled c;
  c.event(SetRole{"prefill0", Role::prefill});
  c.event(SetRole{"prefill1", Role::prefill});
  c.fill();
  c.wait(3 * kSecond);
  EXPECT_EQ(c.state.counters.role_changes, 0U);
  c.event(SetRole{"prefill1", {}});
  c.wait(2 * kSecond);
  EXPECT_EQ(c.worker("prefill1").role(), Role::decode);
}

TEST(AutoRoles, NothingChangesUnlessAskedFor) {
  Filled c;
  c.state.settings.roles = Roles::fixed;
  c.fill();
  c.wait(5 * kSecond);
  EXPECT_EQ(c.state.counters.role_changes, 0U);
}

TEST(AutoRoles, OneThatIsLostOrDrainsIsNotCounted) {
  Filled c;
  c.event(SetDraining{"prefill1", true});
  c.fill();
  c.wait(3 * kSecond);
  EXPECT_NE(c.worker("prefill0").role(), Role::decode) << "nobody else prefills";
  EXPECT_EQ(c.worker("prefill1").role(), Role::prefill);
}

}  // namespace
}  // namespace baton::test
