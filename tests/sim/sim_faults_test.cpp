// The test of the test: faults put back on purpose must each be found by the simulation, by the
// seed named here; without them the same seeds must be clean.
//
// A change of what seeds draw moves the faults to other seeds. BATON_FIND_FAULTS=1 looks for each
// (or, with its name, for one) among the first 20,000, or those from BATON_FIND_FROM on, and prints
// the lines of the table. With BATON_FIND_ELASTIC=1 it looks only at seeds in which requests may
// lie in several pools. Others are found by hand (hand_faults_test.cpp), and two by unit tests:
// orphan_after_finish (Ends.AFinishOfALaterAttemptLeavesNoOrphan) and pulls_beside_suspects
// (Death.AWorkerThatRunsASuspectIsNotAskedToMapANewcomersPool).
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "ipc/fault_points.h"
#include "tests/sim/world.h"
#include "tests/unit/scheduler/cached_cluster.h"

namespace baton::sim {
namespace {

#ifndef BATON_FAULTS
#error "the fault points must be compiled in"
#endif

struct Planted {
  Fault fault;
  const char* name;
  std::uint64_t seed;
};

constexpr Planted kPlanted[] = {
    {Fault::release_at_once, "release_at_once", 6},
    {Fault::no_term_check, "no_term_check", 27},
    {Fault::lost_plan_unnoticed, "lost_plan_unnoticed", 56},
    {Fault::block_final_too_early, "block_final_too_early", 9},
    {Fault::piecemeal_reservation, "piecemeal_reservation", 168},
    {Fault::token_sent_twice, "token_sent_twice", 7},
    {Fault::no_copy_on_write, "no_copy_on_write", 15},
    {Fault::block_cached_too_early, "block_cached_too_early", 1},
    {Fault::prefix_not_awaited, "prefix_not_awaited", 2},
    {Fault::prefix_not_held, "prefix_not_held", 6},
    {Fault::copy_not_awaited, "copy_not_awaited", 18},
    {Fault::copied_not_held, "copied_not_held", 6},
    {Fault::pulled_over_unsaved, "pulled_over_unsaved", 45},
    {Fault::grammar_not_awaited, "grammar_not_awaited", 1},
    {Fault::step_room_ignored, "step_room_ignored", 3},
    // Liveness and blame.
    {Fault::slow_pull_lost, "slow_pull_lost", 36},
    {Fault::hung_pull_excused, "hung_pull_excused", 62},
    {Fault::any_progress_clears, "any_progress_clears", 566},
    {Fault::pulls_blame_nobody, "pulls_blame_nobody", 212},
    {Fault::compiles_blame_nobody, "compiles_blame_nobody", 2},
    {Fault::pulls_not_avoided, "pulls_not_avoided", 212},
    {Fault::no_suspects, "no_suspects", 2},
    {Fault::no_late_blame, "no_late_blame", 111},
    {Fault::small_pool_refuses, "small_pool_refuses", 1226},
    {Fault::growth_not_reserved, "growth_not_reserved", 4535},
    {Fault::no_trials, "no_trials", 27},
    // Pools that outlive their workers.
    {Fault::trusted_too_early, "trusted_too_early", 10},
    {Fault::lease_while_writer_lives, "lease_while_writer_lives", 602},
    {Fault::other_layout_kept, "other_layout_kept", 648},
    {Fault::spoiled_pool_kept, "spoiled_pool_kept", 22},
    // Front ends with successors.
    {Fault::no_grace, "no_grace", 21},
    {Fault::inherited_one_short, "inherited_one_short", 20},
    {Fault::orphans_decode_on, "orphans_decode_on", 198},
    {Fault::replaced_link_heard, "replaced_link_heard", 137},
    // Roles that change by themselves.
    {Fault::roles_flap, "roles_flap", 133},
    {Fault::last_decoder_turned, "last_decoder_turned", 229},
    // Where requests' time went.
    {Fault::wait_not_told, "wait_not_told", 2},
    // Windows.
    {Fault::given_back_too_early, "given_back_too_early", 1},
    {Fault::hit_without_window, "hit_without_window", 1},
    // Vectors.
    {Fault::vector_not_kept, "vector_not_kept", 198},
    // Requests over several workers.
    {Fault::foreign_read_unfenced, "foreign_read_unfenced", 1968},
    {Fault::extent_loss_ignored, "extent_loss_ignored", 1337},
    {Fault::chunk_not_awaited, "chunk_not_awaited", 18},
    {Fault::chunk_counted_alone, "chunk_counted_alone", 530},
    {Fault::home_before_its_blocks, "home_before_its_blocks", 219},
    {Fault::gathered_kept, "gathered_kept", 18},
    {Fault::foreign_read_short, "foreign_read_short", 3590},
    {Fault::moved_before_copies, "moved_before_copies", 16703},
    {Fault::last_leaver_forgotten, "last_leaver_forgotten", 182},
    {Fault::given_role_forgotten, "given_role_forgotten", 76},
    {Fault::older_role_kept, "older_role_kept", 14932},
    {Fault::plan_without_limit, "plan_without_limit", 5413},
    {Fault::requests_blamed, "requests_blamed", 11},
    {Fault::lane_loss_ignored, "lane_loss_ignored", 1023},
    {Fault::reserved_kept, "reserved_kept", 54},
    {Fault::reads_kept, "reads_kept", 4109},
    {Fault::unreachable_share, "unreachable_share", 4854},
    {Fault::attempt_reset, "attempt_reset", 20},
    {Fault::fault_unheard, "fault_unheard", 47},
    {Fault::away_is_too_long, "away_is_too_long", 6299},
};

/// Faults of shares: found in scenarios of their own (draw_fair_scenario), since only there nothing
/// but the shares sets one tenant before another.
constexpr Planted kPlantedShares[] = {
    {Fault::return_not_lifted, "return_not_lifted", 4},
    {Fault::replies_not_charged, "replies_not_charged", 372},
    {Fault::charged_again, "charged_again", 2},
};

struct Active {
  explicit Active(Fault which) { active_fault = which; }
  ~Active() { active_fault = Fault::none; }
};

/// What the seed shows with the fault; empty: nothing.
std::string violation_of(Fault which, std::uint64_t seed) {
  const Active active(which);
  const RunOptions options;
  return run_scenario(draw_scenario(seed), options).violation;
}

std::string share_violation_of(Fault which, std::uint64_t seed) {
  const Active active(which);
  RunOptions options;
  options.events = 3000;
  return run_scenario(draw_fair_scenario(seed), options).violation;
}

/// Faults of windows, in a cluster that is played by hand: what its checks find, if they find
/// anything.
std::string window_violation_of(Fault which) {
  const Active active(which);
  testing::TestPartResultArray found;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &found);
    test::Cached c;
    const LinkId w = c.register_worker("mixed0", Role::mixed);
    Hello hello = test::Cluster::hello_of("mixed0", 100);
    hello.windows = {0, 8};
    c.from_worker(w, hello);
    c.ask(1, test::words(60), 2);
    c.run();
    // One block of the window is lost, and the next turn looks at it.
    Store& store = c.worker("mixed0").store;
    store.pool.forget(store.pool.match("", test::words(60), store.shape, 14).blocks[13 * 2 + 1]);
    c.ask(2, test::words(57), 2);
    c.run();
  }
  return found.size() == 0 ? "" : found.GetTestPartResult(0).message();
}

TEST(WindowFaults, AreFoundByHandToo) {
  EXPECT_EQ(window_violation_of(Fault::none), "");
  for (const Fault which : {Fault::given_back_too_early, Fault::hit_without_window}) {
    const std::string violation = window_violation_of(which);
    EXPECT_NE(violation.find("a window looks at a block that is not there"), std::string::npos)
        << violation;
  }
}

/// A prompt over two workers, of which the second one waits in vain for the first one's chunk: too
/// seldom in scenarios for a seed. Empty: what it left was computed again.
std::string waited_in_vain(Fault which) {
  const Active active(which);
  Settings settings;
  settings.elastic = true;
  settings.elastic_prompt_tokens = 20;
  settings.prompt_chunk = 8;
  test::Cluster c(settings);
  std::vector<LinkId> links;
  for (const char* name : {"w0", "w1"}) {
    links.push_back(c.register_worker(name, Role::mixed));
    Hello hello = test::Cluster::hello_of(name, 30);
    hello.reads_in_place = true;
    hello.progress_handle = name;
    c.from_worker(links.back(), hello);
  }
  c.submit(1, 43, 2);
  c.turn();
  const Worker& second = c.state.workers[1];
  if (second.compute.steps.empty()) return "the prompt is not spread";
  StepResult result = c.result_of(second);
  for (const auto& [id, n] : second.compute.steps.front().rows)
    result.failed.push_back({id, "nobody came", false, true});
  c.from_worker(links[1], result);
  c.run();
  if (c.code(1) != ErrorCode::ok) return "the request has failed";
  return c.state.counters.computed_tokens > 43 ? "" : "a chunk that nobody has computed counts";
}

TEST(SpreadFaults, AreFoundByHand) {
  EXPECT_EQ(waited_in_vain(Fault::none), "");
  EXPECT_EQ(waited_in_vain(Fault::failed_chunk_counts), "a chunk that nobody has computed counts");
}

class FaultTest : public testing::TestWithParam<Planted> {};

TEST_P(FaultTest, IsFound) {
  const Planted& planted = GetParam();
  const std::string violation = violation_of(planted.fault, planted.seed);
  EXPECT_FALSE(violation.empty()) << "seed " << planted.seed
                                  << " does not show it; see BATON_FIND_FAULTS";
  std::printf("found by seed %llu: %s\n", static_cast<unsigned long long>(planted.seed),
              violation.c_str());
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultTest, testing::ValuesIn(kPlanted),
                         [](const auto& test) { return test.param.name; });

class ShareFaultTest : public testing::TestWithParam<Planted> {};

TEST_P(ShareFaultTest, IsFound) {
  const Planted& planted = GetParam();
  const std::string violation = share_violation_of(planted.fault, planted.seed);
  EXPECT_NE(violation.find("tenant"), std::string::npos)
      << "seed " << planted.seed << " does not show it: " << violation;
  EXPECT_EQ(share_violation_of(Fault::none, planted.seed), "");
  std::printf("found by seed %llu: %s\n", static_cast<unsigned long long>(planted.seed),
              violation.c_str());
}

INSTANTIATE_TEST_SUITE_P(Faults, ShareFaultTest, testing::ValuesIn(kPlantedShares),
                         [](const auto& test) { return test.param.name; });

TEST(NoFault, TheSameSeedsAreClean) {
  for (const Planted& planted : kPlanted) {
    EXPECT_EQ(violation_of(Fault::none, planted.seed), "") << "seed " << planted.seed;
  }
}

/// Seeds that once showed faults of Baton itself: searches of beams computed again and again, a
/// wait for a pool that was lost unseen or waited for one after the other, two suspects that took
/// each other's blocks, trials with a scheduler that was dead already, a lent worker that went home
/// though nobody else was left who decoded.
TEST(NoFault, SeedsThatShowedFaultsAreClean) {
  for (const std::uint64_t seed :
       {500103U, 503215U, 503609U, 507634U, 4156U, 903086U, 31107U, 1406U, 3603329U, 3106293U,
        3606574U, 3414476U, 3322929U, 3624862U}) {
    EXPECT_EQ(violation_of(Fault::none, seed), "") << "seed " << seed;
  }
}

TEST(NoFault, FindThemAnew) {
  const char* which = std::getenv("BATON_FIND_FAULTS");
  if (which == nullptr) GTEST_SKIP() << "only when asked for";
  const auto find = [&](const Planted& planted, auto&& violation_of) {
    if (std::string(which) != "1" && std::string(which) != planted.name) return;
    const char* from = std::getenv("BATON_FIND_FROM");
    const std::uint64_t first = from == nullptr ? 1 : std::strtoull(from, nullptr, 10);
    std::uint64_t seed = first;
    std::string violation;
    const bool elastic = std::getenv("BATON_FIND_ELASTIC") != nullptr;
    for (; seed < first + 20'000; ++seed) {
      if (elastic && !draw_scenario(seed).settings.elastic) continue;
      if (!(violation = violation_of(planted.fault, seed)).empty()) break;
    }
    std::printf("    {Fault::%s, \"%s\", %llu},  // %s\n", planted.name, planted.name,
                static_cast<unsigned long long>(seed), violation.c_str());
    std::fflush(stdout);
  };
  for (const Planted& planted : kPlanted) find(planted, violation_of);
  for (const Planted& planted : kPlantedShares) find(planted, share_violation_of);
}

}  // namespace
}  // namespace baton::sim
