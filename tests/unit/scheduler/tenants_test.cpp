// Shares of tenants: what each is charged, whose turn is next, and what a return, a preemption or a
// second attempt may not change.
#include "scheduler/state/tenants.h"

#include "scheduler/apply/requests.h"
#include "scheduler/plan/queue_order.h"
#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

Settings fair_settings(std::uint32_t max_running = 1) {
  Settings settings;
  settings.queue_order = QueueOrder::fair;
  settings.max_running = max_running;
  settings.steps_in_flight = 1;
  return settings;
}

struct Shares : Cluster {
  explicit Shares(const Settings& settings = fair_settings()) : Cluster(settings) {}

  void ask(std::uint64_t counter, const TenantShare& share, std::uint32_t prompt = 4,
           std::uint32_t most = 1) {
    Submit m = request(counter, prompt, most);
    m.share = share;
    from_frontend(frontend, m);
  }
  const Tenant& tenant(const std::string& name) {
    for (const Tenant& tenant : state.tenants.all()) {
      if (tenant.name == name) return tenant;
    }
    ADD_FAILURE() << "no tenant " << name;
    return state.tenants.all().front();
  }
  std::vector<std::uint64_t> order() {
    std::vector<std::uint64_t> counters;
    QueueWalk walk(state);
    for (std::uint64_t id = walk.next(); id != 0; id = walk.next())
      counters.push_back(state.requests.find(id)->name.counter);
    return counters;
  }
};

using Order = std::vector<std::uint64_t>;

TEST(FairOrder, TenantsTakeTurnsHoweverManyRequestsEachHas) {
  Shares c;
  for (std::uint64_t i = 1; i <= 4; ++i) c.ask(i, {"heavy"});
  c.ask(5, {"light"});
  c.ask(6, {"light"});
  EXPECT_EQ(c.order(), (Order{5, 1, 6, 2, 3, 4})) << "who has fewer open goes first among equals";
}

TEST(FairOrder, AWeightOfTwoIsTwoTurnsOfOne) {
  Shares c;
  for (std::uint64_t i = 1; i <= 4; ++i) c.ask(i, {"one", 1});
  for (std::uint64_t i = 11; i <= 14; ++i) c.ask(i, {"two", 2});
  EXPECT_EQ(c.order(), (Order{1, 11, 12, 2, 13, 14, 3, 4}));
}

TEST(FairOrder, LongPromptsCountForMore) {
  Shares c;
  c.ask(1, {"long"}, 30);
  c.ask(2, {"long"}, 30);
  for (std::uint64_t i = 11; i <= 15; ++i) c.ask(i, {"short"}, 10);
  EXPECT_EQ(c.order(), (Order{1, 11, 12, 13, 2, 14, 15}));
}

TEST(FairOrder, APriorityGoesBeforeEveryShare) {
  Shares c;
  c.ask(1, {"first"});
  c.ask(2, {"urgent", 1, -5});
  c.ask(3, {"urgent", 1, -5});
  EXPECT_EQ(c.order(), (Order{2, 3, 1}));
}

TEST(FairOrder, AmongATenantsOwnTheirPrioritiesAndArrivalsDecide) {
  Shares c;
  c.ask(1, {"a"});
  Submit hurried = c.request(2, 4, 1);
  hurried.share = {"a"};
  hurried.priority = -1;
  c.from_frontend(c.frontend, hurried);
  EXPECT_EQ(c.order(), (Order{2, 1}));
}

TEST(FairOrder, ByArrivalTenantsDoNotMatter) {
  Settings settings = fair_settings();
  settings.queue_order = QueueOrder::arrival;
  Shares c(settings);
  c.ask(1, {"heavy"});
  c.ask(2, {"heavy"});
  c.ask(3, {"light", 100, -9});
  EXPECT_EQ(c.order(), (Order{1, 2, 3}));
}

// ---------------------------------------------------------------- charges

TEST(Charges, PromptTokensCountOnceAndTokensOfRepliesDouble) {
  Shares c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, {"a", 4}, 12, 5);
  for (int step = 0; step < 5; ++step) {
    c.turn();
    c.answer(w);
  }
  EXPECT_EQ(c.tenant("a").prompt_tokens, 12U);
  EXPECT_EQ(c.tenant("a").output_tokens, 5U);
  EXPECT_DOUBLE_EQ(c.tenant("a").counter, (12 + 2 * 5) / 4.0);
  EXPECT_EQ(c.tenant("a").open, 0U);
}

TEST(Charges, WhatIsComputedAgainAfterAPreemptionIsFree) {
  Shares c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, {"a"}, 12, 50);
  c.turn();
  c.answer(w);
  c.turn();
  c.answer(w);
  preempt(c.state, *c.find(1));
  for (int step = 0; step < 3; ++step) {
    c.turn();
    c.answer(w);
  }
  EXPECT_EQ(c.tenant("a").prompt_tokens, 12U);
  EXPECT_EQ(c.tenant("a").output_tokens, c.find(1)->generated.size());
}

TEST(Charges, AnotherAttemptPaysForNothingTwice) {
  Shares c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, {"a"}, 12, 50);
  c.turn();
  c.answer(w);
  c.turn();
  c.answer(w);
  Submit again = c.request(1, 12, 50);
  again.share = {"a"};
  again.attempt = 2;
  again.again = true;
  again.generated = {kWord};
  c.from_frontend(c.frontend, again);
  EXPECT_EQ(c.tenant("a").open, 1U);
  c.turn();
  c.answer(w);
  EXPECT_EQ(c.tenant("a").prompt_tokens, 12U);
  EXPECT_EQ(c.tenant("a").output_tokens, 2U) << "the second token had been paid for";
}

TEST(Charges, WhoComesBackHasSavedNothingUp) {
  Shares c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  for (std::uint64_t i = 1; i <= 12; ++i) c.ask(i, {"busy"}, 20);
  for (int step = 0; step < 6; ++step) {
    c.turn();
    c.answer(w);
  }
  const double busy = c.tenant("busy").counter;
  EXPECT_GT(busy, 100);
  c.ask(21, {"back"}, 20);
  c.ask(22, {"back"}, 20);
  c.ask(23, {"back"}, 20);
  EXPECT_DOUBLE_EQ(c.tenant("back").counter, busy);
  EXPECT_EQ(c.order(), (Order{21, 7, 22, 8, 23, 9, 10, 11, 12}));
}

TEST(Charges, AnEmptyQueueRemembersWhoWasThereLast) {
  Shares c;
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, {"a"}, 20);
  c.turn();
  c.answer(w);
  c.ask(2, {"b"}, 4);
  EXPECT_DOUBLE_EQ(c.tenant("b").counter, 20 + 2);
}

// ---------------------------------------------------------------- prompts under way

TEST(FairPrompts, ALongPromptUnderWayLetsTheLeastTenantPass) {
  Settings settings = fair_settings(8);
  settings.token_budget = 8;
  settings.prompt_chunk = 8;
  Shares c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, {"heavy"}, 100);
  c.turn();
  c.answer(w);
  c.ask(2, {"heavy"}, 8);
  c.ask(3, {"light"}, 8);
  c.turn();
  ASSERT_EQ(c.last_plan(w).rows.size(), 1U);
  EXPECT_EQ(c.phase(3), Phase::prefill);
  EXPECT_EQ(c.phase(2), Phase::waiting) << "a tenant's own prompts go on in their order";
}

TEST(FairPrompts, NobodyHasTwoRowsInAStep) {
  Settings settings = fair_settings(8);
  settings.token_budget = 16;
  settings.prompt_chunk = 4;
  Shares c(settings);
  const LinkId w = c.ready_worker("mixed0", Role::mixed);
  c.ask(1, {"heavy"}, 100);
  c.turn();
  c.answer(w);
  c.ask(2, {"light"}, 40);
  c.turn();
  std::set<SequenceId> named;
  for (const PromptRow& row : c.last_plan(w).rows)
    EXPECT_TRUE(named.insert(row.sequence).second) << "two rows of one sequence";
  EXPECT_EQ(named.size(), 2U);
}

// ---------------------------------------------------------------- bounds

TEST(Tenants, AreBoundedAndTheLeastOfTheIdleIsForgotten) {
  Tenants tenants;
  for (std::size_t i = 1; i < kMaxTenants; ++i) {
    const TenantIndex index = tenants.open({"t" + std::to_string(i)});
    tenants.charge_prompt(index, i == 5 ? 1 : 100);
    if (i != 9) tenants.close(index);
  }
  const TenantIndex late = tenants.open({"late"});
  EXPECT_EQ(late, 5U) << "the one with the least counter";
  EXPECT_EQ(tenants.all().size(), kMaxTenants);
  EXPECT_DOUBLE_EQ(tenants.of(late).counter, 0);
  EXPECT_EQ(tenants.open({"t9"}), 9U) << "who has a request open stays";
}

TEST(Tenants, WhereAllAreBusyANewOneSharesWithThoseWithoutAName) {
  Tenants tenants;
  for (std::size_t i = 1; i < kMaxTenants; ++i) tenants.open({"t" + std::to_string(i)});
  EXPECT_EQ(tenants.open({"late", 9, -3}), kSharedTenant);
  EXPECT_DOUBLE_EQ(tenants.of(kSharedTenant).weight, 1) << "its share is not everybody's";
  EXPECT_EQ(tenants.of(kSharedTenant).priority, 0);
}

TEST(Tenants, SharesOutOfBoundsAreBroughtBack) {
  Tenants tenants;
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_DOUBLE_EQ(tenants.of(tenants.open({"a", inf, 1000})).weight, 1);
  EXPECT_EQ(tenants.of(tenants.open({"a", 0, 1000})).priority, kMaxPriority);
  EXPECT_DOUBLE_EQ(tenants.of(tenants.open({"a", 0})).weight, kLeastTenantWeight);
}

TEST(Tenants, OfAnotherPriorityBeginBesideThoseThatAreThere) {
  Tenants tenants;
  const TenantIndex a = tenants.open({"a", 1, 0});
  tenants.charge_prompt(a, 1000);
  tenants.enter_queue(a, {1, 1});
  tenants.leave_queue(a, {1, 1});
  EXPECT_EQ(tenants.open({"a", 1, -1}), a);
  EXPECT_DOUBLE_EQ(tenants.of(a).counter, 0);
}

TEST(Tenants, ANameThatIsTooLongIsRefused) {
  Shares c;
  c.ask(1, {std::string(kMaxTenantName + 1, 'x')});
  EXPECT_EQ(c.find(1), nullptr);
  EXPECT_EQ(c.state.counters.refused, 1U);
}

}  // namespace
}  // namespace baton::test
