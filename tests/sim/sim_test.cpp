// Ten thousand seeds, each a cluster with its own load, network and blows; this program plays half
// of them, from --first-seed on. BATON_SIM_SEEDS: another number.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <string>

#include "tests/sim/world.h"

namespace baton::sim {
namespace {

std::uint64_t first_seed = 1;

std::uint64_t seed_count() {
  const char* count = std::getenv("BATON_SIM_SEEDS");
  return count != nullptr ? std::strtoull(count, nullptr, 10) : 5'000;
}

/// The same seed again with its last lines of trace.
std::string last_lines(const Scenario& scenario, RunOptions options) {
  std::deque<std::string> lines;
  options.trace = [&](const std::string& line) {
    lines.push_back(line);
    if (lines.size() > 50) lines.pop_front();
  };
  run_scenario(scenario, options);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Simulation, EveryPromiseIsKept) {
  const std::uint64_t seeds = seed_count();
  const RunOptions options;
  std::uint64_t blown = 0;
  int failures = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds && failures < 5; ++seed) {
    const Scenario scenario = draw_scenario(seed);
    const Report report = run_scenario(scenario, options);
    if (report.deaths + report.freezes > 0) ++blown;
    if (report.violation.empty()) {
      EXPECT_GE(report.events, options.events) << "seed " << seed;
      continue;
    }
    ++failures;
    ADD_FAILURE() << "seed " << seed << ": " << report.violation << "\n"
                  << scenario.text() << "\n"
                  << last_lines(scenario, options) << "replay it with: baton-sim --seed " << seed
                  << " --trace";
  }
  if (failures == 0) {
    EXPECT_GE(blown * 2, seeds) << "too few seeds with a death or a freeze";
  }
}

/// Several tenants that all want more than there is: each is given its share, and pays for what it
/// gets once. (Another program plays the other half of the seeds.)
TEST(Simulation, EveryTenantIsGivenItsShare) {
  RunOptions options;
  options.events = 3000;
  int failures = 0;
  std::uint64_t preemptions = 0;
  const std::uint64_t seeds = seed_count() / 50;
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds && failures < 5; ++seed) {
    const Scenario scenario = draw_fair_scenario(seed);
    const Report report = run_scenario(scenario, options);
    preemptions += report.counters.preemptions;
    if (report.violation.empty()) continue;
    ++failures;
    ADD_FAILURE() << "seed " << seed << ": " << report.violation << "\n"
                  << scenario.text() << "\n"
                  << last_lines(scenario, options) << "replay it with: baton-sim --fair --seed "
                  << seed << " --events 3000 --trace";
  }
  // Some seeds have none and others many: what holds for a hundred says nothing of the one to four
  // that a sanitizer's tree plays.
  if (seeds >= 100) {
    EXPECT_GE(preemptions, seeds) << "too few are preempted";
  }
}

TEST(Simulation, OneSeedIsOneRun) {
  std::string first;
  std::string second;
  for (std::string* text : {&first, &second}) {
    RunOptions options;
    options.trace = [text](const std::string& line) { *text += line + "\n"; };
    run_scenario(draw_scenario(first_seed + 6), options);
  }
  EXPECT_GT(first.size(), 10'000U);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace baton::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--first-seed=", 0) == 0) {
      baton::sim::first_seed = std::strtoull(argument.c_str() + 13, nullptr, 10);
    }
  }
  return RUN_ALL_TESTS();
}
