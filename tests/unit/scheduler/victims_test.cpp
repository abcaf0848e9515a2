// Whom a full pool makes wait.
#include "scheduler/apply/requests.h"
#include "scheduler/plan/policy.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

TEST(Victims, TheLastTheShortestOrTheTail) {
  Settings settings;
  settings.steps_in_flight = 1;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 12, 50);
  c.submit(2, 4, 50);
  c.submit(3, 8, 50);
  c.turn();
  c.answer(w);
  preempt(c.state, *c.find(1));
  c.turn();  // 1 comes back: it stands first in the queue's order, and last among those placed here
  c.answer(w);
  const std::pair<Victim, std::uint64_t> table[] = {
      {Victim::last, 3}, {Victim::shortest, 2}, {Victim::tail, 1}};
  for (const auto& [rule, victim] : table) {
    c.state.settings.victim = rule;
    EXPECT_EQ(choose_victim(c.state, 0), c.find(victim));
  }
}

TEST(Victims, AmongEqualLengthsTheLastArrival) {
  Settings settings;
  settings.victim = Victim::shortest;
  Cluster c(settings);
  c.ready_worker("mixed0", Role::mixed);
  c.submit(1, 8, 50);
  c.submit(2, 8, 50);
  c.turn();
  EXPECT_EQ(choose_victim(c.state, 0), c.find(2));
}

/// A4's check: a tiny pool, forced preemption, every token there, no block lost.
TEST(Victims, UnderAnyRuleEverybodyGetsEverythingAndNoBlockIsLost) {
  for (const Victim victim : {Victim::last, Victim::shortest, Victim::tail}) {
    for (const Preempted place : {Preempted::in_place, Preempted::first, Preempted::front}) {
      for (const std::uint32_t depth : {1U, 2U}) {
        Settings settings;
        settings.steps_in_flight = depth;
        settings.victim = victim;
        settings.preempted = place;
        Cluster c(settings);
        c.ready_worker("mixed0", Role::mixed, /*blocks=*/9);
        for (std::uint64_t i = 1; i <= 6; ++i) {
          c.submit(i, 3 + 2 * static_cast<std::uint32_t>(i), 16);
        }
        c.run();
        EXPECT_GT(c.state.counters.preemptions, 0U);
        for (std::uint64_t i = 1; i <= 6; ++i) {
          EXPECT_EQ(c.tokens_of(i), 16U);
          EXPECT_EQ(c.code(i), ErrorCode::ok);
        }
        EXPECT_EQ(c.pool("mixed0").free, 9U);
      }
    }
  }
}

TEST(Victims, TheShortestIsEvictedAndServedFirst) {
  Settings settings;
  settings.steps_in_flight = 1;
  settings.victim = Victim::shortest;
  settings.preempted = Preempted::front;
  Cluster c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed, /*blocks=*/6);
  c.submit(1, 11, 12);  // three blocks and, with the second token, a fourth
  c.submit(2, 4, 12);
  c.turn();
  c.submit(3, 4, 1);
  while (c.state.counters.preemptions == 0) {
    c.answer(w);
    c.turn();
  }
  EXPECT_EQ(c.phase(1), Phase::decode);
  EXPECT_EQ(c.state.waiting.begin()->second, c.find(2)->id);
}

}  // namespace
}  // namespace baton::test
