// The test of the test: faults put back on purpose must each be found by the simulation, and
// without them the same seeds must be clean.
#include <gtest/gtest.h>

#include "ipc/fault_points.h"
#include "tests/sim/world.h"

namespace baton::sim {
namespace {

#ifndef BATON_FAULTS
#error "the fault points must be compiled in"
#endif

constexpr std::uint64_t kSeeds = 1500;

struct Active {
  explicit Active(Fault which) { active_fault = which; }
  ~Active() { active_fault = Fault::none; }
};

/// The first seed that shows the fault; 0 if none does.
std::uint64_t found_by(Fault which, std::string& violation) {
  const Active active(which);
  RunOptions options;
  options.patience = 30 * kSecond;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Report report = run_scenario(draw_scenario(seed), options);
    violation = report.violation;
    if (!violation.empty()) return seed;
  }
  return 0;
}

class FaultTest : public testing::TestWithParam<Fault> {};

TEST_P(FaultTest, IsFound) {
  std::string violation;
  const std::uint64_t seed = found_by(GetParam(), violation);
  EXPECT_NE(seed, 0U) << "not found in " << kSeeds << " seeds";
  if (seed != 0) RecordProperty("found", "seed " + std::to_string(seed) + ": " + violation);
  std::printf("found by seed %llu: %s\n", static_cast<unsigned long long>(seed), violation.c_str());
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultTest,
                         testing::Values(Fault::release_at_once, Fault::no_term_check,
                                         Fault::lost_plan_unnoticed, Fault::block_final_too_early,
                                         Fault::piecemeal_reservation, Fault::token_sent_twice,
                                         Fault::no_copy_on_write, Fault::block_cached_too_early,
                                         Fault::prefix_not_awaited, Fault::prefix_not_held,
                                         Fault::copy_not_awaited, Fault::copied_not_held,
                                         Fault::pulled_over_unsaved, Fault::grammar_not_awaited),
                         [](const auto& test) {
                           switch (test.param) {
                             case Fault::none:
                               break;
                             case Fault::no_suspects:
                               return "NoSuspects";
                             case Fault::release_at_once:
                               return "ReleaseAtOnce";
                             case Fault::no_term_check:
                               return "NoTermCheck";
                             case Fault::lost_plan_unnoticed:
                               return "LostPlanUnnoticed";
                             case Fault::block_final_too_early:
                               return "BlockFinalTooEarly";
                             case Fault::piecemeal_reservation:
                               return "PiecemealReservation";
                             case Fault::block_cached_too_early:
                               return "BlockCachedTooEarly";
                             case Fault::prefix_not_awaited:
                               return "PrefixNotAwaited";
                             case Fault::prefix_not_held:
                               return "PrefixNotHeld";
                             case Fault::copy_not_awaited:
                               return "CopyNotAwaited";
                             case Fault::copied_not_held:
                               return "CopiedNotHeld";
                             case Fault::pulled_over_unsaved:
                               return "PulledOverUnsaved";
                             case Fault::grammar_not_awaited:
                               return "GrammarNotAwaited";
                             case Fault::token_sent_twice:
                               return "TokenSentTwice";
                             case Fault::no_copy_on_write:
                               return "NoCopyOnWrite";
                           }
                           return "None";
                         });

TEST(NoFault, TheSameSeedsAreClean) {
  std::string violation;
  EXPECT_EQ(found_by(Fault::none, violation), 0U) << violation;
}

}  // namespace
}  // namespace baton::sim
